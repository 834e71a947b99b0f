"""A copy brings the newest generations of one store into another, and moves only what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kstore.blobs.loose import blob_name
from kstore.blobs.packindex import pack_name
from kstore.errors import MissError, StoreUnavailable, UsageError
from kstore.gc import Policy
from kstore.operations import bring as bringing
from kstore.operations.copy import CopyReport, copy_keys
from kstore.report import CommitStatus
from kstore.scope import Scope
from kstore.similarity import by_similarity
from kstore.upload.uploader import Uploader
from kstore.used import mark_name
from tests.bundles.carrying import Stored, fill, other_store, restored
from tests.faults.reading import AWAY, raising, unlistable
from tests.gc.stores import collect_fully, pass_time
from tests.trees import ENVIRONMENT, GPU, KEY, Node, as_if_newer, contents, without_relocated

SCOPE = Scope(GPU, KEY, ENVIRONMENT)


@pytest.fixture
def source(tmp_path: Path) -> Node:
    return fill(other_store(tmp_path / "source", "packed"), "one", "two")


@pytest.fixture
def target(tmp_path: Path, layout: str) -> Node:
    return other_store(tmp_path / "target", layout)


def copy(source: Node, target: Node, *keys: str, **choice: Any) -> CopyReport:
    return copy_keys(source.store, target.store, keys, **choice)


def test_what_is_copied_restores_as_it_was(source: Node, target: Node) -> None:
    (brought,) = copy(source, target).scopes
    assert (brought.status, brought.generation, brought.files) == (CommitStatus.COMMITTED, 1, source.newest().files)
    assert restored(target) == without_relocated(contents(source.tree.root))


def test_a_second_copy_has_nothing_to_copy(source: Node, target: Node) -> None:
    copy(source, target)
    before = contents(target.location)
    (brought,) = copy(source, target).scopes
    assert (brought.status, brought.new_blobs, brought.uploaded) == (CommitStatus.UNCHANGED, 0, 0)
    assert contents(target.location) == before | {mark_name(SCOPE): b""}


def test_a_mirror_that_is_copied_to_is_in_use(source: Node, target: Node) -> None:
    copy(source, target)
    pass_time(target, 40 * 86400)
    copy(source, target)
    assert target.store.gc(Policy(unused=30 * 86400.0)).forgotten == []


def test_only_what_is_missing_is_moved(source: Node, target: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    copy(source, target)
    known = {entry.digest for entry in source.published().values()}
    fill(source, "three")
    news = {entry.digest for entry in source.published().values()} - known
    stored = Stored(monkeypatch)
    (brought,) = copy(source, target).scopes
    assert len(stored.digests) == brought.new_blobs == len(news) + 1  # and the manifest
    assert news < set(stored.digests)
    assert restored(target) == without_relocated(contents(source.tree.root))


def test_every_key_keeps_its_scope(source: Node, target: Node, tmp_path: Path) -> None:
    other = Node(tmp_path / "source", "other", layout="loose", environment="torch-other")
    other.tree.wrapper("other")
    other.commit("another/key")
    report = copy(source, target)
    assert {brought.scope for brought in report.scopes} == set(source.store.scopes()) == set(target.store.scopes())


def test_keys_and_environments_can_be_chosen(source: Node, target: Node, tmp_path: Path) -> None:
    other = Node(tmp_path / "source", "other", environment="torch-other")
    other.tree.wrapper("other")
    other.commit()
    other.commit("another/key")
    assert {b.scope.key for b in copy(source, target, "another/key").scopes} == {"another/key"}
    assert {b.scope.environment for b in copy(source, target, KEY, environment=ENVIRONMENT).scopes} == {ENVIRONMENT}
    assert copy(source, target, gpu="another").scopes == []
    assert {b.scope.environment for b in copy(source, target, environment="torch-other").scopes} == {"torch-other"}
    assert len(copy(source, target, KEY, KEY, environment=ENVIRONMENT).scopes) == 1
    with pytest.raises(MissError, match="nothing is published for missing"):
        copy(source, target, "missing")
    with pytest.raises(UsageError, match="key"):
        copy(source, target, "../key")


def test_it_is_merged_with_what_is_there(source: Node, target: Node) -> None:
    fill(target, "three")
    (brought,) = copy(source, target).scopes
    assert (brought.generation, brought.declined) == (2, 0)
    assert restored(target) == without_relocated(contents(source.tree.root) | contents(target.tree.root))


def test_two_stores_that_are_copied_both_ways_hold_the_same(source: Node, target: Node) -> None:
    fill(target, "two", "three")
    copy(source, target)
    copy(target, source)
    assert restored(target) == restored(source)
    assert copy(source, target).scopes[0].status is CommitStatus.UNCHANGED


@pytest.mark.parametrize("verb", ["forget", "quarantine"])
def test_what_was_withdrawn_stays_so_unless_it_is_named(source: Node, target: Node, verb: str) -> None:
    copy(source, target)
    getattr(target.store, verb)(KEY)
    report = copy(source, target)
    assert (report.scopes, report.withdrawn) == ([], [target.store.scope(KEY)])
    assert copy(source, target, KEY).scopes[0].status is CommitStatus.COMMITTED
    assert restored(target) == without_relocated(contents(source.tree.root))


@pytest.mark.parametrize("verb", ["forget", "quarantine"])
def test_what_is_withdrawn_while_it_is_copied_stays_so(
    source: Node, target: Node, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy(source, target)
    source.tree.kernel("new")
    source.commit()
    upload = Uploader.copy

    def withdrawn_meanwhile(uploader: Uploader, *arguments: Any) -> set[bytes]:
        monkeypatch.undo()
        getattr(target.store, verb)(KEY)
        return upload(uploader, *arguments)

    monkeypatch.setattr(Uploader, "copy", withdrawn_meanwhile)
    report = copy(source, target)
    assert (report.scopes, report.withdrawn) == ([], [target.store.scope(KEY)])
    assert target.newest().files == 0


def test_what_the_source_forgot_is_not_copied(source: Node, target: Node) -> None:
    source.store.forget(KEY)
    assert copy(source, target).scopes == []
    assert not target.location.exists()


def test_a_withdrawn_key_that_is_named_is_reported(source: Node, target: Node) -> None:
    source.store.forget(KEY)
    report = copy(source, target, KEY)
    (reason,) = report.missing
    assert report.damaged == []
    assert "is not copied: it was forgotten or quarantined there" in reason


def test_a_named_key_of_which_a_repair_found_nothing_left_is_reported(source: Node, target: Node) -> None:
    (pack,) = source.newest().packs
    (source.location / pack_name(pack)).unlink()
    source.store.verify(repair=True)
    assert copy(source, target).missing == []
    (reason,) = copy(source, target, KEY).missing
    assert "or a repair found nothing left of it" in reason


def test_a_damaged_key_is_left_out_and_reported(source: Node, target: Node) -> None:
    good = Node(source.location.parent, "good", layout="packed")
    good.tree.wrapper("good")
    good.commit("good/key")
    for pack in source.newest().packs:
        path = source.location / "packs" / pack
        path.chmod(0o644)
        data = bytearray(path.read_bytes())
        data[20] ^= 1
        path.write_bytes(data)
    report = copy(Node(source.location.parent, layout="packed"), target)
    assert [brought.scope.key for brought in report.scopes] == ["good/key"]
    assert len(report.damaged) == 1 and KEY in report.damaged[0]
    assert target.store.newest(target.store.scope(KEY)) is None


def test_a_key_is_left_out_and_reported_if_a_file_that_is_to_be_merged_is_lost(tmp_path: Path, target: Node) -> None:
    source = other_store(tmp_path / "source")
    for node, values in ((source, {"a": 1}), (target, {"b": 2})):
        path = node.tree.timings(values)
        node.commit()
    (source.location / blob_name(source.published()[path].digest)).unlink()
    report = copy(source, target)
    assert report.scopes == []
    assert len(report.damaged) == 1 and f"{path} is missing or damaged in {source.location}" in report.damaged[0]
    assert target.newest().generation == 1


@pytest.mark.parametrize("which", [0, -1], ids=["the first", "the last"])
def test_a_key_is_left_out_and_reported_whichever_batch_the_lost_blob_is_in(
    tmp_path: Path, target: Node, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    source = fill(other_store(tmp_path / "source"))
    _, entry = sorted(source.published().items(), key=by_similarity)[which]
    (source.location / blob_name(entry.digest)).unlink()
    monkeypatch.setattr(bringing, "_BATCH", 1)
    report = copy(source, target)
    assert report.scopes == []
    assert len(report.damaged) == 1 and "nothing is published" in report.damaged[0]
    assert target.store.newest(target.store.scope(KEY)) is None


@pytest.mark.parametrize("side", ["source", "target"])
def test_what_a_newer_kstore_wrote_is_left_out_and_reported_and_the_others_are_copied(
    source: Node, target: Node, side: str
) -> None:
    source.commit("other/v1")
    source.commit("z/v1")
    copy(source, target, "other/v1")
    node = source if side == "source" else target
    as_if_newer(node.location / node.newest("other/v1").name)
    report = copy(source, target)

    assert sorted(brought.scope.key for brought in report.scopes) == [KEY, "z/v1"]
    (why,) = report.unreadable
    assert "other/v1" in why and "install the version that made it" in why


def with_a_second_generation(source: Node) -> Node:
    source.tree.wrapper("new")
    source.commit()
    return source


def test_where_the_newest_manifest_is_lost_the_generation_before_is_copied_and_that_is_reported(
    source: Node, target: Node
) -> None:
    (lost,) = {*with_a_second_generation(source).newest().packs} - {*source.store.storage.refs.get(SCOPE, 1).packs}
    (source.location / "packs" / lost).unlink()
    report = copy(other_store(source.location.parent, "packed"), target)
    assert [brought.status for brought in report.scopes] == [CommitStatus.COMMITTED]
    assert report.damaged == [f"generation 2 of {SCOPE} is damaged, and passed over"]


def test_that_the_newest_generation_is_damaged_is_reported_also_if_nothing_was_published_before(
    source: Node, target: Node
) -> None:
    source.store.forget(KEY)
    with_a_second_generation(source)
    for pack in (source.location / "packs").iterdir():
        pack.unlink()
    report = copy(other_store(source.location.parent, "packed"), target)
    assert report.scopes == []
    assert report.damaged == [f"generation 3 of {SCOPE} is damaged, and passed over"]


def test_where_the_newest_ref_cannot_be_read_only_a_key_that_is_named_is_copied(source: Node, target: Node) -> None:
    """The key may have been withdrawn."""
    copy(source, target)
    source.store.quarantine(KEY)
    (source.location / source.newest().name).chmod(0o644)
    (source.location / source.newest().name).write_bytes(b"damaged")
    report = copy(source, target)
    assert report.scopes == []
    assert len(report.damaged) == 1 and f"{SCOPE} is not copied: " in report.damaged[0]
    report = copy(source, target, KEY)
    assert [brought.status for brought in report.scopes] == [CommitStatus.UNCHANGED]
    assert report.damaged == [f"generation 2 of {SCOPE} is damaged, and passed over"]


def test_a_target_whose_newest_ref_is_damaged_is_healed(source: Node, target: Node) -> None:
    copy(source, target)
    path = target.location / target.newest().name
    path.chmod(0o644)
    path.write_bytes(b"damaged")
    (brought,) = copy(source, target).scopes
    assert (brought.status, brought.generation) == (CommitStatus.COMMITTED, 2)
    assert restored(target) == without_relocated(contents(source.tree.root))


def test_gc_after_a_copy_takes_nothing_of_it(source: Node, target: Node) -> None:
    fill(target, "two")
    copy(source, target)
    for _ in range(3):
        collect_fully(target)
    assert restored(target) == without_relocated(contents(source.tree.root) | contents(target.tree.root))


def test_a_loose_source_is_copied_as_well(tmp_path: Path, target: Node) -> None:
    source = fill(other_store(tmp_path / "loose", "loose"), "one", "two")
    copy(source, target)
    assert restored(target) == without_relocated(contents(source.tree.root))


def test_a_store_is_not_copied_to_itself(source: Node) -> None:
    again = source.location.parent / "again"
    again.mkdir()
    (again / "store").symlink_to(source.location)
    for folder in (source.location.parent, again):
        with pytest.raises(UsageError, match="same store"):
            copy(source, Node(folder, "again"))


def test_what_is_hidden_of_another_gpu_than_the_one_that_is_copied_is_no_trouble(
    source: Node, target: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source.location / "refs/gpu-other/hidden").mkdir(parents=True)
    unlistable(monkeypatch, "refs/gpu-other/hidden")

    assert copy(source, target, gpu=GPU).unreadable == []
    assert len(copy(source, target).unreadable) == 1


def test_a_source_that_is_not_a_store_is_reported(tmp_path: Path, target: Node) -> None:
    with pytest.raises(StoreUnavailable, match="no store"):
        copy(Node(tmp_path), target)


def test_a_target_that_is_only_read_is_not_written(source: Node, tmp_path: Path) -> None:
    target = other_store(tmp_path / "target", mode="read")
    with pytest.raises(StoreUnavailable, match="mode"):
        copy(source, target)


def test_trouble_while_it_is_written_names_the_target(
    source: Node, target: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Uploader, "copy", raising(AWAY))
    with pytest.raises(StoreUnavailable, match=f"cannot write to the store at {target.location}"):
        copy(source, target)


def test_how_far_it_has_come_is_told_in_blobs(source: Node, target: Node) -> None:
    (brought,) = copy(source, target).scopes
    progress = target.store.progress
    assert progress.done == progress.total == brought.new_blobs - 1  # the manifest is none of them


def test_where_no_cache_root_could_be_linked_to_blobs_are_packed(
    source: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kstore.operations.copy.nearest_writable", lambda folder: "")
    target = other_store(tmp_path / "target", None)
    copy(source, target)
    assert (target.location / "packs").is_dir() and not (target.location / "blobs").exists()


def test_how_blobs_are_stored_is_found_out_by_linking(source: Node, tmp_path: Path) -> None:
    """As a commit from here would find it out."""
    target = other_store(tmp_path / "target", None)
    copy(source, target)
    assert (target.location / "blobs").is_dir() and not (target.location / "packs").exists()
    assert GPU in {brought.scope.gpu for brought in copy(source, target).scopes}
