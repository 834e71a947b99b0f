"""What was in a store before gc marked: only that may be condemned, because nobody knows whether what comes while gc
marks is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from kstore.backends import Backend
from kstore.blobs.loose import LooseBlobs, blob_name
from kstore.blobs.packindex import FOLDER, pack_name
from kstore.condemned import Condemned, damaged_names
from kstore.digest import HEXADECIMAL
from kstore.gc.digests import DigestSet
from kstore.gc.mark import Marked

_BATCH = 1 << 16


class Inventory:
    """The objects of one store."""

    def __init__(self, backend: Backend, loose: DigestSet) -> None:
        """Look now. `loose` is empty: it is to hold the loose blobs that are found."""
        self._backend = backend
        self.damaged = damaged_names(backend)
        """Lists that nobody can read any more. All that may have been on them is condemned."""
        self._packs = list(_packs(backend))
        self._loose = loose
        for digests in LooseBlobs(backend).folders():
            loose.add(digests)

    def dead(self, marked: Marked) -> Iterator[Condemned]:
        """What no generation needs, as it is now; if there are damaged lists, also what is needed only in doubt."""
        for digest in self._packs:
            is_kept = digest.hex() in marked.packs if self.damaged else marked.keeps(digest.hex())
            if not is_kept:
                yield from self._now(is_pack=True, digest=digest)
        there = (digest for digest, _ in self._loose.items())
        while batch := list(islice(there, _BATCH)):
            for digest in marked.loose.absent(batch) if self.damaged else marked.dead(batch):
                yield from self._now(is_pack=False, digest=digest)

    def _now(self, *, is_pack: bool, digest: bytes) -> Iterator[Condemned]:
        """An object as it is now; nothing if it is gone."""
        name = pack_name(digest.hex()) if is_pack else blob_name(digest)
        try:
            found = self._backend.stat(name)
        except FileNotFoundError:
            return
        yield Condemned(is_pack, digest, found.inode, found.mtime_ns, found.size)


def _packs(backend: Backend) -> Iterator[bytes]:
    """The ids of all packs."""
    for child in backend.list(FOLDER):
        if HEXADECIMAL.fullmatch(child.name) and not child.is_folder:
            yield bytes.fromhex(child.name)
