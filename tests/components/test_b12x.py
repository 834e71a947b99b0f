"""b12x: a kernel is an object and a manifest with its digest, in a folder with others; and there are tuned choices."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from kstore.environment import Host
from tests.trees import Node, contents, held, on_host, restored_on, shared_object

KEY = hashlib.sha256(b"kernel").hexdigest()
KERNEL = f"b12x/{KEY[:2]}/{KEY}"
TUNED = f"b12x/preparation/{KEY}.json"


def compile_kernel(node: Node, variant: str = "") -> dict[str, bytes]:
    """Write what `_store_cute_compile_to_disk` leaves; no two compiles need make the same object."""
    data = shared_object() + variant.encode()
    manifest = {"cache_key": KEY, "object_bytes": len(data), "object_sha256": hashlib.sha256(data).hexdigest()}
    files = {f"{KERNEL}.o": data, f"{KERNEL}.json": json.dumps(manifest).encode()}
    for path, content in files.items():
        node.tree.put(path, content)
    return files


def test_what_is_being_written_or_received_is_not_stored(tmp_path: Path, host: Host) -> None:
    node, other = Node(tmp_path), Node(tmp_path, "other")
    files = compile_kernel(node)
    folder = KERNEL.rpartition("/")[0]
    for name in (f"{KEY}.lock", f".{KEY}.o.a1b2c3d4.tmp", f".peer-a1b2c3d4/{KEY}.o", f".peer-a1b2c3d4/{KEY}.json"):
        node.tree.put(f"{folder}/{name}", shared_object())
    assert node.commit().new_files == 2
    other.restore()
    assert contents(other.tree.root) == files
    assert all((other.tree.root / path).stat().st_nlink > 1 for path in files)


def test_each_host_gets_the_manifest_of_its_own_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """b12x compiles at each start if the two do not belong together (`valid_object`)."""
    compiled = {}
    for host in "ab":
        on_host(monkeypatch, host)
        node = Node(tmp_path, host)
        node.restore()
        compiled[host] = compile_kernel(node, host)
        assert node.commit().new_files == 2
    for host in "ab":
        assert contents(restored_on(monkeypatch, tmp_path, host).tree.root) == compiled[host]


def test_a_kernel_whose_lock_is_held_waits_with_its_manifest(tmp_path: Path, host: Host) -> None:
    node = Node(tmp_path)
    compile_kernel(node)
    with held(node.tree.root / f"{KERNEL}.lock"):
        assert node.commit().new_files == 0
    assert node.commit().new_files == 2


def test_choices_that_two_workers_have_tuned_are_for_any_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = {host: {f"{host}0": {"config": {"tile": 64}, "programs": [["cute", KEY]]}} for host in "ab"}
    for host in "ab":
        on_host(monkeypatch, host)
        node = Node(tmp_path, host)
        node.tree.put(TUNED, json.dumps({"identity": {"sm_count": 188}, "records": records[host]}).encode())
        node.tree.put(TUNED.replace("json", "lock"), b"")
        node.commit()
    other = Node(tmp_path, "other")
    other.restore()
    assert list(contents(other.tree.root)) == [TUNED]
    assert json.loads(other.tree.read(TUNED)) == {
        "identity": {"sm_count": 188}, "records": records["a"] | records["b"],
    }  # fmt: skip
