"""Fetches many generations, one after the other: from a far store, the next ones while one is looked at. What the packs
hold that several of them name is read once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

from kstore.blobs import BlobStore
from kstore.digest import Bytes
from kstore.errors import reason_of
from kstore.far import ask_each, asked
from kstore.published.delta import read_manifest
from kstore.published.ref import Ref
from kstore.scope import Scope
from kstore.storage import Storage

_THREADS = 4
"""As many manifests are held, and looked at, at a time."""
_RECENT = 3 * _THREADS
"""Generations whose packs are remembered: those that are being fetched, those that are held, and some before."""


class Fetched(NamedTuple):
    """One generation."""

    ref: Ref
    data: Callable[[], Bytes]
    """Returns its manifest, or raises what `read_manifest` does."""
    blobs: BlobStore
    """Knows what the generation's packs hold, if they say so."""


def fetch_each(
    storage: Storage, generations: Iterable[tuple[Scope, int]]
) -> Iterator[tuple[tuple[Scope, int], Callable[[], Fetched]]]:
    """Each of these generations, with what returns it, or raises what `Refs.get` does."""
    return ask_each(_Fetcher(storage).fetch, generations, _THREADS)


def trouble_with(scope: Scope, generation: int, error: Exception) -> str:
    """Which generation cannot be read, and why. Some errors say which one it is."""
    name, reason = f"generation {generation} of {scope}", reason_of(error)
    return reason if name in reason else f"{name}: {reason}"


class _Fetcher:
    def __init__(self, storage: Storage) -> None:
        self._refs = storage.refs
        self._blobs = storage.blobs_anew()
        self._recent = deque[tuple[str, ...]](maxlen=_RECENT)

    def fetch(self, generation: tuple[Scope, int]) -> Fetched:
        ref = self._refs.get(*generation)
        self._recent.append(ref.packs)
        self._blobs.keep_only(set(chain.from_iterable(self._recent.copy())))
        data = asked(partial(read_manifest, self._blobs, ref))
        asked(partial(self._read_indexes, ref.packs))  # Whoever asks what a pack holds sees what is wrong with it.
        return Fetched(ref, data, self._blobs)

    def _read_indexes(self, packs: Sequence[str]) -> None:
        self._blobs.read_indexes(packs)
        deque(map(self._blobs.can_read, packs), maxlen=0)
