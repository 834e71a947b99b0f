"""Digests of many contents at once are those that the library computes one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from kstore import digest
from kstore.digest import DIGEST_SIZE, digest_of, digest_of_parts, digests_of

Digests = Callable[[Sequence[bytes | memoryview]], bytes]

BLOCK, CHUNK = 64, 1024
LENGTHS = [
    *(0, 1, BLOCK - 1, BLOCK, BLOCK + 1, CHUNK - 1, CHUNK, CHUNK + 1),
    *(chunks * CHUNK + more for chunks in (2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33) for more in (-1, 0, 1)),
    1_000_003,
]


def content(size: int) -> bytes:
    """Bytes of which no two blocks are the same."""
    return b"".join(number.to_bytes(4, "little") for number in range(size // 4 + 1))[:size]


def by_the_library(contents: Sequence[bytes | memoryview]) -> bytes:
    return b"".join(blake3(data).digest() for data in contents)


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return pytest.importorskip(  # type: ignore[no-any-return]
        "kstore.digest.wide", exc_type=ImportError, reason="not compiled, or this processor has no AVX2"
    )


@pytest.fixture(params=[8, 16])
def wide(module: ModuleType, request: pytest.FixtureRequest) -> Digests:
    if request.param > module.MOST_LANES:
        pytest.skip(f"this processor has no {request.param} lanes")
    return lambda contents: module.digest_each(contents, request.param)


@pytest.mark.parametrize("size", LENGTHS)
def test_contents_of_any_length(wide: Digests, size: int) -> None:
    assert wide([content(size)]) == blake3(content(size)).digest()


def test_all_lengths_side_by_side(wide: Digests) -> None:
    every = [content(size) for size in LENGTHS]
    for some in (every, every[::-1], every * 3):
        assert wide(some) == by_the_library(some)


def test_every_length_of_the_first_chunks(wide: Digests) -> None:
    every = [content(size) for size in range(3 * CHUNK + 2)]
    assert wide(every) == by_the_library(every)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.binary(max_size=5 * CHUNK), max_size=40))
def test_any_contents(contents: list[bytes]) -> None:
    """In whichever way this machine computes them."""
    assert digests_of(contents) == [digest_of(data) for data in contents]


def test_what_is_large_takes_no_memory_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "digest_each", lambda *_: pytest.fail("its nodes are in memory"))
    large = bytes(2 << 20)
    assert digests_of([b"small", large]) == [digest_of(b"small"), digest_of(large)]


def test_parts_of_what_is_in_memory_need_no_copy(wide: Digests) -> None:
    whole = memoryview(content(10 * CHUNK))
    parts = [whole[start : start + 777] for start in range(0, len(whole), 777)]
    assert wide(parts) == by_the_library(parts)


def test_no_contents_have_no_digests(wide: Digests) -> None:
    assert wide([]) == b"" and digests_of([]) == []


def test_an_argument_that_is_not_bytes_is_refused_and_released(wide: Digests) -> None:
    data = bytearray(content(CHUNK))
    with pytest.raises(TypeError):
        wide([data, "text"])  # type: ignore[list-item]
    data.append(0)  # which is not allowed while anybody looks at the bytes


@pytest.mark.parametrize("lanes", [0, 4, 32])
def test_lanes_that_the_processor_lacks_are_refused(module: ModuleType, lanes: int) -> None:
    with pytest.raises(ValueError, match=f"no {lanes} lanes"):
        module.digest_each([], lanes)


def test_where_it_cannot_be_compiled_the_library_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "digest_each", lambda contents, _: by_the_library(contents))
    every = [content(size) for size in LENGTHS]
    assert digests_of(every) == [digest_of(data) for data in every]
    assert {len(name) for name in digests_of(every)} == {DIGEST_SIZE}


def test_parts_have_the_digest_of_the_whole() -> None:
    assert digest_of_parts([content(10), content(5000)]) == digest_of(content(10) + content(5000))
