"""Ten thousand manifests, refs and packs that are nearly right."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kstore
from kstore.backends import PosixBackend
from kstore.blobs.packindex import Frame, PackIndex, pack_name
from kstore.blobs.packreader import PackReader
from kstore.blobs.packwriter import PackWriter
from kstore.digest import digest_of
from kstore.errors import IntegrityError, StoreFormatError
from kstore.published.manifest import Entry, Manifest
from kstore.published.ref import Ref, load_ref
from kstore.scope import Scope
from tests.hostile.reader import MANIFEST, REFUSED, Reader, reader
from tests.hostile.test_hostile_manifests import EVIL, FIRST, World

EXAMPLES = [pytest.param(200, id="some"), pytest.param(1700, id="many", marks=pytest.mark.slow)]

SMALL = st.integers(0, 64)
NUMBERS = (
    SMALL
    | st.integers(0, 2**64 - 1)
    | st.sampled_from([2**power + off for power in (8, 12, 15, 16, 31, 32, 48, 62, 63) for off in (-1, 0)])
)
PLACES = st.integers(0, 2**32)


def fuzz(count: int, strategy: st.SearchStrategy[Any], check: Callable[[Any], None]) -> None:
    """Try `count` examples; the smallest failing one is shown."""
    health = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]

    @settings(max_examples=count, deadline=None, suppress_health_check=health, database=None)
    @given(example=strategy)
    def run(example: Any) -> None:
        check(example)

    run()


# ---- Manifests: pages that lead astray, under a correct digest

PAGE = 4096


def some_manifest(files: int) -> bytes:
    many = {f"inductor/ab/c{number:05}.py": FIRST for number in range(files)}
    long = {"inductor/" + "x" * length: FIRST for length in (600, 3000, 9000)}
    return Manifest(many | long, {"host": {"inductor/z.so": FIRST}}, {"key": "model/v1"}).dump()


MANIFESTS = [some_manifest(files) for files in (0, 3, 100, 5000)]

Edit = tuple[str, int, int, int]
"""What to change, which page, which of its parts, and to what."""
EDITS = st.tuples(
    st.sampled_from(["header", "pointer", "node", "meta", "byte", "big", "copy", "cut"]), PLACES, PLACES, NUMBERS
)


def edited(data: bytes, edits: Sequence[Edit]) -> bytes:
    whole = bytearray(data)
    for what, page, part, value in edits:
        pages = len(whole) // PAGE
        if pages < 3:
            break
        EDITORS[what](whole, 2 + page % (pages - 2), part, value)
    return bytes(whole)


def put(whole: bytearray, at: int, layout: str, value: int) -> None:
    struct.pack_into(layout, whole, at, value % 2 ** (8 * struct.calcsize(layout)))


def edit_header(whole: bytearray, page: int, part: int, value: int) -> None:
    offset, layout = ((0, "<Q"), (8, "<H"), (10, "<H"), (12, "<H"), (14, "<H"))[part % 5]
    put(whole, page * PAGE + offset, layout, value)


def edit_pointer(whole: bytearray, page: int, part: int, value: int) -> None:
    put(whole, page * PAGE + 16 + 2 * (part % 40), "<H", value)


def edit_node(whole: bytearray, page: int, part: int, value: int) -> None:
    (pointer,) = struct.unpack_from("<H", whole, page * PAGE + 16 + 2 * (part % 40))
    put(whole, page * PAGE + min(pointer, PAGE - 8) + 2 * (part // 40 % 4), "<H", value)


def edit_meta(whole: bytearray, page: int, part: int, value: int) -> None:
    """Magic, sizes, the databases' records, the last page, the transaction."""
    offset, layout = [*((at, "<I") for at in (16, 20, 40, 88)), *((at, "<H") for at in (10, 44, 46, 92, 94)),
                      *((at, "<Q") for at in (24, 32, 80, 104, 128, 136, 144))][part % 16]  # fmt: skip
    put(whole, page % 2 * PAGE + offset, layout, value)


def edit_byte(whole: bytearray, page: int, part: int, value: int) -> None:
    put(whole, page * PAGE + part % PAGE, "<B", value)


def edit_big(whole: bytearray, page: int, part: int, value: int) -> None:
    """A node's data is elsewhere, or is said to be a table."""
    (pointer,) = struct.unpack_from("<H", whole, page * PAGE + 16 + 2 * (part % 40))
    put(whole, page * PAGE + min(pointer, PAGE - 8) + 4, "<H", 1 + value % 7)


def edit_copy(whole: bytearray, page: int, part: int, value: int) -> None:
    """A copy of a page takes another one's place as well."""
    source = 2 + part % (len(whole) // PAGE - 2)
    whole[page * PAGE : (page + 1) * PAGE] = whole[source * PAGE : (source + 1) * PAGE]
    put(whole, page * PAGE, "<Q", page)


def edit_cut(whole: bytearray, page: int, part: int, value: int) -> None:
    del whole[page * PAGE + (part % PAGE if value % 2 else 0) :]


EDITORS: dict[str, Callable[[bytearray, int, int, int], None]] = {
    "header": edit_header, "pointer": edit_pointer, "node": edit_node, "meta": edit_meta,
    "byte": edit_byte, "big": edit_big, "copy": edit_copy, "cut": edit_cut,
}  # fmt: skip


@pytest.mark.parametrize("count", EXAMPLES)
def test_no_manifest_ends_the_process_that_reads_it(count: int) -> None:
    answers = set()
    with reader() as process:
        for data in MANIFESTS:
            assert process.read(data) == MANIFEST

        def check(example: tuple[int, list[Edit]]) -> None:
            answers.add(read_again_if_ended(process, edited(MANIFESTS[example[0]], example[1])))

        fuzz(count, st.tuples(st.integers(0, len(MANIFESTS) - 1), st.lists(EDITS, min_size=1, max_size=5)), check)
    assert answers == {MANIFEST, REFUSED}


def read_again_if_ended(process: Reader, data: bytes) -> bytes:
    """While a failure is being narrowed down, each example gets a reader of its own."""
    if process.ended:
        with reader() as another:
            return another.read(data)
    return process.read(data)


def test_the_reader_reports_a_signal() -> None:
    with reader() as process:
        process.kill()
        with pytest.raises(AssertionError, match="ended with -9"):
            process.read(MANIFESTS[0])


# ---- Manifests: records that no commit would make

PARTS = st.sampled_from(["inductor", "triton", "ab", "x.py", "__grp__k.json", "cache", "MINE", "mine.py"]) | (
    st.sampled_from(["..", ".", "", ".kstore", "a\0b", "\n", "\udcff", "x" * 255, "x" * 256, "nothing", "AB"])
)
PATHS = st.lists(PARTS, min_size=1, max_size=6).map("/".join)
SOUND_PATHS = st.builds(
    "/".join,
    st.tuples(
        st.sampled_from(["inductor", "triton"]),
        st.sampled_from(["ab", "MINE", "cache", "X", "Y"]),
        st.sampled_from(["x.py", "__grp__k.json", "mine.py", "k.ptx", "\n", "\udcff"]),
    ),
)
ENTRIES = st.builds(
    Entry,
    digest=st.sampled_from([FIRST.digest, digest_of(b"not there")]),
    size=st.just(len(EVIL)) | NUMBERS,
    mtime_ns=st.integers(-(2**63), 2**63 - 1),
    mode=st.integers(0, 2**16 - 1),
    flags=st.sampled_from([0, 1, 2, 4, 8, 16, 32, 64]) | st.integers(0, 255),
    unit=st.just(2) | st.just(0) | st.integers(0, 255),
)
RECORDS = st.dictionaries(SOUND_PATHS, ENTRIES, max_size=6) | st.dictionaries(PATHS, ENTRIES, max_size=4)


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("count", [pytest.param(100, id="some"), pytest.param(200, id="many", marks=pytest.mark.slow)])
def test_no_records_write_outside_of_the_root_or_take_from_it(tmp_path: Path, count: int) -> None:
    numbers = iter(range(10**6))

    def check(files: dict[str, Entry]) -> None:
        world = World(tmp_path / str(next(numbers)))
        world.publish(Manifest({path: entry for path, entry in files.items() if path}).dump())
        answer = world.restore()
        if isinstance(answer, kstore.RestoreReport):
            world.commit()
        shutil.rmtree(world.folder)

    fuzz(count, RECORDS, check)


# ---- Refs

SCOPE = Scope("gpu", "model/v1", "torch")
REF = json.loads(Ref(SCOPE, 1, bytes(32), 5000, ("a" * 64, "b" * 64), 1.5, "me@here", 3, 4).dump())
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats() | st.text(max_size=5) | st.sampled_from(["a" * 64, "A" * 64]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def refs(draw: st.DrawFn) -> bytes:
    """A ref with one value changed, something missing, or changed bytes."""
    content = json.loads(json.dumps(REF))
    for _ in range(draw(st.integers(0, 3))):
        place = content["manifest"] if draw(st.booleans()) and isinstance(content.get("manifest"), dict) else content
        key = draw(st.sampled_from([*sorted(REF), "digest", "size"]))
        if draw(st.booleans()):
            place.pop(key, None)
        else:
            place[key] = draw(JSON)
    text = bytearray(json.dumps(content).encode())
    for _ in range(draw(st.integers(0, 2))):
        text[draw(PLACES) % len(text)] = draw(st.integers(0, 255))
    return bytes(text[: draw(PLACES) % len(text)] if draw(st.integers(0, 9)) == 0 else text)


@pytest.mark.parametrize("count", EXAMPLES)
def test_a_ref_is_read_or_refused(count: int) -> None:
    read = []

    def check(data: bytes) -> None:
        try:
            ref = load_ref(SCOPE, 1, data)
        except (IntegrityError, StoreFormatError):
            return
        read.append(ref)
        assert len(ref.manifest) == 32
        assert all(len(pack) == 64 and "/" not in pack for pack in ref.packs)
        assert load_ref(SCOPE, 1, ref.dump()).dump() == ref.dump()

    fuzz(count, refs(), check)
    assert read


# ---- Packs: an index with correct checksums

CONTENTS = [b"kernel one " * 9, b"kernel two " * 9, b"", b"kernel three " * 500]
DIGESTS = [digest_of(data) for data in CONTENTS]
FRAME_FIELDS = ("offset", "packed_size", "size", "blobs")


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> tuple[PosixBackend, bytes, PackIndex]:
    """A backend, the bytes of a pack of three frames, and its index."""
    backend = PosixBackend(tmp_path_factory.mktemp("packs") / "store")
    with backend.upload() as upload, PackWriter(upload) as writer:
        for number, data in enumerate(CONTENTS):
            writer.add(DIGESTS[number], data)
            if number != 1:
                writer.close_frame()
        pack_id = writer.finish()
        upload.publish(pack_name(pack_id))
    return backend, backend.get(pack_name(pack_id)), PackReader(backend, pack_id).index


INDEX_EDITS = st.lists(
    st.tuples(st.sampled_from(["frame", "size", "digest", "drop", "twice"]), PLACES, SMALL, NUMBERS), max_size=3
)
BYTE_EDITS = st.lists(st.tuples(PLACES, st.integers(0, 255)), max_size=2)


def edited_index(index: PackIndex, edits: Sequence[tuple[str, int, int, int]]) -> PackIndex:
    frames, digests, sizes = list(index.frames), list(index.digests), list(index.sizes)
    for what, number, part, value in edits:
        if what == "frame" and frames:
            at = number % len(frames)
            frames[at] = frames[at]._replace(**{FRAME_FIELDS[part % 4]: value % 2 ** (32 if part % 4 == 3 else 64)})
        elif what == "size" and sizes:
            sizes[number % len(sizes)] = value
        elif what == "digest" and digests:
            digests[number % len(digests)] = DIGESTS[part % len(DIGESTS)]
        elif what == "drop" and frames:
            frames.pop(number % len(frames))
        elif what == "twice" and frames:
            frames.append(Frame(*frames[number % len(frames)]))
    return PackIndex(frames, digests, sizes)


@pytest.mark.parametrize("count", EXAMPLES)
def test_a_pack_gives_right_bytes_or_none(pack: tuple[PosixBackend, bytes, PackIndex], count: int) -> None:
    backend, whole, index = pack
    frames = whole[: index.frames[-1].offset + index.frames[-1].packed_size]
    wanted = {digest: len(data) for digest, data in zip(DIGESTS, CONTENTS, strict=True)}
    came = set()

    def check(example: tuple[list[Any], list[tuple[int, int]], bool]) -> None:
        edits, bytes_edits, in_frames_only = example
        data = bytearray(b"".join([frames, *edited_index(index, edits).dump()]))
        for place, value in bytes_edits:
            data[place % (len(frames) if in_frames_only else len(data))] = value
        backend.put(pack_name("0" * 64), bytes(data))
        try:
            for digest, content in PackReader(backend, "0" * 64).fetch(wanted):
                assert content == CONTENTS[DIGESTS.index(digest)]
                came.add(digest)
        except IntegrityError:
            return

    fuzz(count, st.tuples(INDEX_EDITS, BYTE_EDITS, st.booleans()), check)
    assert came == set(DIGESTS)
