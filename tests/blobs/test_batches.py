"""Blobs in the order of whoever asked, only some of them in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from kstore.blobs import batches
from kstore.blobs.batches import fetch_in_order, keepable
from kstore.blobs.packindex import FRAME_SIZE
from kstore.digest import digest_of
from kstore.errors import IntegrityError

CONTENTS = {digest_of(data): data for data in (b"one", b"two", b"three", b"four")}


def backwards(asked: list[int], wanted: Mapping[bytes, int]) -> Iterator[tuple[bytes, memoryview]]:
    """Yields what there is of what is wanted, the last one first, and notes how many bytes are asked for."""
    asked.append(sum(wanted.values()))
    for digest in reversed([*wanted]):
        if digest in CONTENTS:
            yield digest, memoryview(CONTENTS[digest])


def test_blobs_come_in_the_order_and_as_often_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[int]()
    monkeypatch.setattr(batches, "_IN_MEMORY", 8)
    wanted = [(digest, len(data)) for digest, data in CONTENTS.items()] * 2
    found = [*fetch_in_order(wanted, lambda some: backwards(asked, some))]
    assert [(digest, bytes(data)) for digest, data in found] == [*CONTENTS.items()] * 2
    assert sum(asked) == 2 * 15 and max(asked) <= 8


def test_one_that_cannot_be_had_is_an_error_in_its_turn() -> None:
    wanted = [(digest_of(b"one"), 3), (digest_of(b"nowhere"), 7), (digest_of(b"two"), 3)]
    found = fetch_in_order(wanted, lambda some: backwards([], some))
    assert next(found)[1] == b"one"
    with pytest.raises(IntegrityError, match=digest_of(b"nowhere").hex()):
        next(found)


def test_a_small_blob_does_not_keep_its_frame_in_memory_and_a_large_one_is_not_copied() -> None:
    frame = bytes(FRAME_SIZE)
    assert isinstance(keepable(memoryview(frame)[:10]), bytes)
    assert isinstance(kept := keepable(memoryview(frame)), memoryview) and kept.obj is frame
