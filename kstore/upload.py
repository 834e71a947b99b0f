"""Upload: which blobs the store lacks, and their bytes, in the order that compresses best."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from kstore.blobs import Layout, Source
from kstore.errors import KstoreError
from kstore.local.finished import read_whole
from kstore.local.link import LinkMode, probe
from kstore.local.relocate import to_stored
from kstore.manifest import Entry, Files, Flag
from kstore.worker import Worker

MAX_SIBLINGS = 32
"""How many other keys are asked for blobs that a new key shares with them."""
_RELOCATE = int(Flag.RELOCATE)


def choose_layout(worker: Worker) -> Layout:
    """Loose where the cache root can link or clone from the store, else packed.

    Raises:
        OSError: the store or the cache root cannot be written.
    """
    if worker.layout:
        return worker.layout
    source = worker.store.backend.staging_path()
    os.makedirs(os.path.dirname(source), exist_ok=True)
    with open(source, "xb") as file:
        file.write(b"probe")
    try:
        linker = probe(source, os.path.join(worker.root.state, os.path.basename(source)))
    finally:
        os.unlink(source)
    return Layout.PACKED if linker.mode is LinkMode.COPY else Layout.LOOSE


def sources(worker: Worker, ours: Files, contents: Mapping[bytes, bytes], known: set[bytes]) -> list[Source]:
    """What to upload: each blob of `ours` and of `contents` once, without the `known` ones.

    Sorted by suffix and name, for kernels resemble their neighbours: the same artifacts take a tenth of the bytes
    that they take in the order of their paths.
    """
    found = {d: Source(d, len(data), partial(bytes, data)) for d, data in contents.items() if d not in known}
    for path, entry in sorted(ours.items(), key=_similarity):
        if entry.digest not in known and entry.digest not in found:
            found[entry.digest] = Source(entry.digest, entry.size, partial(_read, worker, path, entry))
    return list(found.values())


def sibling_packs(worker: Worker) -> tuple[str, ...]:
    """Packs of the keys beside this one (`my-model/v1` for `my-model/v2`), whose blobs it likely shares."""
    parent = worker.scope.key.rpartition("/")[0]
    refs, packs = worker.store.refs, dict[str, None]()
    for number, scope in enumerate(refs.scopes(worker.scope.gpu, parent)):
        if number == MAX_SIBLINGS:
            break
        if scope.environment != worker.scope.environment:
            continue
        # A sibling that cannot be read is not this key's trouble.
        with suppress(KstoreError, OSError):
            ref = refs.newest(scope)
            packs |= dict.fromkeys(ref.packs if ref else ())
    return tuple(packs)


def _similarity(item: tuple[str, Entry]) -> tuple[str, str, str]:
    path = item[0]
    name = path.rpartition("/")[2]
    return name.rpartition(".")[2], name, path


def _read(worker: Worker, path: str, entry: Entry) -> bytes | None:
    try:
        data = read_whole(worker.root.local_path(path))
        return _stored(worker, path, data) if entry.flags & _RELOCATE else data
    except (ValueError, OSError):
        return None


def _stored(worker: Worker, path: str, data: bytes) -> bytes:
    component, _, relative = path.partition("/")
    return to_stored(worker.table[component].method("relocate", relative) or "", data, relative)
