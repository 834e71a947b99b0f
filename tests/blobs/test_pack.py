from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
from array import array
from pathlib import Path
from typing import NoReturn

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kstore.backends import PosixBackend
from kstore.blobs.packindex import FOOTER_SIZE, FRAME_SIZE, Frame, PackIndex, load_footer, load_index, pack_name
from kstore.blobs.packreader import PackReader, read_ahead
from kstore.blobs.packwriter import PackWriter
from kstore.digest import digest_of
from kstore.errors import IntegrityError
from tests.blobs.packs import fetch, write_pack
from tests.faults.reading import trouble_with

MIB = 1 << 20


@pytest.fixture
def backend(tmp_path: Path) -> PosixBackend:
    return PosixBackend(tmp_path / "store")


def craft_pack(backend: PosixBackend, frames: bytes, index: PackIndex) -> str:
    """A pack that no PackWriter would write, but with correct checksums."""
    data = frames + b"".join(index.dump())
    pack_id = digest_of(data).hex()
    backend.put_if_absent(pack_name(pack_id), data)
    return pack_id


CASES = {
    "one empty blob": [b""],
    "an empty blob among others": [b"one", b"", b"two"],
    "small blobs": [b"a", b"bc", b"def" * 1000],
    "a blob of exactly a frame": [b"x", os.urandom(FRAME_SIZE), b"y"],
    "a blob larger than a frame": [b"x", os.urandom(FRAME_SIZE + 1), b"y"],
    "a blob of several frames": [os.urandom(MIB) * 11],
    "several frames of blobs": [os.urandom(MIB) for _ in range(9)],
    "many blobs": [b"%d" % number * (number % 50) for number in range(1, 3000)],
    "a large blob that compresses to nothing": [b"\0" * (64 * MIB)],
}


@pytest.mark.parametrize("blobs", CASES.values(), ids=CASES.keys())
def test_what_was_packed_comes_back(backend: PosixBackend, blobs: list[bytes]) -> None:
    pack_id = write_pack(backend, blobs)
    assert fetch(backend, pack_id, blobs) == {digest_of(data): data for data in blobs}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(blobs=st.lists(st.binary(max_size=2000), max_size=20))
def test_any_blobs_come_back(backend: PosixBackend, blobs: list[bytes]) -> None:
    pack_id = write_pack(backend, blobs)
    assert fetch(backend, pack_id, blobs) == {digest_of(data): data for data in blobs}


def test_only_what_is_wanted_is_read(backend: PosixBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = [os.urandom(MIB) for _ in range(12)]
    pack_id = write_pack(backend, blobs)
    reader = PackReader(backend, pack_id)
    assert len(reader.index.frames) == 3
    read = []
    get = backend.get
    monkeypatch.setattr(backend, "get", lambda name, *part: read.append(part[1]) or get(name, *part))
    assert [bytes(data) for _, data in reader.fetch({digest_of(blobs[6]): MIB})] == [blobs[6]]
    assert sum(read) < 5 * MIB


def test_the_first_and_the_last_of_many_are_found(backend: PosixBackend) -> None:
    blobs = [b"%d" % number * 1000 for number in range(3000)]
    pack_id = write_pack(backend, blobs)
    assert len(PackReader(backend, pack_id).index.frames) > 1
    assert fetch(backend, pack_id, [blobs[0], blobs[-1]]) == {digest_of(data): data for data in (blobs[0], blobs[-1])}


def test_whoever_fetches_many_times_gets_the_same_in_the_same_order(backend: PosixBackend) -> None:
    blobs = [b"%d" % number for number in range(100)]
    with backend.upload() as upload, PackWriter(upload) as writer:
        for number, data in enumerate(blobs):
            writer.add(digest_of(data), data)
            if number % 3 == 0:
                writer.close_frame()
        pack_id = writer.finish()
        upload.publish(pack_name(pack_id))
    searching, knowing = PackReader(backend, pack_id), PackReader(backend, pack_id)
    knowing.expect_many()
    for chosen in ([], [b"none"], blobs[:1], blobs[-1:], [blobs[99], blobs[30], blobs[4], b"none"], blobs[::-1]):
        wanted = {digest_of(data): len(data) for data in chosen}
        found = [bytes(data) for _, data in knowing.fetch(wanted)]
        assert found == [data for data in blobs if data in chosen]
        assert found == [bytes(data) for _, data in searching.fetch(wanted)]


@pytest.mark.parametrize("fails", range(4))
def test_a_pack_of_which_anything_could_not_be_written_is_not_finished(fails: int) -> None:
    """Whatever was written after it: three frames and the index."""
    written = list[int]()

    class Full:
        def write(self, data: bytes | memoryview) -> None:
            written.append(len(data))
            if len(written) == fails + 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with PackWriter(Full()) as writer, pytest.raises(OSError, match="No space left"):
        for number in range(12):
            writer.add(digest_of(b"%d" % number), bytes(MIB))
        writer.finish()


def test_a_part_says_what_memory_it_takes(backend: PosixBackend) -> None:
    blobs = [b"one", b"two", os.urandom(FRAME_SIZE)]
    reader = PackReader(backend, write_pack(backend, blobs))
    assert [part.size for part in reader.parts({digest_of(data): len(data) for data in blobs})] == [6, FRAME_SIZE]


def test_what_has_another_size_than_wanted_is_not_even_read(backend: PosixBackend) -> None:
    reader = PackReader(backend, write_pack(backend, [b"one", b"two"]))
    assert list(reader.parts({digest_of(b"one"): 4})) == []
    assert [bytes(data) for _, data in reader.fetch({digest_of(b"one"): 4, digest_of(b"two"): 3})] == [b"two"]


def test_what_is_behind_a_damaged_frame_is_salvaged_but_trouble_is_no_damage(
    backend: PosixBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = [os.urandom(FRAME_SIZE), b"small"]
    whole = backend.get(pack_name(write_pack(backend, blobs)))
    backend.put(pack_name("0" * 64), bytes([whole[0] ^ 1]) + whole[1:])
    assert [bytes(data) for _, data in PackReader(backend, "0" * 64).salvage()] == [b"small"]
    reader = PackReader(backend, "0" * 64)
    assert reader.index
    trouble_with(monkeypatch, pack_name("0" * 64))
    with pytest.raises(OSError, match="Input/output error"):
        list(reader.salvage())


def test_a_missing_blob_is_not_yielded(backend: PosixBackend) -> None:
    pack_id = write_pack(backend, [b"one"])
    assert fetch(backend, pack_id, [b"two"]) == {}


def test_a_pack_without_blobs_can_be_read(backend: PosixBackend) -> None:
    assert PackReader(backend, write_pack(backend, [])).index.digests == []


def test_equal_contents_give_different_ids(backend: PosixBackend) -> None:
    assert write_pack(backend, [b"same"]) != write_pack(backend, [b"same"])


def test_the_id_is_the_digest_of_the_file(backend: PosixBackend) -> None:
    pack_id = write_pack(backend, [b"one", b"two" * 5000])
    assert digest_of(backend.get(pack_name(pack_id))).hex() == pack_id


def damaged(backend: PosixBackend, data: bytes, blobs: list[bytes]) -> None:
    """Whatever was done to a pack, a reader gets the right bytes or none."""
    name = "0" * 64
    backend.put(pack_name(name), data)
    try:
        found = fetch(backend, name, blobs)
    except IntegrityError:
        return
    assert all(digest_of(data) == digest for digest, data in found.items())
    assert set(found) <= {digest_of(data) for data in blobs}


SMALL = [b"kernel one " * 9, b"kernel two " * 9, b""]


def test_no_flipped_byte_gives_wrong_bytes(backend: PosixBackend) -> None:
    whole = backend.get(pack_name(write_pack(backend, SMALL)))
    for position in range(len(whole)):
        for flip in (0x01, 0x80, 0xFF):
            damaged(backend, whole[:position] + bytes([whole[position] ^ flip]) + whole[position + 1 :], SMALL)


def test_no_truncation_gives_wrong_bytes(backend: PosixBackend) -> None:
    whole = backend.get(pack_name(write_pack(backend, SMALL)))
    for length in range(len(whole)):
        damaged(backend, whole[:length], SMALL)
        with pytest.raises(IntegrityError):
            PackReader(backend, "0" * 64).index  # noqa: B018


def test_a_damaged_frame_of_a_large_blob_gives_no_wrong_bytes(backend: PosixBackend) -> None:
    blobs = [os.urandom(1000) * 6000, b"small"]
    whole = bytearray(backend.get(pack_name(write_pack(backend, blobs))))
    for position in range(0, len(whole), 97):
        whole[position] ^= 0x10
        damaged(backend, bytes(whole), blobs)
        whole[position] ^= 0x10


@pytest.mark.parametrize("trouble", [IntegrityError("damaged"), OSError(errno.EIO, "away"), MemoryError()])
def test_trouble_with_a_pack_that_is_read_ahead_is_for_whoever_uses_it(
    backend: PosixBackend, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    def fail(_: str) -> NoReturn:
        raise trouble

    monkeypatch.setattr(backend, "open", fail)
    reader = read_ahead(backend, "ab")
    with pytest.raises(type(trouble)):
        _ = reader.index


def test_a_foreign_file_is_not_taken_for_a_pack(backend: PosixBackend) -> None:
    for data in (b"", b"PK\3\4", b"\0" * 10_000):
        backend.put(pack_name("0" * 64), data)
        with pytest.raises(IntegrityError):
            PackReader(backend, "0" * 64).index  # noqa: B018


def test_a_blob_under_a_wrong_digest_is_not_yielded(backend: PosixBackend) -> None:
    with backend.upload() as upload:
        writer = PackWriter(upload)
        writer.add(digest_of(b"right"), b"wrong")
        pack_id = writer.finish()
        upload.publish(pack_name(pack_id))
    assert fetch(backend, pack_id, [b"right", b"wrong"]) == {}


# ---- Declared sizes are limits. A pack may be crafted: its checksums are then correct.


def peak_while(code: str, *arguments: str) -> int:
    """Bytes of memory that `code` needs beyond the interpreter and its imports, in a process of its own."""
    script = f"{IMPORTS}\nbefore = peak()\n{code}\nprint(peak() - before)"
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout) * 1024


IMPORTS = """
import os, re, sys
from pathlib import Path
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
from kstore.backends import PosixBackend
from kstore.blobs import BlobStore, Layout
from kstore.digest import digest_of
from kstore.errors import IntegrityError
backend = PosixBackend(sys.argv[1])
blobs = BlobStore(backend)
"""
READ = """
found = [digest for digest, _ in blobs.fetch_many({bytes.fromhex(sys.argv[2]): int(sys.argv[3])})]
assert not found
"""


@pytest.mark.parametrize("declared", [1000, FRAME_SIZE, FRAME_SIZE + 1, 8 * MIB])
@pytest.mark.parametrize("says_its_size", [True, False])
def test_a_frame_that_unpacks_to_more_than_it_declares_is_refused(
    backend: PosixBackend, declared: int, says_its_size: bool
) -> None:
    bomb = zstandard.ZstdCompressor(write_content_size=says_its_size).compress(b"\0" * (400 * MIB))
    digest = digest_of(b"whatever")
    craft_pack(backend, bomb, PackIndex([Frame(0, len(bomb), declared, 1)], [digest], [declared]))
    assert peak_while(READ, str(backend.root), digest.hex(), str(declared)) < 64 * MIB


@pytest.mark.parametrize(
    "frame",
    [
        Frame(0, 1 << 50, 10, 1),
        Frame(1 << 50, 10, 10, 1),
        Frame((1 << 64) - 1, 10, 10, 1),
        Frame(0, 10, 1 << 62, 1),
        Frame(0, 0, 1 << 50, 1),
    ],
)
def test_a_frame_that_cannot_be_is_refused(backend: PosixBackend, frame: Frame) -> None:
    packed = zstandard.compress(b"0123456789")
    digest = digest_of(b"0123456789")
    pack_id = craft_pack(backend, packed, PackIndex([frame], [digest], [frame.size]))
    with pytest.raises(IntegrityError):
        list(PackReader(backend, pack_id).fetch({digest: frame.size}))


def test_a_frame_that_says_it_takes_much_more_than_it_holds_is_not_read(backend: PosixBackend) -> None:
    packed = zstandard.compress(b"0123456789")
    digest = digest_of(b"0123456789")
    craft_pack(backend, packed + bytes(400 * MIB), PackIndex([Frame(0, 400 * MIB, 10, 1)], [digest], [10]))
    assert peak_while(READ, str(backend.root), digest.hex(), "10") < 64 * MIB


def test_an_index_that_contradicts_itself_is_refused(backend: PosixBackend) -> None:
    packed = zstandard.compress(b"0123456789")
    frame, digest = Frame(0, len(packed), 10, 1), digest_of(b"0123456789")
    wrong = [
        PackIndex([frame], [digest], [9]),
        PackIndex([frame._replace(blobs=2)], [digest], [10]),
        PackIndex([frame], [digest, digest], [10, 10]),
        PackIndex([frame, frame], [digest], [10]),
        PackIndex([frame._replace(size=12 * MIB, blobs=2)], [digest] * 2, [6 * MIB] * 2),
    ]
    for index in wrong:
        with pytest.raises(IntegrityError):
            list(PackReader(backend, craft_pack(backend, packed, index)).fetch({digest: 10}))


def test_an_index_that_unpacks_to_more_than_it_declares_is_refused(backend: PosixBackend) -> None:
    """The footer's numbers are checked before anything is allocated for them."""
    whole = b"".join(PackIndex([Frame(0, 10, 10, 1)], [digest_of(b"")], [10]).dump())
    tail = whole[8:]
    footer = load_footer(tail)
    nonce_and_digests = tail[: 16 + 32]
    for columns in (b"\0" * 64 * MIB, b"no zstd at all"):
        packed = zstandard.compress(columns) if columns[:1] == b"\0" else columns
        body = nonce_and_digests + packed
        crafted = footer._replace(packed_columns=len(packed), digest=digest_of(body))
        with pytest.raises(IntegrityError):
            load_index(crafted, body)


def test_an_index_whose_digests_were_altered_is_refused() -> None:
    data = b"".join(PackIndex([Frame(0, 5, 3, 1)], [digest_of(b"abc")], array("Q", [3])).dump())
    footer, body = load_footer(data), data[8 : len(data) - FOOTER_SIZE]
    with pytest.raises(IntegrityError, match="does not match its footer"):
        load_index(footer, body[:16] + bytes([body[16] ^ 1]) + body[17:])


def test_a_pack_of_another_format_is_refused() -> None:
    data = b"".join(PackIndex().dump())
    with pytest.raises(IntegrityError, match=r"b'kstore.2': it is damaged, or a newer kstore wrote it"):
        load_footer(data.replace(b"kstore.1", b"kstore.2"))


def test_a_large_frame_whose_header_lies_as_its_index_does_is_damaged(backend: PosixBackend) -> None:
    """There is no memory for it anywhere: that would be trouble, and pass."""
    size, digest = 1 << 50, digest_of(b"whatever")
    header = struct.pack("<IBQ", 0xFD2FB528, 0xE0, size)  # one segment, its size in eight bytes (RFC 8878, 3.1.1.1)
    packed = header + b"\1\0\0"
    pack_id = craft_pack(backend, packed, PackIndex([Frame(0, len(packed), size, 1)], [digest], array("Q", [size])))
    with pytest.raises(IntegrityError):
        list(PackReader(backend, pack_id).fetch({digest: size}))


def test_the_footer_is_the_end(backend: PosixBackend) -> None:
    index = PackIndex([Frame(0, 5, 3, 1)], [digest_of(b"abc")], array("Q", [3]))
    data = b"".join(index.dump())
    footer = load_footer(data)
    body = data[8 : len(data) - FOOTER_SIZE]
    assert load_index(footer, body) == index
    (length,) = struct.unpack_from("<I", data, 4)
    assert length == len(data) - 8


# ---- Memory does not grow with the pack.

WRITE_300 = """
with blobs.writer(Layout.PACKED) as writer:
    for number in range(300):
        data = os.urandom(1 << 16) * 16
        writer.put(digest_of(data), data)
    writer.finish()
"""
READ_300 = """
(pack,) = blobs.packs()
sizes = dict(zip(blobs.pack(pack).index.digests, blobs.pack(pack).index.sizes))
count = sum(len(data) == 1 << 20 for _, data in blobs.fetch_many(sizes))
assert count == 300
"""
WRITE_LARGE = """
data = CONTENT
with blobs.writer(Layout.PACKED) as writer:
    writer.put(digest_of(data), data)
    writer.finish()
"""
READ_LARGE = """
(pack,) = blobs.packs()
sizes = dict(zip(blobs.pack(pack).index.digests, blobs.pack(pack).index.sizes))
assert [len(data) for _, data in blobs.fetch_many(sizes)] == [200 << 20]
"""


@pytest.mark.parametrize(
    ("write", "read", "largest"),
    [
        (WRITE_300, READ_300, 1),
        (WRITE_LARGE.replace("CONTENT", "os.urandom(1 << 20) * 200"), READ_LARGE, 200),
        (WRITE_LARGE.replace("CONTENT", "os.urandom(200 << 20)"), READ_LARGE, 200),
    ],
)
def test_a_pack_takes_little_more_memory_than_its_largest_blob(
    tmp_path: Path, write: str, read: str, largest: int
) -> None:
    assert peak_while(write, str(tmp_path)) < (64 + largest) * MIB
    assert peak_while(read, str(tmp_path)) < (64 + largest) * MIB


def test_the_measure_of_memory_measures(tmp_path: Path) -> None:
    assert peak_while("data = os.urandom(90 << 20)", str(tmp_path)) > 80 * MIB
