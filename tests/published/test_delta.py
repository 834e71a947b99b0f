"""A manifest that is stored as its difference from an earlier one: less is written, and nothing else changes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kstore.blobs import BlobStore
from kstore.blobs.loose import blob_name
from kstore.blobs.packindex import pack_name
from kstore.blobs.packreader import PackReader
from kstore.condemned import Condemned, write_lists
from kstore.damaged import damaged_blobs, set_aside_blob
from kstore.digest import digest_of
from kstore.errors import IntegrityError
from kstore.gc import GcStatus
from kstore.operations.copy import copy_keys
from kstore.operations.repair import Repair
from kstore.operations.theirs import Newest
from kstore.published import delta
from kstore.published.delta import difference, follow, read_manifest
from kstore.published.manifest import Flag, Manifest
from kstore.published.ref import Delta, Ref, load_ref
from kstore.report import CommitStatus
from kstore.scope import Scope
from tests.gc.stores import collect, collect_fully, generations, kernels, pass_time, restored, stored
from tests.trees import Node, contents, entry

MANY = 600
OTHER = "model/v2"


def listed(number: int, *more: str) -> Manifest:
    """A manifest of `number` artifacts, plus `more`."""
    names = [*(f"triton/{count:05}/k.cubin" for count in range(number)), *more]
    return Manifest(
        {name: entry(name, Flag.LINK, mtime_ns=int.from_bytes(name.encode()[-7:], "little")) for name in names}
    )


# ---- The difference itself

EARLIER = listed(3_000).dump()
LATER = listed(3_000, "triton/01500x/k.cubin", "inductor/one.py").dump()


def test_one_more_artifact_is_a_fraction_of_the_list_and_gives_all_of_it() -> None:
    found = difference(LATER, EARLIER)
    assert found is not None
    assert len(found) < len(LATER) / 20
    assert follow(found, EARLIER, len(LATER)) == LATER


def test_what_has_little_in_common_is_stored_whole() -> None:
    assert difference(LATER, os.urandom(len(LATER))) is None


def test_a_short_list_is_stored_whole() -> None:
    assert difference(listed(20, "one").dump(), listed(20).dump()) is None


@pytest.mark.parametrize("data, base", [(LATER, EARLIER), (EARLIER, LATER)])
def test_a_list_too_long_to_be_held_twice_is_stored_whole(
    data: bytes, base: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "_MAX_SIZE", max(len(EARLIER), len(LATER)) - 1)
    assert difference(data, base) is None


def made() -> bytes:
    found = difference(LATER, EARLIER)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "data, size",
    [
        (lambda: made(), len(LATER) + 1),
        (lambda: made(), len(LATER) - 1),
        (lambda: made()[:-1], len(LATER)),
        (lambda: made()[: len(made()) // 2], len(LATER)),
        (lambda: b"", 0),
        (lambda: b"nothing of the kind", len(LATER)),
    ],
    ids=["longer", "shorter", "cut short", "half", "empty", "text"],
)
def test_data_that_is_not_a_difference_raises_a_typed_error(data: Callable[[], bytes], size: int) -> None:
    with pytest.raises(IntegrityError):
        follow(data(), EARLIER, size)


def test_after_another_manifest_it_gives_no_bytes_that_are_believed(filled: Node) -> None:
    ref = grow(filled, "more")
    assert ref.delta
    blobs = filled.store.storage.blobs
    wrong = replace(ref, manifest=b"\1" * 32)
    assert digest_of(read_manifest(blobs, ref)) == ref.manifest
    with pytest.raises(IntegrityError, match="another manifest"):
        read_manifest(blobs, wrong)


@pytest.mark.parametrize("part", ["size", "follows_size"])
def test_a_declared_size_that_no_delta_has_is_not_read(filled: Node, part: str) -> None:
    ref = grow(filled, "more")
    assert ref.delta
    large: dict[str, Any] = {part: 1 << 50}
    with pytest.raises(IntegrityError, match="more than a delta has"):
        read_manifest(filled.store.storage.blobs, replace(ref, delta=ref.delta._replace(**large)))


# ---- Commits


@pytest.fixture
def filled(tmp_path: Path, layout: str) -> Node:
    """A worker whose key has so many artifacts that a difference is worthwhile for its list of them."""
    node = Node(tmp_path, layout=layout)
    fill(node)
    node.commit()
    return node


def fill(node: Node) -> None:
    for number in range(MANY):
        node.tree.wrapper(f"number {number}")
    node.tree.kernel("first")


def grow(node: Node, name: str) -> Ref:
    node.tree.kernel(name)
    assert node.commit().status is CommitStatus.COMMITTED
    return node.newest()


def assert_all_is_restored(key: str, publisher: Node, folder: Path) -> None:
    fresh = Node(folder, "fresh", layout=None)
    assert fresh.restore(key).skipped == ()
    assert contents(fresh.tree.root).keys() == contents(publisher.tree.root).keys()


def whole_manifest(node: Node) -> tuple[bytes, int]:
    """The manifest of the first generation."""
    ref = node.store.storage.refs.get(node.store.scope("model/v1"), 1)
    return ref.manifest, ref.manifest_size


def test_the_first_generation_is_stored_whole(filled: Node) -> None:
    ref = filled.newest()
    assert ref.delta is None
    assert ref.stored == {ref.manifest: ref.manifest_size}


def test_one_more_kernel_writes_the_kernel_and_little_more(filled: Node, tmp_path: Path) -> None:
    size = filled.newest().manifest_size
    filled.tree.kernel("more")
    report = filled.commit()
    ref = filled.newest()
    assert ref.delta
    assert set(ref.stored) == {whole_manifest(filled)[0], ref.delta.digest}
    assert ref.delta.size < size / 10
    assert report.uploaded < size / 4
    assert restored(tmp_path, "other") == kernels(filled)


def test_all_follow_on_the_one_that_is_stored_whole(filled: Node, tmp_path: Path) -> None:
    found = [grow(filled, name).delta for name in ("two", "three", "four")]
    assert [(known.follows, known.follows_size) for known in found if known] == [whole_manifest(filled)] * 3
    assert restored(tmp_path, "other") == kernels(filled)


def note_fetched(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Notes from now on which blobs are fetched by themselves."""
    asked, fetch = list[bytes](), BlobStore.fetch
    monkeypatch.setattr(
        BlobStore, "fetch", lambda self, digest, *how: asked.append(digest) or fetch(self, digest, *how)
    )
    return asked


def test_the_manifest_that_others_follow_on_is_read_once(filled: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    first, followed = filled.newest(), dict[bytes, bytes]()
    read_manifest(filled.store.storage.blobs, grow(filled, "two"), followed)
    assert {digest: digest_of(data) for digest, data in followed.items()} == {first.manifest: first.manifest}

    ref = grow(filled, "three")
    asked = note_fetched(monkeypatch)
    assert digest_of(read_manifest(filled.store.storage.blobs, ref, followed)) == ref.manifest
    assert ref.delta
    assert asked == [ref.delta.digest]


def test_a_commit_that_lost_a_race_reads_only_what_the_winner_has_added(
    filled: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = Newest(filled.store.storage, grow(filled, "two").scope, None)
    newest.theirs()
    added = grow(filled, "three").delta
    asked = note_fetched(monkeypatch)
    assert newest.theirs().generation == 3
    assert added
    assert asked == [added.digest]


def test_a_commit_with_nothing_new_notices_that_the_manifest_which_others_follow_on_is_lost(
    filled: Node, tmp_path: Path
) -> None:
    """Though it has that manifest itself, since its root grew from it: nobody else could restore anything."""
    other = Node(tmp_path, "other", layout=None)
    other.restore()
    grow(filled, "two")
    set_aside_blob(other.store.storage.backend, whole_manifest(filled)[0])
    for pack in filled.store.storage.blobs.packs():
        (filled.location / pack_name(pack)).unlink()
    assert other.commit().generation == 3
    assert restored(tmp_path, "third") == kernels(other)


def test_what_has_changed_too_much_is_stored_whole_again(filled: Node, tmp_path: Path) -> None:
    grow(filled, "two")
    for number in range(MANY):
        filled.tree.wrapper(f"another {number}")
    filled.commit()
    assert filled.newest().delta is None
    assert restored(tmp_path, "other") == kernels(filled)


def test_a_ref_says_what_its_manifest_follows_on(filled: Node) -> None:
    ref = grow(filled, "more")
    assert load_ref(ref.scope, ref.generation, ref.dump()) == ref


@pytest.mark.parametrize("part", ["digest", "size", "base"])
@pytest.mark.parametrize("value", [None, "x", [], {}, "g" * 64, -1, -(2**70)])
def test_a_ref_that_says_it_wrong_is_damaged(filled: Node, part: str, value: object) -> None:
    ref = grow(filled, "more")
    content = json.loads(ref.dump())
    content["delta"][part] = value
    with pytest.raises(IntegrityError, match="damaged"):
        load_ref(ref.scope, ref.generation, json.dumps(content).encode())


def assert_follows_and_outlives(node: Node, first: Node, manifest: bytes, tmp_path: Path) -> None:
    """The other key's manifest follows on one of the first key's, and can be read when that key is gone."""
    found = node.newest(OTHER).delta
    assert found
    assert found.follows == manifest
    first.store.forget("model/v1")
    collect_fully(first)
    assert_all_is_restored(OTHER, node, tmp_path)


def test_a_seeded_key_follows_on_its_seed(filled: Node, tmp_path: Path) -> None:
    other = Node(tmp_path, "other", layout=filled.store.settings.layout)
    other.restore(OTHER, seed="model/v1")
    other.tree.kernel("more")
    other.commit(OTHER)
    assert_follows_and_outlives(other, filled, whole_manifest(filled)[0], tmp_path)


def test_a_new_key_follows_on_one_beside_it(tmp_path: Path) -> None:
    first, second = (Node(tmp_path, name, layout="packed") for name in ("first", "second"))
    fill(first)
    first.commit()
    fill(second)
    second.tree.kernel("more")
    second.commit(OTHER)
    assert_follows_and_outlives(second, first, first.newest().manifest, tmp_path)


def test_a_new_key_does_not_rely_on_one_beside_it_that_is_condemned(tmp_path: Path) -> None:
    first, second = (Node(tmp_path, name, layout="packed") for name in ("first", "second"))
    fill(first)
    first.commit()
    first.store.forget("model/v1")
    for _ in range(2):
        pass_time(first)
        collect(first)
    fill(second)
    second.commit(OTHER)
    assert second.newest(OTHER).delta is None
    collect_fully(first)
    assert Node(tmp_path, "third", layout=None).restore(OTHER).skipped == ()


def test_a_seeded_key_does_not_follow_on_a_seed_that_gc_has_condemned(filled: Node, tmp_path: Path) -> None:
    other = Node(tmp_path, "other", layout=filled.store.settings.layout)
    other.restore(OTHER, seed="model/v1")
    filled.store.forget("model/v1")
    pass_time(filled)
    collect(filled)
    other.tree.kernel("more")
    other.commit(OTHER)
    assert other.newest(OTHER).delta is None
    collect_fully(filled)
    assert_all_is_restored(OTHER, other, tmp_path)


def test_a_seeded_key_does_not_follow_on_a_manifest_that_is_on_a_list(tmp_path: Path) -> None:
    """As one that was condemned when a commit relied on it already: it stays listed for as long as it is needed."""
    node, other = Node(tmp_path), Node(tmp_path, "other")
    fill(node)
    node.commit()
    other.restore(OTHER, seed="model/v1")
    write_lists(node.store.storage.backend, [Condemned(False, node.newest().manifest, 0, 0, 0)])
    other.tree.kernel("more")
    other.commit(OTHER)
    assert other.newest(OTHER).delta is None


def test_what_is_copied_to_a_key_does_not_follow_on_its_manifest_while_that_is_on_a_list(tmp_path: Path) -> None:
    source, target = Node(tmp_path / "source"), Node(tmp_path / "target")
    for node in (source, target):
        node.location.parent.mkdir()
        fill(node)
        node.commit()
    write_lists(target.store.storage.backend, [Condemned(False, target.newest().manifest, 0, 0, 0)])
    grow(source, "more")
    copy_keys(source.store, target.store)
    assert (target.newest().generation, target.newest().delta) == (2, None)


def test_a_new_key_does_not_follow_on_a_loose_manifest_of_one_beside_it(tmp_path: Path) -> None:
    """Nobody has asked whether that is condemned."""
    first, linked, second = Node(tmp_path, layout="packed"), Node(tmp_path), Node(tmp_path, "second", layout="packed")
    fill(first)
    first.commit()
    for number in range(MANY):
        linked.tree.wrapper(f"another {number}")
    linked.commit()
    ref = linked.newest()
    assert (bool(ref.packs), ref.delta, blob_name(ref.manifest) in stored(linked)) == (True, None, True)
    fill(second)
    second.commit(OTHER)
    assert second.newest(OTHER).delta is None


# ---- What becomes of what it follows on


def test_gc_keeps_it_while_anything_follows_on_it(filled: Node, tmp_path: Path) -> None:
    for name in ("two", "three", "four"):
        grow(filled, name)
    collect_fully(filled, keep=1)
    assert generations(filled) == [4]
    assert restored(tmp_path, "other") == kernels(filled)


def test_gc_deletes_it_once_nothing_does(tmp_path: Path) -> None:
    node = Node(tmp_path, layout="loose")
    fill(node)
    node.commit()
    first = whole_manifest(node)[0]
    grow(node, "two")
    collect_fully(node, keep=1)
    assert blob_name(first) in stored(node)

    for number in range(MANY):
        node.tree.wrapper(f"another {number}")
    node.commit()
    collect_fully(node, keep=1)
    assert generations(node) == [3]
    assert blob_name(first) not in stored(node)
    assert restored(tmp_path, "other") == kernels(node)


def test_a_commit_stores_all_of_its_manifest_where_what_it_would_follow_on_is_damaged(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path, layout="loose")
    fill(node)
    node.commit()
    path = node.location / blob_name(whole_manifest(node)[0])
    path.chmod(0o644)
    path.unlink()
    path.write_bytes(b"damaged")
    ref = grow(node, "more")
    assert ref.delta is None
    assert restored(tmp_path, "other") == kernels(node)


def rot(node: Node, pack: str) -> None:
    """Change one byte of artifacts; the manifest stays whole."""
    path = node.location / pack_name(pack)
    frame = PackReader(node.store.storage.backend, pack).index.frames[0]
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[frame.offset + frame.packed_size // 2] ^= 0xFF
    path.write_bytes(data)


@pytest.fixture
def packed(tmp_path: Path) -> Node:
    node = Node(tmp_path, layout="packed")
    fill(node)
    node.commit()
    return node


def test_what_another_key_follows_on_outlives_the_repair_and_the_end_of_the_first(packed: Node, tmp_path: Path) -> None:
    other = Node(tmp_path, "other", layout="packed")
    other.restore(OTHER, seed="model/v1")
    other.tree.kernel("more")
    other.commit(OTHER)
    rot(packed, packed.newest().packs[0])
    packed.store.verify("model/v1", repair=True)
    for name in ("again", "third"):
        other.tree.kernel(name)
        other.commit(OTHER)
        packed.store.verify(OTHER, repair=True)
    packed.store.forget("model/v1")
    for _ in range(2):
        assert collect_fully(packed).status is GcStatus.COLLECTED
    assert_all_is_restored(OTHER, other, tmp_path)


@pytest.mark.parametrize("later", [(), ("again", "third")], ids=["no more commits", "two more commits"])
def test_what_was_committed_while_its_pack_was_repaired_has_its_manifest(
    later: tuple[str, ...], packed: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rot(packed, packed.newest().packs[0])
    run = Repair.run

    def late(repair: Repair, unreadable: list[tuple[Scope, int]], verified: Sequence[Scope]) -> bool:
        packed.tree.kernel("meanwhile")
        packed.commit()
        return run(repair, unreadable, verified)

    with monkeypatch.context() as patch:
        patch.setattr(Repair, "run", late)
        packed.store.verify("model/v1", repair=True)
    for name in later:
        packed.tree.kernel(name)
        packed.commit()
    for _ in range(2):
        assert collect_fully(packed).status is GcStatus.COLLECTED
    assert Node(tmp_path, "reader", layout=None).restore().ok
    packed.store.verify("model/v1", repair=True)
    packed.tree.kernel("last")
    packed.commit()
    assert restored(tmp_path, "fresh") == kernels(packed)


def test_a_damaged_manifest_costs_no_more_than_those_that_follow_on_it(tmp_path: Path) -> None:
    node = Node(tmp_path, layout="loose")
    fill(node)
    node.commit()
    refs = [node.newest(), *(grow(node, f"kernel {number}") for number in range(2, 12))]
    whole = [ref for ref in refs if ref.delta is None]
    assert [ref.generation for ref in whole] == [1, 9]
    (node.location / blob_name(whole[1].manifest)).unlink()
    assert Node(tmp_path, "other").restore().generation == 8


def test_a_generation_whose_difference_is_lost_is_passed_over_and_repaired(tmp_path: Path) -> None:
    node = Node(tmp_path, layout="loose")
    fill(node)
    node.commit()
    found = grow(node, "more").delta
    assert isinstance(found, Delta)
    (node.location / blob_name(found.digest)).unlink()
    other = Node(tmp_path, "other")
    assert other.restore().generation == 1
    report = node.store.verify("model/v1", repair=True)
    assert [damage.generation for damage in report.damage] == [2]
    node.commit()
    assert damaged_blobs(node.store.storage.backend).keys() <= {found.digest}
    assert restored(tmp_path, "third") == kernels(node)
