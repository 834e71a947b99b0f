"""CuPy's kernels: one file each, with a digest of its own bytes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.trees import Node, contents, on_host, restored_on, shared_object

NAME = "2fd4e1c67a2d28fced849ee1bb76e7391b93eb12.cubin"
CUBIN = b"\x7fELF machine code"


@pytest.fixture
def backend() -> Any:
    """What CuPy stores kernels with. Importing CuPy needs no GPU."""
    cache = pytest.importorskip("cupy.cuda._compiler_cache", reason="CuPy 14 is not installed", exc_type=ImportError)
    return cache.DiskKernelCacheBackend


def test_kernels_are_linked_on_any_host_and_callbacks_stay_on_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    on_host(monkeypatch, "a")
    node.tree.put(f"cupy/{NAME}", CUBIN)
    node.tree.put("cupy/cupy_callback_0123.cpython-311-x86_64-linux-gnu.so", shared_object())
    assert node.commit().new_files == 2
    other = restored_on(monkeypatch, tmp_path, "b")
    assert contents(other.tree.root / "cupy") == {NAME: CUBIN}
    assert (other.tree.root / "cupy" / NAME).stat().st_nlink > 1


def test_a_source_is_written_in_its_place_and_copied(tmp_path: Path) -> None:
    node, other = Node(tmp_path), Node(tmp_path, "other")
    node.tree.put(f"cupy/{NAME}.cu", b"code")
    node.commit()
    other.restore()
    assert (other.tree.root / f"cupy/{NAME}.cu").stat().st_nlink == 1


def test_what_is_being_written_is_not_shared(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for path in ("tmpq0_x7a2b", "tmp1b2c3d4e/cupy_callback_0123.o", "tmp1b2c3d4e/cupy_callback_0123.cpp"):
        node.tree.put(f"cupy/{path}", b"x")
    assert node.commit().new_files == 0


def test_cupy_loads_what_is_restored_and_replaces_what_is_damaged(tmp_path: Path, layout: str, backend: Any) -> None:
    node, other = Node(tmp_path, layout=layout), Node(tmp_path, "other", layout=layout)
    node.restore()
    backend(node.environ["CUPY_CACHE_DIR"]).save(NAME, CUBIN, "code")
    assert node.commit().new_files == 1
    other.restore()
    restored = backend(other.environ["CUPY_CACHE_DIR"])
    assert restored.load(NAME) == CUBIN

    path = other.tree.root / "cupy" / NAME
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-1])
    os.chmod(path, 0o444)
    assert restored.load(NAME) is None
    restored.save(NAME, CUBIN, "code")
    assert path.read_bytes() == data
    assert other.commit().new_files == 0
