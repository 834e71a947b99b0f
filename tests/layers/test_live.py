"""Commits while a compiler runs, and uploads ahead of them, above an image's store."""

from __future__ import annotations

from kstore.report import CommitStatus
from tests.layers.images import GROUP_FILES, Fleet, fill, has


def test_checkpoints_and_uploads_ahead_leave_what_the_image_has_where_it_is(fleet: Fleet) -> None:
    fleet.bake("one")
    worker = fleet.worker("worker")
    worker.restore()
    for name in ("two", "three"):
        fill(worker, name)
        worker.store.upload_ahead("model/v1")
        report = worker.store.checkpoint("model/v1")
        assert (report.status, report.new_files) == (CommitStatus.COMMITTED, 3 + GROUP_FILES)
    assert worker.commit().status is CommitStatus.UNCHANGED
    again = fleet.worker("again")
    assert again.restore().left_out == 0
    assert has(again) == {"one", "two", "three"}
