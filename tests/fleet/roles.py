"""Committers, restorers and gc, each a process that works in `folder` until `end`, and until gc has deleted something,
which may be later on a busy machine.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from kstore.gc import Policy
from kstore.report import CommitStatus, RestoreStatus
from tests.trees import Node, contents, without_relocated

DELETED = "deleted"
"""The name of a file that says that gc has."""
PATIENCE = 60.0
"""Seconds after `end` in which that must happen."""


def work(role: str, folder: Path, number: int, end: float) -> Any:
    return {"commit": commit_on, "restore": restore_on, "gc": collect_on}[role](folder, number, end)


def is_over(folder: Path, end: float) -> bool:
    now = time.time()
    return now >= end and ((folder / DELETED).exists() or now >= end + PATIENCE)


def commit_on(folder: Path, number: int, end: float) -> dict[str, bytes]:
    """Returns everything that was reported as published."""
    node = Node(folder, f"committer-{number}", layout="loose" if number % 2 else "packed")
    kernels = 0
    while not (kernels and is_over(folder, end)):
        node.tree.kernel(f"kernel-{number}-{kernels}")
        report = node.commit()
        assert report.status is CommitStatus.COMMITTED, report
        kernels += 1
    return without_relocated(contents(node.tree.root))


def restore_on(folder: Path, number: int, end: float) -> int:
    """Returns how often it restored, each time into a fresh root."""
    restored = 0
    while not (restored and is_over(folder, end)):
        node = Node(folder, f"restorer-{number}-{restored}")
        report = node.restore()
        assert report.status in (RestoreStatus.RESTORED, RestoreStatus.MISS), report
        assert report.skipped == ()
        shutil.rmtree(node.tree.root)
        restored += 1
    return restored


def collect_on(folder: Path, number: int, end: float) -> int:
    """Returns how many objects it deleted."""
    deleted = 0
    while not is_over(folder, end):
        report = Node(folder, f"gc-{number}").store.gc(Policy(keep=1))
        assert report.unreadable == []
        deleted += report.deleted.files
        if deleted:
            (folder / DELETED).touch()
        time.sleep(0.2)
    return deleted
