"""A bundle brings what one store has to another that it never meets."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zstandard

from kstore.backends.posix import PosixBackend
from kstore.blobs.column import Digests
from kstore.blobs.dictionary import NEWEST
from kstore.blobs.loose import blob_name
from kstore.blobs.packindex import FRAME_SIZE, Frame
from kstore.bundles.bundlefile import BundleFile
from kstore.bundles.format import FORMAT, Content, Header
from kstore.bundles.importing import _listed, import_bundle
from kstore.bundles.partial import _File, finished_as
from kstore.bundles.reader import BundleReader
from kstore.bundles.writer import BundleWriter
from kstore.environment import Host
from kstore.errors import (
    FileError,
    IntegrityError,
    KstoreError,
    MissError,
    StoreFormatError,
    StoreUnavailable,
    UsageError,
)
from kstore.operations import bring as bringing
from kstore.published import races
from kstore.published.ref import RefState
from kstore.published.refs import Refs
from kstore.report import CommitStatus
from kstore.scope import Scope
from kstore.store import Store
from kstore.upload.plan import UploadPlan
from kstore.upload.uploader import Uploader
from kstore.used import mark_name
from tests.bundles.carrying import (
    Killed,
    Stored,
    bring,
    bundle_of,
    export,
    fill,
    other_store,
    restored,
    without_relocated,
)
from tests.gc.stores import collect, collect_fully, pass_time
from tests.trees import ENVIRONMENT, GPU, KEY, Node, contents, shared_object


@pytest.fixture
def source(tmp_path: Path) -> Node:
    return fill(other_store(tmp_path / "source"), "one", "two")


@pytest.mark.parametrize("there", ["loose", "packed"])
@pytest.mark.parametrize("here", ["loose", "packed"])
def test_what_is_imported_restores_as_it_was(tmp_path: Path, here: str, there: str) -> None:
    source = fill(other_store(tmp_path / "source", here), "one", "two")
    target = other_store(tmp_path / "target", there)
    report = bring(target, bundle_of(source, tmp_path))
    (brought,) = report.scopes
    assert (brought.status, brought.generation, brought.declined) == (CommitStatus.COMMITTED, 1, 0)
    assert brought.files == brought.new_files == source.newest().files
    assert restored(target) == without_relocated(contents(source.tree.root))
    assert bool(list((target.location / "packs").glob("*"))) == (there == "packed")


def test_a_bundle_can_be_imported_under_another_key(source: Node, tmp_path: Path) -> None:
    target = other_store(tmp_path / "target")
    bring(target, bundle_of(source, tmp_path), "other/v2")
    assert target.store.newest(target.store.scope(KEY)) is None
    assert restored(target, key="other/v2") == without_relocated(contents(source.tree.root))


def test_another_key_shares_what_the_key_beside_it_has(
    source: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, bundle = other_store(tmp_path / "target", "packed"), bundle_of(source, tmp_path)
    bring(target, bundle, "model/v1")
    stored = Stored(monkeypatch)
    bring(target, bundle, "model/v2")
    assert len(stored.digests) == 1  # the manifest
    assert restored(target, key="model/v2") == without_relocated(contents(source.tree.root))


def test_what_was_there_keeps_its_builder_and_what_is_published_says_under_which_key_and_upon_what(
    source: Node, tmp_path: Path
) -> None:
    target, bundle = fill(other_store(tmp_path / "target"), "three"), bundle_of(source, tmp_path)
    before = target.store.snapshot(target.newest()).manifest.meta
    bring(target, bundle)
    after = target.store.snapshot(target.newest()).manifest.meta
    assert after == before | {"parent": 1, "nonce": after["nonce"]}
    assert after["nonce"] != before["nonce"]

    bring(target, bundle, "other/v2")
    new = target.store.snapshot(target.newest("other/v2")).manifest.meta
    assert (new["key"], new["cache_root"]) == ("other/v2", str(source.tree.root))


def test_a_malformed_key_is_the_callers_mistake(source: Node, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        bring(other_store(tmp_path / "target"), bundle_of(source, tmp_path), "../key")
    with pytest.raises(UsageError):  # before what may be a large file is read
        bring(other_store(tmp_path / "target"), tmp_path / "missing.kstore", "../key")


def test_every_gpu_and_environment_comes_along(source: Node, tmp_path: Path) -> None:
    other = fill(other_store(tmp_path / "source", name="other", environment="torch-other"), "three")
    export(source, tmp_path / "both.kstore", other)
    target = other_store(tmp_path / "target")
    assert len(bring(target, tmp_path / "both.kstore").scopes) == 2
    twin = other_store(tmp_path / "target", name="twin", environment="torch-other")
    twin.restore()
    assert without_relocated(contents(twin.tree.root)) == without_relocated(contents(other.tree.root))
    assert restored(target) == without_relocated(contents(source.tree.root))


def test_the_index_of_a_bundle_is_not_searched_anew_for_each_of_its_scopes(
    source: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched, read = [0], Digests.__iter__

    def searching(digests: Digests) -> Iterator[bytes]:
        searched[-1] += 1
        return read(digests)

    monkeypatch.setattr(Digests, "__iter__", searching)
    environments = [f"torch-{number}" for number in range(5)]
    others = [fill(other_store(tmp_path / "source", name=name, environment=name), name) for name in environments]
    for count in (1, 5):
        export(source, tmp_path / f"{count}.kstore", *others[:count])
        searched.append(0)
        assert len(bring(other_store(tmp_path / f"target{count}"), tmp_path / f"{count}.kstore").scopes) == count + 1
    assert searched[1] == searched[2]


def test_host_bound_files_of_several_hosts_come_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = other_store(tmp_path / "source")
    for number, name in enumerate("ab"):
        monkeypatch.setattr("kstore.environment.ownhost.detect_host", lambda _, name=name: Host(name * 16, {}))
        node = other_store(tmp_path / "source", name=name)
        node.tree.put("inductor/ab/same.so", shared_object() + bytes([number]))
        node.commit()
    target = other_store(tmp_path / "target")
    bring(target, bundle_of(source, tmp_path))
    hosts = target.store.snapshot(target.newest()).manifest.hosts
    assert hosts.keys() == {"a" * 16, "b" * 16}
    for bound in hosts.values():
        (entry,) = bound.values()
        assert target.store.storage.blobs.fetch(entry.digest, entry.size)


# ---- The same bytes


def test_a_generation_is_always_the_same_file(source: Node, tmp_path: Path) -> None:
    first = bundle_of(source, tmp_path, "first").read_bytes()
    worker = Node(tmp_path / "source", "another", layout=None)
    assert bundle_of(worker, tmp_path, "second").read_bytes() == first


@pytest.mark.parametrize("there", ["loose", "packed"])
def test_a_store_that_imported_it_exports_the_same_file(source: Node, tmp_path: Path, there: str) -> None:
    first = bundle_of(source, tmp_path, "first")
    target = other_store(tmp_path / "target", there)
    bring(target, first)
    assert bundle_of(target, tmp_path, "second").read_bytes() == first.read_bytes()


def test_the_order_in_which_scopes_are_given_changes_nothing(source: Node, tmp_path: Path) -> None:
    other = fill(other_store(tmp_path / "source", name="other", environment="another"), "three")
    first, second = export(source, tmp_path / "one.kstore", other), export(other, tmp_path / "two.kstore", source)
    assert (tmp_path / "one.kstore").read_bytes() == (tmp_path / "two.kstore").read_bytes()
    assert first.refs == second.refs


def test_how_many_generations_came_before_is_not_in_it(source: Node, tmp_path: Path) -> None:
    first = bundle_of(fill(source, "three"), tmp_path, "first")
    target = other_store(tmp_path / "target")
    bring(target, first)
    assert (source.newest().generation, target.newest().generation) == (2, 1)
    assert bundle_of(target, tmp_path, "second").read_bytes() == first.read_bytes()


def test_stores_of_both_layouts_with_equal_files_export_equal_bundles(tmp_path: Path) -> None:
    loose = fill(other_store(tmp_path / "one", "loose"), "one", "two")
    packed = other_store(tmp_path / "other", "packed")
    packed.store = Store(
        packed.location, cache_root=loose.tree.root, layout="packed", gpu=GPU, environment=ENVIRONMENT, environ={}
    )
    packed.commit()
    assert packed.newest().packs and not loose.newest().packs
    assert bundle_of(packed, tmp_path, "b").read_bytes() == bundle_of(loose, tmp_path, "a").read_bytes()


def test_nothing_of_the_export_is_in_it(source: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = source.newest()
    data = bundle_of(source, tmp_path).read_bytes()
    nonce = source.store.snapshot(ref).manifest.meta["nonce"]
    plain = b"".join(bytes(blob) for blob in everything_in(tmp_path / "bundle.kstore")) + data
    for secret in (ref.creator, str(nonce), str(tmp_path / "source" / "store")):
        assert secret.encode() not in plain


def everything_in(path: Path) -> list[memoryview]:
    with BundleReader(str(path)) as bundle:
        bundle.check()
        return [data for _, data in bundle.fetch(bundle._pack.index.sizes_by_digest())]


@pytest.mark.skipif(shutil.which("zstd") is None, reason="the zstd program is not installed")
def test_the_zstd_program_reads_it(source: Node, tmp_path: Path) -> None:
    bundle = bundle_of(source, tmp_path)
    done = subprocess.run(["zstd", "-dc", bundle], capture_output=True, check=True)
    assert done.stdout == b"".join(everything_in(bundle))


# ---- Merging with what is already in the store


def test_the_same_bundle_again_publishes_nothing(source: Node, tmp_path: Path, layout: str) -> None:
    target = other_store(tmp_path / "target", layout)
    bundle = bundle_of(source, tmp_path)
    bring(target, bundle)
    before = contents(target.location)
    (brought,) = bring(target, bundle).scopes
    assert (brought.status, brought.new_files, brought.new_blobs) == (CommitStatus.UNCHANGED, 0, 0)
    assert contents(target.location) == before | {mark_name(brought.scope): b""}


def test_nothing_that_was_published_is_lost(source: Node, tmp_path: Path, layout: str) -> None:
    target = fill(other_store(tmp_path / "target", layout), "two", "three")
    theirs = without_relocated(contents(target.tree.root))
    target.tree.kernel("one", "differently")
    target.commit()
    (brought,) = bring(target, bundle_of(source, tmp_path)).scopes
    assert (brought.status, brought.generation) == (CommitStatus.COMMITTED, 3)
    assert brought.declined > 0
    ours = without_relocated(contents(source.tree.root))
    assert restored(target) == ours | theirs | without_relocated(contents(target.tree.root))
    assert target.newest().line == 1


def test_a_file_that_is_merged_by_meaning_is_merged(tmp_path: Path, layout: str) -> None:
    source, target = other_store(tmp_path / "source"), other_store(tmp_path / "target", layout)
    for node, values in ((source, {"a": 1, "both": 1}), (target, {"b": 2, "both": 2})):
        node.tree.timings(values)
        node.commit()
    bundle = bundle_of(source, tmp_path)
    bring(target, bundle)
    (merged,) = restored(target).values()
    assert json.loads(merged) == {"a": 1, "b": 2, "both": 2}
    assert bring(target, bundle).scopes[0].status is CommitStatus.UNCHANGED


def test_where_the_published_version_of_a_merged_file_is_lost_the_imported_one_takes_its_place(tmp_path: Path) -> None:
    source, target = other_store(tmp_path / "source"), other_store(tmp_path / "target")
    for node, values in ((source, {"a": 1}), (target, {"b": 2})):
        node.tree.timings(values)
        node.commit()
    (entry,) = target.published().values()
    (target.location / blob_name(entry.digest)).unlink()
    bring(target, bundle_of(source, tmp_path))
    (imported,) = restored(target).values()
    assert json.loads(imported) == {"a": 1}


def test_what_an_import_merges_is_not_relied_upon_where_gc_is_about_to_delete_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, twin, target = (other_store(tmp_path / name) for name in ("source", "twin", "target"))
    for node, values in ((source, {"a": 1}), (twin, {"b": 2}), (target, {"b": 2})):
        node.tree.timings(values)
        node.commit()
    bundle = bundle_of(source, tmp_path)
    bring(twin, bundle)
    (merged,) = restored(twin).values()
    other = other_store(tmp_path / "target", name="other")
    other.tree.put("inductor/cache/system", merged)
    other.commit("other/key")
    other.store.forget("other/key")
    pass_time(target)
    collect(target)
    pass_time(target)
    upload, deleted = bringing._BringIn._upload, list[int]()

    def after_gc(self: object, *arguments: object) -> None:
        deleted.append(collect(target).deleted.files)
        upload(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(bringing._BringIn, "_upload", after_gc)
    bring(target, bundle)
    assert deleted[0]
    assert list(restored(target).values()) == [merged]


def test_only_what_the_store_lacks_is_uploaded(
    source: Node, tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = fill(other_store(tmp_path / "target", layout), "one")
    had = {entry.digest for entry in target.published().values()}
    bundle = bundle_of(source, tmp_path)
    stored = Stored(monkeypatch)
    bring(target, bundle)
    assert had.isdisjoint(stored.digests)
    assert len(set(stored.digests)) == len(stored.digests)


def test_a_key_that_was_forgotten_comes_back(source: Node, tmp_path: Path) -> None:
    target = other_store(tmp_path / "target")
    bundle = bundle_of(source, tmp_path)
    bring(target, bundle)
    target.store.forget(KEY)
    bring(target, bundle)
    assert (target.newest().generation, target.newest().state) == (3, RefState.LIVE)
    assert restored(target) == without_relocated(contents(source.tree.root))


def test_what_verify_found_damaged_is_put_back(source: Node, tmp_path: Path) -> None:
    target = other_store(tmp_path / "target", "loose")
    bundle = bundle_of(source, tmp_path)
    bring(target, bundle)
    manifest = target.newest().manifest.hex()
    victim = next(p for p in (target.location / "blobs").rglob("*") if p.is_file() and p.name != manifest)
    victim.chmod(0o644)
    victim.write_bytes(b"damaged")
    assert not target.store.verify(repair=True).ok
    bring(target, bundle)
    assert Node(tmp_path / "target", layout="loose").store.verify().ok


def test_an_import_meets_a_commit(source: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker publishes between the merge and the publishing: the import merges again."""
    target = other_store(tmp_path / "target", "packed")
    rival = Node(tmp_path / "target", "rival", layout="packed")
    upload = bringing._BringIn._upload
    raced = []

    def racing(self: object, *arguments: object) -> None:
        if not raced:
            raced.append(fill(rival, "rival"))
        upload(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(bringing._BringIn, "_upload", racing)
    (brought,) = bring(target, bundle_of(source, tmp_path)).scopes
    assert (brought.status, brought.generation) == (CommitStatus.COMMITTED, 2)
    expected = without_relocated(contents(source.tree.root) | contents(rival.tree.root))
    assert restored(target) == expected


def test_an_import_that_was_outrun_merges_with_what_is_not_listed_yet(
    source: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of NFS may go on listing a folder as it was."""
    target = other_store(tmp_path / "target", "packed")
    rival = Node(tmp_path / "target", "rival", layout="packed")
    with monkeypatch.context() as patch:
        upload = bringing._BringIn._upload

        def outrun(self: object, *arguments: object) -> None:
            patch.setattr(bringing._BringIn, "_upload", upload)
            fill(rival, "rival")
            patch.setattr(Refs, "_listed", lambda *_: iter(()))
            upload(self, *arguments)  # type: ignore[arg-type]

        patch.setattr(bringing._BringIn, "_upload", outrun)
        patch.setattr(races, "MAX_RACES", 3)
        (brought,) = bring(target, bundle_of(source, tmp_path)).scopes
    assert (brought.status, brought.generation) == (CommitStatus.COMMITTED, 2)
    assert restored(target) == without_relocated(contents(source.tree.root) | contents(rival.tree.root))


def test_an_import_that_is_outrun_again_and_again_says_so(
    source: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Refs, "publish", lambda *_: False)
    monkeypatch.setattr(races, "MAX_RACES", 1)
    with pytest.raises(StoreUnavailable, match="attempts to publish"):
        bring(other_store(tmp_path / "target"), bundle_of(source, tmp_path))


def test_a_folder_that_holds_something_else_is_left_as_it_is(source: Node, tmp_path: Path) -> None:
    target = other_store(tmp_path / "target")
    target.location.mkdir()
    (target.location / "notes.txt").touch()
    with pytest.raises(StoreFormatError, match="not a store"):
        bring(target, bundle_of(source, tmp_path))
    assert list(target.location.iterdir()) == [target.location / "notes.txt"]


# ---- Killed, and run again


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bringing, "_BATCH", 700)
    monkeypatch.setattr("kstore.blobs.writers.BATCH_COUNT", 1)


@pytest.mark.usefixtures("small_batches")
def test_of_many_packs_the_first_that_is_named_has_the_manifest(source: Node, tmp_path: Path) -> None:
    """Restores want it first, and look into one pack after the other."""
    target = other_store(tmp_path / "target", "packed")
    bring(target, bundle_of(source, tmp_path))
    ref = target.newest()
    assert len(ref.packs) > 2
    assert ref.manifest in target.store.storage.blobs.digests_in(ref.packs[:1])


@pytest.mark.usefixtures("small_batches")
def test_an_import_that_was_killed_uploads_only_the_rest(
    source: Node, tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = bundle_of(source, tmp_path)
    whole = other_store(tmp_path / "whole", layout)
    stored = Stored(monkeypatch)
    bring(whole, bundle)
    total = len(stored.digests)

    target = other_store(tmp_path / "target", layout)
    stored.digests.clear()
    stored.limit = total * 2 // 3
    with pytest.raises(Killed):
        bring(target, bundle)
    assert target.store.newest(target.store.scope(KEY)) is None

    stored.digests.clear()
    stored.limit = None
    again = other_store(tmp_path / "target", layout)
    (brought,) = bring(again, bundle).scopes
    assert brought.status is CommitStatus.COMMITTED
    assert 0 < len(stored.digests) < total * 2 // 3
    assert restored(again) == without_relocated(contents(source.tree.root))
    assert list((again.location / "groups").glob("*")) == []


@pytest.mark.usefixtures("small_batches")
def test_no_batch_that_was_stored_before_the_kill_is_stored_again(
    source: Node, tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, copy = bundle_of(source, tmp_path), Uploader.copy
    with monkeypatch.context() as patch:
        before = Stored(patch)

        def killed_at_the_last(uploader: Uploader, plan: UploadPlan, *rest: Any) -> set[bytes]:
            if len(rest) > 1:
                raise Killed
            return copy(uploader, plan, *rest)

        patch.setattr(Uploader, "copy", killed_at_the_last)
        with pytest.raises(Killed):
            bring(other_store(tmp_path / "target", layout), bundle)
    stored = Stored(monkeypatch)
    bring(other_store(tmp_path / "target", layout), bundle)
    assert before.digests and set(before.digests).isdisjoint(stored.digests)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(("name", "key"), [("other", KEY), ("bundle", "other/key")])
def test_an_import_of_something_else_or_elsewhere_leaves_what_a_killed_one_has_noted(
    source: Node, tmp_path: Path, name: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle_of(source, tmp_path)
    bundle_of(fill(other_store(tmp_path / "another"), "three"), tmp_path, "other")
    target = other_store(tmp_path / "target", "packed")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        Stored(patch).limit = 12
        bring(target, tmp_path / "bundle.kstore")
    noted = contents(target.location / "groups")
    bring(other_store(tmp_path / "target", "packed"), tmp_path / f"{name}.kstore", key)
    assert noted and contents(target.location / "groups") == noted


@pytest.mark.usefixtures("small_batches")
def test_an_import_is_done_although_its_notes_cannot_be_removed(
    source: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, delete = other_store(tmp_path / "target", "packed"), PosixBackend.delete

    def refused(backend: PosixBackend, name: str) -> None:
        if name.startswith("groups/"):
            raise PermissionError(name)
        delete(backend, name)

    monkeypatch.setattr(PosixBackend, "delete", refused)
    (brought,) = bring(target, bundle_of(source, tmp_path)).scopes
    assert brought.status is CommitStatus.COMMITTED
    assert list((target.location / "groups").iterdir())


@pytest.mark.usefixtures("small_batches")
def test_an_import_whose_process_was_killed_uploads_only_the_rest(
    source: Node, tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = bundle_of(source, tmp_path)
    target = other_store(tmp_path / "target", layout)

    def die() -> None:
        stored = Stored(monkeypatch)
        stored.limit = 12
        stored.kill = partial(os.kill, os.getpid(), signal.SIGKILL)
        bring(target, bundle)

    process = multiprocessing.get_context("fork").Process(target=die)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    stored = Stored(monkeypatch)
    (brought,) = bring(target, bundle).scopes
    assert 0 < len(stored.digests) <= brought.files + 1 - 10
    assert restored(target) == without_relocated(contents(source.tree.root))


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("rounds", [1, 2])
def test_gc_between_a_killed_import_and_the_next_loses_nothing(
    source: Node, tmp_path: Path, layout: str, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once when what it left is condemned, and once when it is gone."""
    bundle = bundle_of(source, tmp_path)
    target = other_store(tmp_path / "target", layout)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        Stored(patch).limit = 12
        bring(target, bundle)
    for _ in range(rounds):
        collect(target)
        pass_time(target)
    again = other_store(tmp_path / "target", layout)
    bring(again, bundle)
    for _ in range(3):
        collect_fully(again)
    assert restored(again) == without_relocated(contents(source.tree.root))


@pytest.mark.usefixtures("small_batches")
def test_what_gc_took_after_the_notes_were_read_is_uploaded_again(
    source: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = bundle_of(source, tmp_path)
    target = other_store(tmp_path / "target", "packed")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        Stored(patch).limit = 12
        bring(target, bundle)
    again = other_store(tmp_path / "target", "packed")
    packs = bringing._Notes.packs

    def reading(notes: bringing._Notes) -> tuple[str, ...]:
        found = packs(notes)
        collect_fully(target)
        assert found and not list((target.location / "packs").iterdir())
        return found

    monkeypatch.setattr(bringing._Notes, "packs", reading)
    bring(again, bundle)
    assert restored(again) == without_relocated(contents(source.tree.root))


@pytest.mark.usefixtures("small_batches")
def test_gc_while_an_import_uploads_loses_nothing(
    source: Node, tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both phases of gc, with a grace between them, after each of the first batches: the import begins again."""
    target = other_store(tmp_path / "target", layout)
    add = bringing._Notes.add
    rounds = []

    def collecting(notes: bringing._Notes, packs: tuple[str, ...]) -> None:
        add(notes, packs)
        if len(rounds) < 4:
            rounds.append(collect_fully(Node(tmp_path / "target", "gc", layout=None)))

    monkeypatch.setattr(bringing._Notes, "add", collecting)
    bring(target, bundle_of(source, tmp_path))
    assert len(rounds) == 4
    for _ in range(3):
        collect_fully(target)
    assert restored(target) == without_relocated(contents(source.tree.root))


def frames_of(bundle: Path) -> list[Frame]:
    with BundleReader(str(bundle)) as reader:
        reader.check()
        return reader._pack.index.frames


class TestExportAgain:
    """An earlier export was killed and left `bundle.kstore.partial`."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> Node:
        """Frames of a bundle end at 4 MiB."""
        node = fill(other_store(tmp_path / "source", "packed"), "one", "two")
        for number in range(8):
            node.tree.put(f"inductor/ab/large{number}.bin", os.urandom(2 << 20))
        node.tree.put("inductor/ab/huge.bin", os.urandom(9 << 20))
        node.commit()
        return node

    @pytest.fixture
    def whole(self, source: Node, tmp_path: Path) -> bytes:
        return bundle_of(source, tmp_path, "whole").read_bytes()

    @pytest.mark.parametrize("share", [0.001, 0.3, 0.55, 0.9, 0.9999, 1.0])
    def test_it_goes_on_where_that_ended(self, source: Node, tmp_path: Path, whole: bytes, share: float) -> None:
        left = int(len(whole) * share)
        (tmp_path / "bundle.kstore.partial").write_bytes(whole[:left])
        exported = export(source, tmp_path / "bundle.kstore")
        assert (tmp_path / "bundle.kstore").read_bytes() == whole
        assert left - (13 << 20) < exported.resumed <= left or not exported.resumed
        assert exported.resumed or share < 0.3
        assert not (tmp_path / "bundle.kstore.partial").exists()

    @pytest.mark.parametrize("large", [1 << 20, 4 << 20, 9 << 20])
    def test_an_empty_file_is_in_the_frame_that_it_was_in(self, tmp_path: Path, large: int) -> None:
        node = other_store(tmp_path / "source", "packed")
        for name, size in {"a": 500, "b": 0, "c": large, "d": 400}.items():
            node.tree.put(f"inductor/ab/{name}.bin", os.urandom(size))
        node.commit()
        whole = bundle_of(node, tmp_path, "whole").read_bytes()
        for left in range(0, len(whole), max(50_000, len(whole) // 40)):
            (tmp_path / "bundle.kstore.partial").write_bytes(whole[: len(whole) - left])
            export(node, tmp_path / "bundle.kstore")
            assert (tmp_path / "bundle.kstore").read_bytes() == whole
            (tmp_path / "bundle.kstore").unlink()

    def test_an_empty_file_after_a_full_frame_is_not_in_it(self, tmp_path: Path) -> None:
        node = other_store(tmp_path / "source", "packed")
        node.tree.put("inductor/ab/full.bin", os.urandom(FRAME_SIZE))
        node.tree.put("inductor/ab/empty.txt", b"")
        node.commit()
        whole = bundle_of(node, tmp_path, "whole").read_bytes()
        (tmp_path / "bundle.kstore.partial").write_bytes(whole[:-1])
        assert export(node, tmp_path / "bundle.kstore").resumed > FRAME_SIZE
        assert (tmp_path / "bundle.kstore").read_bytes() == whole

    def test_only_the_rest_is_read(
        self, source: Node, tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "bundle.kstore.partial").write_bytes(whole[: len(whole) * 3 // 4])
        stored = Stored(monkeypatch)
        exported = export(source, tmp_path / "bundle.kstore")
        assert 0 < len(stored.digests) < exported.blobs

    @pytest.mark.parametrize("what", ["its frames", "its bytes once more"])
    def test_where_what_was_written_cannot_be_read_the_error_names_it(
        self, source: Node, tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch, what: str
    ) -> None:
        def fail(*_: object) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        left = tmp_path / "bundle.kstore.partial"
        left.write_bytes(whole[:-1])
        monkeypatch.setattr(*((BundleFile, "read") if what == "its frames" else (_File, "readinto")), fail)
        with pytest.raises(FileError, match=f"cannot read {left}: Input/output error; remove it"):
            export(source, tmp_path / "bundle.kstore")
        assert left.exists()

    def test_a_damaged_frame_is_written_anew(self, source: Node, tmp_path: Path, whole: bytes) -> None:
        data = bytearray(whole[: len(whole) * 9 // 10])
        data[len(data) // 2] ^= 1
        (tmp_path / "bundle.kstore.partial").write_bytes(data)
        exported = export(source, tmp_path / "bundle.kstore")
        assert 0 < exported.resumed < len(data) // 2 + 1
        assert (tmp_path / "bundle.kstore").read_bytes() == whole

    def test_wherever_what_was_written_is_damaged_the_file_is_the_same(self, tmp_path: Path) -> None:
        node = fill(other_store(tmp_path / "small"), "one")
        whole = bundle_of(node, tmp_path, "whole").read_bytes()
        for at in range(0, len(whole), 40):
            left = bytearray(whole)
            left[at] ^= 0xFF
            (tmp_path / "bundle.kstore.partial").write_bytes(left)
            export(node, tmp_path / "bundle.kstore")
            assert (tmp_path / "bundle.kstore").read_bytes() == whole

    def test_a_frame_that_needs_a_dictionary_is_written_anew(
        self, source: Node, tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("kstore.bundles.writer.NONE", NEWEST)
            other = bundle_of(source, tmp_path, "other").read_bytes()
        (tmp_path / "bundle.kstore.partial").write_bytes(other[: len(other) * 9 // 10])
        export(source, tmp_path / "bundle.kstore")
        assert (tmp_path / "bundle.kstore").read_bytes() == whole != other

    @pytest.mark.parametrize("length", [0, 1, 5, None])
    def test_a_frame_that_is_cut_short_or_holds_more_than_there_is_is_written_anew(
        self, tmp_path: Path, length: int | None
    ) -> None:
        left = zstandard.compress(bytes(1 << 20))[:length]
        node = fill(other_store(tmp_path / "small"), "one")
        whole = bundle_of(node, tmp_path, "whole").read_bytes()
        header = whole[: 8 + int.from_bytes(whole[4:8], "little")]
        (tmp_path / "bundle.kstore.partial").write_bytes(header + left)
        assert export(node, tmp_path / "bundle.kstore").resumed == 0
        assert (tmp_path / "bundle.kstore").read_bytes() == whole

    def test_a_frame_that_goes_on_after_what_belongs_into_it_is_written_anew(self, tmp_path: Path) -> None:
        node = fill(other_store(tmp_path / "small"), "one")
        whole = bundle_of(node, tmp_path, "whole").read_bytes()
        start = frames_of(tmp_path / "whole.kstore")[-1].offset
        longer = zstandard.compress(zstandard.decompress(whole[start:]) + b"more")
        (tmp_path / "bundle.kstore.partial").write_bytes(whole[:start] + longer)
        export(node, tmp_path / "bundle.kstore")
        assert (tmp_path / "bundle.kstore").read_bytes() == whole

    def test_a_frame_with_a_run_of_equal_bytes_stays(self, tmp_path: Path) -> None:
        node = other_store(tmp_path / "source", "packed")
        node.tree.put("inductor/ab/zeros.bin", bytes(FRAME_SIZE))
        node.commit()
        whole = bundle_of(node, tmp_path, "whole").read_bytes()
        (tmp_path / "bundle.kstore.partial").write_bytes(whole[:-1])
        last = frames_of(tmp_path / "whole.kstore")[-1]
        assert export(node, tmp_path / "bundle.kstore").resumed == last.offset + last.packed_size

    @pytest.mark.parametrize("left", [b"", b"something else" * 100_000])
    def test_a_partial_file_that_is_not_a_bundle_is_overwritten(
        self, source: Node, tmp_path: Path, whole: bytes, left: bytes
    ) -> None:
        (tmp_path / "bundle.kstore.partial").write_bytes(left)
        assert export(source, tmp_path / "bundle.kstore").resumed == 0
        assert (tmp_path / "bundle.kstore").read_bytes() == whole

    def test_nothing_of_a_longer_partial_file_is_left_at_the_end(
        self, source: Node, tmp_path: Path, whole: bytes
    ) -> None:
        (tmp_path / "bundle.kstore.partial").write_bytes(whole[:-1] + b"something else")
        assert export(source, tmp_path / "bundle.kstore").resumed
        assert (tmp_path / "bundle.kstore").read_bytes() == whole

    def test_another_generation_is_begun_anew(self, source: Node, tmp_path: Path, whole: bytes) -> None:
        (tmp_path / "bundle.kstore.partial").write_bytes(whole[:-1])
        source.tree.wrapper("news")
        source.commit()
        assert export(source, tmp_path / "bundle.kstore").resumed == 0
        with BundleReader(str(tmp_path / "bundle.kstore")) as bundle:
            bundle.check()

    def test_one_that_fails_leaves_what_it_wrote_and_not_the_file(self, source: Node, tmp_path: Path) -> None:
        snapshot = source.store.snapshot(source.newest())
        for pack in (tmp_path / "source/store/packs").iterdir():
            pack.chmod(0o644)
            data = bytearray(pack.read_bytes())
            data[len(data) // 2] ^= 1
            pack.write_bytes(data)
        writer = BundleWriter(Node(tmp_path / "source").store.storage, [snapshot])
        with (
            pytest.raises(IntegrityError, match="missing or damaged"),
            finished_as(str(tmp_path / "b.kstore"), resumable=True) as file,
        ):
            writer.resume(file)
        assert not (tmp_path / "b.kstore").exists()
        assert (tmp_path / "b.kstore.partial").stat().st_size > 0

    def test_two_do_not_write_the_same_file(self, source: Node, tmp_path: Path) -> None:
        with finished_as(str(tmp_path / "b.kstore"), resumable=True) as file:
            with pytest.raises(KstoreError, match="another process"):
                export(source, tmp_path / "b.kstore")
            file.write(b"mine")
        assert (tmp_path / "b.kstore").read_bytes() == b"mine"

    def test_what_another_has_finished_meanwhile_is_not_written_into(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "b.kstore"

        def finish_first(fd: int, operation: int) -> None:
            monkeypatch.undo()
            os.rename(f"{path}.partial", path)
            path.write_bytes(b"theirs")

        monkeypatch.setattr("fcntl.flock", finish_first)
        with finished_as(str(path), resumable=True) as file:
            file.write(b"mine")
            file.flush()
            assert path.read_bytes() == b"theirs"
        assert path.read_bytes() == b"mine"


def test_where_the_file_cannot_be_written_the_error_says_so(source: Node, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot write"):
        export(source, tmp_path / "missing" / "bundle.kstore")


def test_a_folder_is_no_file(source: Node, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileError, match="directory"):
        export(source, tmp_path / "folder")


def test_the_name_of_a_folder_is_no_file_either(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="name of a folder"), finished_as(f"{tmp_path}/new/", resumable=False) as file:
        file.write(b"content")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("resumable", [False, True])
def test_a_file_that_cannot_be_cut_to_its_length_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resumable: bool
) -> None:
    def refuse(file: _File, size: int | None = None) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(_File, "truncate", refuse)
    path = tmp_path / "bundle.kstore"
    with (
        pytest.raises(FileError, match=f"cannot write {path}: Input/output error"),
        finished_as(str(path), resumable=resumable) as file,
    ):
        file.write(b"content")
    assert not path.exists()


def test_a_full_disk_is_reported_with_the_file(source: Node) -> None:
    writer = BundleWriter(source.store.storage, [source.store.snapshot(source.newest())])
    with (
        pytest.raises(FileError, match="cannot write /dev/full"),
        finished_as("/dev/full", resumable=True) as file,
    ):
        writer.write(file)


@pytest.mark.parametrize("resumable", [False, True])
def test_a_file_that_a_server_has_no_room_for_does_not_appear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resumable: bool
) -> None:
    """NFS says so when the file is closed."""
    path, close = tmp_path / "bundle.kstore", os.close

    def close_full(fd: int) -> None:
        close(fd)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with (
        pytest.raises(FileError, match=f"cannot write {path}: No space left"),
        monkeypatch.context() as patch,
        finished_as(str(path), resumable=resumable) as file,
    ):
        file.write(b"content")
        patch.setattr(os, "close", close_full)
    assert [left.name for left in tmp_path.iterdir()] == (["bundle.kstore.partial"] if resumable else [])


@pytest.mark.parametrize("resumable", [False, True])
def test_what_cannot_get_its_name_is_left_only_for_who_goes_on(tmp_path: Path, resumable: bool) -> None:
    path = tmp_path / "bundle.kstore"
    with (
        pytest.raises(FileError, match=f"cannot write {path}: Is a directory"),
        finished_as(str(path), resumable=resumable) as file,
    ):
        file.write(b"content")
        path.mkdir()
    assert (tmp_path / "bundle.kstore.partial").exists() is resumable


def test_an_error_is_said_although_somebody_has_removed_what_was_written(tmp_path: Path) -> None:
    with (
        pytest.raises(IntegrityError, match="damaged"),
        finished_as(str(tmp_path / "model.tar"), resumable=False),
    ):
        (tmp_path / "model.tar.partial").unlink()
        raise IntegrityError("it is damaged")


def test_a_file_that_is_missing_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot read"):
        bring(other_store(tmp_path / "target"), tmp_path / "missing.kstore")


def test_a_disk_that_fails_is_not_a_damaged_bundle(
    source: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int, length: int, offset: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    bundle, target = bundle_of(source, tmp_path), other_store(tmp_path / "target")
    with monkeypatch.context() as patch, pytest.raises(FileError, match=f"cannot read {bundle}: Input/output error"):
        patch.setattr(os, "pread", fail)
        bring(target, bundle)


def test_where_what_comes_through_a_pipe_cannot_be_kept_the_error_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.close(writer)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(KstoreError, match="set TMPDIR"):
        bring(other_store(tmp_path / "target"), Path(f"/dev/fd/{reader}"))
    os.close(reader)


@pytest.fixture
def stdin() -> Iterator[Callable[[int], int]]:
    """Makes stdin what another descriptor is."""
    before = os.dup(0)
    yield lambda descriptor: os.dup2(descriptor, 0)
    os.dup2(before, 0)
    os.close(before)


def test_a_file_that_is_stdin_is_read_where_it_is(
    source: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stdin: Callable[[int], int]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with bundle_of(source, tmp_path).open("rb") as file:
        stdin(file.fileno())
    target = other_store(tmp_path / "target")
    bring(target, Path("-"))

    assert restored(target) == without_relocated(contents(source.tree.root))
    os.fstat(0)  # It is still open.


def test_what_somebody_has_read_of_stdin_is_not_part_of_the_bundle(
    source: Node, tmp_path: Path, stdin: Callable[[int], int]
) -> None:
    bundle, target = bundle_of(source, tmp_path), other_store(tmp_path / "target")
    bundle.write_bytes(b"a line\n" + bundle.read_bytes())
    with bundle.open("rb", buffering=0) as file:
        file.readline()
        stdin(file.fileno())
    bring(target, Path("-"))

    assert restored(target) == without_relocated(contents(source.tree.root))


def test_where_there_is_no_room_for_what_comes_through_a_pipe_the_error_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"less than a buffer")
    os.close(writer)
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: open("/dev/full", "w+b"))
    with pytest.raises(FileError, match="No space left on device; set TMPDIR"):
        bring(other_store(tmp_path / "target"), Path(f"/dev/fd/{reader}"))
    os.close(reader)


def test_another_gpu_is_a_miss(source: Node, tmp_path: Path) -> None:
    bundle = bundle_of(source, tmp_path)
    target = other_store(tmp_path / "target")
    with pytest.raises(MissError, match="nvidia-test-sm90"):
        import_bundle(target.store, str(bundle), gpu="another")
    assert not target.location.exists()


def test_of_the_scopes_of_a_bundle_a_miss_names_a_few() -> None:
    contents = [Content(Scope(f"gpu{number}", KEY, "torch"), b"", 0) for number in range(10)]

    assert _listed(contents[:8]).endswith("gpu7 torch")
    assert _listed(contents).endswith("gpu7 torch and 2 more")


@pytest.mark.parametrize("chosen", [{"environment": "torch-other"}, {"gpu": "another"}])
def test_of_several_scopes_the_one_that_is_named_is_imported_alone(
    source: Node, tmp_path: Path, chosen: dict[str, str]
) -> None:
    other = fill(other_store(tmp_path / "source", name="other", **chosen), "three")
    export(source, tmp_path / "both.kstore", other)
    target = other_store(tmp_path / "target")

    (brought,) = import_bundle(target.store, str(tmp_path / "both.kstore"), **chosen).scopes
    assert [*target.store.scopes()] == [brought.scope] == [other.newest().scope]


def test_a_store_that_is_only_read_is_not_written(source: Node, tmp_path: Path) -> None:
    bundle = bundle_of(source, tmp_path)
    with pytest.raises(StoreUnavailable, match="mode"):
        bring(other_store(tmp_path / "target", mode="read"), bundle)


def test_a_bundle_of_a_newer_kstore_is_not_damage(
    source: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("kstore.bundles.format.FORMAT", FORMAT + 1)
        bundle = bundle_of(source, tmp_path)
    with pytest.raises(StoreFormatError, match="install the version"):
        bring(other_store(tmp_path / "target"), bundle)


def test_the_header_names_the_version_of_zstd() -> None:
    assert b"zstd 1." in Header("key", ()).dump()
