from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kstore.api import commit, restore
from kstore.backends import PosixBackend
from kstore.blobs.loose import blob_name
from kstore.blobs.packindex import pack_name
from kstore.deadline import Haste, within
from kstore.digest import digest_of
from kstore.environment import Environment, Host
from kstore.errors import (
    AmbiguousScopeError,
    CacheRootError,
    IntegrityError,
    KstoreError,
    MissError,
    StoreFormatError,
    StoreUnavailable,
    UsageError,
    WaitTimeout,
)
from kstore.job import synchronized
from kstore.local import numbered
from kstore.local.link import LinkMode
from kstore.local.reading import Batch, read_in_batches
from kstore.progress import Progress
from kstore.published.manifest import Manifest
from kstore.published.ref import Ref, ref_name
from kstore.report import CommitStatus, RestoreStatus
from kstore.scope import Scope
from kstore.store import Store
from kstore.upload import uploader
from kstore.used import mark_name
from tests.gc.stores import collect_fully
from tests.trees import (
    ENVIRONMENT,
    GPU,
    KEY,
    WITHOUT_TORCH,
    Node,
    Tree,
    contents,
    entry,
    hide_what_needs_no_torch,
    in_processes,
    listing,
    shared_object,
)
from tests.trees import (
    publish as publish_ref,
)

GROUP_FILES = 8
pytestmark = pytest.mark.usefixtures("host")


def fill(node: Node, name: str = "one") -> None:
    """One of everything."""
    node.tree.wrapper(name)
    node.tree.graph(f"f{name}")
    node.tree.autograd(f"a{name}")
    node.tree.kernel(name)
    node.tree.kernel(f"{name} below inductor", below="inductor/triton/0")
    node.tree.timings({name: 0.5})
    node.tree.put(f"inductor/ab/{name}.cu", b"// CUDA")


@pytest.fixture
def first(tmp_path: Path, layout: str) -> Node:
    """A worker that has published one of everything."""
    node = Node(tmp_path, "first", layout=layout)
    fill(node)
    assert node.commit().status is CommitStatus.COMMITTED
    return node


@pytest.fixture
def second(tmp_path: Path, layout: str) -> Node:
    """Another worker, whose cache root is empty."""
    return Node(tmp_path, "second", layout=layout)


def relocated(node: Node) -> dict[str, bytes]:
    """What is in the node's root, except for its own path."""
    return {path: data.replace(bytes(node.tree.root), b"ROOT") for path, data in contents(node.tree.root).items()}


# ---- Restore


def test_nothing_published_is_a_miss_that_writes_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    report = node.restore()
    assert (report.status, report.files, report.ok) == (RestoreStatus.MISS, 0, False)
    assert contents(node.tree.root) == {}
    assert not node.location.exists()


def test_a_folder_that_holds_something_else_is_not_an_empty_store(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.location.mkdir()
    (node.location / "photos").mkdir()
    with pytest.raises(StoreFormatError, match="is not a store but holds 'photos'"):
        node.restore()


def test_what_was_committed_is_restored(first: Node, second: Node) -> None:
    report = second.restore()
    assert report.status is RestoreStatus.RESTORED
    assert relocated(second) == relocated(first)
    assert report.placed == report.files == len(contents(first.tree.root))
    assert report.generation == 1
    assert (report.skipped, report.notes, report.error) == ((), (), "")
    assert (report.gpu, report.environment, report.key) == (GPU, ENVIRONMENT, KEY)
    assert set(report.components or {}) == {"inductor", "triton"}


def test_a_kernel_lists_its_files_where_they_now_are(first: Node, second: Node) -> None:
    second.restore()
    for group in second.tree.root.rglob("__grp__*.json"):
        for name, path in json.loads(group.read_bytes())["child_paths"].items():
            assert Path(path) == group.parent / name
            assert Path(path).exists()


def test_restoring_again_finds_everything_current(first: Node, second: Node) -> None:
    second.restore()
    before = listing(second.tree.root / "triton")
    report = second.restore()
    assert (report.status, report.placed) == (RestoreStatus.CURRENT, 0)
    assert listing(second.tree.root / "triton") == before


def test_the_variables_are_set(first: Node, second: Node) -> None:
    second.restore()
    assert second.environ["TORCHINDUCTOR_CACHE_DIR"] == f"{second.tree.root}/inductor"
    assert second.environ["TRITON_CACHE_DIR"] == f"{second.tree.root}/triton"


def test_a_component_elsewhere_is_restored_and_committed_there(first: Node, second: Node, tmp_path: Path) -> None:
    second.environ["TRITON_CACHE_DIR"] = str(tmp_path / "elsewhere")
    second.restore()
    assert not second.tree.has("triton")
    assert len(list((tmp_path / "elsewhere").rglob("*.cubin"))) == 1
    (group,) = (tmp_path / "elsewhere").rglob("__grp__*.json")
    assert json.loads(group.read_bytes())["child_paths"]["k.cubin"] == str(group.parent / "k.cubin")
    assert second.commit().status is CommitStatus.UNCHANGED


def test_what_a_killed_restore_left_elsewhere_is_not_committed(first: Node, second: Node, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    second.environ["TRITON_CACHE_DIR"] = str(elsewhere)
    worker = second.store.worker(KEY, before_import=True)
    with worker.state.staging(str(elsewhere)) as stage:
        shutil.copytree(first.tree.root / "triton", f"{stage}/triton")
        assert second.commit().new_files == 0


def test_loose_blobs_are_linked(tmp_path: Path) -> None:
    first, second = (Node(tmp_path, name, layout="loose") for name in ("first", "second"))
    fill(first)
    first.commit()
    report = second.restore()
    assert report.link_mode in (LinkMode.HARDLINK, LinkMode.REFLINK)
    wrapper = first.tree.wrapper()
    blob = second.location / blob_name(digest_of(first.tree.read(wrapper)))
    if report.link_mode is LinkMode.HARDLINK:
        assert (second.tree.root / wrapper).samefile(blob)


def test_packed_blobs_are_copied(tmp_path: Path) -> None:
    first, second = (Node(tmp_path, name, layout="packed") for name in ("first", "second"))
    fill(first)
    first.commit()
    report = second.restore()
    assert report.link_mode is LinkMode.COPY
    assert report.link_why


def test_what_is_changed_in_place_never_reaches_the_store(first: Node, second: Node) -> None:
    second.restore()
    before = contents(first.location)
    with open(second.tree.root / "inductor/ab/one.cu", "ab") as file:
        file.write(b"// appended")
    assert contents(first.location) == before
    third = Node(first.location.parent, "third", layout=None)
    third.restore()
    assert third.tree.read("inductor/ab/one.cu") == b"// CUDA"


def test_a_pinned_generation_is_restored_exactly(first: Node, second: Node) -> None:
    old = relocated(first)
    fill(first, "two")
    assert first.commit().generation == 2
    assert second.restore(generation=1).generation == 1
    assert relocated(second) == old
    with pytest.raises(MissError):
        second.restore(generation=3)


def test_a_newer_generation_is_fetched(first: Node, second: Node) -> None:
    second.restore()
    fill(first, "two")
    first.commit()
    report = second.restore()
    assert (report.status, report.generation) == (RestoreStatus.RESTORED, 2)
    assert relocated(second).keys() == relocated(first).keys()


def test_a_miss_with_a_seed_starts_from_the_other_key(first: Node, second: Node) -> None:
    report = second.restore("model/v2", seed=KEY)
    assert (report.status, report.key) == (RestoreStatus.SEEDED, "model/v2")
    assert relocated(second) == relocated(first)
    second.tree.wrapper("new")
    committed = second.commit("model/v2")
    assert (committed.generation, committed.files) == (1, len(contents(second.tree.root)))
    assert committed.new_blobs == 2  # the wrapper and the manifest; the rest is the seed's
    third = Node(first.location.parent, "third")
    assert third.restore("model/v2").status is RestoreStatus.RESTORED
    assert relocated(third) == relocated(second)


@pytest.mark.parametrize("withdraw", ["forget", "quarantine"])
def test_what_came_from_a_seed_stays_withdrawn_and_what_was_compiled_since_does_not(
    first: Node, second: Node, withdraw: str
) -> None:
    """Two workers start from it, one commits, and its kernels turn out to be wrong."""
    other = Node(first.location.parent, "third")
    for node in (second, other):
        node.restore("model/v2", seed=KEY)
    other.commit("model/v2")
    for key in (KEY, "model/v2"):
        getattr(other.store, withdraw)(key)
    assert second.commit("model/v2").status is CommitStatus.UNCHANGED
    compiled = second.tree.wrapper("compiled since")
    second.commit("model/v2")
    assert list(second.published("model/v2")) == [compiled]


@pytest.mark.parametrize("restores", [True, False])
def test_what_was_taken_out_of_one_key_is_news_to_another_that_its_root_is_used_for(
    first: Node, second: Node, restores: bool
) -> None:
    wrapper = first.tree.wrapper("taken out")
    first.commit()
    first.store.quarantine(KEY)
    assert first.commit().status is CommitStatus.UNCHANGED
    second.tree.wrapper("another")
    second.commit(OTHER)
    if restores:
        first.restore(OTHER)
    first.commit(OTHER)
    assert wrapper in second.published(OTHER)


def test_a_worker_that_starts_from_a_seed_after_the_key_was_forgotten_publishes_all_of_it(
    first: Node, second: Node
) -> None:
    first.commit("model/v2")
    first.store.forget("model/v2")
    second.restore("model/v2", seed=KEY)
    second.tree.wrapper("compiled since")
    assert second.commit("model/v2").files == len(contents(second.tree.root))


def test_a_seed_is_not_used_where_the_key_has_something(first: Node, second: Node) -> None:
    assert second.restore(KEY, seed="model/other").status is RestoreStatus.RESTORED
    assert Node(first.location.parent, "third").restore("none", seed="none-either").status is RestoreStatus.MISS


def test_other_gpus_environments_and_keys_get_nothing(first: Node, tmp_path: Path) -> None:
    for number, other in enumerate(({"gpu": "nvidia-other-sm80"}, {"environment": "torch-other"})):
        assert Node(tmp_path, f"other{number}", **other).restore().status is RestoreStatus.MISS
    assert Node(tmp_path, "another").restore("model/v10").status is RestoreStatus.MISS


def test_reports_can_be_written_as_json(first: Node, second: Node) -> None:
    for report in (second.restore(), second.commit()):
        assert json.loads(json.dumps(report.as_json()))["status"] == report.status


# ---- Commit


def test_committing_again_writes_nothing(first: Node) -> None:
    before = listing(first.location)
    report = first.commit()
    assert (report.status, report.generation, report.uploaded) == (CommitStatus.UNCHANGED, 1, 0)
    assert listing(first.location) == before


def test_committing_what_was_restored_writes_nothing(first: Node, second: Node) -> None:
    second.restore()
    before = listing(first.location)
    assert second.commit().status is CommitStatus.UNCHANGED
    assert listing(first.location) == before


def test_a_restore_writes_nothing_but_when_the_key_was_used(first: Node, second: Node) -> None:
    before = contents(first.location)
    second.restore()
    assert contents(first.location) == before | {mark_name(first.store.scope(KEY)): b""}


@pytest.mark.parametrize("whose", ["own", "another's"])
def test_a_key_that_is_restored_again_is_marked_again(
    first: Node, tmp_path: Path, whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = first.location / mark_name(first.store.scope(KEY))
    Node(tmp_path, "one").restore()
    os.utime(mark, (1, 1))
    before = mark.stat()
    if whose == "another's":
        monkeypatch.setattr(PosixBackend, "touch", refuse)
    Node(tmp_path, "two").restore()
    after = mark.stat()
    assert after.st_mtime > before.st_mtime
    assert (after.st_ino == before.st_ino) is (whose == "own")


def refuse(*_: object) -> bool:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.parametrize(
    "withdraw", [Store.quarantine, Store.forget, None], ids=["quarantined", "forgotten", "published"]
)
def test_nothing_is_written_once_a_restore_has_ended(
    first: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, withdraw: Callable[[Store, str], object] | None
) -> None:
    """Hit or miss: the store may be unmounted by then."""
    marked = list[Scope]()

    def mark_slowly(backend: object, scope: Scope) -> None:
        time.sleep(0.2)
        marked.append(scope)

    if withdraw:
        withdraw(first.store, KEY)
    monkeypatch.setattr("kstore.used.mark_used", mark_slowly)
    Node(tmp_path, "worker").restore()
    assert marked == [first.store.scope(KEY)]


def test_a_worker_that_may_only_read_leaves_no_mark(first: Node, tmp_path: Path) -> None:
    before = contents(first.location)
    Node(tmp_path, "reader", mode="read").restore()
    assert contents(first.location) == before


def test_an_empty_root_commits_nothing(tmp_path: Path, layout: str) -> None:
    node = Node(tmp_path, layout=layout)
    assert node.commit().status is CommitStatus.UNCHANGED
    assert not node.location.exists()


def test_one_more_file_uploads_its_blob_a_manifest_and_a_ref(first: Node, layout: str) -> None:
    before = set(contents(first.location))
    first.tree.wrapper("new")
    report = first.commit()
    assert (report.generation, report.new_files, report.new_blobs) == (2, 1, 2)
    new = sorted(path.partition("/")[0] for path in set(contents(first.location)) - before)
    assert new == (["blobs", "blobs", "refs"] if layout == "loose" else ["packs", "refs"])


FILE, FOLDER = "inductor/ab/artifact", "inductor/ab/artifact/yc/cyc.py"


@pytest.mark.parametrize(("published", "ours"), [(FILE, FOLDER), (FOLDER, FILE)])
def test_a_published_file_or_folder_stays_in_the_place_of_the_other_kind(
    tmp_path: Path, layout: str, published: str, ours: str
) -> None:
    builder, other, third = (Node(tmp_path, name, layout=layout) for name in ("builder", "other", "third"))
    builder.tree.put(published, b"published")
    builder.commit()
    other.tree.put(ours, b"ours")
    other.tree.wrapper("more")

    assert other.commit().status is CommitStatus.COMMITTED
    assert other.commit().status is CommitStatus.UNCHANGED
    assert third.restore().files == 2
    assert third.tree.read(published) == b"published"
    other.restore()
    assert other.tree.read(ours) == b"ours"
    assert other.commit().status is CommitStatus.UNCHANGED


def test_a_group_in_whose_place_something_else_is_is_named(first: Node, second: Node) -> None:
    group = first.tree.kernel("taken")
    first.commit()
    second.tree.put(group, b"own")
    report = second.restore()

    assert [skipped.path for skipped in report.skipped] == [group]
    assert report.left_out == GROUP_FILES
    assert report.components is not None
    assert sum(count.files for count in report.components.values()) == report.files - GROUP_FILES
    assert second.tree.read(group) == b"own"
    assert second.commit().status is CommitStatus.UNCHANGED


@pytest.mark.parametrize(("before", "after"), [(FILE, FOLDER), (FOLDER, FILE)])
def test_a_file_that_became_a_folder_is_published_as_one(first: Node, second: Node, before: str, after: str) -> None:
    first.tree.put(before, b"before")
    first.commit()
    shutil.rmtree(first.tree.root / "inductor/ab")
    first.tree.put(after, b"after")

    assert first.commit().status is CommitStatus.COMMITTED
    assert second.restore().status is RestoreStatus.RESTORED
    assert second.tree.read(after) == b"after"


@pytest.mark.parametrize("seconds", [10_000_000_000, -10_000_000_000], ids=["the year 2286", "the year 1653"])
def test_a_time_that_no_manifest_can_hold_is_no_trouble(tmp_path: Path, layout: str, seconds: int) -> None:
    builder, worker = Node(tmp_path, "builder", layout=layout), Node(tmp_path, "worker", layout=layout)
    fill(builder)
    for path in (builder.tree.root, *builder.tree.root.rglob("*")):
        os.utime(path, (seconds, seconds))

    assert builder.commit().status is CommitStatus.COMMITTED
    assert builder.commit().status is CommitStatus.UNCHANGED
    assert worker.restore().files == len(contents(builder.tree.root))
    assert worker.commit().status is CommitStatus.UNCHANGED


def test_equal_files_are_stored_once(tmp_path: Path, layout: str) -> None:
    node = Node(tmp_path, layout=layout)
    for number in range(5):
        node.tree.put(f"inductor/ab/copy{number}.py", b"same")
    assert node.commit().new_blobs == 2


def test_files_that_resemble_each_other_are_packed_beside_each_other(tmp_path: Path) -> None:
    """Only their sizes show what Inductor's objects have in common: they are named by hashes."""
    node = Node(tmp_path, layout="packed")
    common = [os.urandom(size) for size in (1_100_000, 1_110_000, 1_120_000)]
    for number in range(4):
        for letter, data in zip("abc", common, strict=True):
            node.tree.put(f"inductor/{letter}{number}/c{number}{letter}{number}.cpp", data + bytes([number]))
    assert node.commit().uploaded < sum(map(len, common)) + 100_000


def test_a_path_that_was_taken_out_does_not_come_back(first: Node, second: Node) -> None:
    second.restore()
    wrapper = first.tree.wrapper()
    publish_without(first, wrapper)
    second.tree.wrapper("new")
    assert second.commit().generation == 3
    assert wrapper not in second.published()
    assert second.commit().status is CommitStatus.UNCHANGED
    assert first.commit().status is CommitStatus.UNCHANGED


def publish_without(node: Node, *paths: str) -> None:
    newest = node.newest()
    files = {path: found for path, found in node.published().items() if path not in paths}
    publish(node, files, newest.generation + 1)


def publish(node: Node, files: dict[str, Any], generation: int) -> None:
    """Publish a manifest that no commit would make."""
    data = Manifest(files).dump()
    node.store.storage.blobs.loose.put_many([(digest_of(data), data)])
    packs = node.newest().packs if generation > 1 else ()
    scope = node.store.scope(KEY)
    ref = Ref(scope, generation, digest_of(data), len(data), packs, 0.0, "test", len(files), 0)
    assert publish_ref(node.store.storage.refs, ref)


def test_what_is_declined_is_not_offered_again(first: Node, second: Node) -> None:
    """Two workers that built the same kernel differently do not publish in turn."""
    kernel = second.tree.kernel("one", "another compiler")
    second.tree.graph("fone", "another graph")
    assert second.commit().status is CommitStatus.UNCHANGED
    before = listing(first.location)
    for node in (second, first, second, first):
        assert node.commit().status is CommitStatus.UNCHANGED
    assert listing(first.location) == before
    assert b"another" in second.tree.read(f"{kernel}/k.ptx")


def test_what_others_replaced_is_not_undone(first: Node, second: Node) -> None:
    """A worker that committed since still has the old file, and offers it to nobody."""
    second.restore()
    second.tree.put("inductor/ab/tuned.best_config", b"old")
    second.commit()
    first.restore()
    first.tree.put("inductor/ab/tuned.best_config", b"new")
    assert first.commit().generation == 3
    for node in (second, first, second, first):
        assert node.commit().status is CommitStatus.UNCHANGED
    assert second.published()["inductor/ab/tuned.best_config"].digest == digest_of(b"new")


def test_what_others_replaced_is_restored(first: Node, second: Node) -> None:
    second.restore()
    second.tree.put("inductor/ab/tuned.best_config", b"old")
    second.commit()
    first.restore()
    first.tree.put("inductor/ab/tuned.best_config", b"new")
    first.commit()
    second.restore()
    assert second.tree.read("inductor/ab/tuned.best_config") == b"new"


def test_what_others_replaced_is_restored_however_often_the_worker_has_committed_since(
    first: Node, second: Node
) -> None:
    second.restore()
    kernel, path = first.tree.kernel("one", "replaced"), first.tree.timings({"one": 0.5, "other": 1})
    first.commit()
    assert second.commit().status is CommitStatus.UNCHANGED
    second.tree.wrapper("news")
    assert second.commit().new_files == 1
    second.restore()
    assert b"replaced" in second.tree.read(f"{kernel}/k.ptx")
    assert json.loads(second.tree.read(path)) == {"one": 0.5, "other": 1}
    assert second.commit().status is CommitStatus.UNCHANGED


def test_a_rollback_reaches_a_worker_that_has_committed_since(first: Node, second: Node) -> None:
    kernel = first.tree.kernel("one", "a bad idea")
    first.commit()
    second.restore()
    first.store.rollback(KEY)
    assert second.commit().status is CommitStatus.UNCHANGED
    second.restore()
    assert b"bad" not in second.tree.read(f"{kernel}/k.ptx")


def test_what_the_worker_has_changed_since_others_replaced_it_stays(first: Node, second: Node) -> None:
    second.restore()
    first.tree.kernel("one", "replaced")
    first.commit()
    second.commit()
    kernel = second.tree.kernel("one", "of the worker's own")
    second.commit()
    second.restore()
    assert b"own" in second.tree.read(f"{kernel}/k.ptx")


def test_timings_that_others_have_added_are_restored_to_a_worker_that_has_added_some_itself(
    first: Node, second: Node
) -> None:
    second.restore()
    first.tree.timings({"one": 0.5, "first": 1})
    first.commit()
    path = second.tree.timings({"one": 0.5, "second": 2})
    assert second.commit().new_files == 1
    second.restore()
    assert json.loads(second.tree.read(path)) == {"one": 0.5, "first": 1, "second": 2}


def test_timings_of_all_workers_are_merged(first: Node, second: Node) -> None:
    second.tree.timings({"two": 0.25})
    assert second.commit().new_files == 1
    third = Node(first.location.parent, "third")
    third.restore()
    assert json.loads(third.tree.read("inductor/cache/system")) == {"one": 0.5, "two": 0.25}
    for node in (first, second, first, second):
        assert node.commit().status is CommitStatus.UNCHANGED
    third.tree.timings({"one": 0.5, "two": 0.25, "three": 0.125})
    report = third.commit()
    assert (report.new_files, report.declined) == (1, 0)  # It is published as it is.


def test_a_lost_file_of_timings_does_not_stop_commits(tmp_path: Path) -> None:
    first, second = (Node(tmp_path, name) for name in ("first", "second"))
    first.tree.timings({"one": 0.5})
    first.commit()
    remove_blob(first, "inductor/cache/system")
    second.tree.timings({"two": 0.25})
    second.tree.wrapper()
    assert second.commit().status is CommitStatus.COMMITTED


def test_two_workers_add_up(first: Node, second: Node) -> None:
    second.tree.wrapper("two")
    second.tree.kernel("two")
    assert second.commit().generation == 2
    assert set(second.published()) == set(contents(first.tree.root)) | set(contents(second.tree.root))


def race(folder: Path, number: int) -> int:
    node = Node(folder, f"worker{number}", layout=("loose", "packed")[number % 2])
    for turn in range(5):
        node.tree.wrapper(f"{number} {turn}")
        node.tree.kernel(f"{number} {turn}")
        assert node.commit().status is CommitStatus.COMMITTED
    return len(contents(node.tree.root))


def test_workers_that_race_lose_nothing(tmp_path: Path) -> None:
    counts = in_processes(lambda number: race(tmp_path, number), [(number,) for number in range(8)])
    node = Node(tmp_path, "reader")
    report = node.restore()
    assert report.skipped == ()
    assert len(contents(node.tree.root)) == sum(counts) == 8 * 5 * (1 + GROUP_FILES)
    assert report.generation == 40


@pytest.mark.parametrize("changed", ["longer", "as long"])
def test_a_file_that_changes_while_it_is_uploaded_waits(
    tmp_path: Path, layout: str, changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, layout=layout)
    graph = node.tree.graph()
    node.commit()  # a key's first commit reads each file once
    kernel = node.tree.kernel()
    wrapper = node.tree.wrapper()
    data = node.tree.read(f"{kernel}/k.ptx")

    def read_changed(*arguments: Any) -> Iterator[Batch[bytes]]:
        node.tree.put(f"{kernel}/k.ptx", data + b"!" if changed == "longer" else data.swapcase())
        return read_in_batches(*arguments)

    monkeypatch.setattr("kstore.operations.sources.read_in_batches", read_changed)
    monkeypatch.setattr("kstore.intake._ROOM", 0)  # as if all files were large
    report = node.commit()
    assert set(node.published()) == {graph, wrapper}
    assert [skipped.path for skipped in report.skipped] == [kernel]
    # Each pack costs every restore some round trips: what was written before the change was seen is not one more.
    assert len(node.store.storage.blobs.packs()) == len(node.newest().packs) == (2 if layout == "packed" else 0)
    monkeypatch.undo()
    assert node.commit().new_files == GROUP_FILES


def test_a_small_file_that_changes_while_it_is_uploaded_is_published_as_it_was_hashed(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, other = Node(tmp_path, layout=layout), Node(tmp_path, "other")
    wrapper = node.tree.wrapper()
    before = node.tree.read(wrapper)
    read_lists = uploader.read_doomed

    def change(*arguments: Any) -> Any:
        node.tree.put(wrapper, b"changed meanwhile")
        return read_lists(*arguments)

    monkeypatch.setattr(uploader, "read_doomed", change)
    assert node.commit().new_files == 1
    other.restore()
    assert other.tree.read(wrapper) == before
    monkeypatch.undo()
    assert node.commit().new_files == 1


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstore.origin.detect_environment", lambda *given: Environment("notorch", {"torch": "none"}))


@pytest.mark.usefixtures("no_torch")
def test_without_torch_a_commit_belongs_to_what_its_root_was_restored_from(first: Node, tmp_path: Path) -> None:
    """As in a sidecar whose image has only kstore."""
    other = Node(tmp_path, "first", environment="torch-other")
    other.tree.wrapper("other")
    other.commit()
    sidecar = Store(first.location, cache_root=tmp_path / "sidecar", gpu=GPU, environ={})
    Store(first.location, cache_root=tmp_path / "sidecar", gpu=GPU, environment=ENVIRONMENT, environ={}).restore(KEY)
    Tree(tmp_path / "sidecar").wrapper("compiled beside it")
    report = sidecar.commit(KEY)
    assert (report.environment, report.new_files) == (ENVIRONMENT, 1)


@pytest.mark.usefixtures("no_torch")
def test_without_torch_an_environment_that_was_forgotten_cannot_be_chosen(first: Node, tmp_path: Path) -> None:
    """As after an upgrade of torch and a gc of what is unused."""
    old = Node(tmp_path, "old", environment="torch-old")
    old.tree.wrapper("old")
    old.commit()
    bare = Node(tmp_path, "bare", environment=None)
    with pytest.raises(AmbiguousScopeError, match="--environment torch-old"):
        bare.restore()
    old.store.forget(KEY)
    assert (bare.restore().status, bare.restore().environment) == (RestoreStatus.RESTORED, ENVIRONMENT)


@pytest.mark.usefixtures("no_torch")
def test_without_torch_an_environment_that_a_failed_commit_left_empty_cannot_be_chosen(
    first: Node, tmp_path: Path
) -> None:
    (first.location / "refs" / GPU / KEY / "@torch-full").mkdir()
    report = Node(tmp_path, "bare", environment=None).restore()
    assert (report.status, report.environment) == (RestoreStatus.RESTORED, ENVIRONMENT)


@pytest.mark.usefixtures("no_torch")
def test_without_torch_a_commit_goes_where_its_root_came_from_though_that_was_forgotten(
    first: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbered, "NUMBERED_ROOTS", tmp_path / "numbered")
    sidecar = Store(first.location, gpu=GPU, environ={})
    root = sidecar.restore(KEY).cache_root
    first.store.forget(KEY)
    Tree(Path(root)).wrapper("compiled beside it")
    assert sidecar.commit(KEY).environment == ENVIRONMENT


@pytest.mark.parametrize(("environment", "told"), [("notorch-notriton-cp311", 1), ("notorch-triton3.6.0-cp311", 0)])
def test_a_commit_for_an_environment_without_compilers_is_a_warning(
    tmp_path: Path, environment: str, told: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a virtual environment that has only kstore: no worker would look for it there."""
    hide_what_needs_no_torch(monkeypatch)
    node = Node(tmp_path, environment=environment)
    node.tree.wrapper()
    assert node.commit().status is CommitStatus.COMMITTED
    assert node.commit().status is CommitStatus.UNCHANGED
    lines = [line for line in warnings(caplog) if f"{KEY} is committed for the environment {environment}" in line]
    assert len(lines) == len(warnings(caplog)) == told


@pytest.mark.parametrize("package", WITHOUT_TORCH)
def test_a_commit_beside_a_compiler_that_needs_no_torch_is_no_reason_to_warn(
    tmp_path: Path, package: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_what_needs_no_torch(monkeypatch)
    monkeypatch.setitem(sys.modules, package, SimpleNamespace(__file__=f"/packages/{package}/__init__.py"))
    node = Node(tmp_path, environment="notorch-notriton-cp311")
    node.tree.wrapper()
    assert node.commit().status is CommitStatus.COMMITTED
    assert not warnings(caplog)


def test_a_read_only_worker_publishes_nothing(first: Node, tmp_path: Path) -> None:
    reader = Node(tmp_path, "reader", mode="read")
    reader.restore()
    reader.tree.wrapper("new")
    before = listing(first.location)
    assert reader.commit().status is CommitStatus.READ_ONLY
    assert listing(first.location) == before


def test_the_store_object_survives_that_another_worker_makes_the_store(tmp_path: Path) -> None:
    first, second = (Node(tmp_path, name) for name in ("first", "second"))
    assert second.restore().status is RestoreStatus.MISS
    first.tree.wrapper("one")
    first.commit()
    second.tree.wrapper("two")
    assert second.commit().generation == 2


def test_a_store_that_was_made_anew_gets_everything(first: Node, layout: str) -> None:
    """The cache root remembers a generation of a store that no longer exists."""
    shutil.rmtree(first.location)
    again = Node(first.location.parent, "first", layout=layout)
    again.tree.wrapper("new")
    again.tree.put(f"{again.tree.kernel()}/k.ptx", b"changed")
    again.commit()
    reader = Node(first.location.parent, "reader")
    assert reader.restore().skipped == ()
    assert relocated(reader) == relocated(again)


# ---- Damage costs a group, never the job


def blob_of(node: Node, path: str) -> Path:
    return node.location / blob_name(node.published()[path].digest)


def remove_blob(node: Node, path: str) -> None:
    blob_of(node, path).unlink()


def alter(path: Path, change: Callable[[bytes], bytes]) -> None:
    data = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(change(data))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "altered": lambda path: alter(path, lambda data: data[:-1] + b"?"),
    "cut short": lambda path: alter(path, lambda data: data[:5]),
    "empty": lambda path: alter(path, lambda data: b""),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_lost_blob_costs_exactly_its_group(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    first, second = (Node(tmp_path, name, layout="loose") for name in ("first", "second"))
    fill(first)
    kernel = first.tree.kernel("lost")
    first.commit()
    damage(blob_of(first, f"{kernel}/k.cubin"))
    report = second.restore()
    assert report.status is RestoreStatus.RESTORED
    expected = {path: data for path, data in relocated(first).items() if not path.startswith(kernel)}
    assert relocated(second) == expected
    assert [skipped.path for skipped in report.skipped] == [f"{kernel}/k.cubin"]
    assert report.placed == report.files - GROUP_FILES


def test_a_lost_blob_outside_of_groups_costs_itself(tmp_path: Path) -> None:
    first, second = (Node(tmp_path, name, layout="loose") for name in ("first", "second"))
    fill(first)
    first.commit()
    remove_blob(first, first.tree.wrapper())
    second.restore()
    assert set(contents(first.tree.root)) - set(contents(second.tree.root)) == {first.tree.wrapper()}


def test_what_was_lost_is_compiled_again_and_healed(tmp_path: Path) -> None:
    """Another compile of the kernel has different bytes, and replaces the group."""
    first, second, third = (Node(tmp_path, name, layout="loose") for name in ("first", "second", "third"))
    kernel = first.tree.kernel()
    first.commit()
    remove_blob(first, f"{kernel}/k.cubin")
    second.restore()
    second.tree.kernel("one", "compiled again")
    second.commit()
    third.restore()
    assert b"compiled again" in third.tree.read(f"{kernel}/k.cubin")


def test_a_damaged_pack_is_as_if_it_were_missing(tmp_path: Path) -> None:
    first, second = (Node(tmp_path, name, layout="packed") for name in ("first", "second"))
    fill(first)
    first.commit()
    old = relocated(first)
    first.tree.wrapper("new")
    first.commit()
    _, oldest = first.newest().packs
    pack = first.location / pack_name(oldest)
    alter(pack, lambda data: b"?" * len(data))
    report = second.restore()
    assert relocated(second).keys() == relocated(first).keys() - old.keys()
    assert len(report.skipped) == len(old)


def test_a_pack_that_nobody_names_is_found(first: Node, second: Node) -> None:
    ref = first.newest()
    path = first.location / ref.name
    alter(path, lambda data: json.dumps({**json.loads(data), "packs": []}).encode())
    second.restore()
    assert relocated(second) == relocated(first)


def test_a_lost_manifest_is_an_integrity_error(tmp_path: Path) -> None:
    node = Node(tmp_path, layout="loose")
    node.tree.wrapper()
    node.commit()
    (node.location / blob_name(node.newest().manifest)).unlink()
    with pytest.raises(IntegrityError, match="no generation of model/v1"):
        Node(tmp_path, "other").restore()


@pytest.mark.parametrize("what", ["manifest", "ref"])
def test_a_damaged_generation_is_passed_over_and_the_next_commit_heals_the_key(tmp_path: Path, what: str) -> None:
    node, other = Node(tmp_path, layout="loose"), Node(tmp_path, "other", layout="loose")
    first = node.tree.wrapper("first")
    node.commit()
    second = node.tree.wrapper("second")
    node.commit()
    ref = node.newest()
    (node.location / (ref.name if what == "ref" else blob_name(ref.manifest))).write_bytes(b"garbage")
    assert other.restore().generation == 1
    assert other.tree.has(first) and not other.tree.has(second)
    node.tree.wrapper("third")
    assert Node(tmp_path, layout="loose").commit().generation == 3
    assert Node(tmp_path, "third", layout="loose").restore().generation == 3
    assert Tree(tmp_path / "third").has(second)


@pytest.mark.parametrize("what", ["manifest", "ref"])
def test_what_a_damaged_generation_had_comes_back_from_who_restores_the_one_before_first(
    tmp_path: Path, what: str
) -> None:
    node, other = Node(tmp_path, layout="loose"), Node(tmp_path, "other", layout="loose")
    node.tree.timings({"one": 0.5})
    node.commit()
    lost, shared = node.tree.kernel("lost"), other.tree.kernel("shared")
    node.tree.timings({"one": 0.5, "two": 0.25})
    other.commit()
    node.tree.kernel("shared", "its own way")
    assert node.commit().declined
    for number in (2, 3):
        ref = node.store.storage.refs.get(node.store.scope(KEY), number)
        (node.location / (ref.name if what == "ref" else blob_name(ref.manifest))).write_bytes(b"garbage")
    assert node.restore().generation == 1
    assert json.loads(node.tree.read("inductor/cache/system")) == {"one": 0.5, "two": 0.25}
    assert node.commit().new_files == 2 * GROUP_FILES + 1
    third = Node(tmp_path, "third", layout="loose")
    third.restore()
    assert third.tree.has(lost) and third.tree.has(shared)
    assert json.loads(third.tree.read("inductor/cache/system")) == {"one": 0.5, "two": 0.25}


@pytest.mark.parametrize("restores", [False, True], ids=["commit", "restore first"])
@pytest.mark.parametrize("take_out", ["rollback", "quarantine", "forget"])
def test_what_was_taken_out_stays_out_though_a_generation_since_is_damaged(
    tmp_path: Path, take_out: str, restores: bool
) -> None:
    node = Node(tmp_path)
    node.tree.kernel("good")
    node.commit()
    node.tree.kernel("bad")
    node.commit()
    getattr(node.store, take_out)(KEY)
    node.tree.kernel("new")
    published = node.commit() and node.published()
    (node.location / node.newest().name).write_bytes(b"")
    if restores:
        node.restore()
    assert node.commit().new_files == GROUP_FILES
    assert node.published() == published


@pytest.mark.parametrize("asked_for", ["1, before what the root grew from", "2, from which it grew", "4, since"])
def test_what_was_taken_out_stays_out_though_a_damaged_generation_was_asked_for(tmp_path: Path, asked_for: str) -> None:
    """Nothing of what the root grew from is relied upon then, but it is known what that generation held."""
    node, generation = Node(tmp_path), int(asked_for[0])
    node.tree.kernel("good")
    node.commit()
    node.tree.kernel("bad")
    node.commit()
    node.store.forget(KEY)
    node.tree.kernel("new")
    published = {}
    if generation == 4:
        published = node.commit() and node.published()
    (node.location / ref_name(node.store.scope(KEY), generation)).write_bytes(b"")
    with pytest.raises(IntegrityError):
        node.restore(generation=generation)
    assert node.commit().new_files == GROUP_FILES
    assert published in ({}, node.published())
    assert len(node.published()) == GROUP_FILES


def test_what_was_taken_out_stays_out_though_a_generation_since_is_damaged_and_another_worker_went_on(
    tmp_path: Path,
) -> None:
    node, other = Node(tmp_path), Node(tmp_path, "other")
    node.tree.kernel("bad")
    node.commit()
    node.store.quarantine(KEY)
    node.tree.kernel("new")
    published = node.commit() and node.published()
    (node.location / node.newest().name).write_bytes(b"")
    other.tree.wrapper("its own")
    other.commit()
    assert node.commit().new_files == GROUP_FILES
    assert node.published().items() > published.items()
    assert len(node.published()) == GROUP_FILES + 1


def test_what_was_taken_out_stays_out_though_an_earlier_generation_was_restored(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.tree.wrapper("good")
    node.commit()
    node.tree.wrapper("bad")
    node.commit()
    assert node.restore(generation=1).generation == 1
    node.store.rollback(KEY, 1)
    assert node.commit().new_files == 0
    assert len(node.published()) == 1


@pytest.mark.parametrize("repair", [False, True], ids=["passed over", "repaired"])
@pytest.mark.parametrize("published", [1, 2], ids=["the only one", "the newest"])
def test_what_a_damaged_generation_had_comes_back_although_others_committed_first(
    tmp_path: Path, repair: bool, published: int
) -> None:
    """What a worker's base has and the newest generation lacks was lost, not taken out."""
    node, other = Node(tmp_path, layout="loose"), Node(tmp_path, "other", layout="loose")
    for generation in range(published):
        node.tree.wrapper(f"of generation {generation}")
        node.commit()
    damage_manifest(node)
    if repair:
        node.store.verify(repair=True)
    other.tree.wrapper("of another worker")
    other.commit()
    Node(tmp_path, layout="loose").commit()
    fresh = Node(tmp_path, "fresh", layout="loose")
    fresh.restore()
    assert contents(fresh.tree.root) == contents(node.tree.root) | contents(other.tree.root)


@pytest.mark.parametrize("meanwhile", ["nothing", "a restore", "a gc"])
@pytest.mark.parametrize("later", [0, 1, 20])
def test_what_a_lost_generation_had_comes_back_although_another_has_its_number(
    tmp_path: Path, layout: str, later: int, meanwhile: str
) -> None:
    """A server that crashes may lose the ref that was written last, and so may one whose disk is set back."""
    node, other = Node(tmp_path, layout=layout), Node(tmp_path, "other", layout=layout)
    node.tree.wrapper("first")
    node.commit()
    other.restore()
    node.tree.wrapper("lost")
    assert node.commit().generation == 2
    (node.location / node.newest().name).unlink()
    other.tree.wrapper("of another worker")
    assert other.commit().generation == 2
    for number in range(later):
        other.tree.wrapper(f"later {number}")
        other.commit()
    if meanwhile == "a gc":
        collect_fully(other)
    again = Node(tmp_path, layout=layout)
    if meanwhile == "a restore":
        again.restore()
    again.commit()
    fresh = Node(tmp_path, "fresh", layout=layout)
    fresh.restore()
    assert contents(fresh.tree.root) == contents(node.tree.root) | contents(other.tree.root)


def test_what_lost_against_a_kernel_that_is_lost_itself_is_offered_again(tmp_path: Path) -> None:
    node, other = Node(tmp_path, layout="loose"), Node(tmp_path, "other", layout="loose")
    kernel = other.tree.kernel("one")
    other.commit()
    node.tree.kernel("one", "its own way")
    assert node.commit().declined
    damage_manifest(node)
    node.store.verify(repair=True)
    Node(tmp_path, layout="loose").commit()
    fresh = Node(tmp_path, "fresh", layout="loose")
    fresh.restore()
    assert fresh.tree.read(f"{kernel}/k.cubin") == node.tree.read(f"{kernel}/k.cubin")


def damage_manifest(node: Node) -> None:
    """Damage the manifest of the newest generation."""
    (node.location / blob_name(node.newest().manifest)).write_bytes(b"garbage")


def test_a_blob_altered_in_place_is_not_linked(tmp_path: Path) -> None:
    """Somebody wrote through a hard link, as root may."""
    first, second, third = (Node(tmp_path, name, layout="loose") for name in ("first", "second", "third"))
    wrapper = first.tree.wrapper()
    first.commit()
    second.restore()
    alter(second.tree.root / wrapper, lambda data: data.replace(b"one", b"eno"))
    report = third.restore()
    assert not third.tree.has(wrapper)
    assert [skipped.path for skipped in report.skipped] == [wrapper]


def test_a_local_kernel_that_lost_a_file_is_replaced_whole(first: Node, second: Node) -> None:
    second.restore()
    kernel = second.tree.kernel("one")
    (second.tree.root / kernel / "k.cubin").unlink()
    time.sleep(0.02)  # otherwise, by a ticking clock, it was while the restore looked
    report = second.restore()
    assert report.placed == GROUP_FILES
    assert relocated(second) == relocated(first)


def test_a_local_file_that_was_cut_short_outside_the_rules_of_compilers(first: Node, second: Node) -> None:
    second.restore()
    wrapper = second.tree.wrapper()
    (second.tree.root / wrapper).unlink()
    second.tree.put(wrapper, b"")
    second.restore()
    assert second.tree.read(wrapper) == first.tree.read(wrapper)


# ---- Manifests are not trusted

HOSTILE = [
    "../x",
    "/abs",
    "a/../../b",
    "inductor/../../x",
    "inductor/..",
    "a//b",
    "inductor/./x",
    "inductor/x\0y",
    "inductor/",
    "inductor",
    "",
]


@pytest.mark.parametrize("path", HOSTILE, ids=repr)
def test_hostile_paths_are_refused_and_nothing_is_written(tmp_path: Path, path: str) -> None:
    node = Node(tmp_path, "victim")
    node.store.storage.blobs.loose.put_many([(digest_of(b"evil"), b"evil")])
    evil = entry()._replace(digest=digest_of(b"evil"), size=4)
    publish(node, {"inductor/ab/good.py": evil, path: evil} if path else {"inductor//x": evil}, 1)
    before = {found for found in tmp_path.rglob("*") if "store" not in found.parts}
    with pytest.raises(IntegrityError, match="kstore verify"):
        node.restore()
    assert contents(node.tree.root) == {}
    new = {found for found in tmp_path.rglob("*") if "store" not in found.parts} - before
    assert all(node.tree.root in (found, *found.parents) for found in new)


def test_a_file_that_a_compiler_is_told_to_write_has_a_folder(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.restore()
    assert Path(node.environ["PYTORCH_TUNABLEOP_FILENAME"]).parent.is_dir()


def test_a_path_that_is_both_file_and_folder_is_refused(tmp_path: Path) -> None:
    node = Node(tmp_path)
    publish(node, {"inductor/a": entry(), "inductor/a/b": entry(), "inductor/a/b/c": entry()}, 1)
    with pytest.raises(IntegrityError, match="kstore verify"):
        node.restore()


def test_nothing_is_written_through_a_link(first: Node, second: Node, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    wrapper = first.tree.wrapper()
    (second.tree.root / "inductor").mkdir(parents=True)
    (second.tree.root / wrapper).parent.symlink_to(outside)
    second.restore()
    assert list(outside.iterdir()) == []


RESTORE = f"""
import sys
from kstore.store import Store
store, root = sys.argv[1:]
report = Store(store, cache_root=root, gpu={GPU!r}, environment={ENVIRONMENT!r}, environ={{}}).restore({KEY!r})
for skipped in report.skipped:
    print(ascii(skipped.path), skipped.reason)
"""


def test_a_name_that_the_locale_cannot_write_is_left_out(first: Node, tmp_path: Path) -> None:
    first.tree.put("inductor/ab/c\u00fc.py", b"code")
    first.commit()
    environ = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", RESTORE, first.location, tmp_path / "other"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100)
    refused = r"'inductor/ab/c\xfc.py' its name cannot be written in this locale's encoding, ascii"
    assert done.stdout.splitlines() == [refused], done.stderr
    assert set(contents(tmp_path / "other")) == set(first.published()) - {"inductor/ab/c\u00fc.py"}


def test_a_group_with_folders_inside_is_placed_whole(tmp_path: Path) -> None:
    first, second = (Node(tmp_path, name) for name in ("first", "second"))
    kernel = first.tree.kernel()
    first.tree.put(f"{kernel}/sub/deep/extra.ptx", b"extra")
    first.commit()
    second.restore()
    shutil.rmtree(second.tree.root / kernel / "sub")
    (second.tree.root / kernel / "k.ptx").unlink()
    time.sleep(0.02)  # otherwise, by a ticking clock, it was while the restore looked
    second.restore()
    assert relocated(second) == relocated(first)


def test_components_that_are_not_managed_are_left_out(first: Node, tmp_path: Path) -> None:
    node = Node(tmp_path, "triton-only", components=("triton",))
    report = node.restore()
    assert [skipped.path for skipped in report.skipped] == ["inductor"]
    assert not node.tree.has("inductor")
    assert node.tree.has("triton")
    node.commit()
    assert set(first.published()) == set(contents(first.tree.root))


# ---- Host-bound artifacts


def test_host_bound_artifacts_go_only_to_equal_hosts(
    tmp_path: Path, layout: str, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, same, other = (Node(tmp_path, name, layout=layout) for name in ("first", "same", "other"))
    bound = first.tree.put("inductor/ab/cabc.so", shared_object())
    wrapper = first.tree.wrapper()
    first.commit()
    same.restore()
    assert set(contents(same.tree.root)) == {bound, wrapper}
    monkeypatch.setattr("kstore.environment.ownhost.detect_host", lambda _: Host("b" * 16, {"cpu": "other"}))
    other.restore()
    assert set(contents(other.tree.root)) == {wrapper}
    other.tree.put(bound, shared_object() + b"built here")
    report = other.commit()
    assert report.new_files == 1
    assert report.files == 3
    manifest = other.store.snapshot(other.newest()).manifest
    assert set(manifest.hosts) == {"a" * 16, "b" * 16}


def test_what_another_host_left_without_a_commit_is_nobodys(
    tmp_path: Path, layout: str, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a job was killed and the root outlives the image."""
    node = Node(tmp_path, layout=layout)
    node.tree.put("inductor/ab/cone.so", shared_object())
    node.commit()
    left = node.tree.put("inductor/ab/ctwo.so", shared_object() + b"two")
    monkeypatch.setattr("kstore.environment.ownhost.detect_host", lambda _: Host("b" * 16, {"cpu": "other"}))
    node = Node(tmp_path, layout=layout)
    node.restore()
    assert left not in contents(node.tree.root)
    own = node.tree.put("inductor/ab/cthree.so", shared_object() + b"three")
    node.commit()
    hosts = node.store.snapshot(node.newest()).manifest.hosts
    assert {name: list(files) for name, files in hosts.items()} == {"a" * 16: ["inductor/ab/cone.so"], "b" * 16: [own]}


@pytest.mark.parametrize("folder", ["halide-runtime-host-0a1b", "ab/cabc.halide"])
def test_the_mark_of_halide_never_comes_without_what_it_vouches_for(
    tmp_path: Path, folder: str, layout: str, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, same, other = (Node(tmp_path, name, layout=layout) for name in ("first", "same", "other"))
    built = {
        first.tree.put(f"inductor/{folder}/{name}", data) for name, data in (("kernel.a", b"!<arch>"), ("done", b""))
    }
    wrapper = first.tree.wrapper()
    first.commit()
    same.restore()
    assert set(contents(same.tree.root)) == {wrapper, *built}
    monkeypatch.setattr("kstore.environment.ownhost.detect_host", lambda _: Host("b" * 16, {"cpu": "other"}))
    other.restore()
    assert set(contents(other.tree.root)) == {wrapper}


# ---- The store itself


def test_a_store_says_what_it_is(first: Node) -> None:
    content = json.loads((first.location / "kstore.json").read_bytes())
    assert (content["format"], content["grace"]) == (1, 3600)
    assert (first.location / "CACHEDIR.TAG").read_bytes().startswith(b"Signature: 8a477f597d28d172789f06886806bc55")


def test_a_store_is_made_once(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.store.create(grace=60)
    assert not node.store.create()
    assert json.loads((node.location / "kstore.json").read_bytes())["grace"] == 60


def test_a_folder_with_foreign_content_is_refused(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.location.mkdir()
    (node.location / "thesis.tex").touch()
    node.tree.wrapper()
    with pytest.raises(StoreFormatError, match=r"thesis\.tex"):
        node.commit()
    assert os.listdir(node.location) == ["thesis.tex"]


@pytest.mark.parametrize("text", ["", "{", "[]", "5", '{"other": 1}', '{"format": 2}'])
def test_a_store_of_an_unknown_format_is_refused(tmp_path: Path, text: str) -> None:
    node = Node(tmp_path)
    node.location.mkdir()
    (node.location / "kstore.json").write_text(text)
    node.tree.wrapper()
    for use in (node.restore, node.commit):
        with pytest.raises(StoreFormatError):
            use()


@pytest.mark.parametrize("grace", ['"2h"', "null", "[]", "true", "-5", "Infinity", "NaN", "1" + "0" * 400])
def test_a_grace_that_is_not_a_time_stops_gc_only(first: Node, grace: str) -> None:
    path = first.location / "kstore.json"
    path.chmod(0o644)
    path.write_text(f'{{"format": 1, "grace": {grace}}}')
    with pytest.raises(StoreFormatError, match=r"kstore.json has the grace .*; correct it there"):
        first.store.gc()
    assert first.commit().ok
    assert first.restore().ok


@pytest.mark.parametrize("grace", ["0", "90", "0.5"])
def test_a_grace_may_be_any_number_of_seconds(first: Node, grace: str) -> None:
    path = first.location / "kstore.json"
    path.chmod(0o644)
    path.write_text(f'{{"format": 1, "grace": {grace}}}')
    first.restore()
    assert first.store.storage.grace == float(grace)


def test_a_store_whose_parent_is_missing_is_unavailable(tmp_path: Path) -> None:
    """A volume that is not mounted is not an empty store."""
    store = Store(tmp_path / "not/mounted", cache_root=tmp_path / "root", gpu=GPU, environment=ENVIRONMENT, environ={})
    for use in (store.restore, store.commit):
        with pytest.raises(StoreUnavailable, match="mount"):
            use(KEY)


def test_published_generations_can_be_looked_at(first: Node) -> None:
    scope = first.store.scope(KEY)
    assert list(first.store.scopes()) == list(first.store.scopes(KEY)) == [scope]
    assert list(first.store.scopes("other")) == []
    first.tree.wrapper("new")
    first.commit()
    assert [ref.generation for ref in first.store.generations(scope)] == [1, 2]
    assert [ref.parent for ref in first.store.generations(scope)] == [0, 1]


def test_a_key_owns_its_numbered_root(tmp_path: Path) -> None:
    def store() -> Store:
        return Store(tmp_path / "store", gpu=GPU, environment=ENVIRONMENT, environ={})

    roots = [store().restore(key).cache_root for key in ("one", "two", "one")]
    assert roots == [f"{tmp_path}/roots/{ENVIRONMENT}/{number}" for number in (0, 1, 0)]


# ---- The functions: a cache never breaks the job


@pytest.fixture
def functions(tmp_path: Path) -> dict[str, Any]:
    return {"cache_root": tmp_path / "root", "gpu": GPU, "environment": ENVIRONMENT}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def missing(folder: Path) -> dict[str, Any]:
    return {"store": folder / "not/mounted"}


def a_file(folder: Path) -> dict[str, Any]:
    (folder / "file").touch()
    return {"store": folder / "file"}


def garbage(folder: Path) -> dict[str, Any]:
    (folder / "garbage").mkdir()
    (folder / "garbage/kstore.json").write_bytes(b"\xff\0garbage")
    return {"store": folder / "garbage"}


def unwritable(folder: Path) -> dict[str, Any]:
    (folder / "regular").touch()
    return {"store": folder / "store", "cache_root": folder / "regular/root"}


TROUBLES = {
    missing: StoreUnavailable,
    a_file: StoreUnavailable,
    garbage: StoreFormatError,
    unwritable: CacheRootError,
}


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("function", [restore, commit])
def test_trouble_is_one_warning_and_a_status(
    tmp_path: Path,
    functions: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    trouble: Callable[[Path], dict[str, Any]],
    function: Callable[..., Any],
) -> None:
    report = function(KEY, **{**functions, **trouble(tmp_path)})
    assert report.status == "failed"
    assert report.error.startswith(TROUBLES[trouble].__name__)
    assert not report.ok
    (warning,) = warnings(caplog)
    assert KEY in warning
    assert "\n" not in warning


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("function", [restore, commit])
def test_strict_raises_what_went_wrong(
    tmp_path: Path,
    functions: dict[str, Any],
    trouble: Callable[[Path], dict[str, Any]],
    function: Callable[..., Any],
) -> None:
    with pytest.raises(TROUBLES[trouble]) as caught:
        function(KEY, strict=True, **{**functions, **trouble(tmp_path)})
    assert isinstance(caught.value, KstoreError)


@pytest.mark.parametrize("function", [restore, commit, synchronized])
@pytest.mark.parametrize("key", ["", "../x", "a b", "@env", None])
def test_a_bad_key_always_raises(functions: dict[str, Any], function: Callable[..., Any], key: Any) -> None:
    with pytest.raises(UsageError):
        function(key, **functions)


@pytest.mark.parametrize("wrong", [{"layout": "zip"}, {"components": ("nothing",)}, {"bogus": 1}], ids=str)
@pytest.mark.parametrize("function", [restore, commit])
def test_a_bad_argument_always_raises(
    tmp_path: Path, functions: dict[str, Any], function: Callable[..., Any], wrong: dict[str, Any]
) -> None:
    with pytest.raises((UsageError, TypeError)):
        function(KEY, store=tmp_path / "store", **{**functions, **wrong})


def test_a_bad_seed_always_raises(tmp_path: Path, functions: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        restore(KEY, seed="../x", store=tmp_path / "store", **functions)


@pytest.mark.parametrize("generation", ["1", 1.0, True, 0, -1], ids=repr)
@pytest.mark.parametrize("call", ["restore", "rollback", "pin", "unpin"])
def test_a_number_that_is_not_a_generation_is_refused(first: Node, call: str, generation: Any) -> None:
    first.tree.wrapper()
    first.commit()
    with pytest.raises(UsageError, match=f"generation={generation!r}"):
        getattr(first.store, call)(KEY, generation=generation)


@pytest.mark.parametrize("function", [restore, synchronized])
def test_a_bad_generation_is_refused_before_anything_is_done(
    tmp_path: Path, functions: dict[str, Any], function: Callable[..., Any]
) -> None:
    with pytest.raises(UsageError, match="generation='1'"):
        function(KEY, generation="1", store=tmp_path / "store", **functions)


def test_a_miss_is_no_trouble(tmp_path: Path, functions: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    assert restore(KEY, store=tmp_path / "store", **functions).status is RestoreStatus.MISS
    assert warnings(caplog) == []


def test_synchronized_restores_and_commits(tmp_path: Path, functions: dict[str, Any]) -> None:
    functions |= {"store": tmp_path / "store"}
    node = Node(tmp_path, "root")
    with synchronized(KEY, **functions) as cache:
        assert cache.restored.status is RestoreStatus.MISS
        assert os.environ["TRITON_CACHE_DIR"] == f"{tmp_path}/root/triton"
        node.tree.wrapper()
    assert cache.committed.status is CommitStatus.COMMITTED
    with synchronized(KEY, **functions) as cache:
        pass
    assert (cache.restored.generation, cache.committed.status) == (1, CommitStatus.UNCHANGED)


def test_synchronized_decorates(tmp_path: Path, functions: dict[str, Any]) -> None:
    node = Node(tmp_path, "root")

    @synchronized(KEY, store=tmp_path / "store", **functions)
    def warm_up(name: str) -> str:
        return node.tree.wrapper(name)

    assert {warm_up("one"), warm_up("two")} == set(contents(node.tree.root))
    assert node.newest().generation == 2


def test_an_error_of_the_body_is_raised_and_its_kernels_are_kept(tmp_path: Path, functions: dict[str, Any]) -> None:
    node = Node(tmp_path, "root")
    with pytest.raises(ZeroDivisionError), synchronized(KEY, store=tmp_path / "store", **functions):
        node.tree.wrapper()
        raise ZeroDivisionError
    assert node.newest().files == 1


def test_trouble_does_not_disturb_the_body(
    tmp_path: Path, functions: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    ran = []
    with synchronized(KEY, **functions, **missing(tmp_path)) as cache:
        ran.append(True)
    assert ran == [True]
    assert (cache.restored.status, cache.committed.status) == (RestoreStatus.FAILED, CommitStatus.FAILED)
    assert len(warnings(caplog)) == 2


@pytest.mark.parametrize("verb", ["restore", "commit"])
def test_a_worker_that_waits_too_long_for_a_cache_root_is_told_of_it_and_not_of_the_store(
    first: Node, verb: str
) -> None:
    store = first.store
    is_held_up = Haste(lambda: store.waiting.describe("") != "", 0.0)
    named = re.escape(f"waiting for another process that has {first.tree.root}/.kstore/lock has taken more than ")
    with store.worker(KEY, before_import=False).state.locked(), pytest.raises(WaitTimeout, match=named):
        within(0, store.waiting, f"what {store.location} takes", partial(getattr(store, verb), KEY), is_held_up)


OTHER = "other/v1"


def test_a_root_with_the_kernels_of_another_key_is_a_warning(first: Node, caplog: pytest.LogCaptureFixture) -> None:
    first.tree.wrapper()
    first.commit()
    assert first.restore(OTHER).status is RestoreStatus.MISS
    (line,) = warnings(caplog)
    assert f"has the kernels of {KEY}, and is now used for {OTHER}" in line
    assert first.commit(OTHER).status is CommitStatus.COMMITTED
    first.restore(OTHER)
    assert warnings(caplog) == [line]


def test_a_root_with_the_kernels_of_another_environment_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path)
    node.tree.wrapper()
    node.commit()
    Node(tmp_path, environment="newer").restore()
    (line,) = warnings(caplog)
    assert f"has the kernels of {node.store.scope(KEY)}, and is now used for " in line
    assert "give each GPU and environment a cache root of its own" in line


def test_a_commit_of_a_root_with_the_kernels_of_another_key_is_a_warning(
    first: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """No restore for that key has reported it."""
    first.tree.wrapper()
    first.commit()
    assert warnings(caplog) == []
    assert first.commit(OTHER).status is CommitStatus.COMMITTED
    (line,) = warnings(caplog)
    assert f"has the kernels of {KEY}, and all of them are now published under {OTHER}" in line
    assert "give each key a cache root of its own" in line
    first.tree.wrapper("more")
    assert first.commit(OTHER).status is CommitStatus.COMMITTED
    assert warnings(caplog) == [line]


@pytest.mark.parametrize(
    ("umask", "mode", "told"), [(0o077, 0o755, 1), (0o027, 0o2775, 1), (0o027, 0o2770, 0), (0o022, 0o777, 0)]
)
def test_a_umask_that_hides_what_is_committed_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, umask: int, mode: int, told: int
) -> None:
    """Hidden from others whom the store's folder lets in."""
    node = Node(tmp_path)
    node.location.mkdir()
    node.location.chmod(mode)
    before = os.umask(umask)
    try:
        for name in ("one", "two"):
            node.tree.wrapper(name)
            assert node.commit().status is CommitStatus.COMMITTED
    finally:
        os.umask(before)
    lines = [line for line in warnings(caplog) if f"the umask {umask:03o} hides what is committed" in line]
    assert len(lines) == len(warnings(caplog)) == told


def test_a_root_with_the_kernels_of_the_seed_is_no_warning(
    first: Node, second: Node, caplog: pytest.LogCaptureFixture
) -> None:
    first.tree.wrapper()
    first.commit()
    assert second.restore(OTHER, seed=KEY).status is RestoreStatus.SEEDED
    assert second.restore(OTHER, seed=KEY).status is RestoreStatus.SEEDED
    second.commit(OTHER)
    second.restore(OTHER)
    assert warnings(caplog) == []


def test_a_backend_is_enough_to_find_what_a_ref_names(first: Node) -> None:
    """Everything but refs is named by its content, and every ref names content."""
    backend = PosixBackend(first.location)
    for path in contents(first.location):
        folder, _, rest = path.partition("/")
        if folder == "blobs":
            assert digest_of(backend.get(path)).hex() == rest.partition("/")[2]
        if folder == "packs":
            assert digest_of(backend.get(path)).hex() == rest


def test_progress_says_how_far_a_restore_or_commit_has_come(first: Node, second: Node) -> None:
    first.tree.kernel()
    first.commit()
    assert first.store.progress.done == first.store.progress.total > 0
    report = second.restore()
    assert second.store.progress == Progress(report.placed, report.placed)
