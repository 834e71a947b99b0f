"""Committers, restorers and gc on one key, all at once, each a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.store import Store
from tests.fleet.roles import work
from tests.gc.stores import collect, pass_time, stored
from tests.trees import Node, contents, in_processes

WORKERS = 24
GRACE = 10
SECONDS = 18.0
pytestmark = pytest.mark.slow


def test_no_kernel_is_lost_and_no_restore_fails(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    Store(tmp_path / "store").create(grace=GRACE)
    end = time.time() + SECONDS
    roles = ["commit"] * WORKERS + ["restore"] * WORKERS + ["gc"] * 2
    results = in_processes(work, [(role, tmp_path, n, end) for n, role in enumerate(roles)], timeout=10 * SECONDS)
    committed = {path: data for kernels in results[:WORKERS] for path, data in kernels.items()}
    deleted = sum(results[2 * WORKERS :])

    last = Node(tmp_path, "last")
    assert last.restore().skipped == ()
    found = contents(last.tree.root)
    assert {path: found.get(path) for path in committed} == committed
    assert deleted > 0
    assert last.store.verify().ok
    for _ in range(3):
        pass_time(last)
        collect(last, keep=1)
    left = stored(last)
    pass_time(last)
    assert (collect(last, keep=1).deleted.files, stored(last)) == (0, left)
    record_property(
        "told",
        f"{WORKERS} committers, {last.newest().generation} generations, {len(committed) // 7} kernels, "
        f"{sum(results[WORKERS : 2 * WORKERS])} restores, {deleted} objects deleted meanwhile",
    )
