"""How much room there is, and whether that is enough."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import zstandard

from kstore.integrations.b10.status import CacheValidationError

MIB = 1 << 20
_CHUNK = 1 << 20


def free_mb(path: Path) -> float:
    """MiB that are free on the filesystem that `path` is, or would be, on."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free / MIB


def check_free(path: Path, needed_mb: float, what: str) -> None:
    """See that `needed_mb` MiB are free where `path` is.

    Raises:
        CacheValidationError: they are not.
    """
    free = free_mb(path)
    if free < needed_mb:
        raise CacheValidationError(f"{what} needs {needed_mb:.1f} MiB free at {path}, and {free:.1f} are")


def compressed_mb(paths: Iterable[Path]) -> float:
    """MiB that the files take when they are compressed, each one by itself. One that has gone counts nothing."""
    compressor = zstandard.ZstdCompressor()
    return sum(_compressed(path, compressor) for path in paths) / MIB


def _compressed(path: Path, compressor: zstandard.ZstdCompressor) -> int:
    try:
        with path.open("rb") as file:
            return sum(len(piece) for piece in compressor.read_to_iter(file, read_size=_CHUNK))
    except FileNotFoundError:
        return 0
