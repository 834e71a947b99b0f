"""The dictionary that packs are compressed with. Packs must stay readable with it for as long as there are stores."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import zstandard

import kstore
from kstore.backends import PosixBackend
from kstore.blobs.dictionary import NEWEST, NONE, dictionary
from kstore.blobs.packindex import FRAME_SIZE, MAX_SHARED_FRAME, Frame, PackIndex, pack_name
from kstore.blobs.packreader import PackReader
from kstore.digest import digest_of
from kstore.errors import IntegrityError, PackageMissing
from kstore.published.ref import FORMAT
from tests.blobs.packs import fetch, write_pack

FOLDER = Path(kstore.__file__).parent / "blobs/dictionaries"
EVER = {0x6B730001: "88b4c28f2b220114c1e93acb75c38abc6bbc4746991be83cf080ae38950a2767"}
"""Number → digest, for every dictionary that a store may need."""


def content(number: int) -> bytes:
    found = dictionary(number)
    assert found
    return found.as_bytes()


WRAPPER = content(NEWEST)[-20_000:]
"""Text as compilers write it, if the dictionary is what it is meant to be."""
CASES = {
    "one blob": [WRAPPER],
    "several blobs": [WRAPPER, b"short", WRAPPER[::-1]],
    "a blob larger than a frame": [WRAPPER + os.urandom(FRAME_SIZE)],
    "a blob larger than shared frames": [WRAPPER + os.urandom(MAX_SHARED_FRAME)],
    "several frames of blobs": [WRAPPER + os.urandom(FRAME_SIZE // 3) for _ in range(8)],
}


@pytest.fixture
def backend(tmp_path: Path) -> PosixBackend:
    return PosixBackend(tmp_path / "store")


@pytest.mark.parametrize("using", [NONE, *EVER])
@pytest.mark.parametrize("case", CASES)
def test_what_goes_in_comes_out(backend: PosixBackend, case: str, using: int) -> None:
    pack_id = write_pack(backend, CASES[case], using)
    assert list(fetch(backend, pack_id, CASES[case]).values()) == CASES[case]


def test_what_the_dictionary_has_takes_no_room(backend: PosixBackend) -> None:
    sizes = {using: backend.stat(pack_name(write_pack(backend, [WRAPPER], using))).size for using in (NONE, NEWEST)}
    assert sizes[NEWEST] < sizes[NONE] / 5


@pytest.mark.parametrize("case", CASES)
def test_each_frame_says_which_it_needs(backend: PosixBackend, case: str) -> None:
    pack_id = write_pack(backend, CASES[case])
    for frame in PackReader(backend, pack_id).index.frames:
        packed = backend.get(pack_name(pack_id), frame.offset, frame.packed_size)
        assert zstandard.get_frame_parameters(packed).dict_id == NEWEST


@pytest.mark.skipif(shutil.which("zstd") is None, reason="the zstd program is not installed")
@pytest.mark.parametrize("case", CASES)
def test_zstd_unpacks_the_blobs_end_to_end(backend: PosixBackend, tmp_path: Path, case: str) -> None:
    path = backend.path(pack_name(write_pack(backend, CASES[case])))
    file = tmp_path / "dictionary"
    file.write_bytes(content(NEWEST))
    unpacked = subprocess.run(["zstd", "-dc", "-D", file, path], capture_output=True, check=True).stdout
    assert unpacked == b"".join(CASES[case])


@pytest.mark.parametrize("size", [1000, MAX_SHARED_FRAME + 1])
def test_a_frame_that_needs_an_unknown_one_is_refused(backend: PosixBackend, size: int) -> None:
    unknown = bytearray(content(NEWEST))
    unknown[4:8] = (NEWEST + 1).to_bytes(4, "little")
    data = os.urandom(size)
    packed = zstandard.ZstdCompressor(dict_data=zstandard.ZstdCompressionDict(bytes(unknown))).compress(data)
    index = PackIndex([Frame(0, len(packed), size, 1)], [digest_of(data)], [size])
    backend.put(pack_name("0" * 64), packed + b"".join(index.dump()))
    with pytest.raises(IntegrityError, match="dictionary 6b730002, which is unknown"):
        fetch(backend, "0" * 64, [data])


def test_a_writer_that_uses_another_dictionary_writes_refs_of_a_higher_format() -> None:
    """An older kstore leaves such refs alone. Without that it would take the frames for damaged."""
    assert {FORMAT: NEWEST} == {1: 0x6B730001}


@pytest.mark.parametrize("damage", ["is gone", "is cut short", "is another one"])
def test_a_dictionary_that_is_not_as_it_was_installed_is_not_damage_of_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    file = tmp_path / f"dictionaries/{NEWEST:08x}.zst"
    file.parent.mkdir()
    if damage == "is cut short":
        file.write_bytes((FOLDER / file.name).read_bytes()[:1000])
    elif damage == "is another one":
        file.write_bytes(zstandard.compress(content(NEWEST)[1:]))
    monkeypatch.setattr("kstore.blobs.dictionary.read_packaged", lambda _, name: (tmp_path / name).read_bytes())
    with pytest.raises(PackageMissing, match=r"6b730001.zst .*reinstall kstore"):
        dictionary.__wrapped__(NEWEST)


def test_none_is_ever_changed_or_removed() -> None:
    there = {int(file.name.removesuffix(".zst"), 16) for file in FOLDER.iterdir()}
    assert {number: digest_of(content(number)).hex() for number in there} == EVER


@pytest.mark.parametrize("number", EVER)
def test_each_bears_its_number(number: int) -> None:
    assert zstandard.ZstdCompressionDict(content(number)).dict_id() == number
