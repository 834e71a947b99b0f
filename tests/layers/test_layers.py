"""An image's store below the shared store: what is read where, and that nothing is written below."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kstore.api import commit, restore
from kstore.backends import Child, PosixBackend
from kstore.blobs.loose import blob_name
from kstore.errors import MissError, StoreUnavailable
from kstore.gc import Policy
from kstore.inspect.artifact import find_artifact, read_artifact
from kstore.inspect.sides import published_side
from kstore.published import layers
from kstore.published.leaning import leaning, leans_on
from kstore.published.manifest import Flag
from kstore.published.ref import RefState
from kstore.published.refs import Refs
from kstore.report import CommitStatus, RestoreStatus
from kstore.storage import Storage
from kstore.store import Store
from tests.faults.reading import unlistable
from tests.layers.images import (
    GROUP_FILES,
    Fleet,
    Worker,
    commit_each,
    fill,
    fingerprint,
    has,
    kernels,
    modules,
    objects,
)
from tests.test_repair import rot_frame
from tests.trees import ENVIRONMENT, GPU, KEY, Tree, as_if_newer, contents

OTHER = "model/v2"
TICK = 0.15
"""Seconds after which a time is trusted."""


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Absolute paths of everything that any store is asked for."""
    found: list[str] = []
    for name in ("get", "stat", "list"):
        real = getattr(PosixBackend, name)

        def asked(self: PosixBackend, name: str, *rest: Any, real: Any = real) -> Any:
            found.append(f"{self.root}/{name}")
            return real(self, name, *rest)

        monkeypatch.setattr(PosixBackend, name, asked)
    return found


# ---- Reading


def test_what_only_the_image_has_is_restored(fleet: Fleet) -> None:
    fleet.bake("one")
    worker = fleet.worker("worker")
    report = worker.restore()
    assert (report.status, report.left_out, report.store) == (RestoreStatus.RESTORED, 0, str(fleet.base))
    assert report.placed == report.files == len(contents(worker.tree.root))
    assert has(worker) == {"one"}
    assert worker.restore().status is RestoreStatus.CURRENT
    assert not fleet.shared.exists()


def test_the_first_store_that_has_the_scope_is_in_charge(fleet: Fleet) -> None:
    fleet.bake("below")
    above = fleet.without("above")
    fill(above, "above")
    above.commit()
    worker = fleet.worker("worker")
    assert worker.restore().store == str(fleet.shared)
    assert has(worker) == {"above"}


def test_the_image_is_not_even_looked_at_if_the_shared_store_has_it_all(fleet: Fleet, reads: list[str]) -> None:
    fleet.bake("below")
    above = fleet.without("above")
    fill(above, "above")
    above.commit()
    reads.clear()
    worker = fleet.worker("worker")
    worker.restore()
    fill(worker, "news")
    assert [path for path in reads if path.startswith(str(fleet.base))] == []


def test_where_there_is_one_store_nothing_else_is_asked_for(fleet: Fleet, reads: list[str]) -> None:
    """A worker asks for as much as it would if layers did not exist."""
    fleet.shared.parent.mkdir()
    above = fleet.without("above")
    above.tree.wrapper()
    above.commit()
    fleet.without("first").restore()  # A worker that marks a key for the first time looks whether a mark exists.
    reads.clear()
    fleet.without("worker").restore()
    asked = [os.path.relpath(path, fleet.shared) for path in reads]
    folder = f"refs/{above.newest().scope.path}"
    assert asked[:3] == ["kstore.json", folder, f"{folder}/1"]
    assert len([name for name in asked if name == "kstore.json"]) == 1
    assert len([name for name in asked if name.startswith("refs")]) == 2


def test_a_seed_is_looked_for_in_every_store_after_the_key(fleet: Fleet) -> None:
    fleet.bake("one")
    worker = fleet.worker("worker")
    report = worker.restore(OTHER, seed=KEY)
    assert report.status is RestoreStatus.SEEDED
    assert has(worker) == {"one"}


def test_a_generation_is_that_of_the_store_in_charge(fleet: Fleet) -> None:
    fleet.bake("one")
    worker = fleet.worker("worker")
    assert worker.restore(generation=1).store == str(fleet.base)
    commit_each(worker, "two", "three")
    again = fleet.worker("again")
    assert again.restore(generation=2).store == str(fleet.shared)
    with pytest.raises(MissError, match="no generation 7"):
        again.restore(generation=7)


def test_a_worker_that_waits_does_not_wait_for_what_the_image_has(fleet: Fleet) -> None:
    fleet.bake("one")
    report = fleet.worker("worker").restore(wait=60)
    assert (report.status, report.leads, report.waited) == (RestoreStatus.RESTORED, False, 0.0)
    report = fleet.worker("pinned").restore(wait=60, generation=1)
    assert (report.status, report.waited) == (RestoreStatus.RESTORED, 0.0)


def test_a_third_store_is_read_after_the_second(fleet: Fleet) -> None:
    second = fleet.bake("second", base=fleet.folder / "image" / "second")
    fleet.bake("third")
    worker = Worker(fleet.folder, "worker", fleet.shared, second, fleet.base, layout=fleet.layout)
    assert worker.restore().store == str(second)
    shutil.rmtree(second / "refs")
    worker = Worker(fleet.folder, "other", fleet.shared, second, fleet.base, layout=fleet.layout)
    assert worker.restore().store == str(fleet.base)
    fill(worker, "new")
    assert worker.commit().status is CommitStatus.COMMITTED
    last = Worker(fleet.folder, "last", fleet.shared, second, fleet.base, layout=fleet.layout)
    last.restore()
    assert has(last) == {"third", "new"}


# ---- Committing


def test_a_first_commit_publishes_the_union_and_uploads_the_news_alone(fleet: Fleet) -> None:
    fleet.bake("one", "two")
    worker = fleet.worker("worker")
    worker.restore()
    fill(worker, "three")
    report = worker.commit()
    per_name = 3 + GROUP_FILES
    assert (report.status, report.generation) == (CommitStatus.COMMITTED, 1)
    assert (report.files, report.new_files) == (3 * per_name, per_name)
    assert report.new_blobs == per_name + 1, "and the manifest"
    assert {entry.size for path, entry in worker.published().items() if "c" in path}
    again = fleet.worker("again")
    report_of_second = again.restore()
    assert (report_of_second.placed, report_of_second.left_out) == (3 * per_name, 0)
    assert has(again) == {"one", "two", "three"}


def test_the_bytes_of_the_image_are_not_uploaded(fleet: Fleet) -> None:
    fleet.bake()
    builder = Worker(fleet.folder, "large", fleet.base, layout=fleet.layout_below)
    builder.tree.put("inductor/ab/large.cu", os.urandom(1 << 20))
    builder.commit()
    worker = fleet.worker("worker")
    worker.restore()
    worker.tree.put("inductor/ab/small.cu", b"small")
    assert 0 < worker.commit().uploaded < 1 << 17
    size = sum(path.stat().st_size for path in fleet.shared.rglob("*") if path.is_file())
    assert size < 1 << 18


def test_nothing_new_is_no_commit_and_makes_no_store(fleet: Fleet) -> None:
    fleet.bake("one")
    worker = fleet.worker("worker")
    worker.restore()
    for _ in range(2):
        report = worker.commit()
        assert (report.status, report.generation, report.files) == (CommitStatus.UNCHANGED, 1, 3 + GROUP_FILES)
    assert not fleet.shared.exists()


def test_a_worker_that_compiled_what_the_image_has_without_restoring_it_uploads_nothing(fleet: Fleet) -> None:
    fleet.bake("one")
    worker = fleet.worker("worker")
    fill(worker, "one")
    assert worker.commit().status is CommitStatus.UNCHANGED
    assert not fleet.shared.exists()


def test_a_key_that_the_image_lacks_shares_what_it_has_of_another(fleet: Fleet) -> None:
    fleet.bake("one")
    worker = fleet.worker("worker")
    worker.restore(OTHER, seed=KEY)
    worker.tree.wrapper("new")
    report = worker.commit(OTHER)
    assert (report.new_files, report.new_blobs) == (3 + GROUP_FILES + 1, 2)
    again = fleet.worker("again")
    assert again.restore(OTHER).left_out == 0
    assert modules(again) == {"one", "new"}


def test_commits_of_one_image_merge(fleet: Fleet) -> None:
    """A slot, and a file that is merged by its meaning: from below, and from above."""
    fleet.bake("one")
    first, second = fleet.worker("first"), fleet.worker("second")
    first.restore()
    second.restore()
    for worker, name in ((first, "first"), (second, "second")):
        fill(worker, name)
        worker.tree.graph("fone", name)
        worker.tree.timings({"one": 0.5, name: 0.5}, "one")
        assert worker.commit().status is CommitStatus.COMMITTED
    third = fleet.worker("third")
    third.restore()
    assert has(third) == {"one", "first", "second"}
    assert len(list(third.tree.root.glob("inductor/fxgraph/on/fone/*"))) == 3
    assert set(eval(third.tree.read("inductor/cache/one"))) == {"one", "first", "second"}


def test_two_images_at_once_lose_nothing(fleet: Fleet) -> None:
    """Each store numbers its own generations, so that the first commits of both images want the same number."""
    other = fleet.bake("two", base=fleet.folder / "image" / "other")
    fleet.bake("one")
    Worker(fleet.folder, "builder of other", other, layout=fleet.layout_below).tree.wrapper("more")
    builder = Worker(fleet.folder, "builder of other", other, layout=fleet.layout_below)
    builder.commit()
    first, second = fleet.worker("first"), fleet.worker("second", other)
    first.restore()
    assert second.restore().generation == 2
    for worker, name in ((first, "first"), (second, "second")):
        fill(worker, name)
        worker.commit()
    fleet.worker("third").restore()
    last = Worker(fleet.folder, "last", fleet.shared, fleet.base, other, layout=fleet.layout)
    assert last.restore().left_out == 0
    assert modules(last) == {"one", "two", "more", "first", "second"}
    assert kernels(last) == {"one", "two", "first", "second"}


def test_nothing_is_ever_written_below(fleet: Fleet) -> None:
    fleet.bake("one")
    for path in (fleet.base, *fleet.base.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = fingerprint(fleet.base)
    worker = fleet.worker("worker")
    worker.restore(wait=10)
    fill(worker, "two")
    worker.commit()
    again = fleet.worker("again")
    again.restore()
    again.store.verify(repair=True)
    again.store.gc(Policy(offline=True, keep=1))
    again.store.quarantine(KEY)
    again.store.rollback(KEY)
    again.store.forget(KEY)
    again.store.gc(Policy(offline=True, keep=1))
    assert fingerprint(fleet.base) == before


# ---- What is forgotten, quarantined, rolled back to


@pytest.mark.parametrize("verb", ["forget", "quarantine"])
def test_what_is_taken_out_does_not_shine_through(fleet: Fleet, verb: str) -> None:
    fleet.bake("one")
    holder = fleet.worker("holder")
    holder.restore()
    (ref,) = getattr(fleet.made().store, verb)(KEY)
    assert (ref.generation, ref.state is RefState.LIVE) == (1, False)
    worker = fleet.worker("worker")
    assert worker.restore().status is RestoreStatus.MISS
    assert holder.commit().status is CommitStatus.UNCHANGED, "it does not bring back what was taken out"
    fill(worker, "new")
    worker.commit()
    again = fleet.worker("again")
    again.restore()
    assert has(again) == {"new"}


def test_a_quarantine_by_who_has_no_image_counts_for_every_image(fleet: Fleet) -> None:
    fleet.bake("one")
    holder, worker = fleet.worker("holder"), fleet.worker("worker")
    holder.restore()
    worker.restore()
    fill(worker, "two")
    worker.commit()
    fleet.without("admin").store.quarantine(KEY)
    fill(holder, "three")
    holder.commit()
    again = fleet.worker("again")
    again.restore()
    assert has(again) == {"three"}


def test_a_quarantine_of_what_only_the_image_has_is_rolled_back(fleet: Fleet) -> None:
    fleet.bake("one")
    fleet.made().store.quarantine(KEY)
    ref = fleet.worker("admin").store.rollback(KEY)
    assert (ref.generation, ref.state) == (2, RefState.LIVE)
    worker = fleet.worker("worker")
    report = worker.restore()
    assert (report.store, report.generation, report.left_out) == (str(fleet.shared), 2, 0)
    assert has(worker) == {"one"}
    fill(worker, "two")
    assert worker.commit().generation == 3


def test_a_rollback_to_a_number_goes_above_what_a_newer_kstore_has_published(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.bake("one")
    worker = fleet.worker("worker")
    worker.restore()
    commit_each(worker, "two", "three")
    as_if_newer(worker.location / worker.newest().name)

    assert worker.store.rollback(KEY, 1).generation == 3
    assert "cannot be restored" not in caplog.text, "what it leans on is not lost"
    again = fleet.worker("again")
    again.restore()
    assert has(again) == {"one", "two"}


def test_a_quarantine_between_a_restore_and_its_commit_wins_over_the_image(fleet: Fleet) -> None:
    fleet.bake("one")
    worker = fleet.worker("worker")
    worker.restore()
    fill(worker, "two")
    fleet.made().store.quarantine(KEY)
    assert worker.commit().generation == 2
    again = fleet.worker("again")
    again.restore()
    assert has(again) == {"two"}


@pytest.mark.parametrize(
    "act",
    [
        lambda store: store.forget(KEY), lambda store: store.quarantine(KEY), lambda store: store.rollback(KEY, 1),
        lambda store: store.pin(KEY, 1), lambda store: store.unpin(KEY, 1), lambda store: store.verify(),
        lambda store: store.verify(repair=True),
    ],
    ids=["forget", "quarantine", "rollback", "pin", "unpin", "verify", "repair"],
)  # fmt: skip
def test_a_shared_store_that_is_not_mounted_is_not_made_in_the_bare_folder(
    fleet: Fleet, act: Callable[[Store], object]
) -> None:
    fleet.bake("one")
    fleet.shared.mkdir()
    with pytest.raises(StoreUnavailable, match=f"no store at {fleet.shared}.*mounted, make it with `kstore init`"):
        act(fleet.worker("admin").store)
    assert list(fleet.shared.iterdir()) == []


def test_a_damaged_generation_above_is_passed_over_for_the_image(fleet: Fleet) -> None:
    fleet.bake("one")
    worker = fleet.worker("worker")
    worker.restore()
    fill(worker, "two")
    worker.commit()
    (ref,) = fleet.shared.glob("refs/**/1")
    ref.chmod(0o644)
    ref.write_text("{")
    again = fleet.worker("again")
    assert again.restore().store == str(fleet.base)
    fill(again, "three")
    assert again.commit().generation == 2
    assert worker.commit().generation == 3, "what the damaged one alone had comes back"
    last = fleet.worker("last")
    last.restore()
    assert has(last) == {"one", "two", "three"}


def test_a_root_whose_generation_is_damaged_now_gets_the_one_before_it_and_not_the_image(tmp_path: Path) -> None:
    """Damage is not the trouble for which only the image is read."""
    fleet = Fleet(tmp_path, "loose", "loose")
    fleet.bake("one")
    other = fleet.without("other")
    commit_each(other, "two", "three")
    assert fleet.worker("worker").restore().generation == 2
    (ref,) = fleet.shared.glob("refs/**/2")
    ref.chmod(0o644)
    ref.write_text("{")
    report = fleet.worker("worker").restore()
    assert (report.store, report.generation) == (str(fleet.shared), 1)


def test_a_root_that_is_looked_at_no_more_is_said_to_be_as_the_image_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(tmp_path, "loose", "loose")
    fleet.bake("one")
    fleet.worker("worker").restore()
    monkeypatch.setattr("kstore.worker.Worker.scan", pytest.fail)
    report = fleet.worker("worker").restore()
    assert (report.status, report.store) == (RestoreStatus.CURRENT, str(fleet.base))


# ---- A worker without the image, or of another one


def leaning_fleet(fleet: Fleet) -> None:
    """Commit a generation to the shared store, half of which is only in the image."""
    fleet.bake("one")
    worker = fleet.worker("first")
    worker.restore()
    fill(worker, "two")
    worker.commit()
    manifest = worker.store.snapshot(worker.newest()).manifest
    assert leans_on(manifest) == [str(fleet.base)]
    assert len(leaning(manifest)) == 3 + GROUP_FILES


def test_a_worker_without_the_image_loses_what_only_the_image_has(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    leaning_fleet(fleet)
    worker = fleet.without("worker")
    with caplog.at_level(logging.WARNING, "kstore"):
        report = worker.restore()
    assert has(worker) == {"two"}
    assert (report.placed, report.left_out, report.files) == (3 + GROUP_FILES, 3 + GROUP_FILES, 2 * (3 + GROUP_FILES))
    assert all(str(fleet.base) in skipped.reason for skipped in report.skipped)
    (line,) = caplog.messages
    assert str(fleet.base) in line


def test_a_worker_without_the_image_puts_back_what_it_compiles_again(fleet: Fleet) -> None:
    leaning_fleet(fleet)
    worker = fleet.without("worker")
    worker.restore()
    fill(worker, "one")
    report = worker.commit()
    assert (report.status, report.generation, report.new_blobs) == (CommitStatus.COMMITTED, 2, 3 + GROUP_FILES + 1)
    again = fleet.without("again")
    assert again.restore().left_out == 0
    assert has(again) == {"one", "two"}
    manifest = again.store.snapshot(again.newest()).manifest
    assert (leans_on(manifest), leaning(manifest)) == ([], {})
    assert worker.commit().status is CommitStatus.UNCHANGED


def test_what_the_store_below_has_lost_since_a_restore_is_put_back(fleet: Fleet) -> None:
    leaning_fleet(fleet)
    worker = fleet.worker("worker")
    assert worker.restore().left_out == 0
    for folder in ("blobs", "packs"):
        shutil.rmtree(fleet.base / folder, ignore_errors=True)
        (fleet.base / folder).mkdir()
    assert worker.commit().status is CommitStatus.COMMITTED
    again = fleet.worker("again")
    assert again.restore().left_out == 0
    assert has(again) == {"one", "two"}


@pytest.mark.parametrize("layout", ["loose", "packed"])
def test_a_pack_that_is_gone_above_is_put_back_without_what_the_image_has(tmp_path: Path, layout: str) -> None:
    fleet = Fleet(tmp_path, "packed", "packed")
    fleet.bake("one")
    worker = fleet.worker("worker")
    worker.restore()
    commit_each(worker, "two", "three")
    lost = worker.newest().packs[1]  # The first one has the manifest that others follow on.
    fill(worker, "four")
    worker.commit()
    (worker.location / "packs" / lost).unlink()

    fleet.layout = layout
    assert fleet.worker("worker").commit().new_blobs == 3 + GROUP_FILES + 1
    assert lost not in worker.newest().packs
    assert fleet.worker("worker").commit().status is CommitStatus.UNCHANGED
    again = fleet.worker("again")
    assert again.restore().left_out == 0
    assert has(again) == {"one", "two", "three", "four"}


def test_a_root_does_not_remember_which_store_has_a_file(fleet: Fleet) -> None:
    baker = Worker(fleet.folder, "baker", fleet.bake("one"), layout=fleet.layout_below)
    baker.tree.put("inductor/ab/x.cu", b"in place")
    baker.commit()
    image = fleet.worker("of the image")
    image.restore()
    fill(image, "two")
    image.commit()
    seeded = fleet.worker("seeded")
    seeded.restore("model/v2", seed=KEY)
    index = seeded.store.worker("model/v2", before_import=False).state.load().index
    assert index.files["inductor/ab/x.cu"].entry.flags == 0


def test_a_generation_is_put_back_without_a_restore_too(fleet: Fleet) -> None:
    leaning_fleet(fleet)
    worker = fleet.without("worker")
    fill(worker, "one")
    assert worker.commit().generation == 2
    again = fleet.without("again")
    assert again.restore().left_out == 0


@pytest.mark.parametrize("rests", [False, True], ids=["just committed", "nothing moves"])
@pytest.mark.parametrize("gone", ["with its folder", "from the settings"])
def test_a_worker_that_has_what_a_lost_image_had_puts_it_back_though_nothing_is_new(
    fleet: Fleet, gone: str, rests: bool
) -> None:
    fleet.bake("one")
    worker = fleet.worker("worker")
    worker.restore()
    fill(worker, "two")
    worker.commit()
    if rests:
        time.sleep(TICK)
        assert worker.commit().status is CommitStatus.UNCHANGED
    if gone == "with its folder":
        fleet.base.rename(fleet.folder / "gone")
        worker = fleet.worker("worker")
    else:
        worker = fleet.without("worker")
    report = worker.commit()
    assert (report.status, report.generation) == (CommitStatus.COMMITTED, 2)
    again = fleet.without("again")
    assert again.restore().left_out == 0
    assert has(again) == {"one", "two"}
    assert worker.commit().status is CommitStatus.UNCHANGED


def test_where_nothing_can_be_put_back_of_what_an_image_had_all_is_looked_at_once(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaning_fleet(fleet)
    worker = fleet.worker("worker")
    worker.restore()
    shutil.rmtree(worker.tree.root / "inductor")
    shutil.rmtree(worker.tree.root / "triton")
    fill(worker, "two")
    time.sleep(TICK)
    assert worker.commit().status is CommitStatus.UNCHANGED
    without = fleet.without("worker")
    assert without.commit().status is CommitStatus.UNCHANGED
    monkeypatch.setattr("kstore.worker.Worker.scan", pytest.fail)
    assert without.commit().status is CommitStatus.UNCHANGED


def test_part_of_what_is_missing_is_put_back_by_itself(fleet: Fleet) -> None:
    leaning_fleet(fleet)
    worker = fleet.without("worker")
    worker.restore()
    worker.tree.kernel("one")
    worker.commit()
    again = fleet.without("again")
    assert again.restore().left_out == 3
    assert kernels(again) == {"one", "two"}
    assert fleet.worker("image").restore().left_out == 0


def test_a_worker_of_another_image_takes_what_is_missing_from_its_own(fleet: Fleet) -> None:
    leaning_fleet(fleet)
    other = fleet.folder / "image" / "other"
    rebuilt = Worker(fleet.folder, "builder of other", other, layout=fleet.layout_below)
    rebuilt.tree.wrapper("one")
    rebuilt.tree.kernel("one", "as it came out this time")
    fill(rebuilt, "other")
    rebuilt.commit()
    worker = fleet.worker("worker", other)
    report = worker.restore()
    assert has(worker) == {"one", "two", "other"}
    assert b"this time" in worker.tree.read(f"{rebuilt.tree.kernel('one', 'as it came out this time')}/k.ptx")
    assert report.left_out == 2, "a graph, and what was measured"
    assert worker.commit().status is CommitStatus.COMMITTED
    for image in (other, fleet.base):
        again = fleet.worker(f"again {image.name}", image)
        again.restore()
        assert has(again) == {"one", "two", "other"}
        assert again.commit().status is CommitStatus.UNCHANGED, "or the images would answer each other for ever"


def test_what_comes_from_another_image_may_be_as_many_files_in_other_folders(fleet: Fleet) -> None:
    other = fleet.folder / "image" / "other"
    for base, name in ((fleet.base, "one"), (other, "three")):
        fleet.bake(base=base)
        builder = Worker(fleet.folder, f"builder {base.name}", base, layout=fleet.layout_below)
        builder.tree.wrapper(name)
        builder.commit()
    first, worker = fleet.worker("first"), fleet.worker("worker", other)
    first.restore()
    first.tree.wrapper("two")
    first.commit()
    assert (worker.restore().left_out, modules(worker)) == (1, {"two", "three"})


def image_with(fleet: Fleet, *paths: str) -> Path:
    """Another image, whose store has these files and a kernel."""
    other = fleet.folder / "image" / "other"
    builder = Worker(fleet.folder, "builder of other", other, layout=fleet.layout_below)
    for path in paths:
        builder.tree.put(path, path.encode())
    builder.tree.kernel("of the other")
    assert builder.commit().ok
    return other


def test_nothing_is_taken_from_another_image_that_contradicts_what_is_shared(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """Where one has a file and the other a folder, no restore could place both."""
    fleet.bake("one")
    worker = fleet.worker("worker")
    worker.restore()
    worker.tree.put("inductor/ab/cboth", b"a file")
    worker.commit()
    other = image_with(fleet, "inductor/ab/cboth/cinside.py", "inductor/ab/celse.py")
    again = fleet.worker("again", other)
    assert again.restore().left_out == 3 + GROUP_FILES
    assert contents(again.tree.root) == {"inductor/ab/cboth": b"a file"}
    assert "missing files are not replaced by those of the stores below" in caplog.text


def test_what_another_image_has_of_a_component_that_is_not_managed_stays_there(fleet: Fleet) -> None:
    leaning_fleet(fleet)
    other = image_with(fleet, "inductor/ab/celse.py")
    again = fleet.worker("again", other, components=("inductor",))
    again.restore()
    assert "inductor/ab/celse.py" in contents(again.tree.root)
    assert kernels(again) == set()


def test_a_worker_whose_image_has_all_that_is_missing_says_nothing(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    other = fleet.folder / "image" / "other"
    for base in (fleet.base, other):
        fleet.bake(base=base)
        builder = Worker(fleet.folder, f"builder {base.name}", base, layout=fleet.layout_below)
        builder.tree.kernel("one", base.name)
        builder.commit()
    worker = fleet.worker("worker")
    worker.restore()
    fill(worker, "two")
    worker.commit()
    assert fleet.worker("again", other).restore().left_out == 0
    assert caplog.messages == []


def test_what_a_newer_image_has_of_a_key_that_is_shared_is_not_asked_for(fleet: Fleet) -> None:
    """One store after the other is asked: a key that both have is the shared store's affair."""
    leaning_fleet(fleet)
    builder = Worker(fleet.folder, "builder of base", fleet.base, layout=fleet.layout_below)
    fill(builder, "newer")
    builder.commit()
    worker = fleet.worker("worker")
    worker.restore()
    assert has(worker) == {"one", "two"}


def test_a_damaged_blob_in_the_image_costs_its_group(fleet: Fleet) -> None:
    fleet.bake("one")
    for path in fleet.base.glob("packs/*" if fleet.layout_below == "packed" else "blobs/*/*"):
        if fleet.layout_below == "packed" or b"ptx of one" in path.read_bytes():
            path.chmod(0o644)
            path.write_bytes(path.read_bytes()[:-20])
    worker = fleet.worker("worker")
    if fleet.layout_below == "packed":
        assert worker.restore().status is RestoreStatus.MISS
    else:
        assert worker.restore().left_out == GROUP_FILES
        assert kernels(worker) == set()


# ---- Trouble


@pytest.mark.parametrize("there", ["nothing", "a folder", "no parent", "a newer format"])
def test_an_image_without_its_store_is_no_trouble(fleet: Fleet, there: str, caplog: pytest.LogCaptureFixture) -> None:
    fleet.bake("one")
    missing = fleet.folder / ("gone/base" if there == "no parent" else "image/missing")
    if there in ("a folder", "a newer format"):
        missing.mkdir()
    if there == "a newer format":
        (missing / "kstore.json").write_text('{"format": 99}')
    worker = fleet.worker("worker", missing)
    with caplog.at_level(logging.WARNING, "kstore"):
        assert worker.restore().status is RestoreStatus.MISS
        for name in ("two", "three"):  # as a live job does, with what it learns anew each time
            live = fleet.worker("worker", missing)
            fill(live, name)
            assert live.commit().status is CommitStatus.COMMITTED
    (line,) = caplog.messages
    assert str(missing) in line or str(missing.parent) in line
    again = fleet.without("again")
    assert again.restore().left_out == 0


def test_an_image_whose_packs_cannot_be_listed_costs_what_they_hold(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    leaning_fleet(fleet)
    shutil.rmtree(fleet.base / "packs", ignore_errors=True)
    (fleet.base / "packs").symlink_to("packs")
    worker = fleet.worker("worker")
    assert worker.restore().status is RestoreStatus.RESTORED
    assert has(worker) == ({"two"} if fleet.layout_below == "packed" else {"one", "two"})
    assert any(str(fleet.base / "packs") in message for message in caplog.messages)


def dead(fleet: Fleet, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shared store cannot be reached."""
    if kind == "unmounted":
        shutil.rmtree(fleet.shared.parent)
    else:
        fleet.shared.parent.rename(fleet.folder / "aside")
        fleet.shared.parent.write_text("no folder") if kind == "no folder" else fleet.shared.parent.mkdir()
    if kind == "another format":
        fleet.shared.mkdir()
        (fleet.shared / "kstore.json").write_text('{"format": 99}')
    if kind == "hangs":
        real = PosixBackend.get

        def hang(self: PosixBackend, name: str, *rest: Any) -> bytes:
            if str(self.root) == str(fleet.shared):
                threading.Event().wait()
            return real(self, name, *rest)

        monkeypatch.setattr(PosixBackend, "get", hang)
        monkeypatch.setattr(layers, "PATIENCE", 0.2)


@pytest.mark.parametrize("kind", ["unmounted", "no folder", "another format", "hangs"])
def test_without_the_shared_store_a_cold_start_is_warm(
    fleet: Fleet, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    leaning_fleet(fleet)
    dead(fleet, kind, monkeypatch)
    settings = {"gpu": GPU, "environment": ENVIRONMENT, "environ": {}, "timeout": 5, "stats": False}
    root, stores = fleet.folder / "worker", f"{fleet.shared}:{fleet.base}"
    with caplog.at_level(logging.WARNING, "kstore"):
        if kind == "hangs":
            monkeypatch.setattr("kstore.store.PATIENCE", 0.2)
        report = restore(KEY, store=stores, cache_root=root, **settings)
    assert (report.status, report.store, report.left_out) == (RestoreStatus.RESTORED, str(fleet.base), 0)
    assert any(str(fleet.shared.parent) in note and str(fleet.base) in note for note in report.notes)
    assert any("only the stores below are read" in message for message in caplog.messages)
    if kind != "hangs":
        Tree(root).put("inductor/ab/new.cu", b"new")
        assert commit(KEY, store=stores, cache_root=root, **settings).status is CommitStatus.FAILED


def test_a_root_that_is_warm_waits_no_longer_for_a_shared_store_that_hangs(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.bake("one")
    above = fleet.without("above")
    above.tree.wrapper()
    above.commit(OTHER)
    worker = fleet.worker("worker")
    assert worker.restore().status is RestoreStatus.RESTORED
    real = PosixBackend.list

    def hang(self: PosixBackend, folder: str) -> Iterator[Child]:
        if str(self.root) == str(fleet.shared) and folder.startswith("refs"):
            threading.Event().wait()
        return real(self, folder)

    monkeypatch.setattr(PosixBackend, "list", hang)
    monkeypatch.setattr("kstore.store.PATIENCE", 0.2)
    settings = {"gpu": GPU, "environment": ENVIRONMENT, "environ": {}, "timeout": 5, "stats": False}
    report = restore(KEY, store=f"{fleet.shared}:{fleet.base}", cache_root=worker.tree.root, **settings)
    assert (report.status, report.store) == (RestoreStatus.CURRENT, str(fleet.base))
    assert any(str(fleet.shared) in note for note in report.notes)


def test_without_the_shared_store_what_the_image_lacks_is_trouble_and_no_miss(fleet: Fleet) -> None:
    fleet.bake("one")
    shutil.rmtree(fleet.shared.parent)
    worker = fleet.worker("worker")
    for choice in ({"key": OTHER}, {"key": KEY, "generation": 1}):
        with pytest.raises(StoreUnavailable):
            worker.store.restore(**choice)  # type: ignore[arg-type]


def test_a_worker_that_waits_does_not_wait_for_a_store_that_is_gone(fleet: Fleet) -> None:
    fleet.bake("one")
    shutil.rmtree(fleet.shared.parent)
    report = fleet.worker("worker").restore(wait=60)
    assert (report.status, report.waited) == (RestoreStatus.RESTORED, 0.0)


def test_what_was_compiled_upon_the_image_is_merged_when_the_shared_store_is_back(fleet: Fleet) -> None:
    leaning_fleet(fleet)
    fleet.shared.parent.rename(fleet.folder / "aside")
    worker = fleet.worker("worker")
    worker.restore()
    fill(worker, "three")
    with pytest.raises(StoreUnavailable):
        worker.commit()
    (fleet.folder / "aside").rename(fleet.shared.parent)
    assert worker.commit().generation == 2
    assert worker.restore().notes == ()
    again = fleet.worker("again")
    again.restore()
    assert has(again) == {"one", "two", "three"}


# ---- gc and verify


def test_what_a_killed_first_commit_leaves_above_goes(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.bake("below")
    worker = fleet.worker("worker")
    worker.restore()
    fill(worker, "above")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Refs, "publish", Mock(side_effect=KeyboardInterrupt))
        worker.commit()
    assert objects(fleet.shared)
    fleet.without("admin").store.gc(Policy(offline=True))
    assert not objects(fleet.shared)


def test_gc_above_neither_counts_nor_deletes_what_is_below(fleet: Fleet) -> None:
    leaning_fleet(fleet)
    before, below = objects(fleet.shared), fingerprint(fleet.base)
    for admin in (fleet.without("admin"), fleet.worker("admin of the image")):
        report = admin.store.gc(Policy(offline=True, keep=1))
        assert (report.deleted.files, report.condemned.files, report.unreadable) == (0, 0, [])
        assert report.live
        assert report.live.files == len(before)
        assert report.live.bytes == sum(path.stat().st_size for path in fleet.shared.rglob("*") if path.name in before)
        assert report.excess == 0
    assert (objects(fleet.shared), fingerprint(fleet.base)) == (before, below)
    worker = fleet.worker("worker")
    assert worker.restore().left_out == 0
    assert has(worker) == {"one", "two"}


def test_after_gc_of_a_history_upon_the_image_everything_restores(fleet: Fleet) -> None:
    leaning_fleet(fleet)
    for name in ("three", "four"):
        worker = fleet.worker(name)
        worker.restore()
        fill(worker, name)
        worker.commit()
        fleet.without("admin").store.gc(Policy(offline=True, keep=1))
    last = fleet.worker("last")
    assert last.restore().left_out == 0
    assert has(last) == {"one", "two", "three", "four"}


def test_a_store_that_is_named_twice_does_not_lean_on_itself(fleet: Fleet) -> None:
    """Named a second time by a link, or as a volume that is mounted twice."""
    worker = fleet.without("first")
    fleet.shared.parent.mkdir()
    fill(worker, "one")
    worker.commit("another/v1")
    (fleet.folder / "link").symlink_to(fleet.shared)
    twice = fleet.worker("twice", fleet.folder / "link")
    for name in ("one", "two"):
        fill(twice, name)
    twice.commit()
    assert leaning(twice.store.snapshot(twice.newest()).manifest) == {}
    worker.store.forget("another/v1")
    worker.store.gc(Policy(offline=True, keep=1))
    again = fleet.worker("again", fleet.folder / "link")
    assert again.restore().left_out == 0
    assert has(again) == {"one", "two"}


def test_a_size_limit_does_not_count_what_is_below(fleet: Fleet) -> None:
    fleet.bake()
    builder = Worker(fleet.folder, "large", fleet.base, layout=fleet.layout_below)
    builder.tree.put("inductor/ab/large.cu", os.urandom(1 << 20))
    builder.commit()
    worker = fleet.worker("worker")
    worker.restore()
    worker.tree.wrapper("new")
    worker.commit()
    report = fleet.without("admin").store.gc(Policy(offline=True, keep=1, max_size=1 << 19, allow_live=True))
    assert (report.forgotten, report.excess) == ([], 0)


def test_verify_with_the_image_reads_both(fleet: Fleet) -> None:
    leaning_fleet(fleet)
    report = fleet.worker("admin").store.verify()
    assert (report.ok, report.damage, report.elsewhere, report.generations) == (True, [], [], 2)
    assert report.blobs > len(objects(fleet.shared)) or fleet.layout == "packed"


def test_verify_without_the_image_says_what_it_could_not_check(fleet: Fleet) -> None:
    leaning_fleet(fleet)
    admin = fleet.without("admin")
    for repair in (False, True):
        report = admin.store.verify(repair=repair)
        assert (report.ok, report.damage) == (True, [])
        (away,) = report.elsewhere
        assert (away.generation, away.store, len(away.paths)) == (1, str(fleet.base), 3 + GROUP_FILES)
    assert not list(fleet.shared.glob("quarantine/*"))
    assert fleet.worker("worker").restore().left_out == 0


def test_verify_tells_damage_above_from_what_is_below(fleet: Fleet) -> None:
    leaning_fleet(fleet)
    for path in fleet.shared.glob("blobs/*/*"):
        if b"ptx of two" in path.read_bytes():
            path.unlink()
    report = fleet.without("admin").store.verify()
    if fleet.layout == "packed":
        assert report.ok
    else:
        (damage,) = report.damage
        assert len(damage.paths) == 1
        assert (damage.store, len(report.elsewhere[0].paths)) == (str(fleet.shared), 3 + GROUP_FILES)


def test_verify_finds_damage_in_the_image(fleet: Fleet) -> None:
    leaning_fleet(fleet)
    path = next(path for kind in ("blobs", "packs") for path in (fleet.base / kind).rglob("*") if path.is_file())
    path.chmod(0o644)
    path.write_bytes(bytes(path.stat().st_size))
    report = fleet.worker("admin").store.verify(repair=True)
    assert not report.ok
    assert {damage.store for damage in report.damage} <= {str(fleet.base)}
    assert not list(fleet.base.glob("quarantine/*"))


def test_a_blob_that_was_also_uploaded_is_kept_and_found_above(fleet: Fleet) -> None:
    """As in a store that was copied with everything that its generations lean on: the flag is only a hint."""
    leaning_fleet(fleet)
    storage = Storage(fleet.base)
    for path in (fleet.base / "blobs").rglob("*"):
        if path.is_file() and path.name not in objects(fleet.shared):
            target = fleet.shared / path.relative_to(fleet.base)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
    if fleet.layout_below == "packed":
        assert storage.blobs.packs()
        return
    admin = fleet.without("admin")
    for _ in range(2):
        admin.store.gc(Policy(offline=True, keep=1))
    assert admin.store.verify().elsewhere == []
    assert fleet.without("worker").restore().left_out == 0


# ---- The store's other verbs


def test_scopes_are_those_of_every_store_once(fleet: Fleet) -> None:
    leaning_fleet(fleet)
    other = fleet.worker("other")
    fill(other, "other")
    other.commit(OTHER)
    store = fleet.worker("admin").store
    assert [scope.key for scope in store.scopes()] == [KEY, OTHER]
    assert [scope.key for scope in store.scopes(OTHER)] == [OTHER]


def test_a_folder_below_that_cannot_be_listed_hides_only_what_is_in_it(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.bake("one")
    (fleet.base / "refs" / GPU / OTHER).mkdir(parents=True)
    unlistable(monkeypatch, f"refs/{GPU}/{OTHER}", PermissionError(13, "Permission denied"))
    store = fleet.worker("admin").store
    assert [scope.key for scope in store.scopes()] == [KEY]
    assert f"{OTHER} of {GPU} in the store at {fleet.base} is passed over: " in caplog.text


def test_the_newest_is_that_of_the_store_in_charge(fleet: Fleet) -> None:
    fleet.bake("one")
    store = fleet.worker("admin").store
    (scope,) = store.scopes()
    newest = store.newest(scope)
    assert newest is not None
    assert (newest.depth, store.generations(scope)) == (1, [newest])
    assert len(store.snapshot(newest).manifest.files) == 3 + GROUP_FILES


def test_a_store_is_made_above_alone(fleet: Fleet) -> None:
    fleet.shared.parent.mkdir()
    store = Store(f"{fleet.shared}:{fleet.folder}/below", environ={})
    assert store.create()
    assert [path.name for path in fleet.folder.iterdir()] == ["data"]


def test_a_node_whose_image_is_renewed_keeps_its_root(fleet: Fleet) -> None:
    """The root grew from a store that another one has since replaced in the same place."""
    fleet.bake("one")
    worker = fleet.worker("worker")
    worker.restore()
    shutil.rmtree(fleet.base)
    shutil.rmtree(fleet.folder / f"builder of {fleet.base.name}")
    fleet.bake("two", base=fleet.base)
    worker = fleet.worker("worker")
    assert worker.restore().status is RestoreStatus.RESTORED
    assert has(worker) == {"one", "two"}
    assert worker.commit().status is CommitStatus.COMMITTED
    again = fleet.worker("again")
    again.restore()
    assert has(again) == {"one", "two"}


def test_what_only_the_image_has_is_a_miss_for_who_looks_at_it_without(fleet: Fleet) -> None:
    fleet.bake("one")
    worker = fleet.worker("worker")
    worker.restore()
    fill(worker, "two")
    worker.commit()
    store = fleet.without("admin").store
    side = published_side(store, worker.newest())
    below = next(path for path, entry in worker.published().items() if entry.flags & Flag.BELOW)
    with pytest.raises(MissError, match="a store below had it"):
        read_artifact(side, find_artifact(side, below))


def test_what_is_damaged_in_the_image_is_put_above_by_who_compiles_it_again(fleet: Fleet) -> None:
    fleet.bake("one")
    builder = Worker(fleet.folder, "another builder", fleet.base, layout=fleet.layout_below)
    builder.restore()
    kernel = next(path for path in builder.published() if path.endswith("k.cubin"))
    if fleet.layout_below == "packed":
        rot_frame(builder, kernel)
    else:
        (fleet.base / blob_name(builder.published()[kernel].digest)).unlink()
    worker, other = fleet.worker("worker"), fleet.worker("other")
    assert worker.restore().skipped
    assert worker.commit().status is CommitStatus.UNCHANGED
    fill(worker, "one")
    assert worker.commit().generation == 1
    assert worker.commit().status is CommitStatus.UNCHANGED
    assert other.restore().skipped == ()
    assert contents(other.tree.root).keys() == contents(builder.tree.root).keys()


@pytest.mark.parametrize("layout", ["loose", "packed"])
def test_what_is_damaged_in_the_image_is_put_above_for_a_key_that_was_seeded_from_it(
    tmp_path: Path, layout: str
) -> None:
    """For the new key nothing is lost yet; a look at the names below finds all of it there."""
    fleet = Fleet(tmp_path, layout, "packed")
    fleet.bake("one")
    builder = Worker(fleet.folder, "another builder", fleet.base, layout="packed")
    rot_frame(builder, next(path for path in builder.published() if path.endswith("k.cubin")))
    worker, other = fleet.worker("worker"), fleet.worker("other")
    assert worker.restore(OTHER, seed=KEY).skipped
    fill(worker, "one")
    worker.commit(OTHER)
    assert other.restore(OTHER).skipped == ()
    assert has(other) == {"one"}


def test_what_starts_from_a_seed_after_the_image_withdrew_its_key_is_published(fleet: Fleet) -> None:
    """As above one store: the key was withdrawn before, and nothing of the seed with it."""
    fleet.bake("one")
    builder = Worker(fleet.folder, "another builder", fleet.base, layout=fleet.layout_below)
    fill(builder, "wrong")
    builder.commit(OTHER)
    builder.store.quarantine(OTHER)
    worker, other = fleet.worker("worker"), fleet.worker("other")
    assert worker.restore(OTHER, seed=KEY).status is RestoreStatus.SEEDED
    fill(worker, "two")
    worker.commit(OTHER)
    other.restore(OTHER)
    assert has(other) == {"one", "two"}
