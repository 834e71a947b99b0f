"""What is whole in a bundle that a killed export left: its header and frames, up to the first that is not whole."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO

import zstandard

from kstore.blobs.dictionary import NONE
from kstore.blobs.packindex import FRAME_HEADER, FRAME_SIZE, Frame, PackIndex
from kstore.blobs.packreader import PackReader
from kstore.bundles.bundlefile import BundleFile
from kstore.errors import IntegrityError

_BLOCK_HEADER = 3
_RUN, _RESERVED = 1, 3
_CHECKSUM = 4


def recover(
    file: IO[bytes], header: bytes, manifests: Sequence[tuple[bytes, int]], blobs: Sequence[tuple[bytes, int]]
) -> tuple[int, PackIndex]:
    """How many bytes of `file` are the beginning of a bundle with this header, these manifests and these blobs, and
    which manifests and blobs those bytes hold. 0 if it is the beginning of something else.

    Manifests and blobs are given by digest and size; each manifest is in a frame of its own.
    """
    planned = [*manifests, *blobs]
    bundle = BundleFile(file.fileno(), os.fstat(file.fileno()).st_size)
    begun = PackIndex()
    if bundle.read(0, len(header)) != header:
        return 0, begun
    end = len(header)
    while frame := _next_frame(bundle, end, planned, len(begun.digests), len(manifests)):
        inside = planned[len(begun.digests) : len(begun.digests) + frame.blobs]
        if not _is_whole(bundle, frame, inside):
            break
        begun.frames.append(frame)
        begun.digests.extend(digest for digest, _ in inside)
        begun.sizes.extend(size for _, size in inside)
        end += frame.packed_size
    return end, begun


def _next_frame(
    bundle: BundleFile, offset: int, planned: Sequence[tuple[bytes, int]], first: int, manifests: int
) -> Frame | None:
    """The frame at `offset`, if what is planned from number `first` on has the size that the frame declares."""
    packed_size = frame_size(bundle, offset)
    if not packed_size:
        return None
    header = zstandard.get_frame_parameters(bundle.read(offset, FRAME_HEADER))
    if header.dict_id != NONE:
        return None
    size = header.content_size
    end, total = first, 0
    while end < len(planned) and (end == first or total < size):
        total += planned[end][1]
        end += 1
    # Empty ones go into a frame that has room, as in `PackWriter`.
    while manifests < end < len(planned) and total < FRAME_SIZE and not planned[end][1]:
        end += 1
    return Frame(offset, packed_size, size, end - first) if end > first and total == size else None


def _is_whole(bundle: BundleFile, frame: Frame, blobs: Sequence[tuple[bytes, int]]) -> bool:
    index = PackIndex([frame], [digest for digest, _ in blobs], [size for _, size in blobs])
    try:
        found = {digest for digest, _ in PackReader(bundle, "", index).fetch(dict(blobs))}
    except IntegrityError:
        return False
    return len(found) == len(blobs)


def frame_size(bundle: BundleFile, offset: int) -> int:
    """Bytes of the zstd frame at `offset`; 0 if it is not a frame, or is cut short.

    No header gives the number: the bytes are counted from block to block (RFC 8878, section 3.1.1).
    """
    header = bundle.read(offset, FRAME_HEADER)
    try:
        has_checksum = zstandard.get_frame_parameters(header).has_checksum
        end = offset + zstandard.frame_header_size(header)
    except zstandard.ZstdError:
        return 0
    is_last = False
    while not is_last:
        block = bundle.read(end, _BLOCK_HEADER)
        number = int.from_bytes(block, "little")
        is_last, kind, size = bool(number & 1), number >> 1 & 3, number >> 3
        if len(block) < _BLOCK_HEADER or kind == _RESERVED:
            return 0
        end += _BLOCK_HEADER + (1 if kind == _RUN else size)
    end += _CHECKSUM if has_checksum else 0
    return end - offset if end <= bundle.size else 0
