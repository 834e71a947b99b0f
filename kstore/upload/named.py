"""Which packs a ref has to name, as gc deletes those that no ref names."""

from __future__ import annotations

from collections.abc import Sequence, Set
from contextlib import suppress
from typing import NamedTuple

from kstore.published.leaning import kept_by
from kstore.published.manifest import Manifest
from kstore.published.ref import Delta
from kstore.published.snapshot import Snapshot
from kstore.upload.plan import UploadPlan


class Stored(NamedTuple):
    """What a commit has stored at a time."""

    packs: tuple[str, ...]
    digests: Set[bytes]
    """Of what is in these packs, or loose."""


def packs_in(stored: Sequence[Stored]) -> tuple[str, ...]:
    """The packs of all that was stored."""
    return tuple(pack for packs, _ in stored for pack in packs)


def packs_to_name(
    plan: UploadPlan, stored: Sequence[Stored], manifest: Manifest, delta: Delta | None
) -> tuple[str, ...]:
    """All packs that may hold blobs of the manifest, or the manifest that it follows on. What the newest generation
    keeps is looked for in its packs alone: others that hold it may be gone, because gc makes one pack of many.
    """
    own = packs_in(stored)
    theirs, newest = plan.reliance.theirs, plan.reliance.newest
    if not (theirs or plan.packs):
        return own
    needed = {entry.digest for _, entry in manifest.items()}
    if delta:
        needed.add(delta.follows)
    may_hold, is_known_to_lack = plan.reliance.storage.blobs.may_hold, plan.reliance.storage.blobs.is_known_to_lack
    published = newest.packs if newest else ()
    if published and theirs and any(digest not in needed for digest, _ in theirs.manifest.blobs()):
        published = tuple(pack for pack in published if may_hold(pack, needed))
    # A pack that has only the manifest of its generation, because that was merged anew, is of no use to the next one.
    published = tuple(pack for pack in published if not is_known_to_lack(pack, needed))
    others = [pack for pack in plan.packs if pack not in published]
    left = _left(plan, stored, needed) if others else set()
    shared = [pack for pack in others if left and may_hold(pack, left)]
    named = tuple(dict.fromkeys((*own, *published, *shared)))
    return _without_gone(plan, named, needed, theirs) if theirs and plan.lost else named


def _left(plan: UploadPlan, stored: Sequence[Stored], needed: set[bytes]) -> set[bytes]:
    """What of `needed` neither this commit has stored nor the newest generation keeps and has not lost."""
    kept = kept_by(plan.reliance.theirs) - plan.lost
    left = needed.difference(*(digests for _, digests in stored), kept, plan.below)
    return left - plan.reliance.newest.stored.keys() if plan.reliance.newest else left


def _without_gone(plan: UploadPlan, packs: tuple[str, ...], needed: set[bytes], theirs: Snapshot) -> tuple[str, ...]:
    """A pack that is gone is named until all that it held is elsewhere, so that whoever has that brings it back."""
    blobs = plan.reliance.storage.blobs
    with suppress(OSError):  # What cannot be looked at now may be gone.
        there = tuple(pack for pack in packs if blobs.has_pack(pack))
        left = (kept_by(theirs) & needed) - blobs.digests_in(there)
        if not blobs.loose.lacking({digest: size for digest, size in theirs.manifest.blobs() if digest in left}):
            return there
    return packs
