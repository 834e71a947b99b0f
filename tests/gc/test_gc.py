"""gc removes what nobody needs, in two phases, and nothing else."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate, count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kstore import condemned
from kstore.backends import PosixBackend, Upload
from kstore.blobs import BlobStore, Layout
from kstore.blobs.loose import ASIDE, blob_name
from kstore.blobs.packindex import PackIndex
from kstore.blobs.packreader import PackReader
from kstore.blobs.writers import PackedBlobWriter
from kstore.condemned import Condemned, list_names, read_doomed, read_list, write_lists
from kstore.digest import digest_of
from kstore.errors import IntegrityError, MissError, StoreUnavailable, UsageError
from kstore.gc import GcStatus, collection, repack, sweep
from kstore.gc.delete import delete
from kstore.gc.digests import DigestSet
from kstore.gc.mark import mark
from kstore.gc.policy import History, Why
from kstore.gc.retention import Retention
from kstore.lease import Lease
from kstore.operations.copy import copy_keys
from kstore.operations.repair import Repair
from kstore.published.generations import republish
from kstore.published.ref import Ref
from kstore.published.refs import Refs
from kstore.report import CommitStatus, RestoreStatus
from kstore.storage import Storage
from kstore.used import mark_name
from tests.faults.reading import trouble_with
from tests.gc.stores import HOUR, collect, collect_fully, generations, kernels, pass_time, restored, stored
from tests.test_repair import meanwhile
from tests.trees import KEY, Node, contents


def grow(node: Node, *names: str) -> None:
    """Commit a generation for each name, each with one more kernel."""
    for name in names:
        node.tree.kernel(name)
        node.tree.wrapper(name)
        node.commit()


def replace_kernels(node: Node, variant: str) -> None:
    """Commit a generation that replaces everything before it."""
    for name in ("one", "two"):
        node.tree.kernel(name, variant)
    node.commit()


def test_a_store_with_nothing_to_remove_is_left_as_it_is(node: Node, tmp_path: Path) -> None:
    grow(node, "one")
    before = contents(node.location)
    report = collect_fully(node)
    assert report.status is GcStatus.COLLECTED
    assert (report.deleted.files, report.condemned.files) == (0, 0)
    after = contents(node.location)
    assert {name: data for name, data in after.items() if not name.startswith("leases/")} == before
    assert restored(tmp_path, "other") == kernels(node)


def test_where_there_is_no_store_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="there is no store"):
        collect(Node(tmp_path))
    assert not (tmp_path / "store").exists()


def test_older_generations_are_removed_and_their_blobs_a_grace_later(node: Node, tmp_path: Path) -> None:
    for variant in "abcd":
        replace_kernels(node, variant)
    pass_time(node)
    before = stored(node)
    first = collect(node)
    assert generations(node) == [3, 4]
    assert [d.generation.number for d in first.decisions if not d.stays] == [1, 2]
    assert first.condemned.files > 0 and first.deleted.files == 0
    assert stored(node) == before

    early = collect(node)
    assert (early.deleted.files, early.condemned.files) == (0, 0)
    assert early.waiting == first.condemned

    pass_time(node)
    late = collect(node)
    assert late.deleted == first.condemned
    assert len(stored(node)) == len(before) - late.deleted.files
    assert list_names(node.store.storage.backend) == []
    assert restored(tmp_path, "other") == kernels(node)


def test_what_was_superseded_a_short_time_ago_stays(node: Node) -> None:
    for variant in "abc":
        replace_kernels(node, variant)
    report = collect(node, keep=1)
    assert [d.why for d in report.decisions] == [Why.RECENT, Why.RECENT, Why.NEWEST]
    assert generations(node) == [1, 2, 3]


def test_a_dry_run_says_the_same_and_writes_nothing(node: Node) -> None:
    for variant in "abcd":
        replace_kernels(node, variant)
    pass_time(node)
    before = contents(node.location)
    planned = collect(node, dry_run=True)
    assert contents(node.location) == before
    done = collect(node)
    assert (planned.decisions, planned.condemned) == (done.decisions, done.condemned)
    pass_time(node)
    planned = collect(node, dry_run=True)
    done = collect(node)
    assert planned.deleted == done.deleted and done.deleted.files > 0


def test_a_forgotten_key_misses_at_once_and_is_gone_after_two_graces(node: Node, tmp_path: Path) -> None:
    grow(node, "one", "two")
    node.store.forget("model/v1")
    assert Node(tmp_path, "other").restore().status is RestoreStatus.MISS
    collect_fully(node)
    assert generations(node) == [3]
    assert len(stored(node)) == 1  # the empty manifest
    assert node.commit().status is CommitStatus.UNCHANGED  # what was forgotten does not come back by itself
    node.tree.wrapper("three")
    assert node.commit().generation == 4


def test_the_mark_of_a_key_goes_with_it(node: Node, tmp_path: Path) -> None:
    grow(node, "one")
    for key in ("model/v1", "model/v2"):
        node.commit(key)
        Node(tmp_path, "other").restore(key)
    node.store.forget("model/v1")
    collect(node)
    marks = {mark_name(node.store.scope(key)) for key in ("model/v1", "model/v2")}
    assert {name for name in marks if (node.location / name).exists()} == marks, "it may be restored just now"
    collect_fully(node)
    assert {f"used/{path.name}" for path in (node.location / "used").iterdir()} == {
        mark_name(node.store.scope("model/v2"))
    }


def test_what_a_killed_writer_leaves_goes_though_something_else_stays_condemned(node: Node) -> None:
    """It gets one list, once it is old, whatever else is being written."""
    grow(node, "one")
    condemn(node, [min(stored(node))])
    lists = []
    for writer, seconds in enumerate((0, 2 * HOUR, 0)):
        pass_time(node, seconds)
        (node.location / "tmp" / f"killed-{writer}-0123456789abcdef").write_bytes(b"half of a pack")
        collect(node)
        lists.append(listed(node))
    assert lists == [1, 2, 2]
    for _ in range(2):
        collect_fully(node)
    assert list((node.location / "tmp").iterdir()) == []
    assert node.store.verify().ok


def test_a_key_that_was_forgotten_takes_everything_from_a_fresh_worker(node: Node, tmp_path: Path) -> None:
    grow(node, "one")
    node.store.forget("model/v1")
    collect_fully(node)
    other = Node(tmp_path, "other", layout="loose")
    grow(other, "one")
    assert restored(tmp_path, "third") == kernels(other)


def test_a_blob_that_is_condemned_goes_into_a_pack_of_the_commit_that_needs_it(tmp_path: Path) -> None:
    node, other = (Node(tmp_path, name, layout="loose") for name in ("node", "other"))
    grow(node, "one")
    node.store.forget("model/v1")
    pass_time(node)
    condemned = collect(node).condemned
    assert condemned.files
    grow(other, "one")
    assert other.newest().packs
    pass_time(node)
    report = collect(node)
    assert report.deleted == condemned
    assert restored(tmp_path, "third") == kernels(other)


def test_a_blob_that_was_condemned_while_a_commit_relied_on_it_stays_as_long_as_it_is_needed(tmp_path: Path) -> None:
    node, other = (Node(tmp_path, name, layout="loose") for name in ("node", "other"))
    wrapper = node.tree.wrapper("one")
    node.commit()
    digest = node.published()[wrapper].digest
    node.store.forget("model/v1")
    pass_time(node)
    path = node.location / blob_name(digest)
    other.tree.wrapper("one")

    publish = other.store.storage.refs.publish
    other.store.storage.refs.publish = lambda *a: (collect(node), publish(*a))[1]  # type: ignore[method-assign]
    assert other.commit("model/v2").status is CommitStatus.COMMITTED
    for _ in range(3):
        pass_time(node)
        collect(node)
        assert path.exists()
    node.store.forget("model/v2")
    for _ in range(3):
        pass_time(node)
        collect(node)
    assert not path.exists()
    assert list_names(node.store.storage.backend) == []


def test_what_is_published_while_gc_marks_is_not_condemned(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.store.create()

    def slow(*arguments: Any) -> None:
        mark(*arguments)
        grow(node, "one")

    monkeypatch.setattr(collection, "mark", slow)
    assert collect(Node(tmp_path, "gc")).condemned.files == 0
    assert generations(node) == [1]


def test_a_pack_that_was_condemned_while_a_commit_relied_on_it_goes_with_the_next_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that publishes the same content again copies it, once, and no longer names the pack."""
    node, publish = Node(tmp_path, layout="packed"), Refs.publish
    node.tree.kernel("one")
    with monkeypatch.context() as patch:
        patch.setattr(Refs, "publish", lambda *arguments: (collect(Node(tmp_path, "gc")), publish(*arguments))[1])
        node.commit()
    (condemned,) = node.newest().packs
    node.store.rollback("model/v1", 1)
    (copy,) = node.newest().packs
    assert node.store.rollback("model/v1", 2).packs == (copy,) != (condemned,)
    collect_fully(node)
    assert stored(node) == {f"packs/{copy}"}
    assert restored(tmp_path, "other") == kernels(node)


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_pack_that_was_condemned_after_its_commit_lost_a_race_is_not_relied_upon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    """The next attempt stores its blobs anew: gc may have found out before what is needed."""
    node, winner = (Node(tmp_path, name, layout="packed") for name in ("node", "winner"))
    node.tree.kernel("one")
    winner.tree.kernel("two")
    condemned: list[str] = []

    def win() -> None:
        condemned.extend(stored(node))
        winner.commit()
        assert collect(winner).condemned.files == 1
        if is_gone:
            pass_time(winner)
            collect(winner)

    meanwhile(monkeypatch, Refs, "publish", win)
    assert node.commit().generation == 2
    assert not {f"packs/{pack}" for pack in node.newest().packs}.intersection(condemned)
    collect_fully(winner)
    assert not stored(node).intersection(condemned)
    assert restored(tmp_path, "third") == kernels(node) | kernels(winner)


def test_a_name_that_was_taken_anew_is_not_what_was_condemned(tmp_path: Path) -> None:
    node = Node(tmp_path, layout="loose")
    wrapper = node.tree.wrapper("one")
    node.commit()
    path = node.location / blob_name(node.published()[wrapper].digest)
    node.store.forget("model/v1")
    pass_time(node)
    collect(node)
    backend = node.store.storage.backend
    (entry,) = [e for name in list_names(backend) for e in read_list(backend, name) if e.name in str(path)]
    data = path.read_bytes()
    path.rename(tmp_path / "kept")  # so that its inode cannot be taken again
    path.write_bytes(data)
    assert not delete(backend, entry)
    assert path.read_bytes() == data


@pytest.mark.parametrize("year", [1960, 2300])
def test_a_blob_goes_whatever_its_time(tmp_path: Path, year: int) -> None:
    """A backup may have given it that time, or a clock that was wrong."""
    node = Node(tmp_path, layout="loose")
    wrapper = node.tree.wrapper()
    node.commit()
    path = node.location / blob_name(node.published()[wrapper].digest)
    os.utime(path, ((year - 1970) * 365.25 * 24 * HOUR,) * 2)
    node.store.forget("model/v1")
    collect_fully(node)
    assert not path.exists()


def left_aside(node: Node) -> tuple[Path, Path]:
    """Where the blob of a node's only file was, and where a killed gc has left it."""
    wrapper = node.tree.wrapper("one")
    node.commit()
    digest = node.published()[wrapper].digest
    path = node.location / blob_name(digest)
    aside = node.location / ASIDE / f"{digest.hex()}.0123456789abcdef"
    aside.parent.mkdir(parents=True)
    path.rename(aside)
    return path, aside


def test_what_a_killed_gc_left_aside_is_found_and_put_back(tmp_path: Path) -> None:
    node = Node(tmp_path, layout="loose")
    path, aside = left_aside(node)
    assert restored(tmp_path, "other") == kernels(node)
    collect(node)
    assert path.exists() and not aside.exists()
    assert restored(tmp_path, "third") == kernels(node)


def test_a_dry_run_puts_nothing_back(tmp_path: Path) -> None:
    node = Node(tmp_path, layout="loose")
    left_aside(node)
    before = contents(node.location)
    collect(node, dry_run=True)
    assert contents(node.location) == before


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: path.symlink_to(path)])
def test_anything_aside_that_is_not_a_file_is_passed_over(tmp_path: Path, make: Callable[[Path], object]) -> None:
    node = Node(tmp_path, layout="loose")
    path, aside = left_aside(node)
    make(aside.with_name(f"{'ab' * 32}.0123456789abcdef"))
    assert collect(node).status is GcStatus.COLLECTED
    assert path.exists() and not aside.exists()


def test_what_was_altered_before_a_killed_gc_left_it_aside_does_not_pass_for_whole(tmp_path: Path) -> None:
    node = Node(tmp_path, layout="loose")
    _, aside = left_aside(node)
    aside.chmod(0o644)
    aside.write_bytes(aside.read_bytes()[::-1])
    collect(node)
    assert not aside.exists()
    assert Node(tmp_path, "other", layout=None).restore().left_out == 1

    builder = Node(tmp_path, "builder", layout="loose")
    builder.tree.wrapper("one")
    builder.commit("model/another")
    assert restored(tmp_path, "third") == kernels(node)


def test_a_pinned_generation_is_kept_until_it_is_unpinned(node: Node) -> None:
    for variant in "abcd":
        replace_kernels(node, variant)
    node.store.pin("model/v1", 1)
    collect_fully(node)
    assert generations(node) == [1, 3, 4]
    other = Node(node.location.parent, "other", layout=None)
    assert other.restore(generation=1).skipped == ()
    node.store.unpin("model/v1", 1)
    collect_fully(node)
    assert generations(node) == [3, 4]


def test_unused_keys_are_forgotten_and_a_restore_is_a_use(node: Node) -> None:
    grow(node, "one")
    node.commit("model/v2")
    pass_time(node, 40 * 86400)
    Node(node.location.parent, "user").restore("model/v2")
    report = collect(node, unused=30 * 86400.0)
    assert [scope.key for scope in report.forgotten] == ["model/v1"]
    assert Node(node.location.parent, "other").restore("model/v1").status is RestoreStatus.MISS
    assert Node(node.location.parent, "third").restore("model/v2").ok


@pytest.mark.parametrize("policy", [{"unused": 30 * 86400.0}, {"max_size": 1, "allow_live": True}], ids=["use", "size"])
def test_a_key_that_is_committed_to_while_gc_looks_is_not_forgotten(
    policy: dict[str, Any], node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(node, "one")
    pass_time(node, 40 * 86400)
    user = Node(tmp_path, "user")
    after_histories(monkeypatch, lambda: grow(user, "another"))
    assert collect(node, **policy).forgotten == []
    assert restored(tmp_path, "other") == kernels(node) | kernels(user)


@pytest.mark.parametrize("use", ["restored", "pinned"])
@pytest.mark.parametrize("policy", [{"unused": 30 * 86400.0}, {"max_size": 1, "allow_live": True}], ids=["use", "size"])
def test_a_key_that_is_restored_or_pinned_while_gc_looks_is_not_forgotten(
    policy: dict[str, Any], use: str, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(node, "one")
    pass_time(node, 40 * 86400)
    user = Node(tmp_path, "user")
    after_histories(monkeypatch, user.restore if use == "restored" else partial(user.store.pin, KEY, 1))
    assert collect(node, **policy).forgotten == []
    assert restored(tmp_path, "other") == kernels(node)


@pytest.mark.parametrize("days", [0, 2])
def test_a_commit_that_has_nothing_new_is_a_use_too(node: Node, days: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("scan", "found", "still"):  # No commit has to look again because a file is young.
        monkeypatch.setattr(f"kstore.local.{module}.is_settled", lambda *_: True)
    grow(node, "one")
    pass_time(node, 40 * 86400)
    sync = node.tree.root / ".kstore/sync.json"
    for _ in range(2):  # The first finds no mark of an earlier use.
        then = sync.stat().st_mtime_ns - days * 86400 * 10**9
        os.utime(sync, ns=(then, then))
        assert [node.commit().status for _ in "ab"] == [CommitStatus.UNCHANGED] * 2
        assert (sync.stat().st_mtime_ns != then) == bool(days)  # The commits after that do not note it again.
    # A root that committed or restored a short time ago was seen at that time.
    assert [scope.key for scope in collect(node, unused=30 * 86400.0).forgotten] == ([] if days else [KEY])


def test_a_size_limit_that_is_asked_for_again_forgets_no_more_keys(node: Node, tmp_path: Path) -> None:
    keys = ["model/v1", "model/v2", "model/v3"]
    for key in keys:
        worker = Node(tmp_path, key)
        put_megabyte(worker, key.replace("/", "-"))
        worker.commit(key)
    pass_time(node)
    for _ in range(3):
        collect(node, max_size=5 << 19, allow_live=True)
        pass_time(node, 900)
    assert [Node(tmp_path, f"fresh {key}").restore(key).ok for key in keys] == [False, True, True]


def test_what_stays_for_a_grace_costs_no_key_its_place(node: Node, tmp_path: Path) -> None:
    """It goes before anything does that a key leaves which is forgotten only now."""
    for key in ("model/v1", "model/v2"):
        worker = Node(tmp_path, key)
        put_megabyte(worker, key.replace("/", "-"))
        worker.commit(key)
        pass_time(node)
    worker.store.forget("model/v2")
    other = Node(tmp_path, "other")
    put_megabyte(other, "other")
    other.commit("model/v2")

    limit: dict[str, Any] = {"max_size": 5 << 19, "allow_live": True}
    report = collect(node, **limit)
    assert (report.forgotten, report.excess > 0) == ([], True)
    pass_time(node)
    report = collect(node, **limit)
    assert (report.forgotten, report.excess) == ([], 0)
    assert [Node(tmp_path, f"fresh {key}").restore(key).ok for key in ("model/v1", "model/v2")] == [True, True]


def after_histories(patch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """`act` runs once gc has read what is published and when it was used."""
    read = Retention._histories

    def slow(retention: Retention) -> Iterator[History]:
        yield from read(retention)
        act()

    patch.setattr(Retention, "_histories", slow)


def test_a_size_limit_takes_history_and_says_what_it_may_not_take(node: Node, tmp_path: Path) -> None:
    for variant in "abc":
        replace_kernels(node, variant)
    pass_time(node)
    report = collect(node, keep=3, max_size=1)
    assert generations(node) == [3]
    assert report.excess > 0
    assert restored(tmp_path, "other") == kernels(node)
    report = collect(node, max_size=1, allow_live=True)
    assert [scope.key for scope in report.forgotten] == ["model/v1"]


def put_megabyte(node: Node, name: str) -> None:
    node.tree.put(f"inductor/aa/c{name}.py", random.Random(name).randbytes(1 << 20))


def test_what_is_given_up_pays_for_nobody_who_shares_its_files(node: Node, tmp_path: Path) -> None:
    """Two keys share a megabyte. If the one that is given up paid for it, the other would cost nothing, and keep it."""
    for key in ("model/v1", "model/v2", "hot"):
        worker = Node(tmp_path, key)
        put_megabyte(worker, "hot" if key == "hot" else "shared")
        worker.tree.kernel(key.replace("/", "-"))
        worker.commit(key)
        pass_time(node)
    report = collect(node, max_size=3 << 19, allow_live=True)
    assert ([scope.key for scope in report.forgotten], report.excess) == (["model/v2", "model/v1"], 0)
    pass_time(node)
    collect_fully(node)
    assert sum(len(contents(node.location)[name]) for name in stored(node)) < 3 << 19


@pytest.mark.parametrize("layout", ["loose", "packed"])
def test_what_two_keys_share_is_counted_once(tmp_path: Path, layout: str) -> None:
    for key in ("model/v1", "model/v2"):
        worker = Node(tmp_path, key, layout=layout)
        put_megabyte(worker, "shared")
        worker.commit(key)
        pass_time(worker)
    report = collect(worker, max_size=3 << 19, allow_live=True)
    assert (report.forgotten, report.excess) == ([], 0)


@pytest.mark.parametrize("layout", ["loose", "packed"])
def test_what_gc_or_a_repair_publishes_again_is_no_use_of_its_key(tmp_path: Path, layout: str) -> None:
    node = Node(tmp_path, layout=layout)
    grow(node, "one")
    pass_time(node, 40 * 86400)
    ref = node.newest()
    for _ in range(2):
        ref = republish(node.store.storage, ref, upon=ref.generation) or ref
    assert (ref.generation, [scope.key for scope in collect(node, unused=30 * 86400.0).forgotten]) == (3, [KEY])


@pytest.mark.parametrize("policy", [{"unused": 30 * 86400.0}, {"max_size": 1, "allow_live": True}], ids=["use", "size"])
def test_a_key_that_cannot_be_read_is_not_forgotten(node: Node, policy: dict[str, Any]) -> None:
    """It may be restored from a store below; forgetting it would hide that."""
    grow(node, "one")
    (node.location / node.newest().name).chmod(0o644)
    (node.location / node.newest().name).write_bytes(b"torn")
    pass_time(node, 40 * 86400)
    report = collect(node, **policy)
    assert (report.status, report.forgotten) == (GcStatus.INCOMPLETE, [])


def test_a_rollback_is_a_use(node: Node) -> None:
    grow(node, "one")
    grow(node, "two")
    pass_time(node, 40 * 86400)
    node.store.rollback(KEY)
    assert collect(node, unused=30 * 86400.0).forgotten == []


def test_a_large_limit_takes_nothing(node: Node) -> None:
    for variant in "abc":
        replace_kernels(node, variant)
    pass_time(node)
    report = collect(node, keep=3, max_size=10**9)
    assert (generations(node), report.excess) == ([1, 2, 3], 0)


def test_a_size_limit_forgets_no_key_that_is_pinned(node: Node, tmp_path: Path) -> None:
    grow(node, "one")
    pass_time(node)
    node.commit("model/v2")
    node.store.pin("model/v1", 1)
    report = collect(node, max_size=1, allow_live=True)
    assert [scope.key for scope in report.forgotten] == ["model/v2"]
    assert restored(tmp_path, "other") == kernels(node)


@pytest.mark.parametrize("policy", [{"unused": 30 * 86400.0}, {"max_size": 1, "allow_live": True}], ids=["use", "size"])
def test_a_pin_of_a_generation_that_is_gone_keeps_no_key(policy: dict[str, Any], node: Node) -> None:
    for name in ("one", "two"):
        grow(node, name)
    node.store.pin(KEY, 1)
    (node.location / node.store.storage.refs.get(node.newest().scope, 1).name).unlink()
    pass_time(node, 40 * 86400)
    assert [scope.key for scope in collect(node, **policy).forgotten] == [KEY]


def test_offline_both_phases_are_one(node: Node, tmp_path: Path) -> None:
    for variant in "abcd":
        replace_kernels(node, variant)
    planned = collect(node, keep=1, offline=True, dry_run=True)
    report = collect(node, keep=1, offline=True)
    assert (planned.deleted, planned.condemned) == (report.deleted, report.condemned)
    assert generations(node) == [4]
    assert report.deleted.files > 0
    assert collect(node, keep=1, offline=True).deleted.files == 0
    assert restored(tmp_path, "other") == kernels(node)


@pytest.mark.parametrize("condemned_before", [False, True])
def test_offline_what_is_condemned_is_removed_at_once_whatever_the_grace(node: Node, condemned_before: bool) -> None:
    for variant in "abc":
        replace_kernels(node, variant)
    pass_time(node, 1.5 * HOUR)
    if condemned_before:
        assert collect(node, keep=1).condemned.files > 0
    replace_kernels(node, "d")
    planned = collect(node, keep=1, offline=True, grace=HOUR, dry_run=True)
    report = collect(node, keep=1, offline=True, grace=HOUR)
    assert planned.deleted == report.deleted
    assert report.deleted.files > 0
    assert generations(node) == [3, 4], "one was superseded just now"


def test_a_shorter_grace_is_refused(node: Node) -> None:
    grow(node, "one")
    with pytest.raises(UsageError, match="--offline"):
        collect(node, grace=60.0)


@pytest.mark.parametrize("what", ["ref", "manifest", "listed"])
def test_what_cannot_be_read_may_need_anything(tmp_path: Path, what: str) -> None:
    node = Node(tmp_path, layout="loose")
    for variant in "abcd":
        replace_kernels(node, variant)
    ref = node.newest()
    path = node.location / (blob_name(ref.manifest) if what == "manifest" else ref.name)
    path.unlink()
    if what == "listed":  # but not found
        path.symlink_to(tmp_path / "nothing")
    else:
        path.write_bytes(b"garbage")
    before = stored(node)
    report = collect_fully(node)
    assert report.status is GcStatus.INCOMPLETE
    assert len(report.unreadable) == 1 and "generation 4" in report.unreadable[0]
    assert stored(node) == before


def test_a_manifest_that_memory_has_no_room_for_may_need_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, layout="loose")
    for variant in "abcd":
        replace_kernels(node, variant)
    before = stored(node)
    trouble_with(monkeypatch, blob_name(node.newest().manifest), MemoryError())

    report = collect_fully(node, keep=1)
    assert report.status is GcStatus.INCOMPLETE
    assert report.unreadable == [f"generation 4 of {node.newest().scope}: it does not fit in memory"]
    assert stored(node) == before


@contextmanager
def denied(folder: Path, listing: int, *, lasts: bool) -> Iterator[list[int]]:
    """A server says once, or from then on, that a folder is not there, as GlusterFS does while it heals. Yields the
    numbers of the listings for which it has said so.
    """
    real, numbers, told = os.scandir, count(1), list[int]()

    def scandir(path: str) -> Any:
        if Path(path) == folder:
            number = next(numbers)
            if number == listing or (lasts and number > listing):
                told.append(number)
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return real(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", scandir)
        yield told


@pytest.mark.parametrize("lasts", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("depth", range(1, 6))
def test_what_a_server_says_is_not_there_is_not_taken_for_nothing(
    tmp_path: Path, layout: str, depth: int, lasts: bool
) -> None:
    node = Node(tmp_path, layout=layout)
    grow(node, "one")
    pass_time(node)
    folder, before = node.location.joinpath(*Path(node.newest().name).parts[:depth]), stored(node)
    for listing in count(1):
        with denied(folder, listing, lasts=lasts) as told, suppress(StoreUnavailable):
            collect(node)
        assert not list_names(node.store.storage.backend)
        if not told:
            break
    assert listing > 1
    assert collect(node).status is GcStatus.COLLECTED
    assert stored(node) == before


def test_a_pin_that_a_server_does_not_show_keeps_its_generation(tmp_path: Path) -> None:
    """Another gc was killed when it had moved the ref, and before it had looked for the pin."""
    node = Node(tmp_path, layout="packed")
    for name in ("one", "two"):
        grow(node, name)
    node.store.pin(KEY, 1)
    folder = (node.location / node.newest().name).parent
    (folder / "1").rename(folder / "1.dropped")
    with denied(folder, 2, lasts=False) as told, pytest.raises(StoreUnavailable):
        collect(node)
    assert told
    collect_fully(node, keep=1)
    assert generations(node) == [1, 2]


def test_a_store_whose_refs_are_gone_keeps_everything(tmp_path: Path) -> None:
    node = Node(tmp_path, layout="packed")
    grow(node, "one")
    (node.location / "refs").rename(tmp_path / "away")
    before = stored(node)
    with pytest.raises(StoreUnavailable, match="refs"):
        collect_fully(node)
    assert stored(node) == before


@pytest.mark.parametrize("folder", ["packs", "blobs"])
def test_a_first_commit_that_has_made_no_more_than_a_folder_is_no_trouble(tmp_path: Path, folder: str) -> None:
    node = Node(tmp_path)
    node.store.create()
    (node.location / folder).mkdir()
    assert collect(node).status is GcStatus.COLLECTED


def test_what_a_killed_copy_leaves_in_a_new_store_goes(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new").mkdir()
    node, target = Node(tmp_path, layout=layout), Node(tmp_path / "new", layout=layout)
    grow(node, "one")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Refs, "publish", Mock(side_effect=KeyboardInterrupt))
        copy_keys(node.store, target.store)
    assert stored(target)
    assert collect_fully(target).status is GcStatus.COLLECTED
    assert not stored(target)


def test_a_commit_that_a_server_does_not_show_is_not_overlooked(tmp_path: Path) -> None:
    """It may rely on what is condemned now: then there is no fence, and nothing is deleted before there is one."""
    node = Node(tmp_path, layout="loose")
    for variant in "ab":
        replace_kernels(node, variant)
    pass_time(node)
    backend = node.store.storage.backend
    with denied(node.location / "tmp", 1, lasts=True) as told, pytest.raises(StoreUnavailable):
        collect(node, keep=1)
    assert told
    assert [condemned.fenced_at(backend, name) for name in list_names(backend)] == [None]


def test_a_commit_that_is_denied_gcs_lists_relies_on_nothing(tmp_path: Path) -> None:
    node, other, again = (Node(tmp_path, name, layout="loose") for name in ("first", "other", "again"))
    grow(node, "one")
    node.store.forget(KEY)
    grow(other, "two")
    pass_time(node)
    collect(node, keep=1)
    pass_time(node)
    again.tree.kernel("one", "one")
    publish = Refs.publish

    def collect_first(*what: Any) -> bool:
        patch.setattr(Refs, "publish", publish)
        collect(node, keep=1)
        return publish(*what)

    with pytest.MonkeyPatch.context() as patch, denied(node.location / "gc/condemned", 1, lasts=False) as told:
        patch.setattr(Refs, "publish", collect_first)
        again.commit()
    assert told
    assert node.store.verify().ok


@pytest.mark.parametrize("name", ["gc", "gc/condemned"])
def test_a_commit_is_not_stopped_by_something_else_in_the_place_of_gcs_lists(
    tmp_path: Path, layout: str, name: str
) -> None:
    node = Node(tmp_path, layout=layout)
    grow(node, "one")
    place = node.location / name
    place.parent.mkdir(exist_ok=True)
    place.write_text("not a folder")
    node.tree.kernel("two")
    assert node.commit().status is CommitStatus.COMMITTED
    assert restored(tmp_path, "other") == kernels(node)


@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("what", ["ref", "manifest", "pack"])
@pytest.mark.parametrize("policy", [{}, {"max_size": 1}], ids=["keep", "size"])
def test_nothing_goes_whose_place_the_newest_cannot_take(
    tmp_path: Path, keep: int, what: str, policy: dict[str, Any]
) -> None:
    node = Node(tmp_path, layout="packed")
    grow(node, "one", *"ab"[:keep])
    refs, scope = node.store.storage.refs, node.newest().scope
    for generation in generations(node)[1:]:
        lose(node, refs.get(scope, generation), what)
    planned = collect(node, keep=keep, dry_run=True, **policy)
    report = collect_fully(node, keep=keep, **policy)
    assert all(decision.stays for decision in (*planned.decisions, *report.decisions))
    assert generations(node) == list(range(1, keep + 2))
    assert Node(tmp_path, "other").restore(generation=1).skipped == ()


def lose(node: Node, ref: Ref, what: str) -> None:
    """Make a generation unreadable: its ref, its manifest, or only what is in another of its packs."""
    path = node.location / (f"packs/{ref.packs[0]}" if what == "manifest" else ref.name)
    path.chmod(0o644)
    path.write_bytes(replace(ref, packs=(*ref.packs[:1], "0" * 64)).dump() if what == "pack" else b"")


def test_what_was_forgotten_goes_though_what_was_before_it_cannot_be_read(node: Node) -> None:
    grow(node, "one", "two")
    lose(node, node.newest(), "pack")
    node.store.forget("model/v1")
    collect_fully(node)
    assert generations(node) == [3]
    assert len(stored(node)) == 1


def listed(node: Node) -> int:
    """How many lists there are of what gc may delete."""
    return len(list_names(node.store.storage.backend))


def test_what_is_needed_still_of_many_lists_is_on_one(node: Node) -> None:
    relied_upon_while_gc_condemns(node, *"abc")
    assert listed(node) == 3
    pass_time(node)
    collect(node)
    (joined,) = list_names(node.store.storage.backend)
    pass_time(node)
    waiting = collect(node).waiting
    assert list_names(node.store.storage.backend) == [joined] and waiting.files >= 3
    for key in "abc":
        node.store.forget(key)
    collect_fully(node)
    collect_fully(node)
    assert listed(node) == 0
    assert len(stored(node)) == 3  # empty manifests


def test_what_is_gone_is_on_no_list_whatever_else_stays_on_it(tmp_path: Path) -> None:
    """Otherwise commits would go on uploading what was on it elsewhere."""
    node = Node(tmp_path)
    for variant in "abc":
        replace_kernels(node, variant)
    condemn(node, stored(node))
    pass_time(node)
    assert collect(node, keep=1).deleted.files > 0
    assert on_lists(node) == stored(node) != set()


def test_a_damaged_fence_is_made_anew_and_what_is_on_its_list_waits_for_that(tmp_path: Path) -> None:
    """Nobody knows whom it named: a commit that relies on what is on the list may still publish."""
    node = Node(tmp_path)
    for variant in "abc":
        replace_kernels(node, variant)
    pass_time(node)
    condemned = collect(node, keep=1).condemned
    (fence,) = (node.location / "gc/fences").iterdir()
    fence.chmod(0o644)
    fence.write_bytes(b"garbage")
    (node.location / "tmp" / "killed-1-0123456789abcdef").write_bytes(b"half of a pack")
    assert collect(node).status is GcStatus.COLLECTED
    pass_time(node)
    told = collect(node)
    assert (told.status, told.deleted.files) == (GcStatus.INCOMPLETE, 0) and "a new one is made" in told.lists[0]
    assert collect(node).deleted.files == 0
    pass_time(node)
    assert collect(node).deleted == condemned


def test_a_fence_that_a_killed_gc_left_without_its_list_goes(tmp_path: Path) -> None:
    node = Node(tmp_path)
    grow(node, "one")
    condemn(node, [])
    (name,) = list_names(node.store.storage.backend)
    (node.location / name).unlink()
    collect(node)
    assert not contents(node.location / "gc")


def test_lists_are_not_joined_beyond_their_limit(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    relied_upon_while_gc_condemns(node, *"abc")
    monkeypatch.setattr(sweep, "MAX_ENTRIES", 1)
    pass_time(node)
    collect(node)
    assert listed(node) == 3


def test_what_a_list_has_left_is_found_by_who_has_listed_it_before(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    relied_upon_while_gc_condemns(node, *"ab")
    backend = node.store.storage.backend
    before = read_doomed(backend, Everything)
    pass_time(node)
    get = PosixBackend.get

    def late(backend: PosixBackend, name: str, *arguments: Any) -> bytes:
        if name.startswith(condemned.FOLDER):
            monkeypatch.setattr(PosixBackend, "get", get)
            collect(Node(node.location.parent, "gc"))
        return get(backend, name, *arguments)

    monkeypatch.setattr(PosixBackend, "get", late)
    assert read_doomed(backend, Everything) == before
    assert listed(node) == 1


def condemn(node: Node, names: Iterable[str]) -> None:
    """Put packs and loose blobs on a list, needed or not."""
    backend, entries = node.store.storage.backend, []
    for name in names:
        found, digest = backend.stat(name), bytes.fromhex(name.rpartition("/")[2])
        entries.append(Condemned(name.startswith("packs/"), digest, found.inode, found.mtime_ns, found.size))
    write_lists(backend, entries)


def on_lists(node: Node) -> set[str]:
    """Names of what gc may delete."""
    backend = node.store.storage.backend
    return {entry.name for name in list_names(backend) for entry in read_list(backend, name)}


class Everything:
    """A set that contains everything."""

    def __contains__(self, thing: object) -> bool:
        return True


def relied_upon_while_gc_condemns(node: Node, *keys: str) -> None:
    """Commit to each key, with a gc just before its ref is published."""
    refs = node.store.storage.refs
    for key in keys:
        node.tree.wrapper(key)
        refs.publish = lambda *a: (collect(Node(node.location.parent, "gc")), Refs.publish(refs, *a))[1]  # type: ignore[method-assign]
        assert node.commit(key).status is CommitStatus.COMMITTED
        del refs.publish


@pytest.fixture
def doubtful(tmp_path: Path) -> Node:
    """A store whose only list is damaged."""
    node = Node(tmp_path, layout="loose")
    for variant in "abcd":
        replace_kernels(node, variant)
    pass_time(node)
    collect(node)
    (path,) = (node.location / name for name in list_names(node.store.storage.backend))
    path.chmod(0o644)
    path.write_bytes(b"garbage")
    return node


def test_while_a_list_is_damaged_nothing_is_relied_upon(doubtful: Node, tmp_path: Path) -> None:
    other = Node(tmp_path, "other", layout="loose")
    other.tree.kernel("one", "a")
    for key in ("model/v2", "model/v3"):
        assert other.commit(key).uploaded > 0
        assert Node(tmp_path, key.replace("/", "-")).restore(key).skipped == ()
        report = collect(doubtful)
        assert report.status is (GcStatus.INCOMPLETE if key == "model/v2" else GcStatus.COLLECTED)


def test_what_a_gc_read_from_a_list_before_it_was_damaged_it_may_go_on_to_delete(
    doubtful: Node, tmp_path: Path
) -> None:
    condemned = list(doubtful.location.glob("blobs/*/*"))
    other = Node(tmp_path, "other", layout="loose")
    other.tree.kernel("one", "a")
    assert other.commit("model/v2").status is CommitStatus.COMMITTED
    for path in condemned:
        path.unlink()
    assert Node(tmp_path, "reader").restore("model/v2").skipped == ()


def test_what_was_on_a_damaged_list_is_condemned_anew_and_the_list_set_aside(doubtful: Node, tmp_path: Path) -> None:
    assert collect(doubtful).status is GcStatus.INCOMPLETE
    assert not read_doomed(doubtful.store.storage.backend, tuple).is_complete
    assert collect(doubtful).status is GcStatus.COLLECTED
    assert read_doomed(doubtful.store.storage.backend, tuple).is_complete
    assert quarantined(doubtful) == {"list"}
    pass_time(doubtful)
    assert collect(doubtful).deleted.files > 0
    assert (quarantined(doubtful), listed(doubtful)) == (set(), 0)
    assert restored(tmp_path, "other") == kernels(doubtful)


@pytest.mark.parametrize("harm", [os.mkfifo, lambda path: path.symlink_to(path)], ids=["a pipe", "a link to itself"])
def test_a_list_that_is_not_a_file_is_a_damaged_list(
    doubtful: Node, tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    (path,) = (doubtful.location / name for name in list_names(doubtful.store.storage.backend))
    path.unlink()
    harm(path)
    other = Node(tmp_path, "other", layout="loose")
    other.tree.kernel("one", "a")
    assert other.commit("model/v2").uploaded > 0
    assert collect(doubtful).status is GcStatus.INCOMPLETE
    assert collect(doubtful).status is GcStatus.COLLECTED


def test_a_list_of_which_any_byte_is_another_or_missing_is_damaged(tmp_path: Path) -> None:
    """A commit would rely on what gc is about to delete."""
    node = Node(tmp_path)
    node.tree.wrapper("one")
    node.commit()
    condemn(node, stored(node))
    (name,) = list_names(node.store.storage.backend)
    data = (node.location / name).read_bytes()
    assert len(condemned.load_list(name, data)) == len(stored(node))
    for place in range(len(data)):
        altered = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        for harmed in (altered, data[:place]):
            with pytest.raises(IntegrityError, match="the next gc condemns what was on it again"):
                condemned.load_list(name, harmed)


def test_while_a_list_is_damaged_a_rollback_says_what_to_do_and_that_helps(doubtful: Node) -> None:
    with pytest.raises(IntegrityError, match="run `kstore gc` twice"):
        doubtful.store.rollback("model/v1")
    for _ in range(2):
        collect(doubtful)
    assert doubtful.store.rollback("model/v1").generation == 5


def test_a_dry_run_gives_up_no_list(doubtful: Node) -> None:
    before = contents(doubtful.location)
    assert collect(doubtful, dry_run=True).status is GcStatus.INCOMPLETE
    assert contents(doubtful.location) == before


def test_two_gcs_at_once_do_not_do_the_same_work(node: Node) -> None:
    grow(node, "one")
    assert Lease(node.store.storage, "@gc", 3600).acquire()
    assert collect(node).status is GcStatus.BUSY
    pass_time(node)
    assert collect(node).status is GcStatus.COLLECTED  # its holder is gone
    assert collect(node).status is GcStatus.COLLECTED


def test_packs_that_are_mostly_dead_are_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstore.gc.repack.WORTHWHILE", 1)
    node = Node(tmp_path, layout="packed")
    keeper = node.tree.wrapper("keeper")
    for number in range(20):
        node.tree.kernel(f"k{number}", "old")
    node.commit()
    for number in range(20):
        node.tree.kernel(f"k{number}", "new")
    node.commit()
    old, new = node.newest().packs[::-1]
    for _ in range(4):
        pass_time(node)
        report = collect(node, keep=1)
    assert report.rewritten == 0
    assert old not in node.newest().packs and new in node.newest().packs
    assert not (node.location / "packs" / old).exists()
    found = restored(tmp_path, "other")
    assert found == kernels(node) and keeper in found


def test_a_pack_of_which_less_than_half_is_dead_is_not_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kstore.gc.repack.WORTHWHILE", 1)
    node = Node(tmp_path, layout="packed")
    node.tree.put("inductor/ab/clarge.py", random.Random(1).randbytes(1 << 20))
    for content in ("old", "new"):
        node.tree.kernel("k", content)
        node.commit()
    for _ in range(2):
        assert collect(node, keep=1).rewritten == 0
        pass_time(node)


def test_a_pack_that_is_mostly_dead_is_rewritten_once_no_older_generation_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kstore.gc.repack.WORTHWHILE", 1)
    node = Node(tmp_path, layout="packed")
    node.tree.wrapper("keeper")
    for content in ("old", "new", "newest"):
        node.tree.kernel("k", content)
        node.commit()
    pass_time(node)
    assert [collect(node, keep=keep).rewritten for keep in (2, 2, 1)] == [0, 0, 1]


# ---- Small packs become one


@pytest.fixture
def scattered(tmp_path: Path) -> Node:
    """A key that grew by nine commits and is spread over as many packs."""
    node = Node(tmp_path, layout="packed")
    for number in range(9):
        node.tree.kernel(f"k{number}", "a")
        node.commit()
    assert len(node.newest().packs) == 9
    return node


def test_many_small_packs_become_one(scattered: Node, tmp_path: Path) -> None:
    before = scattered.newest()
    assert collect(scattered, dry_run=True).rewritten == 9
    assert scattered.newest() == before
    assert collect(scattered).rewritten == 9
    after = scattered.newest()
    assert (after.manifest, after.generation) == (before.manifest, before.generation + 1)
    assert len(after.packs) == 1
    assert restored(tmp_path, "other") == kernels(scattered)
    assert scattered.store.verify().ok


def test_small_packs_that_became_one_are_removed_with_the_last_generation_that_names_them(scattered: Node) -> None:
    before = scattered.newest().packs
    for _ in range(4):
        pass_time(scattered)
        report = collect(scattered, keep=1)
    assert report.rewritten == 0
    assert not any((scattered.location / "packs" / pack).exists() for pack in before)
    assert stored(scattered) == {f"packs/{pack}" for pack in scattered.newest().packs}


def test_a_commit_goes_on_from_the_one_pack(scattered: Node, tmp_path: Path) -> None:
    collect(scattered)
    (merged,) = scattered.newest().packs
    scattered.tree.kernel("k9", "a")
    assert scattered.commit().status is CommitStatus.COMMITTED
    assert len(scattered.newest().packs) == 2 and merged in scattered.newest().packs
    assert restored(tmp_path, "other") == kernels(scattered)


def test_small_packs_of_two_keys_become_one_for_both(scattered: Node) -> None:
    other = scattered.commit("model/v2")
    assert other.uploaded < scattered.store.storage.blobs.pack(scattered.newest().packs[0]).size * 2
    collect(scattered)
    first, second = (set(scattered.newest(key).packs) for key in ("model/v1", "model/v2"))
    assert len(first & second) == 1
    assert len(first | second) <= 2


def test_a_large_pack_is_not_rewritten_for_the_sake_of_small_ones(tmp_path: Path) -> None:
    node = Node(tmp_path, layout="packed")
    node.tree.put("inductor/ab/clarge.py", random.Random(1).randbytes(1 << 17))
    node.commit()
    (large,) = node.newest().packs
    for number in range(8):
        node.tree.kernel(f"k{number}", "a")
        node.commit()
    assert collect(node).rewritten == 8
    assert len(node.newest().packs) == 2 and large in node.newest().packs


def test_a_manifest_has_a_frame_of_its_own_in_the_one_pack(scattered: Node) -> None:
    collect(scattered)
    (pack,) = scattered.newest().packs
    index = scattered.store.storage.blobs.pack(pack).index
    number = index.digests.index(scattered.newest().manifest)
    ends = list(accumulate(frame.blobs for frame in index.frames))
    assert number + 1 in ends and number in ends
    assert len(ends) == 2  # All that is no manifest is in the other.


@pytest.mark.parametrize("at", [8, 20], ids=["cannot be unpacked", "has other bytes"])
def test_a_damaged_pack_stays_as_it_is(scattered: Node, at: int, caplog: pytest.LogCaptureFixture) -> None:
    bad = scattered.newest().packs[-1]
    damage(scattered.location / "packs" / bad, at)
    assert collect(scattered).rewritten == 8
    packs = scattered.newest().packs
    assert bad in packs and len(packs) == 2
    assert "not rewritten" in caplog.text and bad in caplog.text
    assert collect(scattered).rewritten == 0


def damage(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.chmod(0o644)
    path.write_bytes(data)


def test_where_there_is_no_room_for_another_pack_all_stays(
    scattered: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(writer: PackedBlobWriter) -> tuple[str, ...]:
        raise OSError(errno.ENOSPC, "no room")

    before = scattered.newest()
    monkeypatch.setattr(PackedBlobWriter, "finish", fail)
    report = collect(scattered)
    assert (report.status, report.rewritten) == (GcStatus.COLLECTED, 0)
    assert scattered.newest() == before
    assert "not rewritten" in caplog.text


def test_packs_that_cannot_become_one_keep_no_others_from_it_and_no_other_key_is_published_again(
    scattered: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, finish, failures = Node(tmp_path, "other", layout="packed"), PackedBlobWriter.finish, list[str]()
    for number in range(8):
        other.tree.kernel(f"k{number}", "b")
        other.commit("second/v1")
    one = Node(tmp_path, "one", layout="packed")
    one.tree.kernel("k", "c")
    one.commit("third/v1")

    def fail_once(writer: PackedBlobWriter) -> tuple[str, ...]:
        if not failures:
            failures.append("no room")
            raise OSError(errno.ENOSPC, failures[0])
        return finish(writer)

    monkeypatch.setattr(PackedBlobWriter, "finish", fail_once)
    assert collect(scattered).rewritten in (8, 9)
    assert failures
    assert sorted(len(scattered.newest(key).packs) for key in (KEY, "second/v1")) in ([1, 8], [1, 9])
    assert scattered.newest("third/v1").generation == 1


@pytest.mark.parametrize(
    ("sizes", "small"),
    [([], 0), ([5, 5, 5], 3), ([1, 1, 3], 3), ([1, 1, 4], 2), ([1, 1, 4, 5], 4), ([1, 1, 4, 12], 2)],
)
def test_a_pack_stays_by_itself_if_it_has_twice_what_all_smaller_ones_have(sizes: list[int], small: int) -> None:
    packs = [(size, f"pack {number}") for number, size in enumerate(sizes)]
    assert repack._smallest(packs[::-1]) == tuple(name for _, name in packs[:small])


@pytest.mark.parametrize(
    ("bad", "error", "rewritten"),
    [(1, IntegrityError("damaged"), 8), (7, OSError(errno.EIO, "it fails"), 2), (8, OSError(errno.EIO, "it fails"), 0)],
)
def test_packs_that_cannot_be_read_any_more_keep_no_others_from_becoming_one(
    scattered: Node, bad: int, error: Exception, rewritten: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = scattered.newest().packs

    class Reader(PackReader):
        @property
        def index(self) -> PackIndex:
            if self._name.endswith(before[:bad]):
                raise error
            return super().index

    pass_time(scattered)
    monkeypatch.setattr(repack, "PackReader", Reader)
    report = collect(scattered, keep=1)
    assert (report.status, report.rewritten) == (GcStatus.COLLECTED, rewritten)
    assert set(scattered.newest().packs).issuperset(before[:bad])
    assert len(scattered.newest().packs) == (bad + 1)


def test_a_pack_that_could_not_be_read_just_now_is_not_rewritten(
    scattered: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In that case it is unknown what the newest generation needs of it, and all of it seems dead."""
    packs, contents_of = scattered.newest().packs, BlobStore.contents

    def without_one(blobs: BlobStore, named: Iterable[str]) -> tuple[set[bytes], set[str]]:
        if (named := tuple(named)) != packs:
            return contents_of(blobs, named)
        return contents_of(blobs, (*packs[:3], *packs[4:]))[0], {packs[3]}

    pass_time(scattered)
    with monkeypatch.context() as patch:
        patch.setattr(BlobStore, "contents", without_one)
        assert collect(scattered, keep=50).rewritten == 8
    for _ in range(3):
        pass_time(scattered)
        collect(scattered, keep=1)
    assert restored(tmp_path, "other") == kernels(scattered)


def test_a_gc_that_fails_right_after_it_took_its_lease_gives_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise none would run for an hour."""
    node, acquire = Node(tmp_path), Lease.acquire
    node.tree.kernel()
    node.commit()

    def acquire_and_fail(lease: Lease) -> bool:
        assert acquire(lease)
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    with monkeypatch.context() as patch:
        patch.setattr(Lease, "acquire", acquire_and_fail)
        with pytest.raises(StoreUnavailable):
            collect(node)
    assert collect(node).status is GcStatus.COLLECTED


def test_a_gc_that_is_held_up_names_no_pack_that_others_removed(
    scattered: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For hours, between writing the merged pack and naming it: its lease has expired."""
    original, other = repack._republish, Node(tmp_path, "other", layout="packed")

    def late(*arguments: Any) -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(repack, "MANY", 1000)
            for _ in range(2):
                pass_time(scattered)
                assert collect(other, keep=1).status is GcStatus.COLLECTED
        return original(*arguments)

    monkeypatch.setattr(repack, "_republish", late)
    assert collect(scattered, keep=1).rewritten == 0
    assert len(scattered.newest().packs) == 9
    for _ in range(3):
        pass_time(scattered)
        collect(other, keep=1)
    assert restored(tmp_path, "third") == kernels(scattered)


def test_a_commit_names_no_pack_that_was_removed_since_its_base(tmp_path: Path) -> None:
    """Even if some of what the commit needs is in no pack."""
    loose, packed = Node(tmp_path, "loose"), Node(tmp_path, "packed", layout="packed")
    loose.tree.kernel("loose")
    loose.commit()
    packed.restore()
    for number in range(9):
        packed.tree.kernel(f"k{number}")
        packed.commit()
    Node(tmp_path, "late", layout="packed").restore()
    for _ in range(4):
        collect(packed, keep=1)
        pass_time(packed)
    late = Node(tmp_path, "late", layout="packed")  # another process, which knows nothing of the old packs
    late.tree.kernel("news")
    assert late.commit().status is CommitStatus.COMMITTED
    assert all((late.location / "packs" / pack).exists() for pack in late.newest().packs)
    assert late.store.verify().ok


def test_a_repair_takes_from_the_small_packs_what_the_one_has_lost(scattered: Node, tmp_path: Path) -> None:
    collect(scattered)
    (merged,) = scattered.newest().packs
    damage(scattered.location / "packs" / merged, 20)
    other = Node(tmp_path, "other", layout="packed")
    assert other.store.verify(repair=True).repaired
    assert not [name for name in stored(other) if name.startswith("blobs/")]  # Nothing is stored twice.
    for _ in range(4):
        pass_time(scattered)
        collect(other, keep=1)
    assert restored(tmp_path, "third") == kernels(scattered)
    assert other.store.verify().ok


@pytest.fixture
def damaged(tmp_path: Path) -> Node:
    """A key in two packs; the first frame of one is damaged, the other pack is whole."""
    node = Node(tmp_path, layout="packed")
    node.tree.kernel("one")
    node.tree.put("inductor/ab/clarge.py", random.Random(1).randbytes(5 << 20))
    node.commit()
    node.tree.kernel("two")
    node.commit()
    damage(node.location / "packs" / node.newest().packs[-1], 20)
    return node


def test_a_repair_beside_a_gc_loses_nothing_that_is_whole(damaged: Node, tmp_path: Path) -> None:
    """The gc runs when the whole blobs have been copied, and no ref names the copy yet."""
    bad, other = damaged.newest().packs[-1], Node(tmp_path, "other", layout="packed")
    before = restored_but(tmp_path, "before")
    repair = Repair(damaged.store.storage, [bad], {}, DigestSet())
    with repair._whole:
        repair._save(bad)
        for _ in range(2):
            pass_time(damaged)
            collect(other, keep=5)
        assert repair.run([])
    assert bad not in damaged.newest().packs
    collect_fully(other, keep=1)
    assert restored_but(tmp_path, "after") == before != {}


def restored_but(folder: Path, name: str) -> dict[str, bytes]:
    """As `restored`, but something is missing."""
    other = Node(folder, name, layout=None)
    assert other.restore().left_out
    return kernels(other)


def test_a_damaged_pack_that_is_named_still_stays(damaged: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise IntegrityError("not now")

    monkeypatch.setattr("kstore.operations.repair.republish", refuse)
    report = Node(damaged.location.parent, "other").store.verify(repair=True)
    assert not report.repaired
    assert (damaged.location / "packs" / damaged.newest().packs[-1]).exists()


def test_a_commit_names_no_pack_that_a_repair_took_away(damaged: Node, tmp_path: Path) -> None:
    Node(tmp_path, "late", layout="packed").restore()
    assert Node(tmp_path, "other").store.verify(repair=True).repaired
    late = Node(tmp_path, "late", layout="packed")
    late.tree.kernel("news")
    assert late.commit().status is CommitStatus.COMMITTED
    assert all((late.location / "packs" / pack).exists() for pack in late.newest().packs)


def test_a_size_limit_passes_over_packs_that_a_repair_took_away(damaged: Node, tmp_path: Path) -> None:
    assert Node(tmp_path, "other").store.verify(repair=True).repaired
    assert collect(Node(tmp_path, "third"), keep=5, max_size=1 << 30).status is GcStatus.COLLECTED


def test_a_size_limit_counts_what_was_saved_of_a_pack_that_a_repair_took_away(damaged: Node, tmp_path: Path) -> None:
    assert Node(tmp_path, "other").store.verify(repair=True).repaired
    damaged.store.quarantine("model/v1")
    assert collect_fully(damaged, keep=5, max_size=1 << 20).excess == 0
    assert generations(damaged) == [4]


def test_what_is_told_to_be_needed_is_there(tmp_path: Path) -> None:
    node = Node(tmp_path, layout="loose")
    wrapper = node.tree.wrapper("one")
    grow(node, "two")
    sizes = {name: (node.location / name).stat().st_size for name in stored(node)}
    live = collect(node).live
    assert (live.files, live.bytes) == (len(sizes), sum(sizes.values()))
    lost = blob_name(node.published()[wrapper].digest)
    (node.location / lost).unlink()
    live = collect(node).live
    assert (live.files, live.bytes) == (len(sizes) - 1, sum(sizes.values()) - sizes[lost])


def test_a_size_limit_counts_nothing_that_is_lost(tmp_path: Path) -> None:
    node = Node(tmp_path)
    grow(node, "one")
    node.tree.put("inductor/ab/large.bin", b"x" * 5_000_000)
    node.commit()
    (large,) = (name for name in stored(node) if (node.location / name).stat().st_size >= 5_000_000)
    (node.location / large).unlink()
    pass_time(node)
    report = collect(node, keep=5, max_size=1_000_000, allow_live=True)
    assert (report.forgotten, report.excess) == ([], 0)
    assert all(decision.stays for decision in report.decisions)


def test_a_commit_after_a_merge_does_not_look_into_the_packs_before(
    scattered: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Node(tmp_path, "late", layout="packed").restore()
    before = scattered.newest().packs
    collect(scattered)
    read, load = list[str](), PackReader._load_index
    monkeypatch.setattr(PackReader, "_load_index", lambda reader: read.append(reader._name) or load(reader))
    late = Node(tmp_path, "late", layout="packed")
    late.tree.kernel("news")
    assert late.commit().status is CommitStatus.COMMITTED
    assert {f"packs/{pack}" for pack in before}.isdisjoint(read)


def test_what_is_there_twice_for_a_grace_is_not_over_the_limit(tmp_path: Path) -> None:
    node, size = Node(tmp_path, layout="packed"), 1 << 16
    for number in range(9):
        node.tree.put(f"inductor/ab/c{number}.py", random.Random(number).randbytes(size))
        node.commit()
    pass_time(node)
    assert collect(node, keep=1, max_size=10 * size, allow_live=True).rewritten == 9
    pass_time(node, HOUR / 3)
    report = collect(node, keep=1, max_size=10 * size, allow_live=True)
    assert (report.forgotten, report.excess) == ([], 0)


def test_nothing_is_rewritten_where_it_cannot_be_published(scattered: Node) -> None:
    with scattered.store.storage.blobs.writer(Layout.PACKED) as writer:
        writer.put(digest_of(b"never published"), b"never published")
        writer.finish()
    collect(scattered)
    (path,) = (scattered.location / name for name in list_names(scattered.store.storage.backend))
    path.chmod(0o644)
    path.write_bytes(b"garbage")
    grow(scattered, *"abcdefgh")
    before = stored(scattered)
    report = collect(scattered)
    assert (report.status, report.rewritten) == (GcStatus.INCOMPLETE, 0)
    assert stored(scattered) == before


@pytest.mark.parametrize("error", [IntegrityError, MissError, StoreUnavailable])
def test_a_key_that_cannot_be_published_again_keeps_no_other_from_it(
    scattered: Node, error: type[Exception], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scattered.commit("model/v2")
    before, published = scattered.newest(), repack.republish

    def republish_others(storage: Storage, ref: Ref, *rest: Any, **named: Any) -> Ref | None:
        if ref == before:
            raise error("not now")
        return published(storage, ref, *rest, **named)

    monkeypatch.setattr(repack, "republish", republish_others)
    collect(scattered)
    assert (scattered.newest(), scattered.newest("model/v2").generation) == (before, 2)
    assert f"{before.scope} is not repacked: not now" in caplog.text


def test_the_one_pack_has_no_manifest_of_earlier_generations(scattered: Node) -> None:
    refs, scope = scattered.store.storage.refs, scattered.newest().scope
    earlier = {refs.get(scope, number).manifest for number in refs.generations(scope)[:-1]}
    collect(scattered, keep=50)
    (merged,) = scattered.newest().packs
    digests = scattered.store.storage.blobs.pack(merged).index.digests
    assert scattered.newest().manifest in digests
    assert earlier.isdisjoint(digests)


def test_a_key_that_is_forgotten_for_its_size_is_so_once(node: Node) -> None:
    grow(node, "one")
    pass_time(node)
    collect(node, max_size=1, allow_live=True)
    node.store.storage.refs.pin(node.newest().scope, 1)
    for _ in range(3):
        pass_time(node)
        assert collect(node, max_size=1, allow_live=True).forgotten == []
    assert generations(node) == [1, 2]


def test_a_forgotten_key_is_not_rewritten(scattered: Node) -> None:
    scattered.store.forget("model/v1")
    before = stored(scattered)
    assert collect(scattered).rewritten == 0
    assert stored(scattered) == before


def test_leftovers_of_killed_commits_are_removed_a_grace_later(node: Node) -> None:
    grow(node, "one")
    left, others = (node.location / "tmp" / name for name in ("host-7-0123456789abcdef.3", "mine"))
    left.write_bytes(b"half")
    others.write_bytes(b"no writer of kstore's has such names")
    collect(node)
    assert left.exists()
    pass_time(node)
    collect(node)
    assert (left.exists(), others.exists()) == (False, True)
    assert not contents(node.location / "gc"), "neither a list nor its fence"


@pytest.mark.parametrize(
    "text",
    ['["\\ud800-0123456789abcdef"]', f'["{"x" * 300}"]', '["sub"]', '["../kstore.json"]', '["a-0123456789abcdef"]'],
)
def test_a_fence_is_closed_whatever_it_names(node: Node, text: str) -> None:
    grow(node, "one")
    backend = node.store.storage.backend
    for name in "sub/inner", "a-0123456789abcdef":
        backend.put(f"tmp/{name}", b"")
    backend.put("gc/fences/list", text.encode())
    condemned.close_fence(backend, "gc/condemned/list")
    assert (node.location / "tmp/sub/inner").exists() and (node.location / "kstore.json").exists()
    assert (node.location / "tmp/a-0123456789abcdef").exists() == (text != '["a-0123456789abcdef"]')


@pytest.mark.parametrize("text", ["[" * 200_000, "[5]", "5", "{", ""])
def test_a_fence_that_makes_no_sense_is_taken_down(node: Node, text: str) -> None:
    grow(node, "one")
    backend = node.store.storage.backend
    backend.put("gc/fences/list", text.encode())
    with pytest.raises(IntegrityError, match="a new one is made"):
        condemned.close_fence(backend, "gc/condemned/list")
    assert condemned.fences(backend) == []


def test_a_list_that_another_gc_has_finished_with_meanwhile_is_no_error(tmp_path: Path) -> None:
    node = Node(tmp_path)
    grow(node, "one")
    backend, gone = node.store.storage.backend, "gc/condemned/gone"
    condemned.close_fence(backend, gone)
    condemned.give_up_list(backend, gone)
    assert (read_list(backend, gone), listed(node)) == ([], 0)


@pytest.mark.parametrize("folder", ["tmp", "used", "groups"])
def test_what_is_not_kstores_stays_where_a_folder_leads_out_of_the_store(
    node: Node, tmp_path: Path, folder: str
) -> None:
    """A user who may write to a store must not be able to make root's gc delete files elsewhere."""
    grow(node, "one")
    mine, place = tmp_path / "mine", node.location / folder
    (mine / "sub").mkdir(parents=True)
    for name in "precious", "sub/inner", "seen.by.me":
        (mine / name).write_bytes(b"precious")
        os.utime(mine / name, (0, 0))
    shutil.rmtree(place, ignore_errors=True)
    place.symlink_to(mine)
    before = contents(mine)
    for _ in range(3):
        collect(node)
        pass_time(node)
    assert before.items() <= contents(mine).items()


def test_a_commit_that_gc_no_longer_waited_for_begins_again(node: Node, tmp_path: Path) -> None:
    """Held up just before it publishes, until two gcs have run."""
    for variant in "abcd":
        replace_kernels(node, variant)
    other = Node(tmp_path, "other", layout="loose")
    other.tree.kernel("one", "a")
    other.tree.wrapper("another")
    refs, held_up = other.store.storage.refs, []

    def publish(ref: Ref, reserved: Upload) -> bool:
        if not held_up:
            held_up.append(ref)
            collect_fully(node, keep=1)
        return Refs.publish(refs, ref, reserved)

    refs.publish = publish  # type: ignore[method-assign]
    assert other.commit("model/v2").status is CommitStatus.COMMITTED
    third = Node(tmp_path, "third")
    assert third.restore("model/v2").skipped == ()
    assert kernels(third) == kernels(other)
    assert node.store.verify().ok


def quarantined(node: Node) -> set[str]:
    """The kinds of objects in quarantine."""
    kinds = {path.name.partition("-")[0] for path in (node.location / "quarantine").iterdir()}
    return {kind if kind in ("pack", "ref", "list") else "blob" for kind in kinds}


def test_what_is_quarantined_goes_with_the_last_generation_that_needs_it(damaged: Node, tmp_path: Path) -> None:
    other = Node(tmp_path, "other")
    assert other.store.verify(repair=True).repaired
    assert quarantined(damaged) == {"pack", "blob"}
    pass_time(damaged)
    collect(other, keep=5)
    assert quarantined(damaged) == {"pack", "blob"}
    collect(other, keep=1)
    assert quarantined(damaged) == {"blob"}
    other.store.forget("model/v1")
    collect_fully(other, keep=1)
    assert quarantined(damaged) == set()


def test_a_quarantined_ref_is_removed_after_the_grace(damaged: Node, tmp_path: Path) -> None:
    """However old it was when it was moved there."""
    other = Node(tmp_path, "other")
    pass_time(damaged)
    path = damaged.location / damaged.newest().name
    then = path.stat().st_mtime_ns
    path.chmod(0o644)
    path.write_bytes(b"")
    os.utime(path, ns=(then, then))
    other.store.verify(repair=True)
    collect(other)
    assert "ref" in quarantined(damaged)
    pass_time(damaged)
    collect(other)
    assert "ref" not in quarantined(damaged)
