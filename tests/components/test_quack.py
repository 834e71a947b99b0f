"""QuACK's kernels: an object for each, in a folder named by a digest of QuACK's sources, with its lock beside it."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from kstore.environment import Host
from tests.trees import Node, contents, shared_object

SOURCES, KEY = "d852" * 16, "a9dc" * 16
KERNEL = f"quack/{SOURCES}/{KEY}.o"
TUNED = "quack/KVIMKGUDQ25L5SZV2TJMBXN2FRW6FXYNHHRCNVZZXFPOPLX7CUXQ"


def on_host(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("kstore.environment.ownhost.detect_host", lambda _: Host(name * 16, {"cpu": name}))


def test_kernels_and_tuned_choices_are_stored_and_what_is_being_written_is_not(tmp_path: Path, host: Host) -> None:
    node, other = Node(tmp_path), Node(tmp_path, "other")
    node.tree.put(KERNEL, shared_object())
    node.tree.put(f"{TUNED}/gemm.autotune.json", b"{}")
    for name in (f"{SOURCES}/{KEY}.lock", f"{SOURCES}/{KEY[::-1]}.o.tmp.4711"):  # jit_cache in quack.cache.jit
        node.tree.put(f"quack/{name}", b"")
    node.tree.put(f"{TUNED}/tmp.pid_4711_0f1e/gemm.autotune.json", b"{")  # FileCacheManager.put
    assert node.commit().new_files == 2
    other.restore()
    assert contents(other.tree.root) == {KERNEL: shared_object(), f"{TUNED}/gemm.autotune.json": b"{}"}
    assert (other.tree.root / KERNEL).stat().st_nlink > 1


def test_a_kernel_runs_on_hosts_like_its_builders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path)
    on_host(monkeypatch, "a")
    node.tree.put(KERNEL, shared_object())
    node.tree.put(f"{TUNED}/gemm.autotune.json", b"{}")
    node.commit()
    for host in "ab":
        on_host(monkeypatch, host)
        other = Node(tmp_path, f"other {host}")
        other.restore()
        assert other.tree.has(KERNEL) is (host == "a")
        assert other.tree.has(f"{TUNED}/gemm.autotune.json")


def test_a_kernel_whose_lock_is_held_waits_for_the_next_commit(tmp_path: Path, host: Host) -> None:
    node = Node(tmp_path)
    node.tree.put(KERNEL, shared_object())
    node.tree.put(f"quack/{SOURCES}/{KEY}.lock", b"", mode=0o755)
    with (node.tree.root / f"quack/{SOURCES}/{KEY}.lock").open("w") as builder:
        fcntl.flock(builder.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert node.commit().new_files == 0
    assert node.commit().new_files == 1
