from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kstore.components import Component, load_table
from kstore.components.table import Kinds, Patterns, method_of, parse_table, table_version
from kstore.errors import UsageError
from kstore.published.manifest import Flag

HEX = "3f2a" * 16
BASE32 = "KVIMKGUDQ25L5SZV2TJMBXN2FRW6FXYNHHRCNVZZXFPOPLX7CUXQ"
BASE64 = "X6ZgAXqfMhh1nvGNQ-eHtZeWF2Jc9N-YriqJDbBGx3I"  # Triton 3.2


@pytest.fixture
def inductor() -> Component:
    return load_table()["inductor"]


@pytest.fixture
def triton() -> Component:
    return load_table()["triton"]


# ---- Patterns are those of .gitignore


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.lock", "a.lock", True),
        ("*.lock", "deep/down/a.lock", True),
        ("*.lock", "a.lock/", False),
        ("*.lock", "a.locked", False),
        ("lock", "sub/lock", True),
        ("lock", "sub/unlock", False),
        ("locks/", "locks/", True),
        ("locks/", "sub/locks/", True),
        ("locks/", "locks", False),
        ("/locks/", "locks/", True),
        ("/locks/", "sub/locks/", False),
        ("cache/*", "cache/one", True),
        ("cache/*", "sub/cache/one", False),
        ("cache/*", "cache/sub/one", False),
        ("cache/**", "cache/sub/one", True),
        ("**/fxgraph/*/*/", "fxgraph/ab/key/", True),
        ("**/fxgraph/*/*/", "deep/down/fxgraph/ab/key/", True),
        ("**/fxgraph/*/*/", "fxgraph/key/", False),
        ("a/**/b", "a/b", True),
        ("a/**/b", "a/x/y/b", True),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("a.c", "abc", False),
        ("*", "anything", True),
        ("*", "deep/anything", True),
        ("/*/", "folder/", True),
        ("/*/", "deep/folder/", False),
        ("*.py", "new\nline.py", True),
        ("core.[0-9]*", "sub/core.12345", True),
        ("core.[0-9]*", "core.cubin", False),
        ("core.[0-9]*", "core.", False),
        ("x_[0-9a-f]*", "x_e1", True),
        ("x_[0-9a-f]*", "x_kernels", False),
        ("[ab]", "a", False),
    ],
)
def test_patterns(pattern: str, path: str, matches: bool) -> None:
    assert Patterns([pattern]).matches(path) is matches


def test_any_of_several_patterns_matches_and_none_matches_nothing() -> None:
    assert Patterns(["*.a", "*.b"]).matches("x.b")
    assert not Patterns(["*.a", "*.b"]).matches("x.c")
    assert not Patterns([]).matches("")
    assert not Patterns([]).matches("x")


PATTERNS = st.lists(
    st.lists(st.sampled_from(["a", "b", ".", "*", "?", "/", "**/"]), min_size=1, max_size=6).map("".join), min_size=1
)
PATHS = st.lists(st.text("ab.\n", min_size=1), min_size=1).map("/".join)


@given(rules=st.lists(PATTERNS, min_size=1, max_size=4), path=PATHS)
@example(rules=[["a**/b", "*.b"], ["**/a/**/*.b"]], path="a/x/a/a.b")
@example(rules=[["b**/a**/**/*a**"]], path="ba/a.b")
def test_one_match_tells_what_each_rule_of_single_files_says(rules: list[list[str]], path: str) -> None:
    flags = [Flag.GROUP, Flag.SLOT, Flag.HOST, Flag.BELOW]  # None of these flags changes what another one means.
    said = [(Patterns(patterns), int(flag)) for patterns, flag in zip(rules, flags, strict=False)]
    assert Kinds(said).of(path, 0, 0).flags == sum(flag for patterns, flag in said if patterns.matches(path))


@given(path=PATHS)
@example(path="ab/c.lock")
@example(path="tmp.pid_12_0f1e/")
def test_what_is_ignored_or_shows_a_writer_is_unusual_and_nothing_else(path: str) -> None:
    for component in load_table().values():
        assert component.kind(path, 0, 0).is_unusual == (component.ignores(path) or component.is_busy(path))


# ---- The table itself


def test_every_component_has_a_variable_and_a_folder_of_its_own() -> None:
    table = load_table()
    assert list(table)[:2] == ["inductor", "triton"]
    for name, component in table.items():
        assert component.name == name
        assert component.title
        assert component.variable.isupper()
        assert component.default or name == "jax"  # JAX keeps nothing unless it is told where.
        assert "{folder}" in component.value
    variables = [component.variable for component in table.values()]
    assert len(set(variables)) == len(variables)


def test_every_component_ignores_locks_and_temporary_files() -> None:
    for component in load_table().values():
        assert component.ignores("sub/x.lock"), component.name
        assert component.ignores("sub/x.tmp"), component.name


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(UsageError, match="ignroe"):
        parse_table('[x]\nvariable = "X"\nignroe = ["*"]\n')


def test_the_version_of_the_table_is_stable() -> None:
    assert table_version() == table_version()
    assert len(table_version()) == 16


# ---- Inductor

LINK, MERGE, RELOCATE, HOST = Flag.LINK, Flag.MERGE, Flag.RELOCATE, Flag.HOST


@pytest.mark.parametrize(
    ("path", "flags"),
    [
        (f"ab/c{HEX}.py", LINK),
        (f"ab/{HEX}.best_config", LINK),
        (f"ab/c{HEX}.main.cpp", LINK),
        (f"ab/c{HEX}.optimized.cpp", LINK),
        (f"ab/c{HEX}.cpp", LINK),
        (f"ab/c{HEX}.h", LINK),
        (f"ab/c{HEX}.main.so", LINK | HOST),
        (f"ab/c{HEX}.so", LINK | HOST),
        (f"ab/c{HEX}.o", LINK | HOST),
        (f"ab/c{HEX}.cubin", LINK),
        (f"cache/{HEX}", MERGE),
        (f"dynamo/{HEX}/entry", LINK),
        ("dynamo/code_state_job_0_tag.pkl", 0),
        (f"ab/c{HEX}.cu", 0),
        (f"cutedsl_compile_cache/{HEX}.o", HOST),
        (f"flydsl_compile_cache/gemm/{HEX}.pkl", LINK),
        ("ab/model_metadata.json", 0),
        ("something/unknown.bin", 0),
    ],
)
def test_files_of_inductor(inductor: Component, path: str, flags: int) -> None:
    assert not inductor.ignores(path)
    assert Flag(inductor.kind(path, 0, 0).flags) == Flag(flags)


@pytest.mark.parametrize(
    "path",
    [
        # AotCodeCompiler.compile
        "ab/custom_objs_config.json",
        "ab/kernel_information.json",
        f"ab/c{HEX}/CMakeLists.txt",
        # CUTLASSCodeCache.compile, cutedsl_cache.disk_cache_get
        f"ab/c{HEX}.cu",
        f"cutedsl_compile_cache/{HEX}.o",
    ],
)
def test_what_torch_opens_for_writing_again_is_never_linked(inductor: Component, path: str) -> None:
    assert not inductor.kind(path, 0, 0).flags & LINK


@pytest.mark.parametrize(
    "path",
    [
        "locks/",
        "locks/cabc.lock",
        "dynamo/code_state.lock",
        f"ab/.123.140.{HEX}.tmp",
        f"ab/c{HEX}_CxxBuild/",
        f"ab/c{HEX}.so.error",
        f"ab/c{HEX}.o.error",
        "torch_cutlass/",
        "torch_cutlass_library/",  # try_import_cutlass in torch 2.6 and 2.7
        "memoizer_cache.json",
        "configs_0a1b.json",
        "aoti_eager/",
        "autoheuristic/",
        "unhashed_kernel_inputs/",
        "compiler_bisector_status.txt",
        "tmpabc123.py",
        "tmpx8f2/",
        "triton/0/tmp.1f2e/",
        f"cutedsl_compile_cache/{HEX}.o.tmp",
        f"quack/{HEX}/{HEX}.o.tmp.4711",  # jit_cache in torch._vendor.quack
        "precompiled_headers/",
        "inductor_const_spill_4711_140234711123456",
        # AotCodeCompiler.compile: these files are built anew at every export.
        *(f"ab/c{HEX}.{suffix}" for suffix in ("wrapper.cpp", "kernel.cpp", "wrapper.json", "wrapper.so", "kernel.o")),
        *(f"ab/c{HEX}.{half}_metadata.json" for half in ("wrapper", "kernel")),
        *(f"ab/c{HEX}.wrapper_{what}_flags.json" for what in ("compile", "linker")),
        f"ab/c{HEX}.wrapper_serialized_weights.bin",
        "ab/model.wrapper.cpp",
        f"c{HEX[:51]}/",  # the folder of an export (compile_fx_aot)
        "core",
        "core.12345",
    ],
)
def test_what_inductor_leaves_lying_about_is_ignored(inductor: Component, path: str) -> None:
    assert inductor.ignores(path)


@pytest.mark.parametrize("folder", ["fxgraph/bc/fabcdef/", "aotautograd/aabcdef/"])
def test_the_answers_to_one_graph_key_are_a_slot(inductor: Component, folder: str) -> None:
    assert inductor.unit(folder) == Flag.SLOT
    kind = inductor.kind(f"{folder}{BASE32}", Flag.SLOT, folder.count("/"))
    assert Flag(kind.flags) == LINK | Flag.SLOT
    assert kind.unit == folder.count("/") + 1


def test_a_triton_kernel_below_inductor_is_a_group(inductor: Component) -> None:
    assert inductor.unit(f"triton/0/{BASE32}/") == Flag.GROUP
    kind = inductor.kind(f"triton/0/{BASE32}/k.cubin", Flag.GROUP, 3)
    assert (Flag(kind.flags), kind.unit) == (LINK | Flag.GROUP, 4)


@pytest.mark.parametrize("name", [BASE32, BASE64])
def test_a_triton_kernel_is_a_group_also_if_its_folder_is_inductors(inductor: Component, name: str) -> None:
    assert inductor.unit(f"{name}/") == Flag.GROUP


@pytest.mark.parametrize("folder", ["halide-runtime-host-0a1b/", f"ab/c{HEX}.halide/"])
def test_what_halide_has_built_is_a_group_that_its_mark_completes(inductor: Component, folder: str) -> None:
    assert inductor.unit(folder) == Flag.GROUP
    assert inductor.completes(f"{folder}done")
    for name in ("done", "hooks.cpp", "halide_kernel.h"):
        assert not inductor.kind(f"{folder}{name}", Flag.GROUP, 1).flags & LINK


@pytest.mark.parametrize("folder", ["ab/", "fxgraph/", "fxgraph/bc/", "aotautograd/", "triton/", "triton/0/", "cache/"])
def test_other_folders_of_inductor_are_neither_groups_nor_ignored(inductor: Component, folder: str) -> None:
    assert inductor.unit(folder) == 0
    assert not inductor.ignores(folder)


def test_the_lock_of_a_shared_object(inductor: Component) -> None:
    assert inductor.method("lock", f"ab/c{HEX}.main.so") == "{folder}/../locks/{stem}.lock"
    assert inductor.method("lock", f"quack/{HEX}/{HEX}.o") == "{folder}/{stem}.lock"  # jit_cache in torch._vendor.quack
    assert inductor.method("lock", f"ab/c{HEX}.py") is None


# ---- Triton


def test_a_kernel_of_triton_is_a_group(triton: Component) -> None:
    assert triton.unit(f"{BASE32}/") == Flag.GROUP
    assert triton.unit(f"{BASE32}/sub/") == 0


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        *((f"k.{suffix}", LINK) for suffix in ("source", "ttir", "ttgir", "llir", "ptx", "cubin", "json", "hsaco")),
        ("__grp__k.json", RELOCATE),
        ("cuda_utils.cpython-311-x86_64-linux-gnu.so", LINK | HOST),
        ("__triton_launcher.cpython-311-x86_64-linux-gnu.so", LINK | HOST),
        ("kernel.autotune.json", LINK),
    ],
)
def test_files_of_triton(triton: Component, name: str, flags: int) -> None:
    assert not triton.ignores(f"{BASE32}/{name}")
    assert Flag(triton.kind(f"{BASE32}/{name}", 0, 0).flags) == Flag(flags)


@pytest.mark.parametrize("function", ["core", "tmp", "lock", "locks", "error"])
def test_a_kernel_may_be_called_as_anything(inductor: Component, triton: Component, function: str) -> None:
    for suffix in ("source", "ttir", "ttgir", "llir", "ptx", "cubin", "json", "hsaco", "autotune.json"):
        assert not triton.ignores(f"{BASE32}/{function}.{suffix}")
        assert not inductor.ignores(f"triton/0/{BASE32}/{function}.{suffix}")


@pytest.mark.parametrize("name", ["lock", "core", "core.12345", "k.ptx.tmp.pid_12_0f1e", "tmp.pid_12_0f1e/"])
def test_what_triton_leaves_lying_about_is_ignored(triton: Component, name: str) -> None:
    assert triton.ignores(f"{BASE32}/{name}")


@pytest.mark.parametrize("name", ["__grp__k.json", "cuda_utils.cpython-311.so", "kernel.autotune.json"])
def test_what_completes_a_kernel(triton: Component, name: str) -> None:
    assert triton.completes(name)


@pytest.mark.parametrize("name", ["k.cubin", "k.json", "k.ptx"])
def test_what_does_not_complete_a_kernel(triton: Component, name: str) -> None:
    assert not triton.completes(name)


def test_a_kernel_that_is_being_written(triton: Component) -> None:
    assert triton.is_busy("tmp.pid_12_0f1e/")
    assert triton.ignores(f"{BASE32}/tmp.pid_12_0f1e/")
    assert triton.is_busy("k.ptx.tmp.pid_12_0f1e")
    assert not triton.is_busy("k.ptx")


KERNELS = [
    ("triton", BASE32),
    ("inductor", f"triton/0/{BASE32}"),
    ("inductor", f"helion/triton/0/{BASE32}"),
    ("helion", f"triton/0/{BASE32}"),
    ("sglang", f"triton/{BASE32}"),
    ("sglang", f"torch_compile_cache/abc/rank_0_0/triton_cache/{BASE32}"),
    ("vllm", f"torch_compile_cache/abc/rank_0_0/triton_cache/{BASE32}"),
    ("vllm", f"rocm_segmented_attention/triton/{BASE32}"),
]
"""Everywhere that a kernel of Triton's may be: a component, and a folder in it."""


@pytest.mark.parametrize(("name", "folder"), KERNELS)
def test_a_kernel_of_triton_is_one_unit_wherever_it_is(name: str, folder: str) -> None:
    component = load_table()[name]
    assert component.unit(f"{folder}/") == Flag.GROUP
    for file in ("__grp__k.json", "cuda_utils.so", "k.autotune.json"):
        assert component.completes(f"{folder}/{file}")
    assert not component.completes(f"{folder}/k.cubin")
    being_written = f"{folder}/tmp.pid_12_0f1e/"
    assert component.is_busy(being_written)
    assert component.ignores(being_written)


@pytest.mark.parametrize(("name", "folder"), KERNELS)
def test_the_files_of_a_kernel_of_triton_are_stored_alike_wherever_it_is(name: str, folder: str) -> None:
    """Its list without the folder's path, its library for hosts like the builder's, machine code linked."""
    component = load_table()[name]
    flags = {file: Flag(component.kind(f"{folder}/{file}", 0, 0).flags) for file in ("__grp__k.json", "cuda_utils.so")}
    assert flags["__grp__k.json"] & (RELOCATE | LINK) == RELOCATE
    assert component.method("relocate", f"{folder}/__grp__k.json") == "triton_group"
    assert flags["cuda_utils.so"] & HOST
    for suffix in ("source", "ttir", "ttgir", "llir", "ptx", "cubin"):
        assert Flag(component.kind(f"{folder}/k.{suffix}", 0, 0).flags) == LINK


# ---- The others


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("inductor", f"ab/c{HEX}.a"),
        ("inductor", f"ab/c{HEX}.so.load_ok"),
        ("vllm", "torch_compile_cache/abc/rank_0_0/inductor_cache/ab/c1.main.so"),
        ("vllm", "torch_compile_cache/torch_aot_compile/abc/rank_0_0/c1.so"),
        ("vllm", "torch_compile_cache/torch_aot_compile/abc/rank_0_0/c1.o"),
        ("sglang", "inductor/ab/c1.main.so"),
        ("sglang", "inductor/ab/c1.o"),
        ("sglang", "rust_extensions/artifacts/one.so"),
        ("sglangjit", "ab/cd/build-1/deps-2/one.so"),
        ("flashinfer", "0.7.4/90a/cached_ops/op/op.so"),
        ("flashinfer", "0.7.4/90a/cached_ops/op/op.o"),
        ("deepgemm", "cache/kernel/kernel.so"),
        ("tilelang", f"kernels/{HEX}/kernel_lib.so"),
        ("cutedsl", "one.so"),
        ("helion", "cute/0/one.o"),
        ("extensions", "py311_cu130/one/one.so"),
        ("extensions", "py311_cu130/one/one.o"),
        ("tvmffi", "one_0a1b/one.so"),
        ("tvmffi", "one_0a1b/one.o"),
        ("cupy", "one.so"),
    ],
)
def test_code_for_the_processor_is_for_hosts_like_its_builders(name: str, path: str) -> None:
    assert load_table()[name].kind(path, 0, 0).flags & HOST


@pytest.mark.parametrize("folder", ["fxgraph/bc/fabcdef/", "aotautograd/aabcdef/"])
def test_the_answers_to_one_graph_key_are_a_slot_also_where_sglang_puts_them(folder: str) -> None:
    assert load_table()["sglang"].unit(f"inductor/{folder}") == Flag.SLOT


@pytest.mark.parametrize("name", ["extensions", "tvmffi"])
def test_ninjas_log_is_of_use_only_beside_the_same_sources(name: str) -> None:
    assert load_table()[name].method("relocate", "one/.ninja_log") == "ninja_log"


@pytest.mark.parametrize("name", ["kernel.cubin", "kernel.so"])
def test_a_kernel_of_deepgemm_is_a_group_that_its_code_completes(name: str) -> None:
    deepgemm = load_table()["deepgemm"]
    assert deepgemm.unit("cache/kernel/") == Flag.GROUP
    assert deepgemm.completes(f"cache/kernel/{name}")
    assert not deepgemm.completes("cache/kernel/kernel.cu")


@pytest.mark.parametrize("name", ["params.json", "params.pkl", "metadata.json"])
def test_what_completes_a_kernel_of_tilelang(name: str) -> None:
    assert load_table()["tilelang"].completes(f"kernels/{HEX}/{name}")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("cutedsl", "tmp.pid_12_0f1e/"),  # save_ir in cutlass.base_dsl.cache_helpers
        ("cutedsl", "cute_dsl_0f1e.json.tmp.12"),  # _persist_to_disk in helion.runtime.cute.launcher
        ("helion", "tmp.0f1e2d3c"),  # LocalAutotuneCache.put
        ("helion", "cute/0/tmp.pid_12_0f1e/"),
        ("helion", "cute/0/cute_dsl_0f1e.json.tmp.12"),
        ("inductor", "helion/tmp.0f1e2d3c"),
        ("inductor", "gcc/"),  # install_gcc_via_conda
        ("tilelang", f"0.1.15/linux-x86_64/kernels/{HEX}/.kernel.12_0f1e.tmp.cubin"),  # _save_cubin_to_cache_if_needed
        ("tilelang", f"0.1.15/linux-x86_64/kernels/{HEX}/kernel.cubin.staging.0f1e2d3c/"),  # CUBIN_GEN_CODE_TEMPLATE
        ("tilelang", "py-cache/"),  # disk_compile, at every start
        ("flashinfer", "0.7.4/90a/cached_ops/blackwell_0f1e/kernel.12.tmp.cubin"),  # moe_ep's session
        ("flashinfer", "0.7.4/90a/cached_ops/kda_tirx_0f1e/tmp_0f1e2d3/"),  # TemporaryDirectory in kda_kernels
        ("flashinfer", "0.7.4/120f/autotune/tmp_0f1e2d3"),  # _sparse_mla_sm120._calibration
        ("sglang", f"cute_aot/{HEX}/fwd/.{HEX}.tmp.o"),  # JITPersistentCache._try_export_to_storage
        ("sglang", f"cute_aot/{HEX}/fwd/.{HEX}.tmp.h"),
        ("sglang", ".staging-0f1e/"),
        *((name, path) for name in ("sglang", "vllm") for path in ("locks/", "inductor/tmp.0f1e/", "ab/c1_CxxBuild/")),
        ("vllm", "dummy_cache/"),
        ("vllm", "xla_cache/"),
        ("flashinfer", "0.7.4/90a/autotune/choices.json.tmp.12"),
        ("flashinfer", "0.7.4/90a/flashinfer_jit.log"),
        ("tilelang", "tmp/"),
        ("tilelang", ".staging/"),
        *((name, "sub/__pycache__/") for name in ("flashinfer", "tilelang", "helion")),
    ],
)
def test_what_they_have_not_written_yet_or_downloaded_is_ignored(name: str, path: str) -> None:
    assert load_table()[name].ignores(path)


# What is changed in place is never linked


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("vllm", "torch_compile_cache/abc/rank_0_0/backbone/vllm_compile_cache.py"),
        ("vllm", "torch_compile_cache/abc/rank_0_0/backbone/computation_graph.py"),
        ("sglang", "sglang_compile_cache.py"),
        ("flashinfer", "0.7.2/90a/cached_ops/op/.ninja_log"),
        ("cutedsl", "abc.o"),
        ("extensions", "py311_cu130/ext/build.ninja"),
        ("tvmffi", "twice_0a1b/twice.so"),
        ("cuda", "0/1/abcdef"),
        ("tunableop", "tunableop_results0.csv"),
        ("tilelang", "kernels/abc/kernel.cu"),
    ],
)
def test_what_is_changed_in_place_is_never_linked(name: str, path: str) -> None:
    assert not load_table()[name].kind(path, 0, 0).flags & LINK


@pytest.mark.parametrize("name", ["flashinfer", "extensions", "tvmffi"])
def test_times_matter_to_ninja(name: str) -> None:
    assert load_table()[name].kind("ext/build.ninja", 0, 0).flags & Flag.MTIME
    assert load_table()[name].ignores("ext/lock")


def test_vllm_keeps_its_inductor_and_triton_caches_below_its_own() -> None:
    vllm = load_table()["vllm"]
    below = "torch_compile_cache/abc/rank_0_0"
    assert vllm.unit(f"{below}/inductor_cache/fxgraph/bc/fabc/") == Flag.SLOT
    assert vllm.unit(f"{below}/inductor_cache/aotautograd/aabc/") == Flag.SLOT
    assert vllm.unit(f"{below}/triton_cache/{BASE32}/") == Flag.GROUP
    assert vllm.ignores("modelinfos/")


def test_only_tunableop_names_a_file() -> None:
    assert [name for name, component in load_table().items() if not component.is_folder] == ["tunableop"]


def test_no_named_rule_says_anything_about_a_component_that_this_version_does_not_know() -> None:
    assert method_of(load_table(), "merge", "unknown/file") is None
