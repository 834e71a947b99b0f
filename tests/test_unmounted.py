"""The filesystem of the store goes away while a job runs: its mount point stays, as an empty folder."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.backends import PosixBackend
from kstore.errors import StoreUnavailable
from kstore.intake import Intake
from kstore.layout import probe_link
from kstore.published.ref import Ref
from kstore.published.refs import Refs
from kstore.report import CommitStatus, RestoreStatus
from kstore.stats.record import finish, record
from kstore.upload.uploader import Uploader
from tests.trees import KEY, Node, Tree, unmounted


def unmount(node: Node) -> None:
    node.location.rename(node.location.with_name("away"))
    node.location.mkdir()


def mount(node: Node) -> None:
    node.location.rmdir()
    node.location.with_name("away").rename(node.location)


@pytest.fixture(params=[KEY, "another/v1"], ids=["hit", "miss"])
def worker(request: pytest.FixtureRequest, tmp_path: Path, layout: str) -> Node:
    """A worker that has restored, and has compiled something since."""
    other = Node(tmp_path, "other", layout=layout)
    other.tree.kernel("one")
    other.commit(request.param)
    node = Node(tmp_path, "worker", layout=layout)
    node.restore()
    node.tree.kernel("two")
    return node


def test_no_other_store_is_made_in_its_place(worker: Node, tmp_path: Path, layout: str) -> None:
    """Whatever was committed there would be hidden as soon as the filesystem is back."""
    unmount(worker)
    for node in (worker, Node(tmp_path, "worker", layout=layout)):  # the worker, and a fresh one of its own
        with pytest.raises(
            StoreUnavailable, match=r"is gone; check whether its filesystem is mounted, or .*kstore init"
        ):
            node.commit()
    assert list(worker.location.iterdir()) == []

    mount(worker)
    assert worker.commit().status is CommitStatus.COMMITTED
    assert Node(tmp_path, "third").restore().placed >= 8


@pytest.mark.parametrize(
    ("owner", "step"), [(Intake, "offer"), (Intake, "end"), (Uploader, "upload"), (Refs, "publish")]
)
def test_what_is_being_committed_does_not_go_into_its_place(
    owner: type, step: str, tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, real, was_away = Node(tmp_path, layout=layout), getattr(owner, step), list[bool]()
    worker.store.create()
    worker.tree.kernel()

    def unmount_first(*arguments: Any, **options: Any) -> Any:
        if not was_away:
            was_away.append(True)
            unmount(worker)
        return real(*arguments, **options)

    def make_at_once(backend: PosixBackend, folder: str) -> Any:
        backend.make_folder(backend.path(folder))
        return lambda: None

    monkeypatch.setattr(owner, step, unmount_first)
    monkeypatch.setattr(PosixBackend, "make_ahead", make_at_once)  # No thread is half-way when it goes.
    with pytest.raises(StoreUnavailable, match="the store is gone"):
        worker.commit()
    assert list(worker.location.iterdir()) == []

    mount(worker)
    assert worker.commit().status is CommitStatus.COMMITTED
    assert Node(tmp_path, "third").restore().placed == 8


def test_no_other_store_is_made_where_it_went_before_anything_was_restored(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with FUSE: every call fails, and later the mount point is empty."""
    builder = Node(tmp_path, "builder", layout=layout)
    builder.tree.kernel()
    builder.commit()
    worker = Node(tmp_path, "worker", layout=layout)

    def disconnected(*arguments: Any, **options: Any) -> Any:
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

    with monkeypatch.context() as patch:
        patch.setattr(Refs, "get", disconnected)
        with pytest.raises(StoreUnavailable):
            worker.restore()
    worker.tree.kernel("two")
    unmount(worker)
    with pytest.raises(StoreUnavailable, match="is gone"):
        Node(tmp_path, "worker", layout=layout).commit()
    assert list(worker.location.iterdir()) == []

    mount(worker)
    assert worker.commit().status is CommitStatus.COMMITTED


def test_what_is_missing_since_it_went_is_not_called_damaged(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder, worker, get = Node(tmp_path, "builder", layout=layout), Node(tmp_path, "worker", layout=layout), Refs.get
    builder.tree.kernel()
    builder.commit()

    def get_and_unmount(*arguments: Any) -> Ref:
        ref = get(*arguments)
        unmount(worker)
        return ref

    monkeypatch.setattr(Refs, "get", get_and_unmount)
    with pytest.raises(StoreUnavailable, match="is gone"):
        worker.restore()


def test_how_blobs_are_linked_is_not_tried_in_its_place(tmp_path: Path) -> None:
    worker = Node(tmp_path)
    worker.store.create()
    with unmounted(worker.location), pytest.raises(OSError, match="the store is gone"):
        probe_link(worker.store.worker(KEY, before_import=False))


def test_the_job_is_told(tmp_path: Path, worker: Node) -> None:
    settings: dict[str, Any] = {"store": worker.location, "cache_root": tmp_path / "third", "stats": False}
    with kstore.synchronized(KEY, **settings) as block:
        Tree(tmp_path / "third").wrapper()
        unmount(worker)
    assert block.committed.status is CommitStatus.FAILED
    assert "is gone" in block.committed.error
    mount(worker)


def test_nothing_is_counted_in_its_place(worker: Node) -> None:
    report = worker.restore()
    unmount(worker)
    record(worker.store, report)
    finish(60)
    assert list(worker.location.iterdir()) == []


def test_a_worker_that_looked_in_vain_for_a_store_makes_one(worker: Node) -> None:
    unmount(worker)
    assert worker.restore().status is RestoreStatus.MISS
    assert worker.commit().status is CommitStatus.COMMITTED


def test_a_worker_that_has_asked_for_nothing_makes_a_store(worker: Node, tmp_path: Path) -> None:
    unmount(worker)
    node = Node(tmp_path, "third")
    node.tree.kernel("two")
    assert node.commit().status is CommitStatus.COMMITTED
