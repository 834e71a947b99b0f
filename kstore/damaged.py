"""Blobs that `verify` found damaged: moved aside, so that the next commit of a worker that has them puts them back."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress

from kstore.backends import Backend, NewObject
from kstore.blobs.loose import blob_name, stamp
from kstore.blobs.packindex import pack_name
from kstore.digest import digest_of
from kstore.published.ref import ref_name
from kstore.scope import Scope

FOLDER = "quarantine"
NO_DAMAGE = ""
"""The mark of a store in which nothing was found damaged."""


def set_aside_blob(backend: Backend, digest: bytes) -> None:
    """Move a loose blob aside; if it is not there, remember that it is lost."""
    name = _name_for(backend, digest.hex())
    try:
        backend.move(blob_name(digest), name)
    except FileNotFoundError:
        backend.put_if_absent(name, b"")


def drop_notes(backend: Backend, names: Iterable[str]) -> None:
    """Of the files that were set aside for one blob, remove the empty ones, which only say that it is lost."""
    for name in names:
        with suppress(FileNotFoundError):
            if not backend.stat(name).size:
                backend.delete(name)


def set_aside_pack(backend: Backend, pack_id: str) -> str:
    """Move a pack aside. Returns where it is then; an empty name if it is gone."""
    return _move_aside(backend, pack_name(pack_id), f"pack-{pack_id}")


def set_aside_ref(backend: Backend, scope: Scope, generation: int) -> None:
    """Move a ref aside that is not the newest."""
    _move_aside(backend, ref_name(scope, generation), f"ref-{generation}")


def set_aside_list(backend: Backend, name: str) -> None:
    """Move a list of what gc was about to delete aside."""
    _move_aside(backend, name, f"list-{name.rpartition('/')[2].partition('.')[0]}")


def _move_aside(backend: Backend, name: str, what: str) -> str:
    """Unless it is gone."""
    aside = _name_for(backend, what)
    with suppress(FileNotFoundError):
        backend.move(name, aside)
        return aside
    return ""


def _name_for(backend: Backend, what: str) -> str:
    """A name to move it to now. A moved file keeps its time, so the name says when that was, by the store's clock."""
    return f"{FOLDER}/{what}.{backend.clock():x}.{secrets.token_hex(8)}"


def put_back(backend: Backend, digest: bytes, size: int, names: Iterable[str]) -> bool:
    """Put a blob of `size` bytes back, as a new file that no gc has condemned, if any of `names` has its bytes."""
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
    """A text that changes whenever a blob is moved aside or away again; `NO_DAMAGE` while there is none."""
    names = sorted(name for names in damaged_blobs(backend).values() for name in names)
    return digest_of("\n".join(names).encode()).hex() if names else NO_DAMAGE


def sweep_damaged(backend: Backend, is_needed: Callable[[bytes, bool], bool], before: int) -> None:
    """Remove what no generation needs, if it was set aside earlier than `before`, by the store's clock in nanoseconds.

    `is_needed` takes a digest, and whether it is a pack's.
    """
    for child in backend.list(FOLDER):
        kind, _, rest = child.name.rpartition("-")
        with suppress(ValueError):
            what, since, _ = rest.split(".")
            digest = bytes.fromhex(what) if kind not in ("ref", "list") else b""
            if not (digest and is_needed(digest, kind == "pack")) and int(since, 16) < before:
                backend.delete(f"{FOLDER}/{child.name}")
