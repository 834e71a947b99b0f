"""Every schedule of workers of two images, and of one actor that forgets the key, on one shared store.

The images' stores are real folders that nobody writes to: no schedule changes what is read there. One of them has more
generations than the other, so that numbers taken from below would let both first commits succeed.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Hashable, Mapping
from functools import partial
from pathlib import Path

import pytest

from kstore.operations.theirs import Newest, Theirs
from kstore.published import layers
from kstore.published.manifest import Flag
from kstore.report import CommitStatus
from kstore.storage import Storage
from tests.interleavings.actors import Outcome, put_on
from tests.interleavings.conversation import Actor, Trouble
from tests.interleavings.exploration import Broken, Explored, Violation, explore
from tests.interleavings.invariants import manifest_of, refs_in
from tests.interleavings.memory import Contents, Memory, MemoryBackend
from tests.layers.images import Worker
from tests.trees import KEY

IMAGES = {"commit A": "first", "commit B": "second", "commit C": "first"}


def wrapper(name: str) -> str:
    return f"inductor/ab/c{name}.py"


class Fleet:
    """Two images, and what their workers do."""

    def __init__(self, folder: Path, layout: str) -> None:
        self.folder = folder
        self.layout = layout
        self._bake("first", "one")
        self._bake("second", "two", "three")
        storages = [Storage(folder / name) for name in ("first", "second")]
        self.below = {digest for storage in storages for digest in storage.blobs.digests_in(storage.blobs.packs())}

    def _bake(self, image: str, *names: str) -> None:
        builder = Worker(self.folder, f"builder of {image}", self.folder / image, layout="packed")
        for name in names:
            builder.tree.put(wrapper(name), name.encode())
            assert builder.commit().ok

    def worker(self, name: str) -> Worker:
        shutil.rmtree(self.folder / name, ignore_errors=True)
        stores = (self.folder / "shared", self.folder / IMAGES.get(name, "first"))
        return Worker(self.folder, name, *stores, layout=self.layout)

    def commit(self, name: str, backend: MemoryBackend) -> Hashable:
        """Commits on top of what its image has."""
        worker = self.worker(name)
        put_on(worker, Memory(Contents()).backend)
        assert worker.restore().ok
        worker.tree.put(wrapper(name[-1]), name.encode())
        put_on(worker, backend)
        report = worker.commit()
        return Outcome(report.status.value, report.generation)

    def forget(self, name: str, backend: MemoryBackend) -> Hashable:
        worker = self.worker(name)
        put_on(worker, backend)
        return worker.store.forget(KEY)[0].generation

    def made(self) -> Contents:
        """The shared store, which is empty: only a commit makes one."""
        memory = Memory(Contents())
        worker = self.worker("admin")
        put_on(worker, memory.backend)
        worker.store.create()
        return memory.contents

    def actor(self, name: str) -> Actor:
        return Actor(name, partial(self.forget if name == "forget" else self.commit, name))

    def check(self, contents: Contents, outcomes: Mapping[str, Hashable]) -> None:
        """Nothing that was reported is missing, and everything that is not above is below."""
        refs = refs_in(contents)
        for ref in refs:
            for path, entry in manifest_of(contents, ref).files.items():
                if entry.flags & Flag.BELOW and entry.digest not in self.below:
                    raise Broken(f"{path} of generation {ref.generation} is said to be below")
        forgotten = max((ref.generation for ref in refs if not ref.files), default=0)
        for name, outcome in outcomes.items():
            if isinstance(outcome, Trouble):
                raise Broken(f"{name} failed: {outcome.error}")
            if isinstance(outcome, Outcome):
                if outcome.status != CommitStatus.COMMITTED.value:
                    raise Broken(f"{name} is {outcome.status}")
                found = manifest_of(contents, refs[-1]).files
                if outcome.generation > forgotten and wrapper(name[-1]) not in found:
                    raise Broken(f"what {name} published is not in the newest generation")
                if not forgotten and wrapper({"first": "one", "second": "two"}[IMAGES[name]]) not in found:
                    raise Broken(f"what the image of {name} has is not in the newest generation")


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Actors have one thread."""
    caplog.set_level(logging.CRITICAL, "kstore")
    monkeypatch.setattr(layers, "within", lambda seconds, waiting, what, work: work())


def check(folder: Path, layout: str, *names: str) -> Explored:
    fleet = Fleet(folder, layout)
    before = fleet.made() if "forget" in names else Contents()
    return explore([fleet.actor(name) for name in names], before, fleet.check)


@pytest.mark.parametrize("names", [("commit A", "commit B"), ("commit A", "commit C"), ("commit B", "forget")], ids=str)
def test_nothing_is_lost_between_two_images(names: tuple[str, ...], layout: str, tmp_path: Path) -> None:
    assert check(tmp_path, layout, *names).schedules > 50


def test_numbers_that_go_on_from_those_below_are_found_to_lose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The explorer sees why the first generation above is number 1."""
    real = Newest.theirs

    def counted_on(newest: Newest) -> Theirs:
        found = real(newest)
        below = found.snapshot and found.snapshot.ref.depth
        return found._replace(generation=found.snapshot.ref.generation) if found.snapshot and below else found

    monkeypatch.setattr(Newest, "theirs", counted_on)
    with pytest.raises(Violation, match="is not in the newest generation"):
        check(tmp_path, "packed", "commit A", "commit B")
