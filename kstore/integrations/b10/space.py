"""How much room there is, and whether it is enough."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import zstandard

from kstore.folders import nearest_existing
from kstore.freespace import free_bytes
from kstore.integrations.b10.status import CacheValidationError

MIB = 1 << 20
_CHUNK = 1 << 20


def free_mb(path: Path) -> float:
    """MiB that are free on the filesystem that `path` is, or would be, on; infinite if it has no size."""
    return free_bytes(nearest_existing(os.path.realpath(path))) / MIB


def check_free(path: Path, needed_mb: float, what: str) -> None:
    """Check that `needed_mb` MiB are free where `path` is.

    Raises:
        CacheValidationError: they are not.
    """
    free = free_mb(path)
    if free < needed_mb:
        raise CacheValidationError(f"{what} needs {needed_mb:.1f} MiB free at {path}, and {free:.1f} are")


def compressed_mb(paths: Iterable[Path]) -> float:
    """MiB that the files take in one compressed stream. A file that is gone counts as nothing."""
    compressor = zstandard.ZstdCompressor().compressobj()
    return (sum(len(compressor.compress(data)) for data in _read(paths)) + len(compressor.flush())) / MIB


def _read(paths: Iterable[Path]) -> Iterator[bytes]:
    for path in paths:
        with suppress(FileNotFoundError), path.open("rb") as file:
            while data := file.read(_CHUNK):
                yield data
