"""Committers, restorers and gc, each a process that works in `folder` until `end`."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from kstore.gc import Policy
from kstore.report import CommitStatus, RestoreStatus
from tests.trees import Node, contents, without_relocated


def work(role: str, folder: Path, number: int, end: float) -> Any:
    return {"commit": commit_on, "restore": restore_on, "gc": collect_on}[role](folder, number, end)


def commit_on(folder: Path, number: int, end: float) -> dict[str, bytes]:
    """Returns everything that was reported as published."""
    node = Node(folder, f"committer-{number}", layout="loose" if number % 2 else "packed")
    kernels = 0
    while time.time() < end or not kernels:
        node.tree.kernel(f"kernel-{number}-{kernels}")
        report = node.commit()
        assert report.status is CommitStatus.COMMITTED, report
        kernels += 1
    return without_relocated(contents(node.tree.root))


def restore_on(folder: Path, number: int, end: float) -> int:
    """Returns how often it restored, each time into a fresh root."""
    restored = 0
    while time.time() < end or not restored:
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
    while time.time() < end:
        report = Node(folder, f"gc-{number}").store.gc(Policy(keep=1))
        assert report.unreadable == []
        deleted += report.deleted.files
        time.sleep(0.2)
    return deleted
