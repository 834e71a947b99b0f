"""Theirs: what a commit merges with, and how it is found."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import NamedTuple

from kstore.aside import Kept, pieces_of
from kstore.creator import creator
from kstore.digest import Bytes, digest_of_parts
from kstore.errors import IntegrityError, MissError
from kstore.published.generations import republish
from kstore.published.layers import newest_ref, newest_whole, or_below
from kstore.published.leaning import kept_by
from kstore.published.lost import lacks_pack
from kstore.published.manifest import Manifest
from kstore.published.ref import Delta, Effort, Ref, RefState
from kstore.published.snapshot import Snapshot
from kstore.scope import Scope
from kstore.storage import Storage
from kstore.upload.reliance import Reliance


class Theirs(NamedTuple):
    """The newest generation of the scope, as last seen."""

    generation: int = 0
    """Its number; 0 if nothing is published in the store that is written."""
    snapshot: Snapshot | None = None
    """That generation; if it is damaged, the newest whole one before it; if there is none, what a store below has."""

    @property
    def manifest(self) -> Manifest:
        """Empty if nothing is published."""
        return self.snapshot.manifest if self.snapshot else Manifest()

    @property
    def followed(self) -> Ref | None:
        """The newest generation, if its successor goes on with its line: it is whole, and not in a store below."""
        ref = self.snapshot.ref if self.snapshot else None
        return ref if ref and not ref.depth and ref.generation == self.generation else None

    @property
    def stands_in(self) -> Snapshot | None:
        """The snapshot, if that is an earlier generation in the place of a damaged one."""
        here = self.snapshot and not self.snapshot.ref.depth
        return self.snapshot if here and not self.followed else None

    @property
    def line(self) -> int:
        """Where the line of its successor begins: with the successor, if the generation listed as newest is damaged."""
        if self.snapshot and self.snapshot.ref.depth and not self.generation:
            return 0
        return self.followed.line if self.followed else self.generation + 1

    def successor(
        self,
        scope: Scope,
        manifest: Manifest,
        data: Kept,
        delta: Delta | None,
        packs: tuple[str, ...],
        effort: Effort | None = None,
        lease: str = "",
    ) -> Ref:
        """The next generation, with a manifest of these bytes, stored whole or as a delta, and the packs to name."""
        return Ref(
            scope=scope,
            generation=self.generation + 1,
            manifest=digest_of_parts(pieces_of(data)),
            manifest_size=len(data),
            delta=delta,
            packs=packs,
            created=time.time(),
            creator=creator(),
            files=sum(map(len, (manifest.files, *manifest.hosts.values()))),
            size=sum(size for _, size in manifest.blobs()),
            parent=self.generation,
            line=self.line,
            lineage=self.followed.leads_to() if self.followed else (),
            effort=effort,
            lease=lease,
        )


class Newest:
    """Finds the newest generation of a scope, anew for each attempt of one commit to publish."""

    def __init__(self, storage: Storage, scope: Scope, base: Snapshot | None) -> None:
        """`base` is what the root grew from. While that is the newest generation, its manifest is not read again."""
        self._storage = storage
        self._scope = scope
        self._base = base
        self.taken = 0
        """The highest number that is known to be taken, listed or not."""
        self._followed = dict[bytes, Bytes]()
        """The manifest that the last one followed on, as the store has it: the next one may follow on it too."""
        self._packs: set[str] = set()
        """Packs that were there at an earlier attempt: the next generation names most of them too."""

    def theirs(self) -> Theirs:
        """The newest generation; if it is damaged, the newest whole one before it."""
        try:
            ref = self.ref()
            if ref is None:
                return Theirs()
            known = self._base if self._base and self._base.is_generation_of(ref) else None
            if known is None or self.lacks_pack(ref):  # that pack may have held its manifest
                known = self._storage.snapshot(ref, self._followed)
            return Theirs(0 if ref.depth else ref.generation, or_below(self._storage, self._scope, known))
        except IntegrityError:
            return Theirs(*newest_whole(self._storage, self._scope, self.taken))

    def lacks_pack(self, ref: Ref) -> bool:
        """Whether a pack that a newest generation needs is gone: see `lost.lacks_pack`."""
        lacks = lacks_pack(self._storage, ref, self._packs)
        if not lacks:
            self._packs.update(ref.packs)
        return lacks

    def ref(self) -> Ref | None:
        """Its ref, even if the generation is empty; None if no store has one.

        Raises:
            IntegrityError: it is damaged.
        """
        ref = newest_ref(self._storage, self._scope)
        if self.taken > (ref.generation if ref and not ref.depth else 0):
            # NFS may go on listing a folder as it was, but a known name is looked up.
            return self._storage.refs.get(self._scope, self.taken)
        return ref


def kept_in_place(theirs: Theirs) -> set[bytes]:
    """Digests of what an earlier generation has that stands in for a damaged one: some of it may be condemned."""
    there = theirs.stands_in
    return kept_by(there) | there.ref.stored.keys() if there else set()


def is_kept(reliance: Reliance, theirs: Theirs) -> bool:
    """Whether `theirs` keeps what it has until its successor is published, as the newest generation does.

    If an earlier one stands in for that, a gc that can read the newest may be deleting what it has. Then it is
    published once more, with copies of what is condemned, for the next attempt to build upon.

    Raises:
        IntegrityError, StoreUnavailable: as `republish`.
    """
    there, doomed = theirs.stands_in, reliance.doomed
    if there is None or not doomed.is_complete:
        return True
    ref, refs = there.ref, reliance.storage.refs
    is_spared = doomed.spared(ref.packs) == ref.packs and doomed.blobs.isdisjoint(kept_in_place(theirs))
    if not is_spared and is_passed_over(reliance.storage, ref.scope, theirs):
        with suppress(MissError):  # gc has just removed it
            republish(reliance.storage, ref, upon=theirs.generation, after_loss=True)
    return is_spared and refs.is_kept(ref)


def is_passed_over(storage: Storage, scope: Scope, theirs: Theirs) -> bool:
    """Whether every generation after `theirs` still cannot be read. It may only have been trouble with the server: what
    only that generation had would not be in the next one.
    """
    if theirs.followed or not theirs.generation:
        return True
    since = theirs.stands_in.ref.generation if theirs.stands_in else 0
    after = [number for number in storage.refs.generations(scope) if number > since]
    return not any(_has_news(storage, scope, number) for number in after)


def _has_news(storage: Storage, scope: Scope, generation: int) -> bool:
    """Whether a generation can be read, and says more than that all was lost, which hides nothing below."""
    with suppress(IntegrityError, MissError):
        snapshot = storage.snapshot(storage.refs.get(scope, generation))
        _ = snapshot.checked
        return snapshot.ref.state is not RefState.LOST
    return False
