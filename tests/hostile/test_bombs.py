"""Small files that would unpack to large ones, and numbers that no file bears out: memory stays at what was requested.

Each restore runs in a process of its own, which may use little more memory than correct data needs.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from kstore.blobs.loose import blob_name
from kstore.blobs.packindex import FOOTER_SIZE, FRAME_SIZE, Frame, PackIndex, pack_name
from kstore.digest import digest_of
from kstore.published.manifest import Entry, Flag, Manifest
from kstore.published.ref import Ref
from tests.trees import ENVIRONMENT, GPU, KEY, Node
from tests.trees import publish as publish_ref

MIB, GIB = 1 << 20, 1 << 30
ROOM = 64 * MIB
"""What a restore of a few bytes may take beyond the interpreter and its imports."""
PATH = "inductor/ab/x.py"
DATA = b"ten bytes."

pytestmark = pytest.mark.usefixtures("host")

CHILD = """
import re, resource, sys
from pathlib import Path
import kstore, kstore.operations.restore, kstore.blobs, zstandard, lmdb
from kstore.store import Store
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
location, root, key, gpu, environment = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
before = peak()
try:
    report = Store(location, cache_root=root, gpu=gpu, environment=environment, environ={}).restore(key)
    print(report.status, report.placed, len(report.skipped), peak() - before)
except kstore.KstoreError as error:
    print(type(error).__name__, 0, 0, peak() - before)
"""


class Outcome:
    """The outcome of a restore in a process of its own."""

    def __init__(self, node: Node, name: str = "fresh") -> None:
        root = node.tree.root.with_name(name)
        arguments = [str(node.location), str(root), KEY, GPU, ENVIRONMENT]
        done = subprocess.run(
            [sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
        self.status, placed, skipped, peak = done.stdout.split()
        self.placed, self.skipped = int(placed), int(skipped)
        assert int(peak) * 1024 < ROOM, f"{self.status}: {int(peak) >> 10} MiB"
        self.path = root / PATH


@pytest.fixture
def node(tmp_path: Path) -> Node:
    found = Node(tmp_path)
    found.store.create()
    return found


def publish(node: Node, files: dict[str, Entry], packs: tuple[str, ...] = (), size: int | None = None) -> None:
    data = Manifest(files).dump()
    node.store.storage.blobs.loose.put_many([(digest_of(data), data)])
    ref = Ref(node.store.scope(KEY), 1, digest_of(data), size or len(data), packs, 0.0, "evil", len(files), 1)
    assert publish_ref(node.store.storage.refs, ref)


def entry(data: bytes = DATA, size: int | None = None) -> Entry:
    return Entry(digest_of(data), len(data) if size is None else size, 0, 0o644, 0, 0)


def put_pack(node: Node, frames: bytes, index: PackIndex) -> str:
    data = frames + b"".join(index.dump())
    pack_id = digest_of(data).hex()
    assert node.store.storage.backend.put_if_absent(pack_name(pack_id), data)
    return pack_id


@pytest.fixture(scope="module")
def bomb() -> Callable[[bool], bytes]:
    """A frame of ten GiB of zeros in less than a megabyte, which states its size or does not."""
    made: dict[bool, bytes] = {}

    def make(says_its_size: bool) -> bytes:
        if says_its_size not in made:
            made[says_its_size] = zeros(10 * GIB, says_its_size)
        return made[says_its_size]

    return make


def zeros(size: int, says_its_size: bool) -> bytes:
    """A zstd frame that is mostly blocks of one repeated byte (RFC 8878: a block header and that byte)."""
    block, repeated = 128 << 10, 1 << 1
    header = (repeated | block << 3).to_bytes(3, "little") + b"\0"
    last = (1 | repeated | block << 3).to_bytes(3, "little") + b"\0"
    # Frame header: a window of 128 KiB, and eight bytes for the size if it is stated.
    start = struct.pack("<IBB", zstandard.MAGIC_NUMBER, 0xC0 if says_its_size else 0, 7 << 3)
    start += struct.pack("<Q", size) if says_its_size else b""
    return start + header * (size // block - 1) + last


def test_the_bomb_is_a_bomb(bomb: Callable[[bool], bytes]) -> None:
    assert zstandard.frame_content_size(bomb(True)) == 10 * GIB
    assert len(bomb(False)) < MIB
    assert zstandard.ZstdDecompressor().decompressobj().decompress(zeros(MIB, False)) == bytes(MIB)


def lengthen(path: Path) -> None:
    """Make it a file of ten GiB that takes no room: a server's crash may leave one."""
    path.chmod(0o644)
    os.truncate(path, 10 * GIB)


def test_a_ref_that_is_long(node: Node) -> None:
    publish(node, {PATH: entry()})
    (ref,) = (path for path in (node.location / "refs").rglob("1") if path.is_file())
    lengthen(ref)
    assert Outcome(node).status == "IntegrityError"


def test_settings_that_are_long(node: Node) -> None:
    lengthen(node.location / "kstore.json")
    assert Outcome(node).status == "StoreFormatError"


def test_a_manifest_that_is_long(node: Node) -> None:
    publish(node, {PATH: entry()}, size=10 * GIB)
    (manifest,) = (node.location / "blobs").glob("*/*")
    lengthen(manifest)
    assert Outcome(node).status == "IntegrityError"


@pytest.mark.parametrize("count", [0, 1000])
def test_a_path_in_a_hundred_thousand_folders(node: Node, count: int) -> None:
    """Of a large manifest, folders are made while it is parsed."""
    files = {f"inductor/ab/{number}.py": entry() for number in range(count)}
    publish(node, files | {"inductor/" + "x/" * 100_000 + "x": entry()})
    assert Outcome(node).status == "IntegrityError"


def test_a_frame_that_declares_more_than_its_bytes_can_hold(node: Node) -> None:
    """The manifest asks for a gigabyte as well."""
    frame = zeros(MIB, says_its_size=False)
    frame = frame[:4] + bytes([0xC0]) + frame[5:6] + struct.pack("<Q", GIB) + frame[6:]
    assert zstandard.frame_content_size(frame) == GIB
    pack = put_pack(node, frame, PackIndex([Frame(0, len(frame), GIB, 1)], [digest_of(DATA)], [GIB]))
    publish(node, {PATH: entry(size=GIB)}, (pack,))
    outcome = Outcome(node)
    assert (outcome.status, outcome.placed, outcome.skipped) == ("restored", 0, 1)


@pytest.mark.parametrize("says_its_size", [True, False])
@pytest.mark.parametrize("declared", [len(DATA), FRAME_SIZE, 5 * MIB, 10 * GIB], ids=str)
def test_a_frame_that_unpacks_to_ten_gigabytes(
    node: Node, bomb: Callable[[bool], bytes], says_its_size: bool, declared: int
) -> None:
    """Whatever its index declares, the manifest asked for ten bytes."""
    frame = bomb(says_its_size)
    pack = put_pack(node, frame, PackIndex([Frame(0, len(frame), declared, 1)], [digest_of(DATA)], [declared]))
    publish(node, {PATH: entry()}, (pack,))
    outcome = Outcome(node)
    assert (outcome.status, outcome.placed, outcome.skipped) == ("restored", 0, 1)


@pytest.mark.parametrize("says_its_size", [True, False])
@pytest.mark.parametrize("declared", [FRAME_SIZE, 5 * MIB])
def test_a_frame_that_unpacks_to_more_than_all_declare(
    node: Node, bomb: Callable[[bool], bytes], says_its_size: bool, declared: int
) -> None:
    frame = bomb(says_its_size)
    pack = put_pack(node, frame, PackIndex([Frame(0, len(frame), declared, 1)], [digest_of(DATA)], [declared]))
    publish(node, {PATH: entry(size=declared)}, (pack,))
    assert Outcome(node).placed == 0


@pytest.mark.parametrize("declared", [8 * GIB, 1 << 50, 2**64 - 1])
def test_a_blob_that_all_declare_larger_than_memory(node: Node, bomb: Callable[[bool], bytes], declared: int) -> None:
    frame = bomb(True)
    pack = put_pack(node, frame, PackIndex([Frame(0, len(frame), declared, 1)], [digest_of(DATA)], [declared]))
    publish(node, {PATH: entry(size=declared)}, (pack,))
    assert Outcome(node).placed == 0


def test_the_manifest_as_a_bomb(node: Node, bomb: Callable[[bool], bytes]) -> None:
    frame = bomb(True)
    digest = digest_of(b"the manifest")
    pack = put_pack(node, frame, PackIndex([Frame(0, len(frame), 10 * GIB, 1)], [digest], [10 * GIB]))
    ref = Ref(node.store.scope(KEY), 1, digest, 5000, (pack,), 0.0, "evil", 1, 1)
    assert publish_ref(node.store.storage.refs, ref)
    assert Outcome(node).status == "IntegrityError"


@pytest.mark.parametrize("size", [GIB, 100 * GIB])
def test_a_loose_blob_as_large_as_anybody_likes(node: Node, size: int) -> None:
    """A sparse file takes no space."""
    publish(node, {PATH: entry()})
    path = node.location / blob_name(digest_of(DATA))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, size)
    assert Outcome(node).skipped == 1


@pytest.mark.parametrize("flags", [0, int(Flag.LINK)])
def test_a_loose_blob_that_all_declare_larger_than_memory(node: Node, flags: int) -> None:
    publish(node, {PATH: entry(size=100 * GIB)._replace(flags=flags)})
    path = node.location / blob_name(digest_of(DATA))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, 100 * GIB)
    assert Outcome(node).skipped == 1


@pytest.mark.parametrize(
    ("blobs", "frames", "size"),
    [(2**32 - 1, 1, MIB), (1, 2**32 - 1, MIB), (1 << 20, 1, 200 * GIB), (2**32 - 1, 2**32 - 1, 200 * GIB)],
)
def test_an_index_of_more_entries_than_anybody_has(node: Node, blobs: int, frames: int, size: int) -> None:
    """The pack may well be large enough for them: it is sparse."""
    publish(node, {PATH: entry()})
    name = "f" * 64
    path = node.location / pack_name(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    footer = struct.pack("<IIIQ32s8s", 100, frames, blobs, frames * 28 + blobs * 8, bytes(32), b"kstore.1")
    with open(path, "wb") as file:
        file.truncate(size)
        file.seek(size)
        file.write(footer)
    assert path.stat().st_size == size + FOOTER_SIZE
    assert Outcome(node).skipped == 1


def test_frames_that_overlap_give_right_bytes_or_none(node: Node) -> None:
    """Two frames in one place, one inside another's bytes, one in the index, and blobs with the same name."""
    other = b"other one."
    one, two = zstandard.compress(DATA), zstandard.compress(other)
    frames = [Frame(0, len(one), 10, 1), Frame(0, len(one), 10, 1), Frame(5, len(two), 10, 1), Frame(60, 30, 10, 1)]
    frames.append(Frame(len(one), len(two), 10, 1))
    digests = [digest_of(DATA), digest_of(other), digest_of(DATA), digest_of(DATA), digest_of(other)]
    whole = [DATA, other]
    for order in (range(5), (4, 1, 0), (0, 4), (1, 4, 0)):
        index = PackIndex([frames[n] for n in order], [digests[n] for n in order], [10] * len(order))
        put_pack(node, one + two, index)
    publish(node, {PATH: entry(), "inductor/ab/y.py": entry(other)})
    reader = Node(node.tree.root.parent, "reader")
    assert reader.restore().skipped == ()
    assert [reader.tree.read(path) for path in (PATH, "inductor/ab/y.py")] == whole


def test_the_measure_of_memory_measures(node: Node, tmp_path: Path) -> None:
    """A hundred MiB that are really allocated are seen."""
    data = os.urandom(100 * MIB)
    node.store.storage.blobs.loose.put_many([(digest_of(data), data)])
    publish(node, {PATH: entry(data)})
    with pytest.raises(AssertionError, match="MiB"):
        Outcome(node)
    assert (tmp_path / "fresh" / PATH).stat().st_size == len(data)
