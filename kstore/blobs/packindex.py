"""The pack format: many blobs in one immutable file.

    zstd frame · zstd frame · … · skippable frame [ nonce, digests, columns, footer ]

A shared filesystem charges per file, not per byte, and neighbouring kernels resemble each other. So blobs are laid end
to end in frames of about 4 MiB. Each is a standard zstd frame, so `zstd -d -D dictionary` reads the whole file. The
index says which blobs are in which frame; it sits where zstd skips it, and is found from the end of the file.
A pack's id is the BLAKE3 digest of its bytes. A nonce among them makes every pack's name new, because a name that may
be deleted is never used again.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator, MutableSequence, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, starmap
from typing import NamedTuple

import zstandard

from kstore.blobs.column import Digests, joined
from kstore.digest import DIGEST_SIZE, Bytes, digest_of, digest_of_parts
from kstore.errors import IntegrityError

FOLDER = "packs"
FRAME_SIZE = 4 << 20
"""Bytes of blobs after which a frame is closed. A blob of at least this size has a frame of its own."""
MAX_SHARED_FRAME = 2 * FRAME_SIZE
"""Bytes that a frame of several blobs stays below."""
FRAME_HEADER = 18
"""Bytes that a zstd frame's header takes at most."""
LEVEL = 2

_SKIPPABLE = struct.Struct("<II")
_SKIPPABLE_MAGIC = 0x184D2A5B
_FOOTER = struct.Struct("<IIIQ32s8s")
_MAGIC = b"kstore.1"
_FRAME = struct.Struct("<QQQI")
_SIZE = struct.Struct("<Q")
NONCE_SIZE = 16
_SOME = 4096
"""Numbers that are packed at once."""


def pack_name(pack_id: str) -> str:
    """Where a pack is stored."""
    return f"{FOLDER}/{pack_id}"


class Frame(NamedTuple):
    """One zstd frame of a pack. All sizes are in bytes."""

    offset: int
    packed_size: int
    size: int
    """When decompressed."""
    blobs: int
    """How many blobs it holds."""


class Footer(NamedTuple):
    """The last bytes of a pack. All sizes are in bytes."""

    packed_columns: int
    frames: int
    blobs: int
    columns: int
    digest: bytes
    """Of the index before the footer."""
    magic: bytes

    @property
    def body_size(self) -> int:
        """Bytes of the index before the footer."""
        return NONCE_SIZE + self.blobs * DIGEST_SIZE + self.packed_columns


FOOTER_SIZE = _FOOTER.size


@dataclass(frozen=True, slots=True)
class PackIndex:
    """What is where in a pack."""

    frames: list[Frame] = field(default_factory=list)
    digests: Digests | list[bytes] = field(default_factory=Digests)
    """Digests of the blobs, in the order of their bytes."""
    sizes: MutableSequence[int] = field(default_factory=partial(array, "Q"))
    """Bytes of each, in the same order."""

    def sizes_by_digest(self) -> dict[bytes, int]:
        """Every blob, with its size in bytes."""
        return dict(zip(self.digests, self.sizes, strict=True))

    def dump(self, nonce: bytes | None = None) -> tuple[Bytes, ...]:
        """The skippable frame that ends a pack, in parts. Digests do not compress; the columns of numbers do.

        `nonce` makes the bytes the same each time, for a file that is not in a store.
        """
        columns = b"".join(chain(starmap(_FRAME.pack, self.frames), _packed(self.sizes)))
        packed = zstandard.compress(columns, LEVEL)
        body = (nonce or os.urandom(NONCE_SIZE), memoryview(joined(self.digests)), packed)
        digest = digest_of_parts(body)
        footer = _FOOTER.pack(len(packed), len(self.frames), len(self.digests), len(columns), digest, _MAGIC)
        size = sum(map(len, body)) + len(footer)
        return _SKIPPABLE.pack(_SKIPPABLE_MAGIC, size), *body, footer


def _packed(sizes: Sequence[int]) -> Iterator[bytes]:
    some = (sizes[at : at + _SOME] for at in range(0, len(sizes), _SOME))
    return (struct.pack(f"<{len(each)}Q", *each) for each in some)


def load_footer(tail: bytes) -> Footer:
    """Read the end of a pack.

    Raises:
        IntegrityError: it is not the end of a pack.
    """
    if len(tail) < FOOTER_SIZE:
        raise IntegrityError(f"a pack of {len(tail)} bytes is cut short")
    footer = Footer._make(_FOOTER.unpack(tail[-FOOTER_SIZE:]))
    if footer.magic != _MAGIC:
        raise IntegrityError(f"a pack ends in {footer.magic!r}: it is damaged, or a newer kstore wrote it")
    return footer


def load_index(footer: Footer, body: bytes) -> PackIndex:
    """Read the index, which ends where the footer begins.

    Raises:
        IntegrityError: it is damaged, or contradicts itself.
    """
    if len(body) != footer.body_size or digest_of(body) != footer.digest:
        raise IntegrityError("the index of a pack does not match its footer")
    split = NONCE_SIZE + footer.blobs * DIGEST_SIZE
    expected = footer.frames * _FRAME.size + footer.blobs * 8
    if footer.columns != expected or footer.frames > footer.blobs:
        raise IntegrityError("the index of a pack contradicts itself")
    columns = _decompress_columns(body[split:], expected)
    index = PackIndex(
        frames=[Frame._make(row) for row in _FRAME.iter_unpack(columns[: footer.frames * _FRAME.size])],
        digests=Digests(memoryview(body)[NONCE_SIZE:split]),
        sizes=array("Q", chain.from_iterable(_SIZE.iter_unpack(columns[footer.frames * _FRAME.size :]))),
    )
    _check(index)
    return index


def _decompress_columns(packed: bytes, size: int) -> bytes:
    try:
        # The size in the frame's own header is what zstd allocates, whatever limit it is given.
        if zstandard.frame_content_size(packed) != size:
            raise IntegrityError("the index of a pack does not have the size it declares")
        return zstandard.ZstdDecompressor().decompress(packed)
    except zstandard.ZstdError as error:
        raise IntegrityError(f"the index of a pack cannot be decompressed: {error}") from error


def _check(index: PackIndex) -> None:
    """Check that no declared size makes a reader take more memory than the blobs that it asked for."""
    first = 0
    for number, frame in enumerate(index.frames):
        if frame.size != sum(index.sizes[first : first + frame.blobs]):
            raise IntegrityError(f"frame {number} of a pack does not have the size of its blobs")
        if frame.size > MAX_SHARED_FRAME and frame.blobs > 1:
            raise IntegrityError(f"frame {number} of a pack declares {frame.size} bytes")
        first += frame.blobs
    if first != len(index.digests):
        raise IntegrityError("the index of a pack has a wrong number of blobs")
