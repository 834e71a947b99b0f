"""What an attempt to commit may rely on in the store, without uploading it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from kstore.blobs import Layout
from kstore.condemned import Doomed
from kstore.published.ref import Ref
from kstore.published.snapshot import Snapshot
from kstore.storage import Storage


@dataclass(frozen=True, slots=True)
class Reliance:
    """What one attempt may rely on: what the newest generation (`theirs`) has, which keeps it, and what was there, and
    not condemned, after a place for the attempt's ref was reserved. The latter is

    - in packs that this commit has written (`own`), or an earlier one of the same job (`ahead`);
    - of the generation that the root grew from (`base`);
    - of the newest generations of the keys beside a new one (`siblings`).
    """

    storage: Storage
    layout: Layout
    """How new blobs are stored."""
    doomed: Doomed
    """What is condemned."""
    missed: Set[bytes]
    """What a restore could not read: not relied upon, wherever it seems to be, unless the newest generation has it
    where it can be read now."""
    theirs: Snapshot | None
    base: Snapshot | None
    own: tuple[str, ...]
    ahead: tuple[str, ...]
    siblings: Sequence[Ref]

    @property
    def newest(self) -> Ref | None:
        """The newest generation, if that is in the store that is written."""
        return self.theirs.ref if self.theirs and not self.theirs.ref.depth else None

    @property
    def sibling_packs(self) -> tuple[str, ...]:
        """Those packs of the siblings that are not condemned."""
        return self.doomed.spared(dict.fromkeys(pack for ref in self.siblings for pack in ref.packs))

    def includes(self, ref: Ref) -> bool:
        """Whether all that the generation has is there, except the condemned blobs. A repair may have moved a pack, and
        nobody can restore from one that does not say what it holds.
        """
        if ref.depth or not self.doomed.is_complete:
            return False
        there, blobs = present(self.storage, self.doomed, ref.packs) == ref.packs, self.storage.blobs
        return there and not blobs.contents(ref.packs)[1] and self.storage.refs.is_kept(ref)


def present(storage: Storage, doomed: Doomed, packs: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `packs` to rely on, as some may be gone. What has been deleted is on no list any more."""
    return tuple(pack for pack in doomed.spared(packs) if storage.blobs.has_pack(pack))
