from __future__ import annotations

import errno
import gc
import os
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from kstore.aside import Aside, pieces_of
from kstore.backends import PosixBackend
from kstore.backends.reading import OpenedFile
from kstore.blobs import BlobStore, Layout
from kstore.blobs.loose import bears_stamp, blob_name
from kstore.blobs.packindex import FRAME_SIZE, MAX_SHARED_FRAME, PackIndex, load_index, pack_name
from kstore.blobs.wanted import Wanted
from kstore.blobs.writers import LooseBlobWriter, put_many
from kstore.digest import digest_of
from kstore.errors import IntegrityError
from kstore.progress import Progress
from tests.faults.reading import trouble_with, unlistable


@pytest.fixture
def backend(tmp_path: Path) -> PosixBackend:
    return PosixBackend(tmp_path / "store")


@pytest.fixture
def blobs(backend: PosixBackend) -> BlobStore:
    return BlobStore(backend)


def store(blobs: BlobStore, layout: Layout, *contents: bytes) -> tuple[str, ...]:
    with blobs.writer(layout) as writer:
        for data in contents:
            writer.put(digest_of(data), data)
        return writer.finish()


def fetch(
    blobs: BlobStore, contents: list[bytes], packs: tuple[str, ...] = (), troubles: list[Exception] | None = None
) -> list[bytes]:
    found = list(blobs.fetch_many({digest_of(data): len(data) for data in contents}, packs, troubles))
    assert all(digest_of(data) == digest for digest, data in found)
    return sorted(bytes(data) for _, data in found)


@pytest.mark.parametrize("layout", Layout)
def test_what_was_stored_is_fetched(blobs: BlobStore, layout: Layout) -> None:
    contents = [b"", b"one", b"two" * 1000, os.urandom(5 << 20)]
    packs = store(blobs, layout, *contents)
    assert fetch(blobs, contents, packs) == sorted(contents)
    assert fetch(blobs, contents) == sorted(contents)


def test_a_missing_blob_leaves_nothing_of_all_the_packs_in_memory(
    blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = store(blobs, Layout.PACKED, b"named")
    for number in range(20):
        store(blobs, Layout.PACKED, b"%d" % number)
    kept: list[int] = []

    def load(*arguments: Any) -> PackIndex:
        kept.append(sum(type(found) is PackIndex for found in gc.get_objects()))
        return load_index(*arguments)

    monkeypatch.setattr("kstore.blobs.packreader.load_index", load)
    assert fetch(blobs, [b"named", b"missing"], named) == [b"named"]
    assert len(kept) == 21
    assert max(kept) - kept[0] <= 2


def test_somebody_in_a_hurry_looks_through_some_packs_only(
    blobs: BlobStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kstore.blobs.blobstore.MOST_SEARCHED", 5)
    named = store(blobs, Layout.PACKED, b"named")
    for number in range(20):
        store(blobs, Layout.PACKED, b"%d" % number)
    with blobs.in_a_hurry():
        assert fetch(blobs, [b"named", b"missing"], named) == [b"named"]
        assert len(fetch(blobs, [b"%d" % number for number in range(20)])) == 0  # all five were used up
    assert [record.args for record in caplog.records] == [(1, 15)]  # It is said once.
    assert len(fetch(blobs, [b"%d" % number for number in range(20)])) == 20


def test_a_hurry_that_ends_late_does_not_end_the_next_one(blobs: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstore.blobs.blobstore.MOST_SEARCHED", 5)
    for number in range(6):
        store(blobs, Layout.PACKED, b"%d" % number)
    with ExitStack() as next_one:
        with blobs.in_a_hurry():
            next_one.enter_context(blobs.in_a_hurry())
        assert len(fetch(blobs, [b"%d" % number for number in range(6)])) == 5
    assert len(fetch(blobs, [b"%d" % number for number in range(6)])) == 6


@pytest.mark.parametrize("place", ["a pack that is named", "the loose blob", "another pack"])
def test_in_a_hurry_a_blob_is_missing_whatever_is_wrong_with_other_packs(
    place: str, blobs: BlobStore, backend: PosixBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, other = (store(blobs, Layout.PACKED, data)[0] for data in (b"named", b"other"))
    missing = digest_of(b"missing")
    names = {"a pack that is named": pack_name(named), "the loose blob": blob_name(missing)}
    trouble_with(monkeypatch, names.get(place, pack_name(other)))
    fresh = BlobStore(backend)
    with pytest.raises(OSError, match="Input/output error"):
        fresh.fetch(missing, 7, [named])
    with fresh.in_a_hurry(), pytest.raises(OSError if place in names else IntegrityError):
        fresh.fetch(missing, 7, [named])


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pack of each read, one entry a read."""
    found: list[str] = []
    real = OpenedFile.read

    def noted(file: OpenedFile, *part: int) -> bytes:
        found.append(file._name)
        return real(file, *part)

    monkeypatch.setattr(OpenedFile, "read", noted)
    return found


def test_a_few_small_packs_are_read_once_each(backend: PosixBackend, blobs: BlobStore, read: list[str]) -> None:
    contents = [b"%d" % number for number in range(8)]
    packs = tuple(pack for data in contents for pack in store(blobs, Layout.PACKED, data))
    fresh = BlobStore(backend)
    assert len(fresh.digests_in(packs)) == len(contents)
    assert fetch(fresh, contents, packs) == contents
    assert sorted(read) == sorted(map(pack_name, packs))


def held_by_views() -> dict[int, object]:
    """What memory views in any dictionary keep alive, by id. No id is used again while this exists."""
    tables = (found for found in gc.get_objects() if type(found) is dict)
    return {id(view.obj): view.obj for table in tables for view in table.values() if type(view) is memoryview}


def test_what_is_read_beside_indexes_is_not_kept_of_many_packs(
    backend: PosixBackend, blobs: BlobStore, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = [os.urandom(1000) for _ in range(50)]
    packs = tuple(pack for data in contents for pack in store(blobs, Layout.PACKED, data))
    largest = max(backend.stat(pack_name(pack)).size for pack in packs)
    monkeypatch.setattr("kstore.blobs.frames._ROOM_FOR_TAILS", 8 * largest)
    fresh, before = BlobStore(backend), held_by_views()
    assert len(fresh.digests_in(packs)) == len(contents)
    held = len(held_by_views().keys() - before.keys())
    assert held == 8
    assert fetch(fresh, contents, packs) == sorted(contents)
    assert len(read) == 2 * len(packs) - held


def test_a_small_pack_is_read_once(backend: PosixBackend, blobs: BlobStore, read: list[str]) -> None:
    contents = [b"one", b"two" * 1000, b"three"]
    packs = store(blobs, Layout.PACKED, *contents)
    fresh = BlobStore(backend)
    assert fetch(fresh, contents[:1], packs) == contents[:1]
    assert read == [pack_name(packs[0])]
    assert fetch(fresh, contents, packs) == sorted(contents)
    assert len(read) == 2  # What may have been damaged on its way is not kept.


def pack_of_nine_frames(backend: PosixBackend, blobs: BlobStore) -> tuple[list[bytes], tuple[str, ...], BlobStore]:
    """The contents, the pack's id, and a store that has looked at nothing yet."""
    contents = [os.urandom(600) + bytes(11_400) for _ in range(3000)]
    return contents, store(blobs, Layout.PACKED, *contents), BlobStore(backend)


def test_the_frames_of_a_pack_are_read_together(backend: PosixBackend, blobs: BlobStore, read: list[str]) -> None:
    contents, packs, fresh = pack_of_nine_frames(backend, blobs)
    frames = fresh.pack(packs[0]).index.frames
    assert fetch(fresh, contents, packs) == sorted(contents)
    assert len(frames) >= 9
    assert 2 <= len(read) <= 4  # the end with the index, and a megabyte at a time


def test_a_part_of_a_pack_that_cannot_be_read_costs_its_frame_alone(
    backend: PosixBackend, blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents, packs, fresh = pack_of_nine_frames(backend, blobs)
    bad = fresh.pack(packs[0]).index.frames[1]
    real = OpenedFile.read

    def read(file: OpenedFile, offset: int, length: int) -> bytes:
        if offset <= bad.offset < offset + length:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(file, offset, length)

    monkeypatch.setattr(OpenedFile, "read", read)
    wanted = {digest_of(data): len(data) for data in contents}
    parts = fresh.parts(Wanted(wanted.items()), packs)
    assert sum(1 for part in parts for _ in part.load()) == len(contents) - bad.blobs
    assert sum(1 for _ in fresh.fetch_many(wanted, packs)) == len(contents) - bad.blobs


@pytest.fixture
def uncollected() -> Iterator[None]:
    """As in a job that collects garbage when it chooses to."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.usefixtures("uncollected")
def test_packs_whose_ends_cannot_be_read_are_closed(backend: PosixBackend, blobs: BlobStore) -> None:
    packs = [pack for number in range(6) for pack in store(blobs, Layout.PACKED, b"%d" % number)]
    for pack in packs[:3]:
        Path(backend.path(pack_name(pack))).chmod(0o644)
        os.truncate(backend.path(pack_name(pack)), 100)
    fresh, before = BlobStore(backend), descriptors()
    assert fresh.digests_in(packs) == {digest_of(b"%d" % number) for number in (3, 4, 5)}
    assert fetch(fresh, [b"0", b"5"], tuple(packs)) == [b"5"]
    assert descriptors() == before


@pytest.mark.parametrize("count", [1, 3000])
@pytest.mark.usefixtures("uncollected")
def test_packs_of_which_a_part_cannot_be_read_are_closed_though_the_trouble_is_known(
    backend: PosixBackend, blobs: BlobStore, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    def fail(*part: object) -> NoReturn:
        raise OSError(errno.EIO, "it is away")

    contents, packs, fresh = pack_of_nine_frames(backend, blobs)
    assert fresh.pack(packs[0]).index
    monkeypatch.setattr(OpenedFile, "read", fail)
    before, troubles = descriptors(), list[Exception]()
    assert len(fetch(fresh, contents[:count], packs, troubles)) < count
    assert troubles and descriptors() == before


@pytest.mark.usefixtures("uncollected")
def test_parts_that_nobody_loads_any_more_keep_nothing_open_nor_in_memory(
    backend: PosixBackend, blobs: BlobStore
) -> None:
    contents, packs, fresh = pack_of_nine_frames(backend, blobs)
    assert fresh.pack(packs[0]).index
    before, held = descriptors(), held_by_views().keys()
    parts = list(fresh.parts(Wanted((digest_of(data), len(data)) for data in contents), packs))
    assert list(parts[0].load()) and descriptors() != before
    fresh.close()
    assert descriptors() == before
    assert held_by_views().keys() <= held
    assert list(parts[1].load())  # It is opened anew.


def test_what_is_read_in_one_go_is_kept_no_longer_than_for_two_goes(
    backend: PosixBackend, blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents, packs, fresh = pack_of_nine_frames(backend, blobs)
    monkeypatch.setattr("kstore.blobs.frames._TOGETHER", 1)
    monkeypatch.setattr("kstore.blobs.packreader._TAIL", 200_000)
    frames, before = fresh.pack(packs[0]).index.frames, held_by_views().keys()
    lengths, opened = list[int](), list[str]()
    real, real_open = OpenedFile.read, backend.open
    monkeypatch.setattr(OpenedFile, "read", lambda file, *part: lengths.append(part[1]) or real(file, *part))
    monkeypatch.setattr(backend, "open", lambda name: opened.append(name) or real_open(name))
    for part in fresh.parts(Wanted((digest_of(data), len(data)) for data in contents), packs):
        assert list(part.load())
        assert len(held_by_views().keys() - before) <= 2
    assert lengths and lengths == [frame.packed_size for frame in frames[: len(lengths)]]
    assert len(opened) == 1


def test_frames_between_which_nothing_is_wanted_are_read_apart(
    backend: PosixBackend, blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents, packs, fresh = pack_of_nine_frames(backend, blobs)
    assert fresh.pack(packs[0]).index
    lengths, real = list[int](), OpenedFile.read
    monkeypatch.setattr(OpenedFile, "read", lambda file, *part: lengths.append(part[1]) or real(file, *part))
    frames = fresh.pack(packs[0]).index.frames
    wanted = [contents[0], contents[frames[0].blobs + frames[1].blobs]]
    assert fetch(fresh, wanted, packs) == sorted(wanted)
    assert len(lengths) == 2 and sum(lengths) <= 2 * max(frame.packed_size for frame in frames)


def test_packed_blobs_are_one_file(backend: PosixBackend, blobs: BlobStore) -> None:
    (pack,) = store(blobs, Layout.PACKED, b"one", b"two")
    assert [str(path.relative_to(backend.root)) for path in backend.root.rglob("*") if path.is_file()] == [
        pack_name(pack)
    ]


def test_loose_blobs_are_a_file_each(backend: PosixBackend, blobs: BlobStore) -> None:
    assert store(blobs, Layout.LOOSE, b"one", b"two") == ()
    assert {path.name for path in backend.root.rglob("*") if path.is_file()} == {
        digest_of(b"one").hex(),
        digest_of(b"two").hex(),
    }


@pytest.mark.parametrize("layout", Layout)
def test_a_commit_without_blobs_writes_nothing(backend: PosixBackend, blobs: BlobStore, layout: Layout) -> None:
    assert store(blobs, layout) == ()
    assert not backend.root.exists()


def test_a_pack_that_is_not_finished_does_not_appear(backend: PosixBackend, blobs: BlobStore) -> None:
    with pytest.raises(KeyError), blobs.writer(Layout.PACKED) as writer:
        writer.put(digest_of(b"one"), b"one")
        raise KeyError
    assert blobs.packs() == []
    assert list(backend.list("tmp")) == []


def test_the_writers_count_what_reached_the_store(backend: PosixBackend, blobs: BlobStore) -> None:
    store(blobs, Layout.LOOSE, b"one")
    with blobs.writer(Layout.LOOSE) as loose:
        for data in (b"one", b"three"):
            loose.put(digest_of(data), data)
        loose.finish()
    assert (loose.blobs, loose.size) == (1, 5)
    assert isinstance(loose, LooseBlobWriter) and loose.found == {digest_of(b"one")}
    with blobs.writer(Layout.PACKED) as packed:
        packed.put(digest_of(b"one"), b"one")
        packed.put_manifest(digest_of(b"manifest"), b"manifest")
        (pack,) = packed.finish()
    assert (packed.blobs, packed.size) == (2, backend.stat(pack_name(pack)).size)


def test_no_more_than_some_batches_are_in_memory(blobs: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, sizes = list[object](), list[tuple[int, int]]()

    class Waiting:
        """A batch for which a thread has no time yet."""

        def done(self) -> bool:
            return False

        def result(self) -> None:
            waiting.remove(self)

    def submit(pool: object, function: object, batch: list[tuple[bytes, bytes]]) -> Waiting:
        sizes.append((len(batch), sum(len(data) for _, data in batch)))
        waiting.append(begun := Waiting())
        return begun

    monkeypatch.setattr("kstore.blobs.writers.submit", submit)
    with blobs.writer(Layout.LOOSE) as writer:
        for number in range(1000):
            writer.put(digest_of(b"%d" % number), b"%d" % number)
            assert len(waiting) <= 2
        writer.put(digest_of(large := bytes(5 << 20)), large)
        assert waiting == []  # There is only one large one.
        writer.finish()
    assert [count for count, _ in sizes] == [128] * 7 + [105]
    assert sizes[-1][1] > 5 << 20


def test_a_full_disk_is_tried_once_and_said_at_the_end(blobs: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[int]()

    def full(batch: Sequence[object]) -> NoReturn:
        tried.append(len(batch))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(blobs.loose, "put_many", full)
    with LooseBlobWriter(blobs.loose, asks=False) as writer:
        for data in (b"one", b"two"):
            writer.store([(digest_of(data), data)])
        with pytest.raises(OSError, match="No space left"):
            writer.settle()
    assert tried == [1]


def test_it_is_asked_what_exists_as_long_as_something_does(blobs: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store(blobs, Layout.LOOSE, b"1", b"2")
    asked, put = list[int](), list[int]()
    lacking, put_many = blobs.loose.lacking, blobs.loose.put_many
    with LooseBlobWriter(blobs.loose, asks=True) as writer:
        monkeypatch.setattr(blobs.loose, "lacking", lambda sizes: asked.append(len(sizes)) or lacking(sizes))
        monkeypatch.setattr(blobs.loose, "put_many", lambda batch: put.append(len(batch)) or put_many(batch))
        for batch in ((b"1", b"2"), (b"3", b"4", b"5"), (b"6", b"7", b"8", b"9")):
            writer.store([(digest_of(data), data) for data in batch])
            writer.settle()
    assert [count for count in asked if count] == [2, 3]  # All of the three were new.
    assert put == [0, 3, 4]
    assert (writer.blobs, writer.found) == (7, {digest_of(b"1"), digest_of(b"2")})


@pytest.mark.parametrize("layout", Layout)
def test_what_is_flushed_is_stored_while_nobody_waits(backend: PosixBackend, blobs: BlobStore, layout: Layout) -> None:
    data = os.urandom(1 << 12)
    with blobs.writer(layout) as writer:
        writer.flush()
        writer.put(digest_of(data), data)
        writer.flush()
        until = time.monotonic() + 30
        while sum(file.stat().st_size for file in backend.root.rglob("*") if file.is_file()) < len(data):
            assert time.monotonic() < until
            time.sleep(0.001)
        named = writer.finish()
    assert fetch(blobs, [data], named) == [data]


def test_the_manifest_can_be_read_without_the_other_blobs(backend: PosixBackend, blobs: BlobStore) -> None:
    with blobs.writer(Layout.PACKED) as writer:
        writer.put(digest_of(b"one"), b"one")
        writer.put_manifest(digest_of(b"manifest"), b"manifest")
        (pack,) = writer.finish()
    assert [frame.size for frame in blobs.pack(pack).index.frames] == [3, 8]


@pytest.mark.parametrize("size", [100, FRAME_SIZE, 2 * MAX_SHARED_FRAME])
@pytest.mark.parametrize("layout", Layout)
def test_a_manifest_that_was_put_aside_is_stored_as_any_other(
    backend: PosixBackend, blobs: BlobStore, tmp_path: Path, layout: Layout, size: int
) -> None:
    manifest = random.Random(size).randbytes(size)
    with blobs.writer(layout) as writer:
        writer.put(digest_of(b"one"), b"one")
        writer.put_manifest(digest_of(manifest), Aside(pieces_of(manifest), str(tmp_path)))
        named = writer.finish()
    fresh = BlobStore(backend)
    assert fresh.fetch(digest_of(manifest), size, named) == manifest and fetch(fresh, [b"one"], named) == [b"one"]
    assert writer.blobs == 2 and not fresh.loose.unreliable({digest_of(manifest): size})[1]
    if layout is Layout.LOOSE:
        found = backend.stat(blob_name(digest_of(manifest)))
        assert writer.size == 3 + size and bears_stamp(found.mtime_ns, digest_of(manifest))


@pytest.mark.parametrize("there", [b"manifest", b"short"])
def test_a_manifest_that_was_put_aside_is_stored_once_and_replaces_what_a_crash_left(
    backend: PosixBackend, blobs: BlobStore, tmp_path: Path, there: bytes
) -> None:
    name, aside = blob_name(digest_of(b"manifest")), Aside([b"mani", b"fest"], str(tmp_path))
    backend.put(name, there)
    with blobs.writer(Layout.LOOSE) as writer:
        writer.put_manifest(digest_of(b"manifest"), aside)
        writer.finish()
    assert backend.get(name) == b"manifest" and writer.blobs == (there == b"short")
    assert not list(backend.list("tmp"))


def test_blobs_are_found_wherever_they_are(blobs: BlobStore) -> None:
    named = store(blobs, Layout.PACKED, b"in a named pack")
    store(blobs, Layout.LOOSE, b"loose")
    store(blobs, Layout.PACKED, b"in a pack that nobody named")
    wanted = [b"in a named pack", b"loose", b"in a pack that nobody named", b"nowhere"]
    assert fetch(blobs, wanted, named) == sorted(wanted[:3])


def test_a_blob_that_is_in_two_places_comes_once(blobs: BlobStore) -> None:
    packs = store(blobs, Layout.PACKED, b"one") + store(blobs, Layout.PACKED, b"one")
    store(blobs, Layout.LOOSE, b"one")
    assert fetch(blobs, [b"one"], packs) == [b"one"]
    assert fetch(blobs, [b"one"]) == [b"one"]


def test_a_blob_that_is_in_a_pack_twice_comes_once(blobs: BlobStore) -> None:
    assert fetch(blobs, [b"one"], store(blobs, Layout.PACKED, b"one", b"two", b"one")) == [b"one"]


def test_no_pack_is_read_once_everything_is_found(backend: PosixBackend, blobs: BlobStore, read: list[str]) -> None:
    packs = store(blobs, Layout.PACKED, b"one") + store(blobs, Layout.PACKED, b"two")
    assert fetch(BlobStore(backend), [b"one"], packs) == [b"one"]
    assert read == [pack_name(packs[0])]


def test_a_damaged_copy_gives_way_to_a_whole_one(backend: PosixBackend, blobs: BlobStore) -> None:
    store(blobs, Layout.LOOSE, b"one")
    path = Path(backend.path(blob_name(digest_of(b"one"))))
    path.chmod(0o644)
    path.write_bytes(b"eno")
    store(blobs, Layout.PACKED, b"one")
    assert fetch(blobs, [b"one"]) == [b"one"]


@pytest.mark.parametrize("damage", [b"", b"no pack at all", None])
def test_a_damaged_or_missing_pack_costs_only_what_is_nowhere_else(
    backend: PosixBackend, blobs: BlobStore, damage: bytes | None
) -> None:
    (pack,) = store(blobs, Layout.PACKED, b"only here", b"also loose")
    store(blobs, Layout.LOOSE, b"also loose")
    backend.delete(pack_name(pack))
    if damage is not None:
        backend.put(pack_name(pack), damage)
    assert fetch(BlobStore(backend), [b"only here", b"also loose"], (pack,)) == [b"also loose"]


def test_the_log_says_once_of_a_pack_that_it_cannot_be_read(
    backend: PosixBackend, caplog: pytest.LogCaptureFixture
) -> None:
    blobs, gone = BlobStore(backend), "0" * 64
    for _ in range(3):
        assert fetch(blobs, [b"one"], (gone,)) == []
        assert load(blobs, [b"one"], (gone,)) == []
    (said,) = [record.getMessage() for record in caplog.records]
    assert gone in said
    assert said.endswith(": No such file or directory")


def load(blobs: BlobStore, contents: list[bytes], packs: tuple[str, ...]) -> list[bytes]:
    """Loads the last part first: each part can be loaded by itself."""
    parts = list(blobs.parts(Wanted((digest_of(data), len(data)) for data in contents), packs))
    return sorted(bytes(data) for part in reversed(parts) for _, data in part.load())


def test_parts_together_hold_what_is_wanted_once(blobs: BlobStore) -> None:
    packed = [b"packed", os.urandom(5 << 20), b"in two places"]
    loose = [b"in two places", b"loose", os.urandom(5 << 20), *(b"%d" % number for number in range(300))]
    packs = store(blobs, Layout.PACKED, *packed) + store(blobs, Layout.PACKED, b"in two places")
    store(blobs, Layout.LOOSE, *loose)
    wanted = {*packed, *loose}
    assert load(blobs, [*wanted, b"nowhere"], packs) == sorted(wanted)


def test_a_part_leaves_out_what_is_damaged(backend: PosixBackend, blobs: BlobStore) -> None:
    (pack,) = store(blobs, Layout.PACKED, b"one", os.urandom(5 << 20))
    whole = backend.get(pack_name(pack))
    backend.put(pack_name(pack), bytes([whole[0] ^ 1]) + whole[1:])
    assert load(blobs, [b"one"], (pack, "0" * 64)) == []


def test_fetch_returns_one_blob_or_says_that_it_is_lost(blobs: BlobStore) -> None:
    store(blobs, Layout.PACKED, b"one", b"beside it")
    assert blobs.fetch(digest_of(b"one"), 3) == b"one"
    with pytest.raises(IntegrityError, match=digest_of(b"two").hex()):
        blobs.fetch(digest_of(b"two"), 3, ["0" * 64])


def test_without_memory_for_a_frame_nothing_is_damaged(blobs: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(header: object) -> NoReturn:
        raise MemoryError

    packs = store(blobs, Layout.PACKED, b"one")
    monkeypatch.setattr("kstore.blobs.frames._inflater", fail)
    with pytest.raises(OSError) as caught:
        blobs.fetch(digest_of(b"one"), 3, packs)
    assert caught.value.errno == errno.ENOMEM


@pytest.mark.parametrize("layout", Layout)
def test_a_blob_is_not_lost_while_a_place_where_it_may_be_cannot_be_read(
    backend: PosixBackend, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = digest_of(b"one")
    (pack, *_) = (*store(BlobStore(backend), layout, b"one"), "")
    trouble_with(monkeypatch, pack_name(pack) if pack else blob_name(digest), times=2)
    with pytest.raises(OSError, match="Input/output error"):
        BlobStore(backend).fetch(digest, 3)
    assert BlobStore(backend).fetch(digest, 3) == b"one"


def test_trouble_that_passes_does_not_hide_that_a_blob_is_lost(
    backend: PosixBackend, blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pack,) = store(blobs, Layout.PACKED, b"one")
    trouble_with(monkeypatch, pack_name(pack), times=1)
    with pytest.raises(IntegrityError):
        BlobStore(backend).fetch(digest_of(b"two"), 3)


def test_what_can_be_read_comes_although_another_place_cannot(
    backend: PosixBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pack,) = store(BlobStore(backend), Layout.PACKED, b"one")
    store(BlobStore(backend), Layout.LOOSE, b"two")
    trouble_with(monkeypatch, pack_name(pack), times=1)
    assert fetch(BlobStore(backend), [b"one", b"two"]) == [b"two"]


def test_what_packs_hold_is_known_from_their_indexes(blobs: BlobStore) -> None:
    packs = store(blobs, Layout.PACKED, b"one", b"two")
    assert blobs.contents((*packs, "0" * 64)) == ({digest_of(b"one"), digest_of(b"two")}, {"0" * 64})
    blobs.keep_only(["0" * 64])
    assert not blobs.pack(packs[0]).is_known


def test_a_pack_that_cannot_be_read_may_hold_anything(blobs: BlobStore) -> None:
    (pack,) = store(blobs, Layout.PACKED, b"one")
    one, two = {digest_of(b"one")}, {digest_of(b"two")}
    assert not blobs.is_known_to_lack(pack, two)  # It was not looked at.
    assert [blobs.may_hold(pack, one), blobs.may_hold(pack, two), blobs.may_hold("0" * 64, two)] == [True, False, True]
    assert [blobs.is_known_to_lack(each, two) for each in (pack, "0" * 64)] == [True, False]
    assert not blobs.is_known_to_lack(pack, one)


def test_a_folder_is_no_pack(backend: PosixBackend, blobs: BlobStore) -> None:
    packs = store(blobs, Layout.PACKED, b"one")
    backend.put("packs/folder/name", b"")
    assert blobs.packs() == [*packs]


def test_whoever_can_do_without_packs_is_told_that_they_cannot_be_listed(
    blobs: BlobStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    packs = store(blobs, Layout.PACKED, b"one")
    assert blobs.packs_listed() == [*packs]
    unlistable(monkeypatch, "packs")
    assert blobs.packs_listed() == []
    assert "Input/output error" in caplog.text


def test_a_pack_that_cannot_be_looked_at_is_not_taken_for_gone(
    blobs: BlobStore, backend: PosixBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    (pack,) = store(blobs, Layout.PACKED, b"one")
    assert (blobs.has_pack(pack), blobs.has_pack("0" * 64)) == (True, False)
    monkeypatch.setattr(backend, "stat", fail)
    with pytest.raises(OSError, match="Input/output error"):
        blobs.has_pack(pack)


@pytest.mark.parametrize("layout", Layout)
def test_bytes_that_cannot_be_read_any_more_are_refused(blobs: BlobStore, layout: Layout) -> None:
    still_there = {digest_of(b"same"): b"same"}
    with blobs.writer(layout) as writer:
        digests = [digest_of(b"same"), digest_of(b"gone")]
        refused = put_many(writer, digests, lambda asked: ((d, still_there.get(d)) for d in asked), Progress())
        writer.finish()
    assert refused == {digest_of(b"gone")}
    assert fetch(blobs, [b"same", b"gone"]) == [b"same"]


def test_a_damaged_loose_blob_is_replaced_when_it_is_stored_again(backend: PosixBackend, blobs: BlobStore) -> None:
    """A server that crashed leaves files cut short; any worker that has the bytes can heal them."""
    store(blobs, Layout.LOOSE, b"content")
    path = Path(backend.path(blob_name(digest_of(b"content"))))
    path.chmod(0o644)
    path.write_bytes(b"con")
    store(blobs, Layout.LOOSE, b"content")
    assert fetch(blobs, [b"content"]) == [b"content"]


def test_no_blob_is_held_while_the_next_one_is_read() -> None:
    alive: list[bytes] = []

    class Counted(bytes):
        def __del__(self) -> None:
            alive.remove(bytes(self))

    def read(digests: Iterable[bytes]) -> Iterator[tuple[bytes, bytes | None]]:
        for digest in digests:
            assert alive == []
            alive.append(digest)
            yield digest, Counted(digest)

    dropping: Any = SimpleNamespace(put=lambda digest, data: None)
    assert put_many(dropping, [b"one", b"two", b"three"], read, Progress()) == set()
    assert alive == []
