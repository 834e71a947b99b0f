"""What cannot be read just now is not damage: verify says so, and a repair leaves it where it is."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from itertools import islice
from mmap import mmap
from pathlib import Path

import pytest

from kstore.blobs.loose import blob_name
from kstore.blobs.packindex import MAX_SHARED_FRAME, pack_name
from kstore.blobs.packreader import Blob, PackReader
from kstore.bundles.writer import BundleWriter
from kstore.damaged import set_aside_blob
from kstore.errors import StoreFormatError, StoreUnavailable
from kstore.inspect.artifact import read_artifact
from kstore.inspect.comparison import compare_sides
from kstore.inspect.sides import published_side
from kstore.operations.copy import copy_keys
from kstore.operations.repair import Repair
from kstore.pages import TableFile
from kstore.published.ref import Ref
from kstore.published.scopes import scopes_of
from tests.bundles.carrying import other_store
from tests.faults.reading import AWAY, trouble_with, unlistable
from tests.gc.stores import collect, collect_fully, generations, kernels, pass_time, restored
from tests.test_repair import large, meanwhile, placed, rot, rot_frame, salvaged, whole
from tests.trees import ENVIRONMENT, GPU, KEY, Node, as_if_newer, contents

FORBIDDEN = OSError(errno.EACCES, os.strerror(errno.EACCES))


@pytest.fixture
def node(tmp_path: Path, layout: str) -> Node:
    """A worker with one generation in two packs, or in loose blobs, and none before it."""
    node = Node(tmp_path, layout=layout)
    node.tree.kernel("one")
    node.commit()
    node.tree.kernel("two")
    node.commit()
    pass_time(node)
    collect(node, keep=1)
    return node


def name_of(node: Node, suffix: str) -> str:
    """The name of the object that a kernel's blob is in. If that is a pack, it holds no manifest that is needed."""
    packs = node.newest().packs
    digest = next(entry.digest for path, entry in sorted(node.published().items()) if path.endswith(suffix))
    return f"packs/{packs[-1]}" if packs else blob_name(digest)


@pytest.mark.parametrize("trouble", [AWAY, FORBIDDEN, MemoryError()], ids=repr)
def test_a_repair_leaves_alone_what_cannot_be_read(
    node: Node, trouble: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, before = name_of(node, "cubin"), contents(node.location)
    with monkeypatch.context() as patch:
        trouble_with(patch, name, trouble)
        report = node.store.verify(repair=True)

    assert (report.ok, report.repaired, report.packs, report.damage) == (False, False, [], [])
    (told,) = report.unreadable
    assert name.rpartition("/")[2] in told
    assert contents(node.location) == before
    assert node.store.verify().ok
    assert restored(tmp_path, "other") == kernels(node)


@pytest.mark.parametrize(
    ("what", "trouble"),
    [("ref", AWAY), ("ref", MemoryError()), ("manifest", AWAY), ("manifest", FORBIDDEN)],
    ids=repr,
)
def test_a_generation_that_cannot_be_read_keeps_no_other_from_being_checked(
    what: str, trouble: Exception, node: Node, layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Node(tmp_path, "other", layout=layout)
    path = other.tree.wrapper()
    other.commit("z/v1")
    rot(other.location / place_of(other, other.published("z/v1")[path].digest, other.newest("z/v1")), 20)
    newest, before = node.newest(), contents(node.location)
    trouble_with(monkeypatch, newest.name if what == "ref" else place_of(node, newest.manifest, newest), trouble)
    report = other.store.verify()

    told, *_ = report.unreadable
    assert "generation 2 of model/v1" in told
    assert report.packs == list(other.newest("z/v1").packs)
    assert report.is_damaged
    assert {damage.scope.key for damage in report.damage} <= {"z/v1"}
    assert contents(node.location) == before


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("trouble", [AWAY, MemoryError()], ids=repr)
def test_what_was_read_of_a_pack_before_the_trouble_began_is_whole(
    tmp_path: Path, trouble: Exception, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    salvage, sizes = PackReader.salvage, list[int]()

    def fail(reader: PackReader) -> Iterator[Blob]:
        sizes.clear()
        for digest, data in islice(salvage(reader), count):
            sizes.append(len(data))
            yield digest, data
        raise trouble

    node = Node(tmp_path, layout="packed")
    node.tree.kernel("one")
    node.commit()
    monkeypatch.setattr("kstore.operations.verify._BATCH", 2)
    monkeypatch.setattr(PackReader, "salvage", fail)
    report = node.store.verify()
    assert (len(report.unreadable), report.packs, report.damage) == (1, [], [])
    assert report.bytes == sum(sizes) > 0


def test_a_lack_of_memory_for_a_large_blob_of_a_pack_is_not_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int, size: int) -> mmap:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    node = Node(tmp_path, layout="packed")
    node.tree.put("inductor/ab/clarge.py", bytes(2 * MAX_SHARED_FRAME))
    node.tree.kernel("one")
    node.commit()
    before = contents(node.location)
    with monkeypatch.context() as patch:
        patch.setattr("kstore.blobs.frames.mmap", refuse)
        report = node.store.verify(repair=True)
        assert contents(node.location) == before
        assert Node(tmp_path, "small").restore().left_out == 1
    assert (report.repaired, report.packs, report.damage) == (False, [], [])
    (told,) = report.unreadable
    assert "no memory" in told and node.newest().packs[0] in told
    assert restored(tmp_path, "other") == kernels(node)


def place_of(node: Node, digest: bytes, ref: Ref) -> str:
    """Where a generation's blob is."""
    holds = node.store.storage.blobs.digests_in
    return next((f"packs/{pack}" for pack in ref.packs if digest in holds([pack])), blob_name(digest))


def test_trouble_that_passes_is_not_reported(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    trouble_with(monkeypatch, name_of(node, "cubin"), AWAY, times=1)
    assert node.store.verify().ok


def test_what_is_lost_is_found_beside_what_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path)
    node.tree.kernel("one")
    node.commit()
    lost, forbidden = name_of(node, "cubin"), name_of(node, "ptx")
    (node.location / lost).unlink()
    trouble_with(monkeypatch, forbidden, FORBIDDEN)
    (damage,) = node.store.verify(repair=True).damage

    assert [path.rpartition(".")[2] for path in damage.paths] == ["cubin"]
    (quarantined,) = (node.location / "quarantine").iterdir()
    assert quarantined.name.startswith(lost.rpartition("/")[2])
    assert (node.location / forbidden).exists()


def test_a_damaged_pack_stays_while_what_is_whole_of_it_cannot_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away(PackReader):
        def salvage(self) -> Iterator[Blob]:
            yield from ()
            raise AWAY

    node = Node(tmp_path, layout="packed")
    node.tree.kernel("one")
    node.commit()
    pack = node.location / name_of(node, "cubin")
    pack.chmod(0o644)
    with open(pack, "r+b") as file:
        file.write(b"x")
    monkeypatch.setattr("kstore.operations.repair.PackReader", Away)
    with pytest.raises(StoreUnavailable, match="Input/output error"):
        node.store.verify(repair=True)
    assert pack.exists()


def test_a_generation_stays_while_the_pack_cannot_be_read_that_a_repair_has_saved_its_manifest_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = salvaged(tmp_path)
    node.store.pin(KEY, 1)
    node.store.forget(KEY)
    collect_fully(node, keep=1)
    (saved,) = set(node.store.storage.blobs.packs()) - set(node.newest().packs)
    with monkeypatch.context() as patch:
        trouble_with(patch, pack_name(saved), AWAY)
        report = node.store.verify(repair=True)
    (told,) = report.unreadable
    assert "generation 1 of model/v1" in told
    assert (report.repaired, generations(node)) == (False, [1, 4])
    assert placed(tmp_path, "after", 1) == whole(kernels(node))


def spread(tmp_path: Path) -> tuple[Node, str, str]:
    """The newest generation's pack has lost a part of a kernel. Returns the name of another key's pack that has it."""
    other, node = Node(tmp_path, "other", layout="packed"), Node(tmp_path, layout="packed")
    other.tree.kernel("one")
    other.commit("z/v1")
    (pack,) = other.newest("z/v1").packs
    large(node)
    kernel = node.tree.kernel("one")
    node.commit()
    rot_frame(node, f"{kernel}/k.cubin")
    return node, f"{kernel}/k.cubin", pack_name(pack)


def test_what_may_be_in_a_pack_that_cannot_be_read_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, _, pack = spread(tmp_path)
    with monkeypatch.context() as patch:
        trouble_with(patch, pack, AWAY)
        report = node.store.verify(KEY, repair=True)
    assert (report.repaired, report.damage) == (False, [])
    assert "blobs that may be in another pack" in report.unreadable[0]
    assert node.newest().generation == 1
    assert node.store.verify(repair=True).repaired
    assert restored(tmp_path, "fresh") == kernels(node)


def test_a_repair_publishes_nothing_without_what_may_be_in_a_pack_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, path, pack = spread(tmp_path)
    before = node.newest()
    with monkeypatch.context() as patch:
        meanwhile(patch, Repair, "run", lambda: trouble_with(patch, pack, AWAY))
        report = node.store.verify(repair=True)
    assert (report.repaired, report.unreadable, report.packs) == (False, [], list(before.packs))
    assert node.newest() == before
    assert node.store.verify(repair=True).repaired
    node.store.forget("z/v1")
    collect_fully(node, keep=1)
    fresh = Node(tmp_path, "fresh")
    fresh.restore()
    assert fresh.tree.read(path) == node.tree.read(path)


def trouble_with_another(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """The pack of another key cannot be read."""
    other = Node(folder, "other", layout="packed")
    other.tree.kernel("other")
    other.commit("z/v1")
    trouble_with(patch, pack_name(other.newest("z/v1").packs[0]), AWAY)


@pytest.fixture
def beside_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A server has lost the newest generation's pack, and cannot read another key's pack just now."""
    node = Node(tmp_path, layout="packed")
    for name in ("one", "two"):
        node.tree.kernel(name)
        node.commit()
    (node.location / pack_name(node.newest().packs[0])).unlink()
    trouble_with_another(monkeypatch, tmp_path)
    return node


def test_a_damaged_generation_is_passed_over_while_the_pack_of_another_key_cannot_be_read(
    beside_another: Node, tmp_path: Path
) -> None:
    fresh = Node(tmp_path, "fresh")
    report = fresh.restore()
    assert (report.generation, report.files, report.left_out) == (1, 8, 0)


def test_a_damaged_generation_is_healed_while_the_pack_of_another_key_cannot_be_read(
    beside_another: Node, tmp_path: Path
) -> None:
    assert beside_another.commit().generation == 3
    assert restored(tmp_path, "fresh") == kernels(beside_another)


def test_what_heals_a_damaged_generation_is_uploaded_ahead_while_the_pack_of_another_key_cannot_be_read(
    beside_another: Node,
) -> None:
    beside_another.store.upload_ahead(KEY)
    assert beside_another.commit().new_blobs == 1  # the manifest


def test_what_was_to_be_merged_and_is_lost_is_replaced_while_the_pack_of_another_key_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = Node(tmp_path, "one"), Node(tmp_path, "two")
    path = one.tree.timings({"one": 1.0})
    one.commit()
    (one.location / blob_name(one.published()[path].digest)).unlink()
    trouble_with_another(monkeypatch, tmp_path)
    two.tree.timings({"two": 2.0})
    assert two.commit().generation == 2
    assert restored(tmp_path, "fresh") == kernels(two)


def test_a_repair_takes_no_generation_out_that_may_be_in_the_pack_of_another_key(beside_another: Node) -> None:
    report = beside_another.store.verify(repair=True)
    assert (report.repaired, report.damage, generations(beside_another)) == (False, [], [1, 2])


def no_memory(patch: pytest.MonkeyPatch, times: int) -> None:
    """This process has no memory for a manifest, this many times."""
    left = [MemoryError()] * times

    def read(data: bytes) -> TableFile:
        if left:
            raise left.pop()
        return TableFile(data)

    patch.setattr("kstore.tables.TableFile", read)


def test_a_repair_without_memory_for_a_manifest_takes_no_generation_out(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, layout=layout)
    for name in ("one", "two"):
        node.tree.kernel(name)
        node.commit()
    before = contents(node.location)
    with monkeypatch.context() as patch:
        no_memory(patch, times=2)
        report = node.store.verify(repair=True)
    assert (report.repaired, report.damage, len(report.unreadable)) == (False, [], 2)
    assert contents(node.location) == before
    assert node.store.verify().ok


def test_a_restore_without_memory_for_a_manifest_takes_none_before_it(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.store.quarantine(KEY)
    with monkeypatch.context() as patch:
        no_memory(patch, times=10)
        with pytest.raises(StoreUnavailable, match="no memory for a table file"):
            Node(tmp_path, "other").restore()


def test_a_repair_puts_back_what_was_quarantined_whole(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.tree.kernel("one")
    node.commit()
    for entry in node.published().values():
        set_aside_blob(node.store.storage.backend, entry.digest)

    assert node.store.verify(repair=True).repaired
    assert node.store.verify().ok
    assert restored(tmp_path, "other") == kernels(node)
    assert not any((node.location / "quarantine").iterdir())


def test_what_a_newer_kstore_has_published_is_left_alone(node: Node, tmp_path: Path) -> None:
    """Its packs may need something that this version lacks."""
    as_if_newer(node.location / node.newest().name)
    pass_time(node)
    before = published_files(node)
    node.tree.kernel("three")
    for ask in (
        lambda: node.store.verify(repair=True),
        lambda: collect(node, keep=1),
        lambda: node.store.rollback(KEY),
        node.commit,
        Node(tmp_path, "other").restore,
    ):
        with pytest.raises(StoreFormatError, match="install the version that made it"):
            ask()
    assert before == published_files(node)
    beside = Node(tmp_path, "beside", layout="packed")
    beside.tree.kernel("one")
    beside.commit("model/v2")
    assert len(beside.newest("model/v2").packs) == 1  # it does not rely on the key beside it


def published_files(node: Node) -> dict[str, bytes]:
    return {p: data for p, data in contents(node.location).items() if p.startswith(("refs/", "packs/", "blobs/"))}


# ---- For commands that read single artifacts, or take them elsewhere


@pytest.mark.parametrize("trouble", [AWAY, FORBIDDEN], ids=repr)
def test_an_artifact_that_cannot_be_read_is_not_called_damaged(
    node: Node, trouble: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    side, told = published_side(node.store, node.newest()), list[str]()
    trouble_with(monkeypatch, name_of(node, "cubin"), trouble)
    for artifact in side.artifacts:
        try:
            read_artifact(side, artifact)
        except StoreUnavailable as error:
            told.append(str(error))

    assert told and all(str(trouble.strerror) in text for text in told)


def test_a_bundle_of_what_cannot_be_read_is_not_written(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = BundleWriter(node.store.storage, [node.store.snapshot(node.newest())])
    trouble_with(monkeypatch, name_of(node, "cubin"), AWAY)

    with pytest.raises(StoreUnavailable, match=str(AWAY.strerror)):
        writer.write(io.BytesIO())


def store_beside_two_keys(tmp_path: Path, layout: str) -> Node:
    """Publish another key, "z/v1", and return another store, which is empty."""
    other = Node(tmp_path, "other", layout=layout)
    other.tree.wrapper()
    other.commit("z/v1")
    return other_store(tmp_path / "target", layout)


def test_a_key_that_cannot_be_read_keeps_no_other_from_being_copied(
    node: Node, tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = store_beside_two_keys(tmp_path, layout)
    trouble_with(monkeypatch, name_of(node, "cubin"), FORBIDDEN)
    report = copy_keys(node.store, target.store)

    assert [brought.scope.key for brought in report.scopes] == ["z/v1"]
    (told,) = report.unreadable
    assert KEY in told and str(FORBIDDEN.strerror) in told
    assert (report.damaged, report.leaning, report.missing) == ([], [], [])


def test_a_folder_that_cannot_be_listed_keeps_no_other_key_from_being_copied(
    node: Node, tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = store_beside_two_keys(tmp_path, layout)
    unlistable(monkeypatch, f"refs/{GPU}/{KEY}", FORBIDDEN)
    report = copy_keys(node.store, target.store)

    assert [brought.scope.key for brought in report.scopes] == ["z/v1"]
    (told,) = report.unreadable
    assert told.startswith(f"{KEY} ({GPU}) is not copied: ") and str(FORBIDDEN.strerror) in told
    assert copy_keys(node.store, target.store, gpu="another").unreadable == []


@pytest.mark.parametrize("folder", ["", f"/@{ENVIRONMENT}"], ids=["key", "environment"])
def test_a_folder_that_cannot_be_listed_keeps_no_other_key_from_being_checked(
    node: Node, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.commit("z/v1")
    unlistable(monkeypatch, f"refs/{GPU}/{KEY}{folder}", FORBIDDEN)
    report = node.store.verify()

    assert (report.generations, report.damage, report.ok) == (1, [], False)
    (told,) = report.unreadable
    assert told.startswith(KEY) and str(FORBIDDEN.strerror) in told
    before = contents(node.location)
    with pytest.raises(StoreUnavailable, match=str(FORBIDDEN.strerror)):
        node.store.verify(repair=True)
    assert contents(node.location) == before


def test_a_key_is_found_where_a_longer_one_cannot_be_listed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    longer = f"{KEY}/longer"
    node.commit(longer)
    unlistable(monkeypatch, f"refs/{GPU}/{longer}", FORBIDDEN)

    assert [ref.scope.key for ref in node.store.forget(KEY)] == [KEY]
    with pytest.raises(StoreUnavailable, match=str(FORBIDDEN.strerror)):
        node.store.forget(longer)


@pytest.mark.parametrize("hidden", [f"another-gpu/{KEY}", f"{GPU}/{KEY}/@another"])
def test_a_scope_that_is_named_is_found_where_others_cannot_be_listed(
    node: Node, hidden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (node.location / "refs" / hidden).mkdir(parents=True)
    unlistable(monkeypatch, f"refs/{hidden}", FORBIDDEN)
    storage = node.store.storage

    assert scopes_of(storage, KEY, GPU, ENVIRONMENT) == [node.newest().scope]
    for gpu, environment in ((None, None), ("another-gpu", None), ("a-third", ENVIRONMENT)):
        with pytest.raises(StoreUnavailable, match=str(FORBIDDEN.strerror)):
            scopes_of(storage, KEY, gpu, environment)


def test_two_generations_are_compared_as_far_as_they_can_be_read(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    before, known = node.newest(), node.published()
    node.tree.kernel("three")
    node.commit()
    after, news = node.newest(), node.published().items() - known.items()
    sides = [published_side(node.store, ref) for ref in (before, after)]
    for pack in set(after.packs) - set(before.packs):
        trouble_with(monkeypatch, f"packs/{pack}")
    for name in (blob_name(entry.digest) for path, entry in news if path.endswith(".json")):
        trouble_with(monkeypatch, name)

    assert compare_sides(*sides).unread == 1
