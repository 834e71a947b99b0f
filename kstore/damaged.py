"""Blobs that `verify` found damaged: moved aside, so that the next commit of a worker that has them puts them back."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress

from kstore.backends import Backend, NewObject
from kstore.blobs.loose import blob_name, stamp
from kstore.blobs.packindex import pack_name
from kstore.digest import digest_of
from kstore.published.refs import ref_name
from kstore.scope import Scope

FOLDER = "quarantine"


def set_aside_blob(backend: Backend, digest: bytes) -> None:
    """Move a loose blob aside; of one that is not there, remember that it is lost."""
    name = f"{FOLDER}/{digest.hex()}.{secrets.token_hex(8)}"
    try:
        backend.move(blob_name(digest), name)
    except FileNotFoundError:
        backend.put_if_absent(name, b"")


def drop_notes(backend: Backend, names: Iterable[str]) -> None:
    """Of what was moved there for one blob, remove what only says that it is lost."""
    for name in names:
        with suppress(FileNotFoundError):
            if not backend.stat(name).size:
                backend.delete(name)


def set_aside_pack(backend: Backend, pack_id: str) -> None:
    """Move a pack aside."""
    with suppress(FileNotFoundError):
        backend.move(pack_name(pack_id), f"{FOLDER}/pack-{pack_id}.{secrets.token_hex(8)}")


def set_aside_ref(backend: Backend, scope: Scope, generation: int) -> None:
    """Move a ref aside that is not the newest."""
    with suppress(FileNotFoundError):
        backend.move(ref_name(scope, generation), f"{FOLDER}/ref-{generation}.{secrets.token_hex(8)}")


def set_aside_list(backend: Backend, name: str) -> None:
    """Move a list of what gc was about to delete aside."""
    with suppress(FileNotFoundError):
        backend.move(name, f"{FOLDER}/list-{name.rpartition('/')[2]}.{secrets.token_hex(8)}")


def put_back(backend: Backend, digest: bytes, size: int, names: Iterable[str]) -> bool:
    """Put a blob of `size` bytes back, as a new file that no gc has condemned, if any of these has its bytes."""
    for name in names:
        data = b""
        with suppress(OSError):
            data = backend.get(name, 0, size + 1)
        if digest_of(data) == digest:
            return backend.put_many([NewObject(blob_name(digest), data, stamp(digest))])[0]
    return False


def damaged_blobs(backend: Backend) -> dict[bytes, list[str]]:
    """Digests of the blobs that were found damaged, and where they are."""
    found: dict[bytes, list[str]] = {}
    for child in backend.list(FOLDER):
        with suppress(ValueError):
            found.setdefault(bytes.fromhex(child.name.partition(".")[0]), []).append(f"{FOLDER}/{child.name}")
    return found


def damage_mark(backend: Backend) -> str:
    """Another one whenever a blob was moved there or away since; empty while there is none."""
    names = sorted(name for names in damaged_blobs(backend).values() for name in names)
    return digest_of("\n".join(names).encode()).hex() if names else ""


def sweep_damaged(backend: Backend, is_needed: Callable[[bytes, bool], bool], before: int) -> None:
    """Remove what no generation needs, and what is older than `before`, by the store's clock in nanoseconds.

    `is_needed` takes a digest, and whether it is a pack's.
    """
    for child in backend.list(FOLDER):
        kind, _, rest = child.name.rpartition("-")
        with suppress(ValueError, FileNotFoundError):
            digest = bytes.fromhex(rest.partition(".")[0]) if kind not in ("ref", "list") else b""
            name = f"{FOLDER}/{child.name}"
            if not (digest and is_needed(digest, kind == "pack")) and backend.stat(name).mtime_ns < before:
                backend.delete(name)
