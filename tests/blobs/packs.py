"""Packs that are written and read as a commit and a restore do it."""

from __future__ import annotations

from collections.abc import Iterable

from kstore.backends import PosixBackend
from kstore.blobs.dictionary import NEWEST
from kstore.blobs.packindex import pack_name
from kstore.blobs.packreader import PackReader
from kstore.blobs.packwriter import PackWriter
from kstore.digest import digest_of


def write_pack(backend: PosixBackend, blobs: Iterable[bytes], using: int = NEWEST) -> str:
    with backend.upload() as upload, PackWriter(upload, using=using) as writer:
        for data in blobs:
            writer.add(digest_of(data), data)
        pack_id = writer.finish()
        upload.publish(pack_name(pack_id))
    return pack_id


def fetch(backend: PosixBackend, pack_id: str, blobs: Iterable[bytes]) -> dict[bytes, bytes]:
    wanted = {digest_of(data): len(data) for data in blobs}
    return {digest: bytes(data) for digest, data in PackReader(backend, pack_id).fetch(wanted)}
