"""Content names: the BLAKE3 digest of a blob's bytes, 32 raw bytes; hexadecimal wherever a person reads it.

`wide` hashes many small byte strings side by side, without the interpreter's lock. If it could not be compiled, or the
processor cannot run it, the library hashes them one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from struct import Struct

from blake3 import blake3

try:
    from kstore.digest.wide import MOST_LANES, digest_each
except ImportError:
    MOST_LANES = 1

    def digest_each(contents: Sequence[bytes | bytearray | memoryview], lanes: int) -> bytes:
        """The digests, one after the other."""
        return b"".join(map(digest_of, contents))


Bytes = bytes | memoryview
"""What may be a part of something larger, or in memory of its own."""
DIGEST_SIZE = 32
_DIGEST = Struct(f"{DIGEST_SIZE}s")
HEXADECIMAL = re.compile(rf"[0-9a-f]{{{2 * DIGEST_SIZE}}}")
"""How a digest is written in names."""
_MOST = 1 << 20
"""Bytes: what is larger fills a processor by itself, and the library takes no memory for it."""


def digest_of(data: bytes | bytearray | memoryview) -> bytes:
    """BLAKE3 of `data`."""
    return blake3(data).digest()


def digests_of(contents: Sequence[bytes | bytearray | memoryview]) -> list[bytes]:
    """BLAKE3 of each. All contents are in memory anyway, and this takes a twelfth of that in addition."""
    if max(map(len, contents), default=0) > _MOST:
        return [*map(digest_of, contents)]
    digests = digest_each(contents, MOST_LANES)
    return [digests[at : at + DIGEST_SIZE] for at in range(0, len(digests), DIGEST_SIZE)]


def split(digests: bytes | bytearray | memoryview) -> Iterator[bytes]:
    """Each of some digests that are in a row."""
    return chain.from_iterable(_DIGEST.iter_unpack(digests))


def digest_of_parts(parts: Iterable[bytes | bytearray | memoryview]) -> bytes:
    """BLAKE3 of the parts as one piece."""
    whole = blake3()
    for part in parts:
        whole.update(part)
    return whole.digest()
