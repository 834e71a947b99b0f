"""The bundle format: what one key holds, in one file.

    skippable frame [ header ] · zstd frame · … · skippable frame [ pack index ] · skippable frame [ seal ]

Between the header and the seal it is a pack: first the manifests, then the blobs, all in the frames of a pack and named
in its index. Only its nonce is special: the header's digest. The header names the key, GPUs and environments. The seal
is the digest of all bytes before it. The bytes depend only on what the generations hold and on the version of zstd,
which the header names because another version may compress differently.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import zstandard

from kstore.blobs.packindex import LEVEL, NONCE_SIZE
from kstore.digest import DIGEST_SIZE, digest_of
from kstore.errors import IntegrityError, StoreFormatError, UsageError, described
from kstore.scope import Scope
from kstore.words import shorten

FORMAT = 1
COMPRESSOR = f"zstd {'.'.join(map(str, zstandard.ZSTD_VERSION))} level {LEVEL}"

_SKIPPABLE = struct.Struct("<II")
_SKIPPABLE_MAGIC = 0x184D2A5C
_HEADER_MAGIC = b"kstore bundle\n"
_SEAL_MAGIC = b"kstore bundle's end\n"
_MAX_HEADER = 4 << 20
_LONGEST = 300
"""Characters that are told of what is wrong with a header, which may quote it."""
SEAL_SIZE = _SKIPPABLE.size + len(_SEAL_MAGIC) + DIGEST_SIZE

Read = Callable[[int, int], bytes]
"""(offset, length) → that many bytes, fewer at the end."""


class Content(NamedTuple):
    """What the bundle holds of one scope."""

    scope: Scope
    manifest: bytes
    """Digest of its manifest."""
    size: int
    """Size of the manifest in bytes."""


@dataclass(frozen=True, slots=True)
class Header:
    """What the bundle is of."""

    key: str
    contents: tuple[Content, ...]
    compressor: str = COMPRESSOR

    def dump(self) -> bytes:
        """The bytes that begin the file."""
        scopes = [
            {"gpu": c.scope.gpu, "environment": c.scope.environment, "manifest": c.manifest.hex(), "size": c.size}
            for c in self.contents
        ]
        content = {"format": FORMAT, "key": self.key, "compressor": self.compressor, "scopes": scopes}
        body = _HEADER_MAGIC + json.dumps(content, indent=1).encode() + b"\n"
        return _SKIPPABLE.pack(_SKIPPABLE_MAGIC, len(body) + DIGEST_SIZE) + body + digest_of(body)

    @property
    def nonce(self) -> bytes:
        """The nonce of the pack."""
        return digest_of(self.dump())[:NONCE_SIZE]


def load_header(read: Read) -> Header:
    """Read what `Header.dump` wrote.

    Raises:
        IntegrityError: it is damaged, or this is not a bundle.
        StoreFormatError: a newer kstore wrote it.
    """
    start = read(0, _SKIPPABLE.size + len(_HEADER_MAGIC))
    if start[_SKIPPABLE.size :] != _HEADER_MAGIC:
        raise IntegrityError("it does not begin like a bundle")
    magic, size = _SKIPPABLE.unpack_from(start)
    if magic != _SKIPPABLE_MAGIC or not DIGEST_SIZE < size <= _MAX_HEADER:
        raise IntegrityError(f"its header declares {size} bytes")
    data = read(_SKIPPABLE.size, size)
    body, digest = data[:-DIGEST_SIZE], data[-DIGEST_SIZE:]
    if len(data) != size or digest_of(body) != digest:
        raise IntegrityError("its header is cut short or damaged")
    return _parse_header(body.removeprefix(_HEADER_MAGIC))


def _parse_header(text: bytes) -> Header:
    try:
        content: dict[str, Any] = json.loads(text)
        if content["format"] > FORMAT:
            raise StoreFormatError(
                f"it has format {content['format']}, this kstore reads {FORMAT}; install the version that made it"
            )
        key, scopes = content["key"], content["scopes"]
        found = tuple(_content(key, scope) for scope in scopes)
        header = Header(key, found, str(content["compressor"]))
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError, UsageError) as error:
        raise IntegrityError(f"its header cannot be read: {shorten(described(error), _LONGEST)}") from error
    if not found or len({content.scope for content in found}) < len(found):
        raise IntegrityError("its header names no scope, or one twice")
    return header


def _content(key: str, content: dict[str, Any]) -> Content:
    manifest, size = bytes.fromhex(content["manifest"]), content["size"]
    if len(manifest) != DIGEST_SIZE or not isinstance(size, int) or size < 0:
        raise ValueError(f"{content} names no manifest")
    return Content(Scope(content["gpu"], key, content["environment"]), manifest, size)


def seal(digest: bytes) -> bytes:
    """The bytes that end the file; `digest` is that of everything before them."""
    body = _SEAL_MAGIC + digest
    return _SKIPPABLE.pack(_SKIPPABLE_MAGIC, len(body)) + body
