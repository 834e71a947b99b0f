"""However a process starts and ends, what it compiled is published at its end, and what it holds is given up."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import kstore
from tests.leases import claim
from tests.trees import ENVIRONMENT, GPU, KEY, Node, Tree

METHODS = ["fork", "forkserver", "spawn"]


def settings(folder: Path) -> dict[str, Any]:
    scope = {"gpu": GPU, "environment": ENVIRONMENT}
    return {"store": str(folder / "store"), "cache_root": str(folder / "worker"), "stats": False, **scope}


def watch(folder: Path) -> None:
    """The watch is not stopped."""
    kstore.restore(KEY, **settings(folder))
    kstore.watch(KEY, settle=3600, every=3600, **settings(folder))
    Tree(folder / "worker").kernel()


def lead(folder: Path) -> None:
    assert kstore.restore(KEY, wait=60, lease_ttl=3600, **settings(folder)).leads


@pytest.mark.parametrize("method", METHODS)
def test_what_a_child_of_multiprocessing_compiled_is_published(tmp_path: Path, method: str) -> None:
    child = multiprocessing.get_context(method).Process(target=watch, args=(tmp_path,))
    child.start()
    child.join()
    assert (child.exitcode, len(Node(tmp_path, "reader").published())) == (0, 8)


@pytest.mark.parametrize("method", METHODS)
def test_what_a_worker_of_a_pool_compiled_is_published(tmp_path: Path, method: str) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        pool.submit(watch, tmp_path).result()
    assert len(Node(tmp_path, "reader").published()) == 8


@pytest.mark.parametrize("method", METHODS)
def test_a_child_of_multiprocessing_gives_up_its_lease(tmp_path: Path, method: str) -> None:
    child = multiprocessing.get_context(method).Process(target=lead, args=(tmp_path,))
    child.start()
    child.join()
    newest = claim(Node(tmp_path, "reader"))
    assert child.exitcode == 0
    assert newest and newest.is_released
