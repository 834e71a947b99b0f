"""What generations take in the store, each beyond what the kept ones before it take."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Self

from kstore.errors import IntegrityError, MissError
from kstore.gc.digests import DigestSet
from kstore.gc.mark import Needs, needs_of
from kstore.gc.seek import seek
from kstore.scope import Scope
from kstore.storage import Storage

_NOTHING = Needs((), {}, {}, {})


class Costs:
    """Says what generations take, one after the other. To be used in a context."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._packs: set[str] = set()
        self._asked, self._asked_packs = _NOTHING, set[str]()

    def __enter__(self) -> Self:
        self._open = ExitStack()
        self._counted, self._there, self._sought = (self._open.enter_context(DigestSet()) for _ in range(3))
        for digests in self._storage.blobs.loose.folders():
            self._there.add(digests)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def of(self, scope: Scope, generation: int) -> int:
        """Bytes in the store that this generation needs and none of those kept so far does, without what is lost."""
        self._asked, self._asked_packs = _NOTHING, set[str]()
        try:
            needs = needs_of(self._storage, self._storage.refs.get(scope, generation))
        except (IntegrityError, MissError):
            return 0
        new = self._counted.absent(needs.loose)
        size = sum(map(needs.loose.__getitem__, new)) - sum(map(needs.loose.__getitem__, self._there.absent(new)))
        packs = {*needs.packs, *self._found_elsewhere(needs)} - self._packs
        self._asked, self._asked_packs = needs, packs
        return size + sum(size_of(self._storage, pack) for pack in packs)

    def keep(self) -> None:
        """Note that the generation last asked about stays: what others share with it costs them nothing."""
        self._counted.add(self._asked.loose)
        self._sought.add(self._asked.lacking)
        self._packs |= self._asked_packs

    def _found_elsewhere(self, needs: Needs) -> set[str]:
        """The packs that gc keeps for what the generation's own packs have lost."""
        if not needs.lacking:
            return set()
        with DigestSet() as lacking:
            lacking.add(self._sought.absent(needs.lacking))
            return seek(self._storage, lacking, {*self._packs, *needs.packs})


def size_of(storage: Storage, pack: str) -> int:
    """Bytes of a pack as it is stored; 0 if it is gone: an earlier generation may name one that a repair took away."""
    try:
        return storage.blobs.pack(pack).size
    except FileNotFoundError:
        return 0
