"""FlashInfer's operations: ninja goes by times, and would load what was built with another worker's flags."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kstore.components import load_table
from kstore.environment import Host
from tests.components.units import NeverMixed
from tests.ninja import ENVIRON, needs
from tests.trees import Node, contents, held, on_host, shared_object

ARCHITECTURE = "flashinfer/.cache/flashinfer/0.7.2/90a"
OPERATION = f"{ARCHITECTURE}/cached_ops/decode_f16"
LOCK = f"{ARCHITECTURE}/cached_ops/tmp/decode_f16.lock"
"""The lock of the operation's name (`JitSpec.lock_path`)."""
SOURCE = f"{ARCHITECTURE}/generated/decode_f16/decode.cu"
CUTE_DSL = f"{ARCHITECTURE}/cached_ops/quantize_sm90a_cute_dsl"


@pytest.fixture(autouse=True)
def known(host: Host) -> None:
    """A host that is known without running the compiler."""


def build(node: Node, compiler: str, linker: str = "1") -> None:
    """Write what `JitSpec.build` leaves of an operation with one source, built with those flags."""
    node.tree.put(LOCK, b"")
    node.tree.put(f"{OPERATION}/.ninja_deps", b"headers")
    node.tree.put(f"{OPERATION}/.ninja_log", f"{compiler} {linker}".encode())
    node.tree.put(f"{OPERATION}/csrc_decode.cuda.o", shared_object() + compiler.encode())
    node.tree.put(f"{OPERATION}/decode_f16.so", shared_object() + f"{compiler} {linker}".encode())


def built(node: Node) -> dict[str, bytes]:
    return contents(node.tree.root / OPERATION)


def generate_and_build(node: Node, source: str, flag: str = "1") -> str:
    """What FlashInfer does when an operation is first used, with a compiler that copies. Returns ninja's output."""
    code = node.tree.root / SOURCE
    text = shared_object() + source.encode()
    if not code.exists() or code.read_bytes() != text:  # `write_if_different`
        node.tree.put(SOURCE, text, age=0)
    folder = node.tree.root / OPERATION
    rules, built = folder / "build.ninja", folder / "decode_f16.so"
    if not rules.exists():  # `JitSpec.build`
        folder.mkdir(parents=True, exist_ok=True)
        rules.write_text(f"rule compile\n  command = cp $in $out && : {flag}\nbuild {built}: compile {code}\n")
    command = ["ninja", "-C", folder, "-f", rules]
    return subprocess.run(command, env=ENVIRON, check=True, capture_output=True, text=True).stdout


needs_ninja = needs()


@needs_ninja
def test_an_operation_is_built_once_for_all_workers_with_the_same_cache_root(tmp_path: Path) -> None:
    node = Node(tmp_path)
    generate_and_build(node, "source")
    node.commit()
    shutil.rmtree(node.tree.root)
    node.restore()
    assert "no work to do" in generate_and_build(node, "source")


@needs_ninja
@pytest.mark.parametrize(("source", "flag"), [("another source", "1"), ("source", "2")])
def test_an_operation_of_other_sources_or_flags_is_built_anew(tmp_path: Path, source: str, flag: str) -> None:
    node = Node(tmp_path)
    generate_and_build(node, "source")
    node.commit()
    shutil.rmtree(node.tree.root)
    node.restore()
    assert "no work to do" not in generate_and_build(node, source, flag)
    assert node.tree.read(f"{OPERATION}/decode_f16.so").endswith(source.encode())


@needs_ninja
def test_in_another_cache_root_it_is_built_there(tmp_path: Path) -> None:
    builder, node = Node(tmp_path, "builder"), Node(tmp_path, "node")
    generate_and_build(builder, "source")
    builder.commit()
    shutil.rmtree(builder.tree.root)
    node.restore()
    generate_and_build(node, "source")
    assert not builder.tree.root.exists()


def test_sources_and_objects_of_unlike_hosts_are_never_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each host gets its own files, though other sources were published first."""
    for name in "ab":
        on_host(monkeypatch, name)
        node = Node(tmp_path, name)
        node.tree.put(SOURCE, f"source of {name}".encode())
        build(node, name)
        node.commit()
    other = Node(tmp_path, "other")
    other.restore()
    assert other.tree.read(SOURCE) == b"source of b"
    assert built(other) == built(node)


def test_sources_of_two_workers_are_never_mixed(tmp_path: Path) -> None:
    first, second, other = (Node(tmp_path, name) for name in ("first", "second", "other"))
    for node, names in ((first, "ab"), (second, "bc")):
        for name in names:
            node.tree.put(SOURCE.replace("decode.cu", f"{name}.inc"), f"{names}".encode())
        node.commit()
    other.restore()
    assert contents(other.tree.root) == contents(first.tree.root)


class TestFlagsOfCompilerAndLinker(NeverMixed):
    files = 4
    build, built = staticmethod(build), staticmethod(built)


def test_one_that_is_not_linked_yet_waits_for_the_next_commit(tmp_path: Path) -> None:
    node = Node(tmp_path)
    build(node, "1")
    library = node.tree.root / OPERATION / "decode_f16.so"
    library.unlink()
    assert node.commit().new_files == 0
    build(node, "1")
    assert node.commit().new_files == 4


def test_one_whose_lock_is_held_waits_for_the_next_commit(tmp_path: Path) -> None:
    node = Node(tmp_path)
    build(node, "1")
    with held(node.tree.root / LOCK):
        assert node.commit().new_files == 0
    assert node.commit().new_files == 4


def test_one_that_ninja_still_builds_waits_though_nobody_holds_the_lock(tmp_path: Path) -> None:
    """Ninja outlives the process that was killed."""
    node = Node(tmp_path)
    build(node, "1")
    ninja = node.tree.put(f"{OPERATION}/.ninja_lock", b"", age=0)
    assert node.commit().new_files == 0
    node.tree.put(ninja, b"", age=7200)  # Ninja was killed, too.
    assert node.commit().new_files == 4


def test_kernels_of_its_cute_dsl_are_complete_with_what_they_were_compiled_from(tmp_path: Path) -> None:
    node, other = Node(tmp_path), Node(tmp_path, "other")
    node.tree.put(f"{CUTE_DSL}/quantize_f16.o", shared_object())
    assert node.commit().new_files == 0
    node.tree.put(f"{CUTE_DSL}/meta.json", b'{"arch": "sm90a"}')
    assert node.commit().new_files == 2
    other.restore()
    assert contents(other.tree.root / CUTE_DSL) == contents(node.tree.root / CUTE_DSL)


@pytest.mark.parametrize(
    "path",
    [
        "cake_gdn/sm_100a/prefill-0f1e2d3c.cubin",  # _compile_cubin in jit.cake_gdn
        "kda_ptx/chain-0f1e2d3c-ptxas13.2.sm_103a.cubin",  # _cubin in kda_kernels.ptx.static_runtime
        "_flash_kda_nvrtc_cubins/0f1e2d3c.cubin",  # prepare_generated_flash_kda_cubin
        "cake_fmha_request_ordered/decode_0f1e/decode.cubin",
    ],
)
def test_machine_code_alone_is_published(tmp_path: Path, path: str) -> None:
    node, other = Node(tmp_path), Node(tmp_path, "other")
    node.tree.put(f"{ARCHITECTURE}/cached_ops/{path}", b"machine code")
    node.tree.put(f"{ARCHITECTURE}/cached_ops/{path}.lock", b"")
    assert node.commit().new_files == 1
    other.restore()
    assert other.tree.read(f"{ARCHITECTURE}/cached_ops/{path}") == b"machine code"


@pytest.mark.parametrize(
    ("folder", "link"),
    [
        # What its filter wrote lies beside a link to the headers that it downloaded: if the former were not restored,
        # it would be written anew, and everything built from it built again (gen_trtllm_gen_fused_moe_sm100_module).
        ("generated/trtllm_export/moe", "flashinfer/trtllm/batched_gemm/trtllmGen_bmm_export"),
        ("cached_ops/trtllm_fmha_v2", "src"),  # _setup_output_directory
    ],
)
def test_links_that_it_makes_anew_keep_no_file_from_being_published(tmp_path: Path, folder: str, link: str) -> None:
    node, other = Node(tmp_path), Node(tmp_path, "other")
    for name in ("flashinferMetaInfo.h", "trtllm_fmha_v2.so"):
        node.tree.put(f"{ARCHITECTURE}/{folder}/{name}", shared_object())
    linked = node.tree.root / ARCHITECTURE / folder / link
    linked.parent.mkdir(parents=True, exist_ok=True)
    linked.symlink_to(tmp_path)
    report = node.commit()
    assert (report.new_files, report.skipped) == (2, ())
    other.restore()
    assert contents(other.tree.root) == contents(node.tree.root)


def test_what_ninja_is_told_of_all_operations_together_is_no_operation() -> None:
    assert load_table()["flashinfer"].ignores("0.7.2/90a/cached_ops/tmp/")
