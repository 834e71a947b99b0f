"""What holds of every root in which nothing moves, whoever has noted that."""

from __future__ import annotations

from kstore.report import CommitStatus
from kstore.worker import Worker
from tests.trees import Node


class StillConformance:
    """A module's `node` has a root of which all is published."""

    def test_where_nothing_moves_nothing_is_scanned(self, node: Node, scans: list[Worker]) -> None:
        newest = node.newest()
        report = node.commit()

        assert (report.status, scans) == (CommitStatus.UNCHANGED, [])
        assert (report.generation, report.files, report.bytes) == (newest.generation, newest.files, newest.size)
