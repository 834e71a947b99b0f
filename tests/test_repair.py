"""Verify and repair beside other keys and other workers: nothing that is whole, or was committed, is lost."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kstore.blobs.loose import blob_name
from kstore.blobs.packindex import pack_name
from kstore.condemned import Condemned, read_doomed, write_lists
from kstore.damaged import damaged_blobs
from kstore.environment import Host
from kstore.gc import GcStatus
from kstore.gc.digests import DigestSet
from kstore.gc.mark import needs_of
from kstore.gc.seek import seek
from kstore.operations import repair as repairing
from kstore.operations.repair import Repair
from kstore.operations.verify import _Verification
from kstore.published.ref import Ref, RefState
from kstore.published.refs import Refs
from kstore.report import CommitStatus, RestoreStatus
from kstore.storage import Storage
from tests.faults.reading import AWAY, trouble_with
from tests.gc.stores import collect, collect_fully, generations, kernels, pass_time, restored
from tests.trees import KEY, Node

OTHER = "model/v2"


@pytest.fixture(autouse=True)
def known(host: Host) -> None:
    """A host that is known without running the compiler."""


def meanwhile(patch: pytest.MonkeyPatch, owner: type | ModuleType, method: str, act: Callable[[], object]) -> None:
    """Something happens just before a method is called for the first time."""
    real, left = getattr(owner, method), [act]

    def late(*arguments: Any, **options: Any) -> Any:
        if left:
            left.pop()()
        return real(*arguments, **options)

    patch.setattr(owner, method, late)


def rot_frame(node: Node, path: str) -> None:
    """Damage the frame of a pack that an artifact is in."""
    rot_blob(node, node.published()[path].digest)


def rot_blob(node: Node, digest: bytes) -> None:
    """Damage the frame of a pack that a blob is in."""
    blobs = node.store.storage.blobs
    (pack,) = [pack for pack in node.newest().packs if digest in blobs.pack(pack).index.digests]
    index = blobs.pack(pack).index
    number = index.digests.index(digest)
    ends = accumulate(frame.blobs for frame in index.frames)
    frame = next(frame for frame, end in zip(index.frames, ends, strict=True) if number < end)
    rot(node.location / pack_name(pack), frame.offset + frame.packed_size // 2)


def rot(path: Path, at: int) -> None:
    """Change a byte, and nothing else that can be seen."""
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(0o444)
    os.utime(path, ns=times)


def large(node: Node) -> None:
    """A file that has a frame of its own."""
    node.tree.put("inductor/ab/clarge.py", random.Random(1).randbytes(5 << 20))


def test_what_another_key_has_lost_comes_back_with_its_next_commit(tmp_path: Path) -> None:
    first, second = Node(tmp_path, "first", layout="packed"), Node(tmp_path, "second", layout="packed")
    kernel = first.tree.kernel("of the first only")
    large(first)
    first.commit()
    large(second)
    second.commit(OTHER)
    rot_frame(first, f"{kernel}/k.cubin")
    assert second.store.verify(OTHER, repair=True).repaired
    first.commit()
    assert restored(tmp_path, "third") == kernels(first)


@pytest.mark.parametrize("published", [1, 2], ids=["the only one", "the newest"])
def test_what_is_committed_while_a_generation_is_repaired_stays_the_newest(
    published: int, layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, other = Node(tmp_path, layout=layout), Node(tmp_path, "other", layout=layout)
    for generation in range(published):
        node.tree.wrapper(f"of generation {generation}")
        node.commit()
    damage_ref(node)
    other.tree.wrapper("of another worker")
    meanwhile(monkeypatch, Refs, "reserve", other.commit)
    assert node.store.verify(repair=True).repaired
    assert other.newest().generation == published + 1
    assert kernels(other).items() <= restored(tmp_path, "third").items()
    node.commit()
    assert restored(tmp_path, "fourth") == kernels(node) | kernels(other)


def damage_ref(node: Node) -> None:
    """Damage the ref of the newest generation."""
    path = node.location / node.newest().name
    path.chmod(0o644)
    path.write_bytes(b"garbage")


def test_a_blob_that_a_commit_has_healed_before_the_repair_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, other = Node(tmp_path), Node(tmp_path, "other")
    path = node.tree.wrapper()
    node.commit()
    blob = node.location / blob_name(node.published()[path].digest)
    blob.chmod(0o644)
    blob.write_bytes(b"cut short")
    other.tree.wrapper()
    meanwhile(monkeypatch, Repair, "run", lambda: other.commit(OTHER))
    assert node.store.verify(repair=True).repaired
    assert restored(tmp_path, "third") == kernels(node)
    assert not any((node.location / "quarantine").iterdir())


@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "rotten"])
def test_a_loose_blob_is_damaged_although_a_pack_of_another_key_has_it_whole(is_gone: bool, tmp_path: Path) -> None:
    packed, loose = Node(tmp_path, "packed", layout="packed"), Node(tmp_path, "loose", layout="loose")
    packed.tree.wrapper()
    packed.commit()
    path = loose.tree.wrapper()
    loose.commit("another/v1")
    blob = loose.location / blob_name(loose.published("another/v1")[path].digest)
    blob.unlink() if is_gone else rot(blob, 5)

    (damage,) = loose.store.verify(repair=True).damage
    assert (damage.scope.key, damage.paths) == ("another/v1", (path,))
    assert loose.store.verify().ok
    fresh = Node(tmp_path, "fresh")
    fresh.restore("another/v1")
    assert fresh.tree.read(path) == loose.tree.read(path)
    assert not any((loose.location / "quarantine").iterdir())


def test_the_repair_of_a_key_keeps_what_is_noted_of_others(tmp_path: Path) -> None:
    loose, packed = Node(tmp_path, "loose", layout="loose"), Node(tmp_path, "packed", layout="packed")
    path = loose.tree.wrapper()
    loose.commit()
    packed.tree.wrapper()
    packed.commit(OTHER)
    (loose.location / blob_name(loose.published()[path].digest)).unlink()
    assert loose.store.verify(KEY, repair=True).damage
    assert loose.store.verify(OTHER, repair=True).repaired
    loose.tree.kernel("more")
    loose.commit()
    packed.store.forget(OTHER)
    collect_fully(packed, keep=1)
    assert restored(tmp_path, "fresh") == kernels(loose)
    assert loose.store.verify(repair=True).repaired
    assert not any((loose.location / "quarantine").iterdir())


def test_what_is_noted_stays_while_a_generation_that_may_need_it_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loose, packed = Node(tmp_path, "loose", layout="loose"), Node(tmp_path, "packed", layout="packed")
    path = loose.tree.wrapper()
    loose.commit()
    packed.tree.wrapper()
    packed.commit(OTHER)
    digest = loose.published()[path].digest
    (loose.location / blob_name(digest)).unlink()
    assert loose.store.verify(KEY, repair=True).damage
    trouble_with(monkeypatch, loose.newest().name, AWAY)
    assert loose.store.verify(repair=True).unreadable
    assert digest in damaged_blobs(loose.store.storage.backend)


def test_what_gc_removes_while_verify_reads_is_not_damage(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, other = Node(tmp_path, layout=layout), Node(tmp_path, "other")
    for variant in "abc":
        node.tree.kernel("one", variant)
        node.commit()
    reads = "_check_pack" if layout == "packed" else "_read_loose"
    meanwhile(monkeypatch, _Verification, reads, lambda: collect(other, keep=1, offline=True))
    report = node.store.verify()
    assert (report.ok, report.damage, report.packs) == (True, [], [])


def damaged(tmp_path: Path) -> Node:
    """A worker with two generations that share a pack, in which one frame is damaged."""
    node = Node(tmp_path, layout="packed")
    node.tree.kernel("whole")
    large(node)
    node.commit()
    node.tree.wrapper("of the second generation")
    node.commit()
    rot_blob(node, node.published()["inductor/ab/clarge.py"].digest)
    return node


def salvaged(tmp_path: Path) -> Node:
    """The same worker after a repair, which has published a third generation."""
    node = damaged(tmp_path)
    assert node.store.verify(repair=True).repaired
    assert node.newest().generation == 3
    return node


def forgotten_and_damaged(tmp_path: Path) -> Node:
    """A worker whose key was forgotten: only the generation before names a pack, and a frame of that is damaged."""
    node = Node(tmp_path, layout="packed")
    node.tree.kernel("whole")
    large(node)
    node.commit()
    rot_frame(node, "inductor/ab/clarge.py")
    node.store.forget(KEY)
    return node


def whole(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files of the first generation that were not damaged."""
    return {path: data for path, data in files.items() if path.startswith("triton/")}


def placed(folder: Path, name: str, generation: int | None = None) -> dict[str, bytes]:
    """What a fresh worker gets, even if some of it is lost."""
    fresh = Node(folder, name, layout=None)
    fresh.store.restore(KEY, generation=generation)
    return whole(kernels(fresh))


def test_what_is_rolled_back_to_after_a_repair_outlives_gc(tmp_path: Path) -> None:
    node = salvaged(tmp_path)
    assert node.store.rollback(KEY, 1).generation == 4
    assert placed(tmp_path, "before") == whole(kernels(node))
    collect_fully(node, keep=1)
    assert generations(node) == [4]
    assert placed(tmp_path, "after") == whole(kernels(node))


def test_a_generation_that_is_rolled_back_to_after_a_repair_names_the_packs_that_are_there(tmp_path: Path) -> None:
    node = salvaged(tmp_path)
    ref = node.store.rollback(KEY, 1)
    assert all(map(node.store.storage.blobs.has_pack, ref.packs))
    held = node.store.storage.blobs.digests_in(ref.packs)
    assert ref.stored.keys() <= held


@pytest.mark.parametrize("pinned", [1, 2])
def test_a_pinned_generation_whose_pack_was_taken_away_keeps_what_was_saved_of_it(pinned: int, tmp_path: Path) -> None:
    node = salvaged(tmp_path)
    node.store.pin(KEY, pinned)
    node.store.forget(KEY)
    collect_fully(node, keep=1)
    assert generations(node) == [pinned, 4]
    assert placed(tmp_path, "after", pinned) == whole(kernels(node))


def test_what_a_pinned_generation_lacks_goes_along_when_packs_become_one(tmp_path: Path) -> None:
    node = salvaged(tmp_path)
    node.store.pin(KEY, 1)
    before = set(node.newest().packs)
    for number in range(10):
        node.tree.wrapper(f"{number}")
        node.commit()
    collect_fully(node, keep=1)
    assert before.isdisjoint(node.newest().packs)
    collect_fully(node, keep=1)
    assert placed(tmp_path, "after", 1) == whole(kernels(node))


def test_what_is_whole_of_a_pack_that_only_earlier_generations_name_is_saved(tmp_path: Path) -> None:
    node = forgotten_and_damaged(tmp_path)
    node.store.pin(KEY, 1)
    assert node.store.verify(repair=True).repaired
    assert collect_fully(node, keep=1).status is GcStatus.COLLECTED
    assert placed(tmp_path, "after", 1) == whole(kernels(node))
    assert node.store.rollback(KEY, 1)
    assert placed(tmp_path, "newest") == whole(kernels(node))


def test_a_store_with_damage_goes_on_shrinking(tmp_path: Path) -> None:
    """What a pinned generation lacks is in the packs of many others: that with its manifest and one more suffice."""
    node = salvaged(tmp_path)
    node.store.pin(KEY, 1)
    for number in range(5):
        other = Node(tmp_path, f"other {number}", layout="packed")
        other.tree.kernel("whole")
        large(other)
        other.commit(f"{number}/v1")
        other.store.forget(f"{number}/v1")
    node.store.forget(KEY)
    collect_fully(node, keep=1)
    collect_fully(node, keep=1)
    blobs = node.store.storage.blobs
    assert len([pack for pack in blobs.packs() if len(blobs.pack(pack).index.digests) > 2]) <= 2
    assert placed(tmp_path, "after", 1) == whole(kernels(node))


def test_a_pack_that_gc_may_delete_does_not_replace_the_one_that_it_keeps(tmp_path: Path) -> None:
    node = salvaged(tmp_path)
    storage = node.store.storage
    ref = storage.refs.get(node.store.scope(KEY), 1)
    (saved,) = [pack for pack in storage.blobs.packs() if ref.stored.keys() <= storage.blobs.digests_in([pack])]
    other = Node(tmp_path, "other", layout="packed")
    other.tree.kernel("whole")
    other.commit("other/v1")
    (other_pack,) = other.newest("other/v1").packs
    condemn(storage, other_pack)
    assert sought(storage, ref) == {saved}
    condemn(storage, saved)
    assert sought(storage, ref) == {saved, other_pack}


def condemn(storage: Storage, pack: str) -> None:
    """As gc condemns a pack that no ref names."""
    found = storage.backend.stat(pack_name(pack))
    write_lists(storage.backend, [Condemned(True, bytes.fromhex(pack), found.inode, found.mtime_ns, found.size)])


def sought(storage: Storage, ref: Ref) -> set[str]:
    """What gc keeps for a generation if it goes by that generation alone."""
    with DigestSet() as lacking:
        lacking.add(needs_of(storage, ref).lacking)
        return seek(storage, lacking, ())


def test_verify_knows_what_was_saved_and_notes_what_is_lost_once(tmp_path: Path) -> None:
    node = salvaged(tmp_path)
    node.store.pin(KEY, 1)
    node.store.forget(KEY)
    collect_fully(node, keep=1)
    noted = set[str]()
    for _ in range(3):
        report = node.store.verify(repair=True)
        assert [(damage.generation, damage.paths) for damage in report.damage] == [(1, ("inductor/ab/clarge.py",))]
        assert report.packs == []
        noted = {path.name.partition(".")[0] for path in (node.location / "quarantine").iterdir()}
        assert len(noted) == len(list((node.location / "quarantine").iterdir()))
    assert len(noted) == 2  # The pack, and the blob.


def test_a_repair_that_is_held_up_names_no_pack_that_gc_has_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has saved is named by no generation yet."""
    node, saved = Node(tmp_path, layout="packed"), list[str]()
    large(node)
    kernel = node.tree.kernel()
    node.commit()
    rot_frame(node, f"{kernel}/k.cubin")
    whole_packs = Repair._whole_packs

    def late(repair: Repair, ref: Ref) -> tuple[str, ...]:
        packs = whole_packs(repair, ref)
        if not saved:
            saved.extend(packs)
            collect_fully(Node(tmp_path, "gc"))
        return packs

    monkeypatch.setattr(Repair, "_whole_packs", late)
    assert node.store.verify(repair=True).repaired
    has_pack = node.store.storage.blobs.has_pack
    assert saved and not any(map(has_pack, saved))
    assert node.newest().packs and all(map(has_pack, node.newest().packs))
    fresh = Node(tmp_path, "fresh")
    fresh.restore()
    assert fresh.tree.read("inductor/ab/clarge.py") == node.tree.read("inductor/ab/clarge.py")


@pytest.mark.parametrize("phases", [1, 2], ids=["condemned", "deleted"])
def test_a_repair_that_is_held_up_takes_away_no_pack_before_what_it_saved_is_there_to_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phases: int
) -> None:
    """As long as the damaged pack is in its place, gc sees no need for another one."""
    node = forgotten_and_damaged(tmp_path)
    node.store.pin(KEY, 1)

    def collected() -> None:
        for _ in range(phases):
            pass_time(node)
            collect(Node(tmp_path, "gc"), keep=1)

    meanwhile(monkeypatch, repairing, "set_aside_pack", collected)
    assert node.store.verify(repair=True).repaired
    for pack in read_doomed(node.store.storage.backend, tuple).packs:  # A gc that was held up may delete it even now.
        (node.location / pack_name(pack)).unlink()
    assert placed(tmp_path, "fresh", 1) == whole(kernels(node))


def test_a_repair_that_is_held_up_has_nothing_to_take_away_where_gc_was_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the generation that named the damaged pack goes what was saved of it."""
    node = forgotten_and_damaged(tmp_path)
    meanwhile(monkeypatch, repairing, "set_aside_pack", lambda: collect_fully(Node(tmp_path, "gc"), keep=1))
    assert node.store.verify(repair=True).repaired
    assert {pack.name for pack in (node.location / "packs").iterdir()} == {*node.newest().packs}


def test_a_rollback_while_a_repair_moves_packs_gets_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = damaged(tmp_path)
    named = Repair._named

    def rolled_back(repair: Repair) -> set[str]:
        found = named(repair)
        Node(tmp_path, "operator").store.rollback(KEY, 1)
        return found

    monkeypatch.setattr(Repair, "_named", rolled_back)
    assert node.store.verify(repair=True).repaired
    monkeypatch.undo()
    collect_fully(node, keep=1)
    assert all(map(node.store.storage.blobs.has_pack, node.newest().packs))
    assert placed(tmp_path, "after") == whole(kernels(node))


def test_a_commit_does_not_rely_on_what_a_repair_has_moved(tmp_path: Path) -> None:
    node = Node(tmp_path, layout="packed")
    path = node.tree.wrapper("that comes back")
    large(node)
    node.commit()
    rot_frame(node, "inductor/ab/clarge.py")
    operator = Node(tmp_path, "operator")
    assert operator.store.verify(repair=True).repaired
    operator.store.forget(KEY)
    fresh = Node(tmp_path, layout="packed")
    fresh.tree.put("inductor/cd/csame.py", fresh.tree.read(path))
    assert fresh.commit().status is CommitStatus.COMMITTED
    storage, ref = fresh.store.storage, fresh.newest()
    assert {entry.digest for entry in fresh.published().values()} <= storage.blobs.digests_in(ref.packs)


def test_what_a_repair_found_nothing_of_was_withdrawn_by_nobody(tmp_path: Path) -> None:
    node = Node(tmp_path, layout="packed")
    node.tree.wrapper()
    node.commit()
    (pack,) = node.newest().packs
    path = node.location / pack_name(pack)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:100])
    assert node.store.verify(repair=True).repaired
    assert node.newest().state is RefState.LOST
    report = Node(tmp_path, "fresh").restore()
    assert (report.status, report.withdrawn) == (RestoreStatus.MISS, "")
    node.store.quarantine(KEY)
    assert Node(tmp_path, "another").restore().withdrawn == "quarantined"
