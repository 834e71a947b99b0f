"""PyTorch's mega-cache in both directions, with torch itself at the other end."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import pickle
import re
import subprocess
import sys
import tempfile
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kstore.cli.program import run
from kstore.errors import FileError, IntegrityError, PackageMissing, StoreUnavailable, UsageError
from kstore.integrations.megacache import bring_in, export, load, process, save, transfer
from kstore.integrations.megacache.container import check_torch, read, write
from kstore.integrations.megacache.entries import Artifact, artifact_of, files_of
from kstore.integrations.megacache.omissions import bundled_kernels, left_out
from kstore.integrations.megacache.tree import write_files
from kstore.published.manifest import GROUP, Entry, Manifest
from kstore.report import CommitStatus
from kstore.store import Store
from tests.cli.commandline import environment_kept
from tests.compilers.programs import GPU, Container, compiled_graphs, run_program
from tests.hostile.test_hostile_manifests import FIRST, World, manifest
from tests.trees import Node

pytestmark = pytest.mark.compiler

MODEL = "mlp-f"
KEY = "m/v1"
NO_MODULES = {"fxgraph_lookup_write_file": 1}
"""A mega-cache does not hold generated modules: torch writes them from the graphs that it finds."""
ENTRIES = {"inductor": 1, "aot_autograd": 1}
"""The files of one graph."""


@dataclass
class Fleet:
    """Workers of one store, each a process with folders of its own."""

    folder: Path
    container: Container

    @property
    def store(self) -> Store:
        return Store(self.folder / "store", gpu=GPU)

    def environ(self, worker: str) -> dict[str, str]:
        """What is set on a worker whose cache root is `worker`. Precompiled headers are in a folder of torch's own."""
        return self.container.environ() | {
            "KSTORE_ROOT": str(self.folder / "store"),
            "KSTORE_CACHE_ROOT": str(self.folder / worker),
            "KSTORE_GPU": GPU,
        }

    def compile(self, worker: str, *arguments: object, **variables: str) -> dict[str, Any]:
        return run_program("use_megacache", *arguments, environ=self.environ(worker) | variables)

    def compile_apart(self, folder: str, *arguments: object) -> dict[str, Any]:
        """Compile in a process that does not use kstore's folders."""
        return self.compile(f"{folder}-root", *arguments, TORCHINDUCTOR_CACHE_DIR=str(self.folder / folder))

    def kstore(self, *arguments: object, worker: str = "nobody") -> subprocess.CompletedProcess[str]:
        """Run in this process, which has imported torch: a process for each run would need seconds for that."""
        words, out, err = [*map(str, arguments)], io.StringIO(), io.StringIO()
        with environment_kept(), redirect_stdout(out), redirect_stderr(err):
            os.environ.clear()
            os.environ.update(self.environ(worker))
            code = run(words)
        return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())

    def document(self, *arguments: object, worker: str = "nobody") -> dict[str, Any]:
        done = self.kstore(*arguments, "--json", worker=worker)
        assert done.returncode == 0, done.stderr
        content: dict[str, Any] = json.loads(done.stdout)
        assert content["schema"] == 1
        return content


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Container:
    return Container(tmp_path_factory.mktemp("container"))


@pytest.fixture
def fleet(tmp_path: Path, container: Container) -> Fleet:
    return Fleet(tmp_path, container)


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory, container: Container) -> tuple[Fleet, dict[str, Any]]:
    """A worker that has compiled a model, published it through kstore, and saved torch's mega-cache."""
    fleet = Fleet(tmp_path_factory.mktemp("cold"), container)
    mega = fleet.folder / "saved.bin"
    report = fleet.compile("cold", "--restore", KEY, "--save", mega, "--commit", KEY, MODEL)
    assert report["restored"] == "miss"
    assert compiled_graphs(report)["fxgraph_cache_miss"] == 1
    assert report["committed"]["status"] == "committed"
    return fleet, report


def names_of(left_out: Sequence[dict[str, Any]]) -> dict[str, int]:
    return {left["what"]: left["files"] for left in left_out}


def put(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def tree(folder: Path) -> dict[str, bytes]:
    """Every file but locks."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in files_below(folder) if path.suffix != ".lock"}


def tree_of(artifacts: Iterable[Artifact]) -> dict[str, bytes]:
    return files_of(artifacts)[0]


def variables_of(fleet: Fleet, key: str, worker: str) -> dict[str, str]:
    return Store(fleet.folder / "store", cache_root=fleet.folder / worker, gpu=GPU, environ={}).variables(key)


def without_torch(code: str, *arguments: object, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", NO_TORCH + code, *map(str, arguments)], env=environ, capture_output=True, text=True
    )


NO_TORCH = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Missing())
"""
COMMAND = "from kstore.cli.program import run; sys.exit(run(sys.argv[1:]))"
SAVE = """
import logging; logging.basicConfig()
from kstore.integrations import megacache
print(megacache.load("m").status)
try:
    print(megacache.save("m", strict={strict}).status)
except Exception as error:
    print(type(error).__name__)
"""
POPULATE = """
import sys
from torch.compiler._cache import CacheArtifactManager
data = open(sys.argv[1], "rb").read()
for artifacts in CacheArtifactManager.deserialize(data).values():
    for artifact in artifacts:
        artifact.populate_cache()
"""
LOAD = """
import json, sys, torch
info = torch.compiler.load_cache_artifacts(open(sys.argv[1], "rb").read())
print(json.dumps({kind: len(keys) for kind, keys in info.artifacts.items()}))
"""
BUNDLE = """
import pickle, sys
from torch._inductor.triton_bundler import TritonBundler
TritonBundler.begin_compile()
TritonBundler.put(sys.argv[1], 0)
bundle, _ = TritonBundler.collect()
assert bundle.kernel_artifacts
open(sys.argv[2], "wb").write(pickle.dumps(bundle))
"""
OTHER_KINDS = [
    Artifact("autotune", "ab/" + 64 * "0" + ".best_config", b"{}"),
    Artifact("pgo", "job/1:0:\\<tag>", b"an earlier profile"),
    Artifact("pgo", "job/1:0:\\<tag>", b"profile"),
    Artifact("precompile", 64 * "1", b"package"),
]


# ---- Out


def test_torchs_own_load_of_an_exported_generation_finds_every_graph(cold: tuple[Fleet, dict[str, Any]]) -> None:
    fleet, before = cold
    mega = fleet.folder / "exported.bin"
    exported = fleet.document("export", KEY, "--format", "megacache", "-o", mega)

    after = fleet.compile_apart("loaded", "--load", mega, MODEL)

    assert exported["bytes"] == mega.stat().st_size
    assert compiled_graphs(after) == NO_MODULES
    assert after["counters"]["inductor"]["fxgraph_cache_hit"] == 1
    assert after["outputs"] == before["outputs"]


def test_an_exported_generation_has_the_entries_that_torch_itself_saves(cold: tuple[Fleet, dict[str, Any]]) -> None:
    fleet, before = cold
    mega = fleet.folder / "compared.bin"
    fleet.document("export", KEY, "--format", "megacache", "-o", mega)

    saved = read((fleet.folder / "saved.bin").read_bytes())
    exported = read(mega.read_bytes())

    assert Counter(artifact.kind for artifact in saved) == before["saved"] == ENTRIES
    assert sorted(exported) == sorted(saved)


def test_what_the_format_cannot_hold_is_named(cold: tuple[Fleet, dict[str, Any]], tmp_path: Path) -> None:
    fleet, _ = cold
    root = fleet.folder / "all"
    environ = fleet.environ("all")
    fleet.document("restore", KEY, worker="all")
    arguments = ("--sources", fleet.folder / "sources", "--count", 2, "--release", 1)
    run_program("compile_kernels", *arguments, environ=environ | {"TRITON_CACHE_DIR": str(root / "triton")})
    put(root / "inductor/cache/0123456789abcdef", '{"mm": {}}')
    put(root / "inductor/helion/one.json", "{}")
    put(root / "deepgemm/cache/kernel.x/kernel.cubin", "kernel")
    assert fleet.document("commit", "m/all", worker="all")["status"] == "committed"

    exported = fleet.document("export", "m/all", "--format", "megacache", "-o", tmp_path / "all.bin")
    talk = fleet.kstore("export", "m/all", "--format", "megacache", "-o", tmp_path / "all.bin").stderr

    left_out = {left["what"]: left for left in exported["left_out_kinds"]}
    assert left_out.keys() == {
        "C++ objects and sources", "generated modules", "timings of GEMM choices", "other files of TorchInductor",
        "Triton kernels that no graph bundles", "files of DeepGEMM",
    }  # fmt: skip
    held = [path for path in root.rglob("*") if path.is_file() and ".kstore" not in path.parts]
    assert left_out["C++ objects and sources"]["files"] == sum(1 for path in held if path.suffix in (".cpp", ".so"))
    assert left_out["Triton kernels that no graph bundles"]["files"] == len(files_below(root / "triton"))
    assert left_out["Triton kernels that no graph bundles"]["bytes"] > 0
    assert all(f"left out {what} of {left['component']} (" in talk for what, left in left_out.items())


def test_a_triton_kernel_that_a_graph_bundles_is_not_missed(fleet: Fleet) -> None:
    environ = fleet.environ("cold")
    fleet.document("restore", KEY, worker="cold")
    arguments = ("--sources", fleet.folder / "sources", "--count", 2, "--release", 1)
    triton = fleet.folder / "cold/triton"
    run_program("compile_kernels", *arguments, environ=environ | {"TRITON_CACHE_DIR": str(triton)})
    bundled, other = sorted(path.name for path in triton.iterdir() if path.is_dir())
    graph = fleet.folder / "cold/inductor/fxgraph/ab/fab/one"
    graph.parent.mkdir(parents=True)
    subprocess.run(
        [sys.executable, "-c", BUNDLE, bundled, graph], env=environ | {"TRITON_CACHE_DIR": str(triton)}, check=True
    )
    fleet.document("commit", KEY, worker="cold")

    exported = fleet.document("export", KEY, "--format", "megacache", "-o", fleet.folder / "exported.bin")

    assert names_of(exported["left_out_kinds"]) == {
        "Triton kernels that no graph bundles": len(files_below(triton / other))
    }
    (held,) = exported["exported"]
    assert (held["files"], held["bytes"]) == (1, graph.stat().st_size)


@pytest.mark.parametrize("kind", ["aot_autograd", "precompile"])
def test_nor_is_one_of_a_graph_that_is_in_an_entry_of_another_kind(kind: str) -> None:
    """As torch's options `bundled_autograd_cache` and `caching_precompile` have it."""
    kernel = "ABCD2345" * 6 + "WXYZ"
    package = pickle.dumps([pickle.dumps({"kernel_hash": kernel}), "A" * 51, "a" * 52])

    assert bundled_kernels([Artifact(kind, "key", package)]) == {kernel}


def test_a_generation_without_graphs_is_not_exported(fleet: Fleet) -> None:
    put(fleet.folder / "cold/inductor/ab/cone.py", "module")
    fleet.document("commit", KEY, worker="cold")

    done = fleet.kstore("export", KEY, "--format", "megacache", "-o", fleet.folder / "exported.bin")

    assert done.returncode == 3
    assert "holds nothing that a mega-cache could hold" in done.stderr
    assert not (fleet.folder / "exported.bin").exists()


def test_a_file_whose_name_is_not_text_is_left_out_of_an_export(fleet: Fleet) -> None:
    """Torch writes the job's own name into it."""
    put(fleet.folder / "cold/inductor/aotautograd/aab/one", "entry")
    put(fleet.folder / "cold/inductor/dynamo/code_state_j\udcff.pkl", "profile")
    fleet.document("commit", KEY, worker="cold")

    exported = fleet.document("export", KEY, "--format", "megacache", "-o", fleet.folder / "exported.bin")

    assert [(left["what"], left["files"]) for left in exported["left_out_kinds"]] == [
        ("other files of TorchInductor", 1)
    ]
    assert read((fleet.folder / "exported.bin").read_bytes()) == [Artifact("aot_autograd", "aab", b"entry")]


def test_what_torch_notes_of_an_object_goes_with_it(fleet: Fleet) -> None:
    """From 2.14 on, torch notes that the object could be loaded."""
    put(fleet.folder / "cold/inductor/aotautograd/aab/one", "entry")
    put(fleet.folder / "cold/inductor/ab/cone.cpp", "source")
    put(fleet.folder / "cold/inductor/ab/cone.so.load_ok", "")
    fleet.document("commit", KEY, worker="cold")

    exported = fleet.document("export", KEY, "--format", "megacache", "-o", fleet.folder / "exported.bin")

    assert names_of(exported["left_out_kinds"]) == {"C++ objects and sources": 2}


def test_what_is_left_out_is_told_by_where_it_is(tmp_path: Path, host: object) -> None:
    """Without TRITON_CACHE_DIR, Triton's kernels are in Inductor's folder."""
    node = Node(tmp_path)
    bundled = node.tree.kernel("bundled", below="inductor/triton/0")
    node.tree.kernel("bundled")
    for below in ("inductor/triton/0", "inductor/triton/1", "triton"):
        node.tree.kernel("other", below=below)
    node.tree.timings({"mm": 1})
    for path in ("ab/cone.halide/done", "ab/cone.halide/hooks.cpp", "ab/cone.py", "helion/one.py"):
        node.tree.put(f"inductor/{path}", b"content")
    node.commit()
    manifest = node.store.snapshot(node.newest()).manifest

    found = left_out(manifest, {os.path.basename(bundled)})
    assert {(left.component, left.what): left.files for left in found} == {
        ("inductor", "Triton kernels that no graph bundles"): 16, ("triton", "Triton kernels that no graph bundles"): 8,
        ("inductor", "timings of GEMM choices"): 1, ("inductor", "C++ objects and sources"): 1,
        ("inductor", "generated modules"): 1, ("inductor", "other files of TorchInductor"): 2,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["cone.cpp", "cone.h", "cone.cu", "cone.so", "cone.so.load_ok", "cone.o", "cone.a"])
def test_what_a_compiler_of_cpp_reads_or_makes_is_left_out_as_such(name: str) -> None:
    manifest = Manifest({f"inductor/ab/{name}": Entry(bytes(32), 5, 0, 0o644, 0, 0)})

    assert [left.what for left in left_out(manifest, set())] == ["C++ objects and sources"]


def test_what_is_left_out_of_other_components_is_told_by_their_titles_in_order() -> None:
    """A newer kstore may have published a component that this one does not know."""
    plain, grouped = (Entry(bytes(32), 5, 0, 0o644, flags, unit) for flags, unit in ((0, 0), (GROUP, 2)))
    manifest = Manifest({"vendor/x": plain, "tilelang/kernel/y": grouped, "tilelang/kernel/z": grouped})

    assert [(left.what, left.component, left.files, left.bytes) for left in left_out(manifest, set())] == [
        ("files of TileLang", "tilelang", 2, 10), ("files of vendor", "vendor", 1, 5),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "entry"),
    [
        ("inductor/aotautograd/aab/one", ("aot_autograd", "aab")),
        ("triton/aotautograd/aab/one", None),
        ("inductor/fxgraph/ab/fab/one", ("inductor", "fab")),
        ("inductor/ab/cone.best_config", ("autotune", "ab/cone.best_config")),
        ("inductor/helion/one.best_config", None),
        ("inductor/dynamo/one/entry", ("precompile", "one")),
        ("inductor/dynamo/one/other", None),
    ],
)
def test_only_files_that_torch_would_write_from_a_mega_cache_are_entries(
    path: str, entry: tuple[str, str] | None
) -> None:
    assert artifact_of(path) == entry


def test_a_file_is_replaced_only_if_it_differs_and_not_where_it_shares_its_inode(tmp_path: Path) -> None:
    for name in ("same", "other"):
        (tmp_path / name).write_bytes(name.encode())
        os.link(tmp_path / name, tmp_path / f"stored-{name}")

    write_files(tmp_path, {"same": b"same", "other": b"OTHER"})

    assert (tmp_path / "same").samefile(tmp_path / "stored-same")
    assert (tmp_path / "other").read_bytes() == b"OTHER"
    assert (tmp_path / "stored-other").read_bytes() == b"other"


def test_a_file_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()

    with pytest.raises(IsADirectoryError):
        write_files(tmp_path, {"folder": b"content"})
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_job_may_have_a_name_as_long_as_a_file_s(fleet: Fleet) -> None:
    """TORCH_COMPILE_JOB_ID."""
    imported = bring_in(fleet.store, write([Artifact("pgo", "j" * 240, b"profile")]), KEY)

    assert imported.committed.new_files == 1


def test_a_damaged_store_exports_nothing(fleet: Fleet) -> None:
    put(fleet.folder / "cold/inductor/aotautograd/aab/one", "entry")
    fleet.document("commit", KEY, "--layout", "loose", worker="cold")
    for blob in (fleet.folder / "store/blobs").rglob("*"):
        if blob.is_file() and blob.read_bytes() == b"entry":
            blob.unlink()

    done = fleet.kstore("export", KEY, "--format", "megacache", "-o", fleet.folder / "exported.bin")

    assert done.returncode == 4
    assert [path.name for path in fleet.folder.glob("*.bin*")] == []


def test_a_path_that_leaves_torchs_folder_is_refused(tmp_path: Path) -> None:
    world, stream = World(tmp_path), io.BytesIO()
    world.publish(manifest({b"inductor/../evil.best_config": FIRST}))

    with pytest.raises(IntegrityError, match="leave the cache root"):
        export(world.node.store, world.node.newest(), stream)
    assert not stream.getvalue()


def test_a_generation_that_leans_on_another_store_is_exported_with_that_alone(fleet: Fleet) -> None:
    put(fleet.folder / "cold/inductor/aotautograd/aab/one", "entry")
    base, both = fleet.folder / "base", f"{fleet.folder}/store:{fleet.folder}/base"
    fleet.document("commit", KEY, "--store", base, worker="cold")
    put(fleet.folder / "cold/inductor/aotautograd/aab/two", "other")
    fleet.document("commit", KEY, "--store", both, worker="cold")
    export = ("export", KEY, "--format", "megacache", "-o", fleet.folder / "exported.bin")

    done = fleet.kstore(*export)
    assert (done.returncode, done.stderr.endswith(f"name it too, as in {both}\n")) == (1, True)
    assert fleet.kstore(*export, "--store", both).returncode == 0


# ---- In


def test_an_imported_mega_cache_is_restored_and_finds_every_graph(
    cold: tuple[Fleet, dict[str, Any]], fleet: Fleet
) -> None:
    before = cold[1]
    imported = fleet.document("import", "megacache", cold[0].folder / "saved.bin", KEY)
    restored = fleet.document("restore", KEY, worker="restored")

    after = run_program(
        "compile_models", MODEL, environ=fleet.environ("restored") | variables_of(fleet, KEY, "restored")
    )

    assert (imported["status"], imported["entries"]) == ("committed", ENTRIES)
    assert imported["left_out"] == []
    assert restored["status"] == "restored"
    assert compiled_graphs(after) == NO_MODULES
    assert after["outputs"] == before["outputs"]


def test_an_import_joins_what_is_published(cold: tuple[Fleet, dict[str, Any]], fleet: Fleet) -> None:
    put(fleet.folder / "other/inductor/ab/cother.py", "module")
    fleet.document("commit", KEY, worker="other")

    first = fleet.document("import", "megacache", cold[0].folder / "saved.bin", KEY)
    again = fleet.document("import", "megacache", cold[0].folder / "saved.bin", KEY)

    assert (first["generation"], first["files"], first["new_files"]) == (2, 3, 2)
    assert (again["status"], again["generation"]) == ("unchanged", 2)


def test_an_import_takes_nothing_from_folders_that_the_user_chose(
    cold: tuple[Fleet, dict[str, Any]], fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(fleet.folder / "users/ab/cothers.py", "module")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(fleet.folder / "users"))

    imported = bring_in(fleet.store, (cold[0].folder / "saved.bin").read_bytes(), KEY)

    assert imported.committed.files == 2
    assert files_below(fleet.folder / "users") == [fleet.folder / "users/ab/cothers.py"]


def test_the_files_are_those_that_torchs_own_load_writes(cold: tuple[Fleet, dict[str, Any]], tmp_path: Path) -> None:
    artifacts = [*read((cold[0].folder / "saved.bin").read_bytes()), *OTHER_KINDS]
    (tmp_path / "all.bin").write_bytes(write(artifacts))
    write_files(tmp_path / "ours", files_of(artifacts)[0])

    subprocess.run(
        [sys.executable, "-c", POPULATE, tmp_path / "all.bin"],
        env=cold[0].environ("nobody") | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torchs")}, check=True,
    )  # fmt: skip

    assert tree(tmp_path / "ours") == tree(tmp_path / "torchs")


def test_an_exported_import_has_all_kinds_of_entries(fleet: Fleet) -> None:
    (fleet.folder / "all.bin").write_bytes(write(OTHER_KINDS))
    fleet.document("import", "megacache", fleet.folder / "all.bin", KEY)
    exported = fleet.document("export", KEY, "--format", "megacache", "-o", fleet.folder / "exported.bin")

    again = read((fleet.folder / "exported.bin").read_bytes())

    assert exported["left_out_kinds"] == []
    assert tree_of(again) == tree_of(OTHER_KINDS)


def test_an_import_is_published_where_and_as_its_store_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: object
) -> None:
    """Whichever components this worker has: a mega-cache is of one."""
    monkeypatch.setenv("KSTORE_COMPONENTS", "triton")
    store = Store(tmp_path / "store", layout="packed", gpu="a-gpu", environment="torch-x")

    committed = bring_in(store, write(OTHER_KINDS), KEY).committed

    assert (committed.gpu, committed.environment, committed.new_files) == ("a-gpu", "torch-x", 3)
    newest = store.newest(store.scope(KEY))
    assert newest and newest.packs


def test_nothing_of_an_import_waits_for_more(fleet: Fleet) -> None:
    """As what a job has learnt would wait in its cache root: that of an import is gone."""
    learnt = [Artifact("pgo", f"job-{number}", b"profile %d" % number) for number in range(20)]
    bring_in(fleet.store, write(learnt), KEY)

    assert bring_in(fleet.store, write([Artifact("pgo", "last", b"another profile")]), KEY).committed.new_files == 1


def test_an_import_into_a_store_that_is_only_read_says_so(tmp_path: Path) -> None:
    imported = bring_in(Store(tmp_path / "store", gpu=GPU, mode="read"), write(OTHER_KINDS), KEY)

    assert imported.committed.status is CommitStatus.READ_ONLY
    assert not (tmp_path / "store").exists()


def test_an_import_says_of_no_folder_that_it_was_built_there(fleet: Fleet) -> None:
    """It was unpacked in a folder that is gone."""
    (fleet.folder / "all.bin").write_bytes(write(OTHER_KINDS))
    imported = fleet.document("import", "megacache", fleet.folder / "all.bin", KEY)
    (shown,) = fleet.document("show", KEY)["scopes"]
    assert (imported["cache_root"], shown["meta"]["cache_root"], shown["meta"]["folders"]) == ("", "", {})
    refused = fleet.kstore("export", KEY, "--format", "tar", "-o", fleet.folder / "a.tar")
    assert refused.returncode == 2
    assert "name one with --under" in refused.stderr
    found = fleet.kstore("doctor", KEY, worker="worker").stdout
    assert "cache root" in found and "what is published was built in" not in " ".join(found.split())


def test_nor_does_it_take_its_own_variables_for_those_under_which_it_was_compiled(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    bring_in(fleet.store, write(OTHER_KINDS), KEY)
    (shown,) = fleet.document("show", KEY)["scopes"]
    assert shown["meta"].keys().isdisjoint({"variables", "processors"})
    assert "TORCHINDUCTOR_MAX_AUTOTUNE" not in fleet.kstore("doctor", KEY, worker="worker").stdout


@pytest.mark.exhaustive
def test_what_was_recorded_before_an_earlier_save_is_not_lost(fleet: Fleet) -> None:
    """Torch's own loader keeps only the last section of each kind."""
    mega = fleet.folder / "twice.bin"
    fleet.compile_apart("builder", "--twice", "--save", mega, MODEL, "mlp-g")

    imported = fleet.document("import", "megacache", mega, KEY)
    assert (imported["archive"], imported["entries"]) == (str(mega), {"inductor": 2, "aot_autograd": 2})
    loaded = subprocess.run(
        [sys.executable, "-c", LOAD, mega], env=fleet.environ("nobody"), capture_output=True, text=True, check=True
    )
    assert json.loads(loaded.stdout.splitlines()[-1]) == ENTRIES


def test_entries_of_unknown_kinds_are_named(fleet: Fleet) -> None:
    entry, others = Artifact("aot_autograd", "aab", b"entry"), [Artifact("vendor", name, b"12") for name in "kl"]
    (fleet.folder / "all.bin").write_bytes(write([entry, *others]))

    imported = fleet.document("import", "megacache", fleet.folder / "all.bin", KEY)

    assert imported["files"] == 1
    assert [(left["what"], left["files"], left["bytes"]) for left in imported["left_out"]] == [
        ("entries of kind vendor", 2, 4)
    ]
    talk = fleet.kstore("import", "megacache", fleet.folder / "all.bin", "m/v2").stderr
    assert "left out entries of kind vendor (2 files, 4 B)" in talk


def test_a_mega_cache_without_entries_is_said_to_hold_none(fleet: Fleet) -> None:
    (fleet.folder / "empty.bin").write_bytes(write([]))

    done = fleet.kstore("import", "megacache", fleet.folder / "empty.bin", KEY)

    assert (done.returncode, done.stderr) == (0, "kstore: it held no entries\n")


def with_checksum(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(4, "big") + data


def altered(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut short": lambda data: data[:-10],
    "one bit": lambda data: altered(data, len(data) // 2),
    "another file": lambda data: b"PK" + bytes(100),
    "an entry cut short": lambda data: with_checksum(data[4:-10]),
    "a key cut short": lambda data: with_checksum(data[4:-110]),
    "entries without end": lambda data: with_checksum(
        data[4:12] + data[12:].replace(bytes([0] * 7 + [1]), bytes([255] * 8))
    ),
    "another version": lambda data: with_checksum((99).to_bytes(8, "big") + data[12:]),
    "a key that climbs": lambda data: write([Artifact("aot_autograd", "../../x", b"entry")]),
    "an absolute key": lambda data: write([Artifact("autotune", "/etc/x.best_config", b"{}")]),
    "a module for a configuration": lambda data: write([Artifact("autotune", "ab/cabc.py", b"import os")]),
    "a key of folders": lambda data: write([Artifact("precompile", "a/b", b"entry")]),
    "a key of dots": lambda data: write([Artifact("precompile", "..", b"entry")]),
    "a key too long": lambda data: write([Artifact("aot_autograd", "a" * 256, b"entry")]),
    "a profile's key of too many bytes": lambda data: write([Artifact("pgo", "中" * 100, b"profile")]),
    "a file that is also a folder": lambda data: write(
        [Artifact("pgo", "x", b"profile"), Artifact("precompile", "code_state_x.pkl", b"package")]
    ),
    "a folder that is also a file": lambda data: write(
        [Artifact("precompile", "code_state_x.pkl", b"package"), Artifact("pgo", "x", b"profile")]
    ),
    "a key with a NUL": lambda data: write([Artifact("pgo", "a\0b", b"profile")]),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_mega_cache_publishes_nothing(fleet: Fleet, how: str) -> None:
    data = DAMAGES[how](write([Artifact("aot_autograd", "aab", b"entry" * 20)]))

    with pytest.raises(IntegrityError):
        bring_in(fleet.store, data, KEY)

    assert not (fleet.folder / "store").exists()


def test_a_mega_cache_of_a_torch_that_wrote_it_otherwise_is_not_said_to_be_just_damaged(fleet: Fleet) -> None:
    """Older versions write no checksum, and the same number of a version."""
    import torch

    without_checksum = write([Artifact("aot_autograd", "aab", b"entry" * 20)])[4:]
    with pytest.raises(IntegrityError, match=f"of another version than torch {re.escape(torch.__version__)}"):
        bring_in(fleet.store, without_checksum, KEY)


def test_without_room_for_its_files_a_mega_cache_publishes_nothing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nothing")

    with pytest.raises(FileError, match="TMPDIR"):
        bring_in(fleet.store, write([Artifact("aot_autograd", "aab", b"entry")]), KEY)

    assert not (fleet.folder / "store").exists()


def test_nor_does_one_for_which_the_room_does_not_last(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(folder: Path, files: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    monkeypatch.setattr(transfer, "write_files", fill)
    with pytest.raises(FileError, match=r"No space left on device.*TMPDIR"):
        bring_in(fleet.store, write([Artifact("aot_autograd", "aab", b"entry")]), KEY)

    assert not (fleet.folder / "store").exists()


def test_the_command_says_what_is_wrong_with_a_damaged_mega_cache(fleet: Fleet) -> None:
    (fleet.folder / "damaged.bin").write_bytes(b"nonsense")

    done = fleet.kstore("import", "megacache", fleet.folder / "damaged.bin", KEY)

    assert done.returncode == 4
    assert done.stderr.startswith(f"kstore: {fleet.folder}/damaged.bin: 8 bytes are not a mega-cache")
    assert len(done.stderr.splitlines()) == 1


def test_a_worker_that_may_only_read_imports_nothing(fleet: Fleet) -> None:
    (fleet.folder / "saved.bin").write_bytes(write([Artifact("aot_autograd", "aab", b"entry")]))
    (fleet.folder / "kstore.toml").write_text('mode = "read"')

    done = fleet.kstore("import", "megacache", fleet.folder / "saved.bin", KEY)

    assert (done.returncode, "mode is `read`" in done.stderr) == (1, True)


# ---- In one process


def test_what_one_process_saves_another_one_loads(cold: tuple[Fleet, dict[str, Any]]) -> None:
    fleet, before = cold

    after = fleet.compile("loaded-2", "--restore", KEY, "--commit", KEY, MODEL)

    assert after["restored"] == "restored"
    assert compiled_graphs(after) == {}
    assert after["outputs"] == before["outputs"]
    assert (after["committed"]["status"], after["committed"]["generation"]) == ("unchanged", 1)


@pytest.mark.exhaustive
def test_a_process_that_compiled_in_folders_of_its_own_saves_its_entries_alone(fleet: Fleet) -> None:
    put(fleet.folder / "own/ab/cothers.py", "module")
    before = fleet.compile_apart("own", "--commit", KEY, MODEL)

    after = fleet.compile("loaded", "--restore", KEY, MODEL)

    assert before["committed"]["files"] == 2
    assert compiled_graphs(after) == {"fxgraph_lookup_write_file": 1}
    assert after["outputs"] == before["outputs"]


@pytest.mark.exhaustive
def test_what_was_published_and_not_used_is_not_lost(fleet: Fleet) -> None:
    """A mega-cache made by torch holds only what its process used, and so replaces one that holds more."""
    first = fleet.compile("first", "--restore", KEY, "--commit", KEY, MODEL)
    mega = fleet.folder / "second.bin"
    second = fleet.compile("second", "--restore", KEY, "--save", mega, "--commit", KEY, "mlp-h")
    third = fleet.compile("third", "--restore", KEY, MODEL, "mlp-h")

    assert second["saved"] == {"inductor": 1, "aot_autograd": 1}
    assert (second["committed"]["status"], second["committed"]["generation"]) == ("committed", 2)
    assert compiled_graphs(third) == {}
    assert third["outputs"] == first["outputs"] | second["outputs"]


@pytest.mark.exhaustive
def test_a_guard_variant_of_a_loaded_graph_is_saved(fleet: Fleet) -> None:
    fleet.compile("first", "--restore", KEY, "--commit", KEY, "guarded-below")
    second = fleet.compile("second", "--restore", KEY, "--commit", KEY, "guarded-above")
    third = fleet.compile("third", "--restore", KEY, "guarded-below", "guarded-above")

    assert second["committed"]["status"] == "committed"
    graphs = files_below(fleet.folder / "third/inductor/fxgraph")
    assert (len(graphs), len({graph.parent for graph in graphs})) == (2, 1)
    assert compiled_graphs(third) == {}


def test_trouble_with_the_store_is_a_status(fleet: Fleet) -> None:
    code = SAVE.format(strict=False)
    done = subprocess.run(
        [sys.executable, "-c", code], env=fleet.environ("nobody") | {"KSTORE_ROOT": "/proc/nothing/store"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["failed", "failed"]
    assert "the job goes on without it" in done.stderr


def test_a_save_goes_where_the_load_came_from(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: object
) -> None:
    (tmp_path / "kstore.toml").write_text('store = "store"\ncache_root = "root"\n')
    monkeypatch.setenv("KSTORE_GPU", GPU)
    monkeypatch.setattr(process, "_recorded", lambda: [Artifact("inductor", "fabc", b"graph")])
    load(KEY)
    monkeypatch.chdir("/")

    assert save(KEY).new_files == 1
    assert [scope.key for scope in fleet.store.scopes()] == [KEY]


def test_a_save_takes_nothing_from_folders_that_the_user_chose(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, host: object
) -> None:
    """They hold what any program left there."""
    put(fleet.folder / "users/ab/cothers.py", "module")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(fleet.folder / "users"))
    monkeypatch.setattr(process, "_recorded", lambda: [Artifact("aot_autograd", "aab", b"entry")])

    assert save(KEY, store=fleet.folder / "store", cache_root=fleet.folder / "root", gpu=GPU).files == 1
    assert files_below(fleet.folder / "users") == [fleet.folder / "users/ab/cothers.py"]


def test_a_save_goes_by_the_variables_that_it_is_given(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, host: object
) -> None:
    monkeypatch.setattr(process, "_recorded", lambda: [Artifact("aot_autograd", "aab", b"entry")])

    assert save(KEY, environ=fleet.environ("worker")).new_files == 1
    assert [scope.key for scope in fleet.store.scopes()] == [KEY]


def test_a_save_whose_commit_fails_says_so_and_raises_if_it_is_strict(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, host: object
) -> None:
    monkeypatch.setattr(process, "_recorded", lambda: [Artifact("aot_autograd", "aab", b"entry")])
    nowhere = {"store": "/proc/nothing/store", "cache_root": fleet.folder / "root", "gpu": GPU}

    assert save(KEY, **nowhere).status is CommitStatus.FAILED
    with pytest.raises(StoreUnavailable):
        save(KEY, strict=True, **nowhere)


def test_a_save_of_what_cannot_be_written_fails_and_says_why(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_recorded", lambda: [Artifact("aot_autograd", "../x", b"entry")])

    report = save(KEY, store=fleet.folder / "store", cache_root=fleet.folder / "root", gpu=GPU)
    assert (report.status, "the key '../x', which no torch writes" in report.error) == (CommitStatus.FAILED, True)


def test_after_a_save_that_failed_its_cache_root_is_not_said_to_be_in_use(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, host: object
) -> None:
    monkeypatch.setattr(process, "_recorded", lambda: [Artifact("aot_autograd", "../x", b"entry")])
    assert load(KEY, store=fleet.folder / "store", cache_root=fleet.folder / "root", gpu=GPU).status == "miss"
    assert save(KEY, store=fleet.folder / "store", cache_root=fleet.folder / "root", gpu=GPU).error
    caplog.clear()

    load("m/v2", store=fleet.folder / "store", cache_root=fleet.folder / "other", gpu=GPU)
    assert "which is in use" not in caplog.text


def test_a_save_to_a_cache_root_that_hangs_is_given_up(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = threading.Event()
    monkeypatch.setattr(process, "_recorded", lambda: [Artifact("aot_autograd", "aab", b"entry")])
    monkeypatch.setattr(process, "write_files", lambda folder, files: hangs.wait(10))

    report = save(KEY, store=fleet.folder / "store", cache_root=fleet.folder / "root", gpu=GPU, timeout=0.1)
    hangs.set()
    assert report.status is CommitStatus.TIMEOUT


@pytest.mark.parametrize(
    ("told", "status"),
    [
        (Artifact("vendor", "a", b"12"), CommitStatus.COMMITTED),
        (Artifact("aot_autograd", "../x", b"entry"), CommitStatus.FAILED),
    ],
)
def test_a_log_handler_of_the_job_s_that_fails_does_not_fail_a_save(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, host: object, told: Artifact, status: CommitStatus
) -> None:
    class Failing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise ZeroDivisionError

    monkeypatch.setattr(logging.getLogger("kstore"), "handlers", [Failing()])
    monkeypatch.setattr(process, "_recorded", lambda: [Artifact("aot_autograd", "aab", b"entry"), told])

    assert save(KEY, store=fleet.folder / "store", cache_root=fleet.folder / "root", gpu=GPU).status is status


def test_a_process_that_has_compiled_nothing_saves_nothing(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.compiler.save_cache_artifacts", lambda: None)  # as torch says it

    report = save(KEY, store=fleet.folder / "store", cache_root=fleet.folder / "root", gpu=GPU)
    assert (report.status, report.found) == (CommitStatus.UNCHANGED, 0)


def test_of_entries_that_a_save_leaves_out_each_kind_is_one_log_line(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, host: object
) -> None:
    recorded = [Artifact("aot_autograd", "aab", b"entry"), *(Artifact("vendor", key, b"12") for key in "abc")]
    monkeypatch.setattr(process, "_recorded", lambda: recorded)

    assert save(KEY, store=fleet.folder / "store", cache_root=fleet.folder / "root", gpu=GPU).new_files == 1
    assert [record.getMessage() for record in caplog.records] == [
        "kstore: 3 entries of kind vendor left out: where their files belong is not known"
    ]


def test_without_the_component_that_its_files_are_of_a_save_is_the_callers_mistake(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_recorded", lambda: [Artifact("aot_autograd", "aab", b"entry")])

    with pytest.raises(UsageError, match="as files of inductor, which the setting `components` leaves out"):
        save(KEY, store=fleet.folder / "store", cache_root=fleet.folder / "root", gpu=GPU, components="triton")


def test_a_setting_that_does_not_exist_is_the_callers_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no setting bogus"):
        save(KEY, store=tmp_path / "store", bogus=1)


# ---- Without torch


@pytest.mark.parametrize("command", ["export", "import"])
def test_without_torch_the_commands_say_so(cold: tuple[Fleet, dict[str, Any]], command: str, tmp_path: Path) -> None:
    mega = cold[0].folder / "saved.bin"
    (found,) = cold[0].store.scopes(KEY)
    scope = ("--environment", found.environment)
    arguments = {
        "export": ["export", KEY, "--format", "megacache", "-o", tmp_path / "x.bin", *scope],
        "import": ["import", "megacache", mega, "m/other", *scope],
    }
    done = without_torch(COMMAND, *arguments[command], environ=cold[0].environ("nobody"))

    assert done.returncode == 1
    assert done.stderr == (
        "kstore: a mega-cache is read and written by torch, which is not installed here: pip install torch\n"
    )
    assert not (tmp_path / "x.bin").exists()


def test_a_torch_that_writes_mega_caches_otherwise_is_not_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils._appending_byte_serializer", None)

    with pytest.raises(PackageMissing, match="the torch that is installed here writes mega-caches in another form"):
        check_torch()


def test_without_torch_a_save_is_a_failed_one(fleet: Fleet) -> None:
    degraded = without_torch(SAVE.format(strict=False), environ=fleet.environ("nobody"))
    strict = without_torch(SAVE.format(strict=True), environ=fleet.environ("nobody"))

    assert degraded.stdout.split() == ["miss", "failed"]
    assert "which is not installed here" in degraded.stderr
    assert strict.stdout.split() == ["miss", "PackageMissing"]
