"""Bundles that were damaged on their way, or made to do harm: an IntegrityError, and nothing is published."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import zstandard
from blake3 import blake3

from kstore.blobs.packindex import FOOTER_SIZE, Frame, PackIndex
from kstore.blobs.packreader import PackReader, Part
from kstore.blobs.packwriter import PackWriter
from kstore.bundles.format import SEAL_SIZE, Content, Header, seal
from kstore.bundles.importing import import_bundle
from kstore.bundles.reader import BundleReader
from kstore.digest import digest_of
from kstore.errors import IntegrityError, MissError, StoreFormatError
from kstore.published.manifest import Entry, Flag, Manifest
from kstore.scope import Scope
from tests.bundles.carrying import bring, bundle_of, export, fill, other_store, restored
from tests.trees import ENVIRONMENT, GPU, KEY, contents

SCOPE = Scope(GPU, KEY, ENVIRONMENT)
DATA = b"ten bytes."
ENTRY = Entry(digest_of(DATA), len(DATA), 0, 0o644, 0, 0)
PATH = "inductor/ab/x.py"


class Bundle:
    """A bundle that is right wherever it was not made wrong."""

    def __init__(self, files: Mapping[str, Entry] | None = None, hosts: Mapping[str, Mapping[str, Entry]] = {}) -> None:
        self.manifest = Manifest(dict(files or {PATH: ENTRY}), {h: dict(f) for h, f in hosts.items()}).dump()
        self.blobs: list[tuple[bytes, bytes]] = [(ENTRY.digest, DATA)]
        self.header = Header(KEY, (Content(SCOPE, digest_of(self.manifest), len(self.manifest)),)).dump()

    def write(self, path: Path, edit: Callable[[bytes, PackIndex], tuple[bytes, PackIndex]] | None = None) -> Path:
        stream = io.BytesIO()
        with PackWriter(stream, size=len(self.header)) as pack:
            for digest, data in [(digest_of(self.manifest), self.manifest), *self.blobs]:
                pack.add(digest, data)
                pack.close_frame()
            pack.finish()
            frames = stream.getvalue()[: -len(b"".join(pack._index.dump()))]
            index = pack._index
        if edit:
            frames, index = edit(frames, index)
        content = self.header + frames + b"".join(index.dump())
        path.write_bytes(content + seal(blake3(content).digest()))
        return path


def edited_header(**changes: Any) -> Bundle:
    bundle = Bundle()
    (content,) = json.loads(bundle.header[22:-32])["scopes"]
    fields: dict[str, Any] = {"format": 1, "key": KEY, "compressor": "zstd", "scopes": [content], **changes}
    bundle.header = with_header(json.dumps(fields).encode())
    return bundle


def with_header(text: bytes) -> bytes:
    body = b"kstore bundle\n" + text
    return struct.pack("<II", 0x184D2A5C, len(body) + 32) + body + digest_of(body)


def refused(folder: Path, path: Path, error: type[Exception] = IntegrityError) -> None:
    """Nothing comes of it, not even a store."""
    target = other_store(folder / "target")
    with pytest.raises(error):
        bring(target, path)
    assert not target.location.exists()


def test_what_the_tests_make_wrong_is_right_before(tmp_path: Path) -> None:
    target = other_store(tmp_path / "target")
    bring(target, Bundle().write(tmp_path / "bundle"))
    assert restored(target) == {PATH: DATA}


# ---- Damaged on the way


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("small")
    source = other_store(folder / "source")
    source.tree.wrapper("one")
    source.commit()
    return bundle_of(source, folder).read_bytes()


def test_no_flipped_bit_goes_unnoticed(small: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    for position in range(len(small)):
        data = bytearray(small)
        data[position] ^= 1 << position % 8
        path.write_bytes(data)
        refused(tmp_path, path)


def test_a_bundle_cut_short_anywhere_is_noticed(small: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    for length in range(len(small)):
        path.write_bytes(small[:length])
        refused(tmp_path, path)


@pytest.mark.parametrize("more", [b"\0", b"x" * SEAL_SIZE, b"y" * 5000])
def test_nothing_can_be_appended(small: bytes, tmp_path: Path, more: bytes) -> None:
    (tmp_path / "bundle").write_bytes(small + more)
    refused(tmp_path, tmp_path / "bundle")


@pytest.mark.parametrize("data", [b"", b"PK\3\4" * 100, bytes(100_000)])
def test_another_file_is_no_bundle(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "bundle").write_bytes(data)
    refused(tmp_path, tmp_path / "bundle")


def test_parts_that_changed_places_are_noticed(small: bytes, tmp_path: Path) -> None:
    """Each part is whole."""
    footer = len(small) - SEAL_SIZE - FOOTER_SIZE
    (tmp_path / "bundle").write_bytes(small[:100] + small[100:footer][::-1] + small[footer:])
    refused(tmp_path, tmp_path / "bundle")


# ---- Made to do harm: all digests are right


@pytest.mark.parametrize(
    "path",
    [
        "inductor/../../evil",
        "/tmp/evil",
        "../evil",
        "inductor/a\0b",
        "inductor//x",
        ".kstore/base",
        "inductor",
        "x\n/../y",
    ],
)
def test_a_path_that_leaves_the_cache_root_is_refused(tmp_path: Path, path: str) -> None:
    before = contents(tmp_path)
    refused(tmp_path, Bundle({path: ENTRY}).write(tmp_path / "bundle"))
    refused(tmp_path, Bundle({}, {"host": {path: ENTRY}}).write(tmp_path / "bundle"))
    assert {p: d for p, d in contents(tmp_path).items() if p != "bundle"} == before


def test_an_entry_that_no_commit_makes_is_refused(tmp_path: Path) -> None:
    for flags, unit in ((Flag.GROUP, 1), (Flag.LINK | Flag.RELOCATE, 0), (Flag.GROUP | Flag.SLOT, 2)):
        wrong = ENTRY._replace(flags=int(flags), unit=unit)
        refused(tmp_path, Bundle({PATH: wrong}).write(tmp_path / "bundle"))


def test_bytes_under_a_wrong_digest_are_refused(tmp_path: Path) -> None:
    bundle = Bundle()
    bundle.blobs = [(ENTRY.digest, b"evilbytes.")]
    refused(tmp_path, bundle.write(tmp_path / "bundle"))


def test_bytes_under_a_wrong_digest_are_refused_even_if_the_store_has_the_right_ones(tmp_path: Path) -> None:
    target = other_store(tmp_path / "target")
    bring(target, Bundle().write(tmp_path / "right"))
    bundle = Bundle({PATH: ENTRY, "inductor/ab/y.py": ENTRY})
    bundle.blobs = [(ENTRY.digest, b"evilbytes.")]
    before = contents(target.location)
    with pytest.raises(IntegrityError):
        bring(target, bundle.write(tmp_path / "wrong"))
    assert contents(target.location) == before


def test_a_blob_that_is_missing_is_noticed(tmp_path: Path) -> None:
    bundle = Bundle()
    bundle.blobs = []
    refused(tmp_path, bundle.write(tmp_path / "bundle"))


def test_a_blob_that_nothing_needs_is_noticed(tmp_path: Path) -> None:
    bundle = Bundle()
    bundle.blobs += [(digest_of(b"more"), b"more")]
    refused(tmp_path, bundle.write(tmp_path / "bundle"))


def test_a_blob_that_occurs_twice_is_noticed(tmp_path: Path) -> None:
    bundle = Bundle()
    bundle.blobs *= 2
    refused(tmp_path, bundle.write(tmp_path / "bundle"))


@pytest.mark.parametrize("size", [0, 9, 11, 1 << 40, (1 << 64) - 1])
def test_a_size_that_is_not_the_blobs_is_noticed(tmp_path: Path, size: int) -> None:
    refused(tmp_path, Bundle({PATH: ENTRY._replace(size=size)}).write(tmp_path / "bundle"))
    two = {PATH: ENTRY, "inductor/ab/y.py": ENTRY._replace(size=size)}
    refused(tmp_path, Bundle(two).write(tmp_path / "bundle"))


WRONG = {"gpu": "g", "environment": "e", "manifest": "00" * 32, "size": 9}
WRONG_HEADERS: dict[str, dict[str, Any]] = {
    "a key that climbs": {"key": "../../key"},
    "a key that is a number": {"key": 1},
    "no scopes": {"scopes": []},
    "scopes that are a number": {"scopes": 3},
    "a scope without fields": {"scopes": [{}]},
    "a GPU that climbs": {"scopes": [WRONG | {"gpu": "../x"}]},
    "a manifest of no size": {"scopes": [{"gpu": "g", "environment": "e", "manifest": "00" * 32, "size": None}]},
    "a manifest of less than nothing": {
        "scopes": [{"gpu": "g", "environment": "e", "manifest": "00" * 32, "size": -1}]
    },
    "a manifest that is large": {"scopes": [{"gpu": "g", "environment": "e", "manifest": "00" * 32, "size": 1 << 60}]},
    "a manifest that is not there": {"scopes": [{"gpu": "g", "environment": "e", "manifest": "00" * 32, "size": 9}]},
    "a digest that is short": {"scopes": [{"gpu": "g", "environment": "e", "manifest": "00", "size": 9}]},
    "a format that is text": {"format": "1"},
}


@pytest.mark.parametrize("changes", WRONG_HEADERS.values(), ids=WRONG_HEADERS.keys())
def test_a_wrong_header_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    refused(tmp_path, edited_header(**changes).write(tmp_path / "bundle"))


@pytest.mark.parametrize("changes", [{"key": "k" * 100_000}, {"scopes": [WRONG | {"manifest": "00" * 100_000}]}])
def test_what_is_told_of_a_wrong_header_is_short(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError, match="its header cannot be read") as refusal:
        bring(other_store(tmp_path / "target"), edited_header(**changes).write(tmp_path / "bundle"))
    assert len(str(refusal.value)) < 500 + len(str(tmp_path))


@pytest.mark.parametrize(
    ("count", "told"), [(8, ", GPU e7"), (9, ", GPU e7 and 1 more"), (500, ", GPU e7 and 492 more")]
)
def test_of_many_scopes_that_a_bundle_has_beside_the_one_that_is_wanted_some_are_named(
    tmp_path: Path, count: int, told: str
) -> None:
    (content,) = json.loads(Bundle().header[22:-32])["scopes"]
    scopes = [content | {"gpu": "GPU", "environment": f"e{number}"} for number in range(count)]
    bundle = edited_header(scopes=scopes).write(tmp_path / "bundle")

    with pytest.raises(MissError) as miss:
        import_bundle(other_store(tmp_path / "target").store, str(bundle), gpu="another")
    assert str(miss.value).endswith(f"it has GPU e0, GPU e1, GPU e2, GPU e3, GPU e4, GPU e5, GPU e6{told}")


def test_a_manifest_that_many_scopes_name_is_read_once_before_one_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (content,) = json.loads(Bundle().header[22:-32])["scopes"]
    scopes = [content | {"environment": f"e{number}"} for number in range(500)]
    bundle = edited_header(scopes=scopes).write(tmp_path / "bundle")
    read: list[Manifest] = []
    monkeypatch.setattr("kstore.bundles.reader.check_manifest", read.append)

    with pytest.raises(MissError):
        import_bundle(other_store(tmp_path / "target").store, str(bundle), gpu="another")
    assert len(read) == 1


def test_many_manifests_are_read_in_one_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look for a blob goes through all frames."""
    source = other_store(tmp_path / "source")
    others = [other_store(tmp_path / "source", name=f"n{n}", environment=f"torch-{n}") for n in range(5)]
    for node in (source, *others):
        fill(node, node.store.environment.tag)
    export(source, tmp_path / "bundle", *others)
    asked: list[int] = []
    parts = PackReader.parts

    def counted(self: PackReader, wanted: Mapping[bytes, int]) -> Iterator[Part]:
        asked.append(len(wanted))
        return parts(self, wanted)

    monkeypatch.setattr(PackReader, "parts", counted)
    with BundleReader(str(tmp_path / "bundle")) as bundle:
        bundle.check()

    assert len(asked) == 2 and asked[0] == 6


def test_a_scope_whose_manifest_is_missing_is_named(tmp_path: Path) -> None:
    (content,) = json.loads(Bundle().header[22:-32])["scopes"]
    lost = content | {"environment": "lost", "manifest": "00" * 32}
    bundle = edited_header(scopes=[content, lost]).write(tmp_path / "bundle")

    with pytest.raises(IntegrityError, match=rf"the manifest of {KEY} \({GPU}, lost\) is missing"):
        bring(other_store(tmp_path / "target"), bundle)


def test_a_scope_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    (content,) = json.loads(Bundle().header[22:-32])["scopes"]
    refused(tmp_path, edited_header(scopes=[content, content]).write(tmp_path / "bundle"))


def test_a_header_of_a_newer_format_is_not_damage(tmp_path: Path) -> None:
    refused(tmp_path, edited_header(format=2).write(tmp_path / "bundle"), StoreFormatError)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"[" * 100_000, b'"text"', b"\xff"])
def test_a_header_that_is_not_an_object_is_refused(tmp_path: Path, text: bytes) -> None:
    bundle = Bundle()
    bundle.header = with_header(text)
    refused(tmp_path, bundle.write(tmp_path / "bundle"))


def test_a_header_that_declares_much_is_refused(tmp_path: Path) -> None:
    bundle = Bundle()
    bundle.header = struct.pack("<II", 0x184D2A5C, 0xFFFFFFFF) + bundle.header[8:]
    refused(tmp_path, bundle.write(tmp_path / "bundle"))


def test_a_manifest_that_is_not_a_table_is_refused(tmp_path: Path) -> None:
    for data in (b"", b"x" * 5000, Bundle().manifest[:4096]):
        bundle = Bundle()
        bundle.manifest = data
        bundle.header = Header(KEY, (Content(SCOPE, digest_of(data), len(data)),)).dump()
        refused(tmp_path, bundle.write(tmp_path / "bundle"))


# ---- Small files that would unpack to large ones


def bomb(size: int) -> Callable[[bytes, PackIndex], tuple[bytes, PackIndex]]:
    """The last frame unpacks to a gibibyte, and its header declares `size` bytes, or no size if that is 0."""
    compressor = zstandard.ZstdCompressor(write_content_size=bool(size)).compressobj(size=size or -1)
    zeros = bytes(1 << 20)
    packed = b"".join(compressor.compress(zeros) for _ in range((size or 1 << 30) >> 20)) + compressor.flush()

    def edit(frames: bytes, index: PackIndex) -> tuple[bytes, PackIndex]:
        last = index.frames[-1]
        begin = frames[: -last.packed_size]
        return begin + packed, PackIndex(
            [*index.frames[:-1], Frame(last.offset, len(packed), last.size, last.blobs)], index.digests, index.sizes
        )

    return edit


@pytest.mark.parametrize("size", [0, 1 << 30])
def test_a_bomb_is_not_unpacked(tmp_path: Path, size: int) -> None:
    path = Bundle().write(tmp_path / "bundle", bomb(size))
    assert path.stat().st_size < 1 << 20
    refused(tmp_path, path)


@pytest.mark.parametrize("size", [9 << 20, 1 << 40, (1 << 63) - 1])
def test_a_frame_that_declares_more_than_it_holds_is_refused(tmp_path: Path, size: int) -> None:
    """In the bundle's index, in the manifest, and nowhere in the frame."""

    def edit(frames: bytes, index: PackIndex) -> tuple[bytes, PackIndex]:
        last = index.frames[-1]._replace(size=size)
        return frames, PackIndex([*index.frames[:-1], last], index.digests, [*index.sizes[:-1], size])

    refused(tmp_path, Bundle({PATH: ENTRY._replace(size=size)}).write(tmp_path / "bundle", edit))


@pytest.mark.parametrize("offset", [0, 1 << 40, (1 << 64) - 1])
def test_a_frame_that_is_elsewhere_is_refused(tmp_path: Path, offset: int) -> None:
    def edit(frames: bytes, index: PackIndex) -> tuple[bytes, PackIndex]:
        return frames, PackIndex(
            [*index.frames[:-1], index.frames[-1]._replace(offset=offset)], index.digests, index.sizes
        )

    refused(tmp_path, Bundle().write(tmp_path / "bundle", edit))
