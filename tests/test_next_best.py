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
from kstore.published.refs import Refs
from kstore.report import CommitStatus, RestoreStatus
from kstore.scope import Scope
from tests.layers.images import Fleet, fill, modules
from tests.trees import KEY, Node

Hide = Callable[..., None]


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Hide:
    """From now on the manifests of these generations, and of no others, cannot be read; `times` says how often."""
    real = storage.read_manifest

    def hide(*generations: int, times: int = 1 << 30) -> None:
        left = [times]

        def read(blobs: BlobStore, ref: Ref, followed: dict[bytes, bytes] | None) -> bytes:
            if ref.generation in generations and not ref.depth and left[0]:
                left[0] -= 1
                raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
            return real(blobs, ref, followed)

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


def test_who_waits_gets_it_too(publisher: Node, worker: Node, hide: Hide) -> None:
    hide(2)
    assert worker.restore(wait=60.0).generation == 1


def test_beside_an_image_the_store_is_still_used(
    tmp_path: Path, host: object, hide: Hide, caplog: pytest.LogCaptureFixture
) -> None:
    """What the root has of the image is no newer than what the store has: each numbers its own generations."""
    fleet = Fleet(tmp_path, "loose", "loose")
    for name in ("image", "more"):
        fleet.bake(name)
    worker, other = fleet.worker("worker"), fleet.worker("other")
    worker.restore()
    for name in ("one", "two"):
        fill(other, name)
        other.commit()
    hide(2)
    report = worker.restore()
    assert (report.generation, report.store, report.notes) == (1, str(fleet.shared), ())
    assert modules(worker) == {"image", "more", "one"}
    assert "only the stores below" not in caplog.text


def test_a_ref_that_cannot_be_read_either_is_told(
    publisher: Node, worker: Node, hide: Hide, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was read twice, and is not read a third time."""
    hide(2)
    real, read = Refs.get, list[int]()

    def get(refs: Refs, scope: Scope, generation: int) -> Ref:
        read.append(generation)
        if read.count(2) > 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(refs, scope, generation)

    monkeypatch.setattr(Refs, "get", get)
    assert worker.restore().generation == 1
    assert "the newest generation of model/v1" in caplog.text


def test_damage_beside_it_is_not_what_keeps_a_worker_from_restoring(publisher: Node, worker: Node, hide: Hide) -> None:
    """The newest is damaged, and the one before it cannot be read now: nothing of the root's own is in doubt."""
    publisher.tree.kernel("three")
    assert publisher.commit().generation == 3
    damage(publisher, 3, b"")
    hide(2)
    with pytest.raises(StoreUnavailable, match="not connected"):
        worker.restore()


def test_what_a_newer_kstore_made_before_the_key_was_withdrawn_is_not_looked_at(
    publisher: Node, worker: Node, hide: Hide
) -> None:
    publisher.store.quarantine(KEY)
    publisher.tree.kernel("three")
    assert publisher.commit().generation == 4
    for generation in (1, 2):
        damage(publisher, generation, b'{"format": 2}')
    hide(4)
    with pytest.raises(StoreUnavailable, match="not connected"):
        worker.restore()


def damage(node: Node, generation: int, content: bytes) -> None:
    """Something else is where a ref was."""
    ref = node.location / node.store.storage.refs.get(node.store.scope(KEY), generation).name
    ref.unlink()
    ref.write_bytes(content)


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


def test_what_the_store_has_lost_is_published_again_by_who_still_has_it(publisher: Node, worker: Node) -> None:
    """Nobody has taken it out: a worker that must restore the generation before publishes what it still has."""
    worker.restore()
    digest = publisher.newest().manifest.hex()
    (manifest,) = publisher.location.rglob(digest)
    manifest.unlink()
    worker.tree.wrapper()
    report = worker.restore()
    assert (report.generation, report.files) == (1, 8)
    assert worker.commit().new_files == 9
    assert Node(worker.location.parent, "fresh").restore().files == 17


def test_what_a_requested_generation_lacks_is_not_published_by_who_restores_it(
    publisher: Node, worker: Node, tmp_path: Path
) -> None:
    """Although it is still in the root."""
    worker.restore()
    assert worker.restore(generation=1).files == 8
    publisher.store.rollback(KEY)
    assert worker.commit().new_files == 0
    assert Node(tmp_path, "fresh").restore().files == 8
