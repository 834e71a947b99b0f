"""A manifest stored as what it adds to an earlier one: one more kernel does not cost the list of all others again.

A delta is a zstd frame that follows on the bytes of the earlier manifest, as `zstd --patch-from` makes them. The
manifest it follows on is always stored whole, so two reads give any manifest, however many generations lie between.
"""

from __future__ import annotations

import logging

import zstandard

from kstore.blobs import BlobStore
from kstore.digest import Bytes, digest_of
from kstore.errors import IntegrityError
from kstore.published.manifest import Manifest
from kstore.published.ref import Ref, RefState

log = logging.getLogger(__name__)

WORTHWHILE = 64 << 10
"""Bytes that a delta must save, before compression: below that, a second read costs more."""
_MOST = 1 / 8
"""The largest delta, as a share of the whole. Compressed by itself, a manifest takes about three times that."""
_MAX_SIZE = 32 << 20
"""Bytes: both manifests are in memory at once."""
_LARGEST = 1 << 30
"""The most bytes of a manifest, enough for six million artifacts: a sparse file can have any size."""
_LEVEL = 6
"""The lowest level at which zstd goes on looking in what comes before: 3 gives eight times the bytes."""
_WINDOW_LOG = 26


def may_follow(size: int, base_size: int) -> bool:
    """Whether a manifest may be stored as what it adds to another, by the sizes of both in bytes."""
    return size >= WORTHWHILE and max(size, base_size) <= _MAX_SIZE


def difference(data: Bytes, base: Bytes) -> bytes | None:
    """`data` as what it adds to `base`. None if it is better stored whole."""
    if not may_follow(len(data), len(base)):
        return None
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL, window_log=min((len(data) + len(base)).bit_length(), _WINDOW_LOG), source_size=len(data)
    )
    delta = zstandard.ZstdCompressor(dict_data=_dictionary(base), compression_params=parameters).compress(data)
    return delta if len(delta) <= min(len(data) * _MOST, len(data) - WORTHWHILE) else None


def follow(delta: Bytes, base: Bytes, size: int) -> bytes:
    """The `size` bytes that `difference` made `delta` of.

    Raises:
        IntegrityError: `delta` gives something else.
    """
    try:
        # The size in the frame's own header is what zstd allocates, whatever limit it is given.
        if zstandard.frame_content_size(delta) != size:
            raise IntegrityError(f"a manifest's delta does not give the {size} bytes that it should")
        inflater = zstandard.ZstdDecompressor(dict_data=_dictionary(base), max_window_size=1 << _WINDOW_LOG)
        return inflater.decompress(delta)
    except zstandard.ZstdError as error:
        raise IntegrityError(f"a manifest's delta cannot be decompressed: {error}") from error


def read_manifest(blobs: BlobStore, ref: Ref, followed: dict[bytes, Bytes] | None = None) -> Bytes:
    """The manifest that a ref names. If that is lost and the generation is not live, an empty one instead: the ref says
    what such a generation stands for.

    `followed` may have the manifest that it follows on, by its digest, and has that one afterwards.

    Raises:
        IntegrityError: the manifest, or the one it follows on, is missing or damaged.
        OSError, MemoryError: it cannot be read just now.
    """
    try:
        return _read(blobs, ref, {} if followed is None else followed)
    except IntegrityError as error:
        if ref.state is RefState.LIVE:
            raise
        log.debug("generation %d of %s is %s: %s", ref.generation, ref.scope, ref.state, error)
        return Manifest().dump()


def _read(blobs: BlobStore, ref: Ref, followed: dict[bytes, Bytes]) -> Bytes:
    delta = ref.delta
    if ref.manifest_size > _LARGEST:
        raise IntegrityError(f"its ref declares a manifest of {ref.manifest_size} bytes")
    if delta is None:
        return blobs.fetch(ref.manifest, ref.manifest_size, ref.packs)
    if max(ref.manifest_size, delta.size, delta.follows_size) > _MAX_SIZE:
        raise IntegrityError(f"blob {delta.digest.hex()} declares more than a delta has")
    base = followed.get(delta.follows) or blobs.fetch(delta.follows, delta.follows_size, ref.packs)
    followed.clear()
    followed[delta.follows] = base
    data = follow(blobs.fetch(delta.digest, delta.size, ref.packs), base, ref.manifest_size)
    if digest_of(data) != ref.manifest:
        raise IntegrityError(f"blob {delta.digest.hex()} gives another manifest than {ref.manifest.hex()}")
    return data


def _dictionary(base: Bytes) -> zstandard.ZstdCompressionDict:
    return zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
