"""Seek: find what a generation needs, if one of its own packs cannot be read.

What a repair saves of a damaged pack goes into another pack, which only the newest generation's ref names.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from kstore.blobs.packreader import PackReader
from kstore.condemned import read_doomed
from kstore.errors import IntegrityError
from kstore.gc.digests import DigestSet
from kstore.storage import Storage

log = logging.getLogger(__name__)


def seek(storage: Storage, lacking: DigestSet, named: Collection[str]) -> set[str]:
    """The packs to keep for what is `lacking`, besides those that refs name, which are kept anyway. Uses up `lacking`.

    One pack for each blob is enough: the first by name, because every gc must choose alike. A pack that gc may be about
    to delete is kept as well, but is not enough, since another gc may be deleting it just now.
    """
    if not len(lacking):
        return set()
    doomed = read_doomed(storage.backend, tuple)
    doubtful = doomed.packs if doomed.is_complete else set(storage.blobs.packs())
    for pack in named:
        lacking.remove(_held(storage, pack) or ())
    kept = set()
    others = set(storage.blobs.packs()).difference(named)
    for pack in sorted(others, key=lambda pack: (pack in doubtful, pack)):
        if not len(lacking):
            break
        held = _held(storage, pack)
        if held is None or len(lacking.absent(held)) < len(held):
            kept.add(pack)
        if held and pack not in doubtful:
            lacking.remove(held)
    return kept


def _held(storage: Storage, pack: str) -> tuple[bytes, ...] | None:
    """Digests of what can be found in a pack; None if that may be anything, as the pack cannot be read just now."""
    try:
        return tuple(PackReader(storage.backend, pack).index.digests)
    except IntegrityError as error:
        log.debug("nothing can be found in pack %s: %s", pack, error)
    except FileNotFoundError:
        pass
    except OSError:
        return None
    return ()
