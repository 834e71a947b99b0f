"""TileLang's kernels: a manifest beside the library has its digest; TileLang deletes a kernel that does not match."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from kstore.environment import Host
from tests.trees import Node, contents, on_host, restored_on, shared_object

DIGEST = hashlib.sha256(b"kernel").hexdigest()
KERNEL = f"tilelang/0.1.9/linux-x86_64/kernels/{DIGEST}"


def compile_kernel(node: Node, folder: str, variant: str) -> dict[str, bytes]:
    """Write what `KernelCache` leaves; no two compiles make the same library."""
    library = shared_object() + variant.encode()
    files = {"kernel_lib.so": library, "device_kernel.cu": b"code", "params.json": b"[]"}
    manifest = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    files["manifest.json"] = json.dumps(manifest).encode()
    for name, data in files.items():
        node.tree.put(f"{folder}/{name}", data)
    return files


def test_each_host_gets_the_manifest_of_its_own_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = {}
    for host in "ab":
        on_host(monkeypatch, host)
        node = Node(tmp_path, host)
        node.restore()
        assert not (node.tree.root / KERNEL).exists()
        compiled[host] = compile_kernel(node, KERNEL, host)
        assert node.commit().new_files == 4
    for host in "ab":
        assert contents(restored_on(monkeypatch, tmp_path, host).tree.root / KERNEL) == compiled[host]


@pytest.mark.parametrize(
    "folder", [f"tilelang/{DIGEST}", f"tilelang/autotuner/{DIGEST}", KERNEL.replace("kernels", "autotuner")]
)
def test_a_kernel_that_is_being_written_waits_for_the_next_commit(tmp_path: Path, host: Host, folder: str) -> None:
    node = Node(tmp_path)
    compile_kernel(node, folder, "1")
    (node.tree.root / folder / "params.json").unlink()
    assert node.commit().new_files == 0
    compile_kernel(node, folder, "1")
    assert node.commit().new_files == 4


def test_machine_code_that_runs_on_any_host_is_restored_on_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_host(monkeypatch, "a")
    node = Node(tmp_path)
    for name in ("kernel.cubin", "metadata.json"):
        node.tree.put(f"tilelang/0.1.9/cuda-binaries/{DIGEST}/{name}", name.encode())
    node.commit()
    other = restored_on(monkeypatch, tmp_path, "b")
    assert contents(other.tree.root) == contents(node.tree.root)
