"""What an attempt uploads: what it brings, without what it may rely on."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from kstore.blobs import Layout
from kstore.published.leaning import kept_by, may_lean
from kstore.published.lost import lost_of
from kstore.published.snapshot import Snapshot
from kstore.upload.reliance import Reliance


@dataclass(frozen=True, slots=True)
class UploadPlan:
    """What one attempt uploads, and what it need not."""

    reliance: Reliance
    wanted: Mapping[bytes, int]
    """What is uploaded: digest → bytes."""
    below: Set[bytes]
    """What is not, because a store below has it."""
    lost: Set[bytes]
    """What the newest generation has lost, and this attempt brings back."""
    damaged: Set[bytes]
    """What is a loose blob that somebody has changed, or is lost and seems to be in a pack of the newest generation."""
    packs: tuple[str, ...]
    """Those that are relied upon, other than the newest generation's and what this commit has written."""

    def is_barred(self, digest: bytes, size: int) -> bool:
        """Whether a blob must not be stored as a loose one: that name is or may be condemned, or a damaged blob has it.

        The same holds for one that is lost in a pack which the ref goes on naming: gc would think it not needed.
        """
        doomed = self.reliance.doomed
        if digest in doomed.blobs:
            return True
        if self.reliance.layout is not Layout.LOOSE:
            return False
        if not doomed.is_complete or digest in self.damaged:
            return True
        if digest not in self.reliance.missed and digest not in self.lost:
            return False  # Of any other blob it is known whether somebody has changed a loose one.
        try:
            return self.reliance.storage.blobs.loose.has(digest, size)
        except OSError:
            return True


def plan_upload(reliance: Reliance, sizes: Mapping[bytes, int], lost: Set[bytes] = frozenset()) -> UploadPlan:
    """Which of these blobs, given with their sizes in bytes, to upload: what the store lacks, what may not be relied
    upon there, and what is `lost`; but not what may be left in a store below.
    """
    storage, theirs, newest = reliance.storage, reliance.theirs, reliance.newest
    held, unsure = storage.blobs.digests_in, lost | reliance.missed
    known = kept_by(theirs) - lost | held(reliance.own + reliance.ahead)
    beside, packs = _known_beside(reliance, _without(sizes, known | lost))
    known |= beside - lost
    wanted, altered = _without_loose(reliance, _without(sizes, known), unsure)
    may_be_below = wanted if may_lean(storage, theirs) else {}
    seems_packed = held(newest.packs) & unsure if newest and unsure else set[bytes]()
    below = storage.below.held(_without(may_be_below, unsure))
    return UploadPlan(reliance, _without(wanted, below), below, lost, altered | seems_packed, packs)


def _known_beside(reliance: Reliance, sizes: Mapping[bytes, int]) -> tuple[set[bytes], tuple[str, ...]]:
    """The digests of what the base and the siblings have, at least of these; and their packs, with those that were
    uploaded ahead.
    """
    storage, base = reliance.storage, reliance.base
    known, packs = storage.blobs.digests_in(reliance.sibling_packs), reliance.ahead
    if base and _may_help(base, reliance, sizes) and reliance.includes(base.ref):
        gone = reliance.doomed.blobs | lost_of(storage, base, sizes, reliance.missed)
        known |= kept_by(base) - gone
        packs += base.ref.packs
    known -= reliance.missed
    return known, packs + reliance.sibling_packs


def _may_help(base: Snapshot, reliance: Reliance, sizes: Mapping[bytes, int]) -> bool:
    """Whether the base has any of these blobs, or its manifest may be followed. Otherwise it is not asked for."""
    if base is reliance.theirs:
        return False
    return not reliance.newest or (bool(sizes) and any(digest in sizes for digest, _ in base.manifest.blobs()))


def _without_loose(
    reliance: Reliance, blobs: Mapping[bytes, int], unsure: Set[bytes]
) -> tuple[Mapping[bytes, int], set[bytes]]:
    """`blobs` without the loose ones to rely on, and the digests of those that somebody has changed."""
    if reliance.layout is not Layout.LOOSE or not reliance.doomed.is_complete:
        return blobs, set()
    asked = _without(blobs, reliance.doomed.blobs | unsure)
    away, altered = reliance.storage.blobs.loose.unreliable(asked)
    return _without(blobs, {digest for digest in asked if digest not in away and digest not in altered}), altered


def _without(blobs: Mapping[bytes, int], those: Set[bytes]) -> Mapping[bytes, int]:
    """`blobs` without `those`. No needless copy is made: there may be a hundred thousand."""
    return {digest: size for digest, size in blobs.items() if digest not in those} if those else blobs
