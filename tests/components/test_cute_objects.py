"""Kernels of QuACK and FlashAttention: objects that CuTe DSL exports, each with its lock beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstore.environment import Host
from tests.trees import Node, contents, held, on_host, restored_on, shared_object

SOURCES, KEY = "d852" * 16, "a9dc" * 16
EXPORTED = {
    f"quack/{SOURCES}/{KEY}": f"quack/{SOURCES}/{KEY}.o.tmp.4711",  # jit_cache in quack.cache.jit
    f"flashattn/{SOURCES}/fwd/{KEY}": f"flashattn/{SOURCES}/fwd/.{KEY}.4711.tmp.o",  # JITPersistentCache
}
"""A kernel, and the name under which one is written first."""
TUNED = "quack/KVIMKGUDQ25L5SZV2TJMBXN2FRW6FXYNHHRCNVZZXFPOPLX7CUXQ"
either = pytest.mark.parametrize("kernel", EXPORTED)


@either
def test_a_kernel_is_stored_and_what_is_being_written_is_not(tmp_path: Path, host: Host, kernel: str) -> None:
    node, other = Node(tmp_path), Node(tmp_path, "other")
    node.tree.put(f"{kernel}.o", shared_object())
    node.tree.put(f"{kernel}.lock", b"", mode=0o755)
    node.tree.put(EXPORTED[kernel], shared_object())
    assert node.commit().new_files == 1
    other.restore()
    assert contents(other.tree.root) == {f"{kernel}.o": shared_object()}
    assert (other.tree.root / f"{kernel}.o").stat().st_nlink > 1


@either
def test_a_kernel_runs_on_hosts_like_its_builders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    node = Node(tmp_path)
    on_host(monkeypatch, "a")
    node.tree.put(f"{kernel}.o", shared_object())
    node.commit()
    for host in "ab":
        assert restored_on(monkeypatch, tmp_path, host).tree.has(f"{kernel}.o") is (host == "a")


@either
def test_a_kernel_whose_lock_is_held_waits_for_the_next_commit(tmp_path: Path, host: Host, kernel: str) -> None:
    node = Node(tmp_path)
    node.tree.put(f"{kernel}.o", shared_object())
    with held(node.tree.root / f"{kernel}.lock"):
        assert node.commit().new_files == 0
    assert node.commit().new_files == 1


def test_what_quack_has_tuned_is_for_any_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, other = Node(tmp_path), Node(tmp_path, "other")
    on_host(monkeypatch, "a")
    node.tree.put(f"{TUNED}/gemm.autotune.json", b"{}")
    node.tree.put(f"{TUNED}/tmp.pid_4711_0f1e/gemm.autotune.json", b"{")  # FileCacheManager.put
    node.commit()
    on_host(monkeypatch, "b")
    other.restore()
    assert contents(other.tree.root) == {f"{TUNED}/gemm.autotune.json": b"{}"}
