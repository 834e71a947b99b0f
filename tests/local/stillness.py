"""What holds for every root in which nothing moves, whoever has noted that."""

from __future__ import annotations

import os

from kstore.report import CommitStatus
from kstore.worker import Worker
from tests.trees import Node


def make_lock(node: Node) -> None:
    """As torch does when it loads a shared object."""
    os.mkdir(node.tree.root / "inductor/locks")
    node.tree.put("inductor/locks/c.lock", b"")


def leave_half(node: Node) -> None:
    """As a killed compiler does."""
    node.tree.put("inductor/x.tmp", b"half")


IGNORED = [make_lock, leave_half]


class StillConformance:
    """A module's `node` has a root that is published completely."""

    def test_where_nothing_moves_nothing_is_scanned(self, node: Node, scans: list[Worker]) -> None:
        newest = node.newest()
        report = node.commit()

        assert (report.status, scans) == (CommitStatus.UNCHANGED, [])
        assert (report.generation, report.files, report.bytes) == (newest.generation, newest.files, newest.size)
