"""What a store leans on goes along when keys leave the store, and what comes in joins what is below."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.bundles.archives import export_tar
from kstore.bundles.importing import import_bundle
from kstore.bundles.partial import finished_as
from kstore.bundles.writer import BundleWriter
from kstore.errors import StoreBelowMissing
from kstore.operations.copy import copy_keys
from kstore.published.layers import BASE
from kstore.published.leaning import leans_on
from kstore.published.manifest import Flag
from kstore.report import CommitStatus
from kstore.store import Store
from tests.bundles.carrying import other_store
from tests.layers.images import Fleet, Worker, fill, fingerprint, has
from tests.trees import KEY, Node


def grown(fleet: Fleet) -> Worker:
    """A worker that has committed "above" on top of what the image has."""
    fleet.bake("below")
    worker = fleet.worker("worker")
    worker.restore()
    fill(worker, "above")
    worker.commit()
    assert leans_on(worker.store.snapshot(worker.newest()).manifest)
    return worker


def bundle(worker: Node, path: Path) -> str:
    with finished_as(str(path), resumable=True) as file:
        BundleWriter(worker.store.storage, [worker.store.snapshot(worker.newest())]).resume(file)
    return str(path)


def restored_alone(folder: Path, store: Path) -> set[str]:
    """What a worker gets that knows only that store."""
    node = Node(folder, "alone", layout=None)
    node.store = Store(store, cache_root=node.tree.root, gpu=node.store.gpu, environment=node.store.environment.tag)
    report = node.restore()
    assert (report.left_out, report.skipped) == (0, ())
    return has(node)


def stands_alone(node: Node) -> bool:
    """Whether the newest generation leans on no store, and names none that its line began in."""
    manifest = node.store.snapshot(node.newest()).manifest
    return not (leans_on(manifest) or BASE in manifest.meta or any(e.flags & Flag.BELOW for e in manifest.entries()))


def test_a_bundle_holds_what_is_below_too(fleet: Fleet, tmp_path: Path) -> None:
    path = bundle(grown(fleet), tmp_path / "bundle.kstore")
    target = other_store(tmp_path / "far", "packed")
    import_bundle(target.store, path)

    assert stands_alone(target)
    assert restored_alone(tmp_path, target.location) == {"below", "above"}


def test_a_copy_holds_what_is_below_too_and_says_nothing_of_it(fleet: Fleet, tmp_path: Path) -> None:
    worker, target = grown(fleet), other_store(tmp_path / "far", "packed")
    copy_keys(worker.store, target.store)

    assert stands_alone(target)
    assert restored_alone(tmp_path, target.location) == {"below", "above"}


def test_an_archive_holds_what_is_below_too(fleet: Fleet, tmp_path: Path) -> None:
    worker = grown(fleet)
    with open(tmp_path / "a.tar", "wb") as stream:
        export_tar(worker.store, worker.newest(), stream)
    with tarfile.open(tmp_path / "a.tar") as archive:
        assert len(archive.getnames()) == worker.newest().files


def alone(worker: Worker) -> Node:
    """The same store, without the one below."""
    return other_store(worker.location.parent, None, "alone")


def write_bundle(worker: Node, folder: Path) -> None:
    bundle(worker, folder / "bundle.kstore")


def write_archive(worker: Node, folder: Path) -> None:
    with open(folder / "a.tar", "wb") as stream:
        export_tar(worker.store, worker.newest(), stream)


@pytest.mark.parametrize("write", [write_bundle, write_archive])
def test_without_the_image_an_export_names_the_store_to_add(
    fleet: Fleet, tmp_path: Path, write: Callable[[Node, Path], None]
) -> None:
    worker = alone(grown(fleet))
    with pytest.raises(StoreBelowMissing, match=f"name it too, as in {fleet.shared}:{fleet.base}$"):
        write(worker, tmp_path)


def test_a_store_between_that_cannot_be_read_keeps_nothing_of_the_next_one_back(fleet: Fleet, tmp_path: Path) -> None:
    grown(fleet)
    between = fleet.bake("between", base=tmp_path / "between" / "base")
    shutil.rmtree(between / "packs", ignore_errors=True)
    (between / "packs").symlink_to("packs")
    worker = Worker(tmp_path, "next", fleet.shared, between, fleet.base, layout=fleet.layout)
    worker.restore()
    worker.tree.timings({"below": 0.5, "news": 1.0}, "below")
    assert worker.commit().status is CommitStatus.COMMITTED

    target = other_store(tmp_path / "far", "packed")
    (brought,) = copy_keys(worker.store, target.store).scopes
    assert brought.files == len(worker.published())
    target.tree.timings({"far": 2.0}, "below")
    target.commit()
    (brought,) = copy_keys(target.store, worker.store).scopes
    assert brought.status is CommitStatus.COMMITTED


@pytest.mark.parametrize("write", [write_bundle, write_archive])
def test_where_the_image_has_lost_what_is_needed_an_export_does_not_ask_for_it(
    fleet: Fleet, tmp_path: Path, write: Callable[[Node, Path], None]
) -> None:
    grown(fleet)
    for kind in ("blobs", "packs"):
        shutil.rmtree(fleet.base / kind, ignore_errors=True)
    worker = fleet.worker("next")
    said = f"only {fleet.base} had 11 of its blobs, and it has them no more; the next worker that restores, compiles"
    with pytest.raises(StoreBelowMissing, match=said):
        write(worker, tmp_path)
    worker.restore()
    fill(worker, "below")
    worker.commit()
    write(worker, tmp_path)


def test_without_the_image_a_copy_leaves_out_what_leans_on_it_and_that_is_not_damage(
    fleet: Fleet, tmp_path: Path
) -> None:
    source, target = alone(grown(fleet)), other_store(tmp_path / "far", "packed")
    fill(source, "own")
    source.commit("other/key")
    report = copy_keys(source.store, target.store)

    assert [brought.scope.key for brought in report.scopes] == ["other/key"]
    (reason,) = report.leaning
    assert KEY in reason and reason.endswith(f"as in {fleet.shared}:{fleet.base}")
    assert not report.damaged


def test_without_the_image_what_was_copied_with_it_is_up_to_date(fleet: Fleet, tmp_path: Path) -> None:
    worker, target = grown(fleet), other_store(tmp_path / "far", "packed")
    copy_keys(worker.store, target.store)
    report = copy_keys(alone(worker).store, target.store)

    assert [brought.status for brought in report.scopes] == [CommitStatus.UNCHANGED]


def test_without_the_image_what_another_commit_has_stored_since_is_exported(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, "loose", "loose")
    worker, other = grown(fleet), fleet.without("other")
    fill(other, "below")
    other.commit("other/key")
    write_bundle(alone(worker), tmp_path)


def left_below(node: Node, key: str = KEY) -> set[bytes]:
    """Digests of what the newest generation says a store below has."""
    manifest = node.store.snapshot(node.newest(key)).manifest
    return {entry.digest for entry in manifest.entries() if entry.flags & Flag.BELOW}


def test_what_comes_in_joins_what_only_the_image_has(fleet: Fleet, tmp_path: Path) -> None:
    fleet.bake("below")
    before = fingerprint(fleet.base)
    source = other_store(tmp_path / "far", "packed")
    fill(source, "carried")
    source.commit()
    target = fleet.worker("target")
    (brought,) = import_bundle(target.store, bundle(source, tmp_path / "bundle.kstore")).scopes

    assert brought.generation == 1
    here = {entry.digest for entry in source.published().values()}
    assert left_below(target) == {entry.digest for entry in target.published().values()} - here
    worker = fleet.worker("worker")
    assert not worker.restore().left_out
    assert has(worker) == {"below", "carried"}
    assert fingerprint(fleet.base) == before


def test_what_comes_in_upon_a_leaning_generation_leaves_it_so(fleet: Fleet, tmp_path: Path) -> None:
    worker = grown(fleet)
    source = other_store(tmp_path / "far", "packed")
    fill(source, "carried")
    source.commit()
    import_bundle(worker.store, bundle(source, tmp_path / "bundle.kstore"))

    assert leans_on(worker.store.snapshot(worker.newest()).manifest)
    fresh = fleet.worker("fresh")
    assert not fresh.restore(KEY).left_out
    assert has(fresh) == {"below", "above", "carried"}


def test_what_comes_in_and_an_image_has_is_left_there_until_somebody_without_the_image_brings_it(
    fleet: Fleet, tmp_path: Path
) -> None:
    fleet.bake("below")
    source, target = other_store(tmp_path / "far", "packed"), fleet.worker("target")
    fill(source, "below")
    source.commit()
    path = bundle(source, tmp_path / "bundle.kstore")

    import_bundle(target.store, path, "other/key")
    assert left_below(target, "other/key") == {entry.digest for entry in source.published().values()}
    for status in (CommitStatus.COMMITTED, CommitStatus.UNCHANGED):
        (brought,) = import_bundle(alone(target).store, path, "other/key").scopes
        assert brought.status is status
    assert not left_below(target, "other/key")
    assert alone(target).restore("other/key").left_out == 0
