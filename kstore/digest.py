"""Content names: the BLAKE3 digest of a blob's bytes, 32 raw bytes; hexadecimal wherever a person reads it."""

from __future__ import annotations

from collections.abc import Iterable

from blake3 import blake3

DIGEST_SIZE = 32


def digest_of(data: bytes | bytearray | memoryview) -> bytes:
    """BLAKE3 of `data`."""
    return blake3(data).digest()


def digest_of_parts(parts: Iterable[bytes | bytearray]) -> bytes:
    """The same of what they are together."""
    whole = blake3()
    for part in parts:
        whole.update(part)
    return whole.digest()
