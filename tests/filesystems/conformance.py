"""What holds for a store and a cache root on any two filesystems. A class for each pair inherits it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import ClassVar

import pytest

import kstore
from kstore.local.link import LinkMode
from kstore.report import CommitStatus, RestoreStatus
from kstore.store import Store
from tests.filesystems.volumes import Volumes, fill, make_room
from tests.trees import ENVIRONMENT, GPU, KEY, Tree, contents, listing

SETTINGS = {"gpu": GPU, "environment": ENVIRONMENT}


class Pair:
    """A store on one filesystem, and cache roots on the same or another."""

    def __init__(self, shared: Path, local: Path) -> None:
        self.shared = shared
        self.local = local
        self.store = shared / "store"

    def worker(self, name: str, layout: str | None = None) -> Store:
        return Store(self.store, cache_root=self.local / name, layout=layout, environ={}, **SETTINGS)

    def tree(self, name: str) -> Tree:
        return Tree(self.local / name)

    def publish(self, layout: str | None = None) -> kstore.CommitReport:
        """Publish one of everything, by a worker called "first"."""
        tree = self.tree("first")
        tree.wrapper()
        tree.graph()
        tree.kernel()
        tree.timings({"one": 1.0})
        tree.put("inductor/ab/one.cu", b"// is changed in place", mode=0o755)
        return self.worker("first", layout).commit(KEY)

    def portable(self, name: str) -> dict[str, bytes]:
        """What a worker has, except for its own path."""
        root = self.local / name
        return {path: data.replace(bytes(root), b"ROOT") for path, data in contents(root).items()}


class StoreAndCacheRoot:
    """Commits and restores, whatever the filesystems can do."""

    store_on: ClassVar[str]
    root_on: ClassVar[str | None] = None
    """None: the same filesystem."""
    mode: ClassVar[LinkMode]
    why: ClassVar[str] = ""
    """Why it is not a better mode."""
    keeps_stamps: ClassVar[bool] = True

    @pytest.fixture
    def pair(self, volumes: Volumes) -> Pair:
        shared = volumes.make(self.store_on)
        return Pair(shared, volumes.make(self.root_on) if self.root_on else shared)

    def test_the_layout_is_chosen_by_what_links(self, pair: Pair) -> None:
        report = pair.publish()
        assert report.status is CommitStatus.COMMITTED
        assert report.layout == ("packed" if self.mode is LinkMode.COPY else "loose")

    def test_a_worker_gets_what_another_has_in_the_best_way(self, pair: Pair) -> None:
        pair.publish("loose")
        report = pair.worker("second").restore(KEY)
        assert report.status is RestoreStatus.RESTORED
        assert pair.portable("second") == pair.portable("first")
        assert (report.link_mode, report.link_why) == (self.mode, self.why)
        shared = {path.stat().st_ino for path in (pair.local / "second").rglob("k.*")}
        blobs = {path.stat().st_ino for path in pair.store.glob("blobs/*/*")}
        assert (shared <= blobs and pair.local == pair.shared) == (self.mode is LinkMode.HARDLINK)

    def test_packs_are_copied(self, pair: Pair) -> None:
        pair.publish("packed")
        report = pair.worker("second").restore(KEY)
        assert pair.portable("second") == pair.portable("first")
        assert (report.link_mode, report.link_why) == (LinkMode.COPY, "the blobs are packed")

    def test_what_is_changed_in_place_here_does_not_change_the_store(self, pair: Pair) -> None:
        pair.publish("loose")
        blobs = pair.store / "blobs"
        before = listing(blobs)
        pair.worker("second").restore(KEY)
        changed = pair.local / "second/inductor/ab/one.cu"
        assert os.access(changed, os.X_OK)
        with open(changed, "r+b") as file:
            file.write(b"##")
        found = {path: status[2:] for path, status in listing(blobs).items() if path.count("/")}
        assert found == {path: status[2:] for path, status in before.items() if path.count("/")}
        assert (pair.local / "first/inductor/ab/one.cu").read_bytes().startswith(b"//")

    def test_a_scan_knows_what_was_restored_by_its_times(self, pair: Pair, layout: str) -> None:
        pair.publish(layout)
        store = pair.worker("second")
        store.restore(KEY)
        worker = store.worker(KEY, before_import=False)
        read: list[tuple[bytes, bytes]] = []
        worker.scan(worker.state.load(), lambda blobs, _: read.extend(blobs))
        # A file that is changed in place, a merged one, and Triton's list of a kernel's files are always read.
        assert (len(read) <= 3) == self.keeps_stamps
        assert store.commit(KEY).status is CommitStatus.UNCHANGED

    def test_news_of_two_workers_meet(self, pair: Pair) -> None:
        pair.publish()
        for name in ("second", "third"):
            pair.worker(name).restore(KEY)
            pair.tree(name).kernel(name)
            assert pair.worker(name).commit(KEY).status is CommitStatus.COMMITTED
        pair.worker("first").restore(KEY)
        pair.worker("fourth").restore(KEY)
        assert pair.portable("fourth") == pair.portable("first")
        assert len(list((pair.local / "fourth/triton").iterdir())) == 3

    def test_a_restore_where_nothing_fits_places_all_or_nothing(self, pair: Pair, layout: str) -> None:
        pair.tree("first").put("inductor/ab/c.py", os.urandom(1 << 20))
        pair.publish(layout)
        root = pair.local / "second"
        pair.worker("second").variables(KEY)
        filler = fill(pair.local)
        report = kstore.restore(KEY, store=pair.store, cache_root=root, environ={}, **SETTINGS)
        if report.status is RestoreStatus.FAILED:
            assert os.strerror(errno.ENOSPC) in report.error
            assert contents(root) == {}
        else:
            assert pair.portable("second") == pair.portable("first"), "links may need no space"
        make_room(filler)
        assert pair.worker("second").restore(KEY).ok
        assert pair.portable("second") == pair.portable("first")

    def test_a_commit_where_nothing_fits_publishes_all_or_nothing(self, pair: Pair, layout: str) -> None:
        pair.publish(layout)
        pair.worker("second").restore(KEY)
        pair.tree("second").put("inductor/ab/c.py", os.urandom(1 << 20))
        filler = fill(pair.shared)
        root = pair.local / "second"
        report = kstore.commit(KEY, store=pair.store, cache_root=root, layout=layout, environ={}, **SETTINGS)
        assert report.status is CommitStatus.FAILED
        assert os.strerror(errno.ENOSPC) in report.error
        assert list((pair.store / "tmp").iterdir()) == []
        make_room(filler)
        assert pair.worker("second", layout).commit(KEY).status is CommitStatus.COMMITTED
        pair.worker("third").restore(KEY)
        assert pair.portable("third") == pair.portable("second")
