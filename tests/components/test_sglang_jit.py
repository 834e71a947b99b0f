"""SGLang's own CUDA kernels: a folder for each build, which is a library and the list of what it was built from."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstore.environment import Host
from tests.trees import Node, contents, on_host, restored_on, shared_object

MODULE = "sm90/sgl_kernel_jit_norm"
BUILD = f"sglangjit/{MODULE}/build-0f1e2d3c4b5a6978"
LEAF = f"{BUILD}/deps-1a2b3c4d5e6f7081"
KEPT = {"sgl_deps.json": b"[]", "sgl_kernel_jit_norm.so": shared_object()}
"""What `find_prebuilt` looks for."""


def build(node: Node, leaf: str = LEAF) -> None:
    """Write what `commit_build` leaves: all that ninja had in its folder, and a lock beside it."""
    node.tree.put(f"{leaf.rpartition('/')[0]}/.lock", b"")
    for name, data in KEPT.items():
        node.tree.put(f"{leaf}/{name}", data)
    for name in ("main.cpp", "cuda.cu", "cuda_0.o", "cuda_0.o.d", "build.ninja", ".ninja_log", ".ninja_deps"):
        node.tree.put(f"{leaf}/{name}", b"on the way to the library")


def test_the_library_and_its_list_are_all_that_is_stored(tmp_path: Path, host: Host) -> None:
    node, other = Node(tmp_path), Node(tmp_path, "other")
    build(node)
    build(node, f"{BUILD}/.staging-0f1e2d3c")
    node.commit()
    other.restore()
    assert contents(other.tree.root) == {f"{LEAF}/{name}": data for name, data in KEPT.items()}


def test_a_host_unlike_the_builders_gets_no_folder_without_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`_publish` takes one that is there for another process's, and drops what was built."""
    node = Node(tmp_path)
    on_host(monkeypatch, "a")
    build(node)
    assert node.commit().new_files == len(KEPT)
    assert not (restored_on(monkeypatch, tmp_path, "b").tree.root / LEAF).exists()


def test_a_folder_without_a_library_waits(tmp_path: Path, host: Host) -> None:
    node = Node(tmp_path)
    node.tree.put(f"{LEAF}/sgl_deps.json", b"[]")
    assert node.commit().new_files == 0
    build(node)
    assert node.commit().new_files == len(KEPT)


def test_they_may_be_in_sglangs_folder(tmp_path: Path, host: Host) -> None:
    nodes = Node(tmp_path), Node(tmp_path, "other")
    for node in nodes:
        node.environ["SGLANG_JIT_CACHE_DIR"] = str(node.tree.root / "sglang/jit")
    first, second = nodes
    build(first, LEAF.replace("sglangjit", "sglang/jit"))
    assert first.commit().new_files == len(KEPT)
    second.restore()
    assert contents(second.tree.root) == {f"{LEAF.replace('sglangjit', 'sglang/jit')}/{n}": d for n, d in KEPT.items()}
