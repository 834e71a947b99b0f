"""A garbage collector of a few lines, which works on the store alone: commits know nothing of it.

It stands in for a real one where the explorations themselves are tested. It condemns what nothing refers to, and
deletes what has been condemned for longer than `grace`. With commits that do not look at its lists that is wrong,
and the exploration must find it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator

from kstore.blobs import BlobStore
from kstore.blobs.loose import blob_name
from kstore.blobs.packindex import pack_name
from kstore.published.delta import read_manifest
from kstore.published.manifest import Manifest
from kstore.published.ref import Ref
from kstore.published.refs import Refs
from tests.interleavings.memory import MemoryBackend

CONDEMNED = "gc/listed"
"""A folder where commits do not look."""


def collect(backend: MemoryBackend, grace: float) -> None:
    """One run; `grace` is in seconds."""
    now = _now(backend)
    live = _mark(backend)
    listed = {name for old in _lists(backend) for name in _sweep(backend, old, live, now - int(grace * 1e9))}
    dead = [name for name in _everything(backend) if name not in live and name not in listed]
    if dead:
        _write_list(backend, dead)


def _now(backend: MemoryBackend) -> int:
    """By the store's own clock."""
    name = f"gc/{secrets.token_hex(8)}"
    backend.put(name, b"")
    now = backend.stat(name).mtime_ns
    backend.delete(name)
    return now


def _mark(backend: MemoryBackend) -> set[str]:
    """Every name that the newest generation of some scope needs. The older generations are removed."""
    refs, blobs = Refs(backend), BlobStore(backend)
    live: set[str] = set()
    for scope in refs.scopes():
        *old, newest = [refs.get(scope, number) for number in refs.generations(scope)]
        for ref in old:
            backend.delete(ref.name)
        live |= _needs(blobs, newest)
    return live


def _needs(blobs: BlobStore, ref: Ref) -> set[str]:
    manifest = Manifest.load(read_manifest(blobs, ref))
    wanted = ref.stored.keys() | {entry.digest for entry in manifest.entries()}
    loose = wanted - blobs.digests_in(ref.packs)
    return {blob_name(digest) for digest in loose} | {pack_name(pack) for pack in ref.packs}


def _lists(backend: MemoryBackend) -> list[str]:
    return [f"{CONDEMNED}/{child.name}" for child in backend.list(CONDEMNED)]


def _sweep(backend: MemoryBackend, old: str, live: set[str], before_ns: int) -> list[str]:
    """Delete what an old enough list names; returns what is still listed."""
    try:
        names: list[str] = json.loads(backend.get(old))
        if backend.stat(old).mtime_ns > before_ns:
            return names
    except FileNotFoundError:
        return []
    for name in names:
        if name not in live:
            backend.delete(name)
    left = [name for name in names if name in live]
    if left:
        _write_list(backend, left)
    backend.delete(old)
    return left


def _everything(backend: MemoryBackend) -> Iterator[str]:
    yield from (f"packs/{child.name}" for child in backend.list("packs"))
    for folder in backend.list("blobs"):
        yield from (f"blobs/{folder.name}/{child.name}" for child in backend.list(f"blobs/{folder.name}"))


def _write_list(backend: MemoryBackend, names: list[str]) -> None:
    backend.put_if_absent(f"{CONDEMNED}/{secrets.token_hex(8)}", json.dumps(sorted(names)).encode())
