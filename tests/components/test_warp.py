"""NVIDIA Warp's modules: each in a folder named by a digest of its kernels, below the folder of Warp's version."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from kstore.environment import Host
from tests.compilers.programs import Container, fingerprint, run_program, worker
from tests.trees import Node, contents, on_host, restored_on, shared_object

FOLDER = "wp_my_kernels_4bb5ea9"
MODULE = f"warp/1.19.0/{FOLDER}"
BUILT = "p4711_t139712345678912"
needs_warp = pytest.mark.skipif(find_spec("warp") is None, reason="warp-lang is not installed")


def compile_module(node: Node, folder: str, binary: str) -> None:
    name = folder.rpartition("/")[2]
    for suffix, data in {"cu": b"code", binary: shared_object(), "meta": b"{}"}.items():
        node.tree.put(f"{folder}/{name}.{suffix}", data)


def test_cuda_code_is_restored_on_any_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path)
    on_host(monkeypatch, "a")
    compile_module(node, MODULE, "sm90.cubin")
    node.tree.put("warp/1.19.0/lto/0123456789abcdef.lto", b"lto")
    node.commit()
    other = restored_on(monkeypatch, tmp_path, "b")
    assert contents(other.tree.root) == contents(node.tree.root)
    assert all(path.stat().st_nlink > 1 for path in (other.tree.root / MODULE).iterdir())


def test_code_for_the_cpu_is_restored_on_a_host_like_its_builders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    on_host(monkeypatch, "a")
    compile_module(node, MODULE, "cpu95466a6c.o")
    node.commit()
    for host in "ab":
        assert restored_on(monkeypatch, tmp_path, host).tree.has(MODULE) is (host == "a")


@pytest.mark.parametrize(
    "folder",
    [
        f"{MODULE}_{BUILT}",  # being built by another process
        f"warp/{FOLDER}",  # before Warp 1.13: of any version
        "warp/1.19.0/wp_my_kernels",  # strip_hash: of any kernels
    ],
)
def test_what_may_be_unfinished_or_of_other_kernels_is_not_shared(tmp_path: Path, host: Host, folder: str) -> None:
    node = Node(tmp_path)
    compile_module(node, folder, "sm90.cubin")
    assert node.commit().new_files == 0


def test_libraries_of_any_version_and_those_being_built_are_not_shared(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for folder in ("warp/lto", f"warp/1.19.0/lto_{BUILT}"):
        node.tree.put(f"{folder}/0123456789abcdef.lto", b"lto")
    assert node.commit().new_files == 0


def test_a_module_may_be_named_like_what_is_being_built(tmp_path: Path, host: Host) -> None:
    node = Node(tmp_path)
    compile_module(node, "warp/1.19.0/wp_run_p1_t20_4bb5ea9", "sm90.cubin")
    assert node.commit().new_files == 3


@needs_warp
@pytest.mark.compiler
def test_another_cache_root_hits_and_nothing_restored_is_written(tmp_path: Path, layout: str) -> None:
    environ, name = Container(tmp_path).environ(), "compile_warp"
    node = worker(tmp_path / "store", tmp_path / "a", environ, layout)
    node.restore("k")
    cold = run_program(name, environ=environ)
    assert (cold["compiled"], cold["cached"]) == (1, 0)
    assert node.commit("k").new_files == 3

    other = worker(tmp_path / "store", tmp_path / "b", environ, layout)
    assert other.restore("k").files == 3
    before = fingerprint(tmp_path / "b")
    assert run_program(name, environ=environ) == cold | {"compiled": 0, "cached": 1}
    assert fingerprint(tmp_path / "b") == before
    assert other.commit("k").new_files == 0


@needs_warp
@pytest.mark.compiler
def test_a_host_that_lacks_the_object_builds_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = Container(tmp_path).environ()
    for host in "ab":
        on_host(monkeypatch, host)
        node = worker(tmp_path / "store", tmp_path / host, environ)
        node.restore("k")
        assert run_program("compile_warp", environ=environ)["compiled"] == 1
        assert node.commit("k").new_files == 3
