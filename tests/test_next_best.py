"""A manifest that cannot be read now, as while a server heals: a restore takes what it grew from; nothing is lost."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore import storage
from kstore.blobs import BlobStore
from kstore.errors import StoreUnavailable
from kstore.operations import choice
from kstore.published.ref import Ref
from kstore.report import CommitStatus, RestoreStatus
from tests.trees import KEY, Node

Hide = Callable[..., None]


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Hide:
    """From now on the manifests of these generations, and of no others, cannot be read; `times` says how often."""
    real = storage.read_manifest

    def hide(*generations: int, times: int = 1 << 30) -> None:
        left = [times]

        def read(blobs: BlobStore, ref: Ref) -> bytes:
            if ref.generation in generations and left[0]:
                left[0] -= 1
                raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
            return real(blobs, ref)

        monkeypatch.setattr(storage, "read_manifest", read)

    return hide


@pytest.fixture
def publisher(tmp_path: Path) -> Node:
    """It has published two generations."""
    node = Node(tmp_path, "publisher")
    for name in ("one", "two"):
        node.tree.kernel(name)
        assert node.commit().status is CommitStatus.COMMITTED
    return node


@pytest.fixture
def worker(tmp_path: Path) -> Node:
    return Node(tmp_path, "worker")


def test_the_generation_before_one_that_cannot_be_read_is_better_than_none(
    publisher: Node, worker: Node, hide: Hide, caplog: pytest.LogCaptureFixture
) -> None:
    hide(2)
    report = worker.restore()
    assert (report.status, report.generation, report.files) == (RestoreStatus.RESTORED, 1, 8)
    (line,) = caplog.messages
    assert "the newest generation of model/v1" in line and "cannot be read now: [Errno 107]" in line


def test_one_error_costs_nothing(publisher: Node, worker: Node, hide: Hide, caplog: pytest.LogCaptureFixture) -> None:
    hide(2, times=1)
    assert worker.restore().generation == 2
    assert caplog.messages == []


def test_what_it_has_is_kept_by_commits_and_there_when_it_can_be_read_again(
    publisher: Node, worker: Node, hide: Hide
) -> None:
    hide(2)
    worker.restore()
    kernel = worker.tree.kernel("three")
    with pytest.raises(StoreUnavailable):
        worker.commit()
    hide()
    assert worker.commit().generation == 3
    assert worker.restore().files == 24
    assert worker.tree.has(kernel)


def test_a_store_that_takes_long_to_fail_is_asked_for_nothing_else(
    publisher: Node, worker: Node, hide: Hide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "_PATIENCE", -1)
    hide(2, times=1)
    with pytest.raises(StoreUnavailable):
        worker.restore()


def test_the_worker_gets_the_newest_once_it_can_be_read(publisher: Node, worker: Node, hide: Hide) -> None:
    hide(2)
    worker.restore()
    hide()
    report = worker.restore()
    assert (report.status, report.generation, report.files) == (RestoreStatus.RESTORED, 2, 16)


def test_a_root_does_not_go_back(publisher: Node, worker: Node, hide: Hide) -> None:
    worker.restore()
    publisher.tree.kernel("three")
    publisher.commit()
    hide(3)
    report = worker.restore()
    assert (report.status, report.generation) == (RestoreStatus.CURRENT, 2)
    hide(2, 3)
    with pytest.raises(StoreUnavailable):
        worker.restore()
    assert len(list((worker.tree.root / "triton").iterdir())) == 2


def test_what_was_rolled_back_is_not_restored(publisher: Node, worker: Node, hide: Hide) -> None:
    publisher.store.rollback(KEY)
    hide(3)
    with pytest.raises(StoreUnavailable):
        worker.restore()


@pytest.mark.parametrize("verb", ["forget", "quarantine"])
def test_what_was_withdrawn_is_not_restored(publisher: Node, worker: Node, hide: Hide, verb: str) -> None:
    assert getattr(publisher.store, verb)(KEY)
    publisher.tree.kernel("three")
    assert publisher.commit().generation == 4
    hide(4)
    with pytest.raises(StoreUnavailable):
        worker.restore()
