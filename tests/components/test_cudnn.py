"""cuDNN frontend's kernels: a folder for each, with an object and, written last, what it was stored under."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstore.environment import Host
from tests.trees import Node, contents, on_host, restored_on, shared_object

PLACE = "cudnn/v2/756d60c956aeff7939f8108a"
KERNEL = f"{PLACE}/111eb647f0ffc0534015ba96"


def compile_kernel(node: Node) -> dict[str, bytes]:
    """Write what `_export` leaves."""
    files = {f"{PLACE}/manifest.json": b"{}", f"{KERNEL}/kernel.o": shared_object(), f"{KERNEL}/entry.json": b"{}"}
    for path, data in files.items():
        node.tree.put(path, data)
    return files


def test_a_kernel_is_stored_and_what_is_being_written_is_not(tmp_path: Path, host: Host) -> None:
    node, other = Node(tmp_path), Node(tmp_path, "other")
    files = compile_kernel(node)
    for path in (f"{KERNEL}/kernel.o.4711.1.0f1e.tmp", f"{PLACE}/.manifest.json.a1.4711.tmp", "cudnn/.locks/a-b.lock"):
        node.tree.put(path, shared_object())
    assert node.commit().new_files == 3
    other.restore()
    assert contents(other.tree.root) == files
    assert (other.tree.root / KERNEL / "kernel.o").stat().st_nlink > 1


def test_a_kernel_without_its_entry_waits(tmp_path: Path, host: Host) -> None:
    node = Node(tmp_path)
    compile_kernel(node)
    (node.tree.root / KERNEL / "entry.json").unlink()
    assert node.commit().new_files == 1  # the environment's manifest
    compile_kernel(node)
    assert node.commit().new_files == 2


def test_a_kernel_runs_on_hosts_like_its_builders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path)
    on_host(monkeypatch, "a")
    compile_kernel(node)
    node.commit()
    for host in "ab":
        assert restored_on(monkeypatch, tmp_path, host).tree.has(KERNEL) is (host == "a")
