"""Content names: the BLAKE3 digest of a blob's bytes, 32 raw bytes; hexadecimal wherever a person reads it."""

from __future__ import annotations

from blake3 import blake3

DIGEST_SIZE = 32


def digest_of(data: bytes | bytearray | memoryview) -> bytes:
    """BLAKE3 of `data`."""
    return blake3(data).digest()
