"""Fetches many blobs in an order that the caller chose, with only some of them in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from kstore.batches import batches
from kstore.blobs.packindex import FRAME_SIZE
from kstore.errors import IntegrityError

Fetch = Callable[[Mapping[bytes, int]], Iterator[tuple[bytes, memoryview]]]
"""Yields (digest, bytes) of each wanted blob once, verified, in any order; what cannot be had is left out. Wanted blobs
are given by digest and size in bytes."""

_IN_MEMORY = 16 << 20
"""Bytes of blobs that wait for their turn."""


def fetch_in_order(wanted: Iterable[tuple[bytes, int]], fetch: Fetch) -> Iterator[tuple[bytes, bytes | memoryview]]:
    """Yield (digest, bytes) of the wanted blobs, given by digest and size, in the given order and as often as given.

    Raises:
        IntegrityError: one cannot be had.
    """
    for batch in batches(wanted, _IN_MEMORY):
        found = {digest: keepable(data) for digest, data in fetch(dict(batch))}
        for digest, _ in batch:
            if digest not in found:
                raise IntegrityError(f"blob {digest.hex()} is missing or damaged; see `kstore verify`")
            yield digest, found[digest]
        del found  # or a large blob would be held while the next one is fetched


def keepable(data: memoryview) -> bytes | memoryview:
    """The same bytes, copied if they are few: a small blob is a part of a frame, which it would keep in memory."""
    return data if len(data) >= FRAME_SIZE else bytes(data)
