"""What is stored of a manifest: all of it, or what it adds to an earlier one that the store has."""

from __future__ import annotations

import logging

from kstore.aside import Kept, whole
from kstore.blobs.wanted import Wanted
from kstore.digest import digest_of
from kstore.errors import IntegrityError
from kstore.published.delta import difference, may_follow
from kstore.published.ref import Delta, Ref
from kstore.storage import Storage
from kstore.upload.reliance import Reliance

log = logging.getLogger(__name__)

_WHOLE_EVERY = 8
"""Generations after which a manifest is stored whole again: a damaged one costs all that follow on it."""


def shortened(manifest: Kept, reliance: Reliance) -> tuple[Kept, Delta | None]:
    """What is to be stored for a manifest: what it adds to one that the store has, if that is much less. The delta is
    None if it is the manifest itself.
    """
    ref = _earlier(reliance)
    if ref is None or ref.generation % _WHOLE_EVERY == 0:
        return manifest, None
    followed, size = (ref.delta.follows, ref.delta.follows_size) if ref.delta else (ref.manifest, ref.manifest_size)
    before = _kept(reliance.storage, followed, size, ref) if may_follow(len(manifest), size) else None
    added = difference(whole(manifest), before) if before else None
    if added is None:
        return manifest, None
    return added, Delta(digest_of(added), len(added), followed, size)


def _earlier(reliance: Reliance) -> Ref | None:
    """A generation whose manifest may be relied upon, by the rules for everything that is not uploaded."""
    base = reliance.base.ref if reliance.base and not reliance.base.ref.depth else None
    # The clocks need not agree: any of these would do, and one of the latest resembles this key most.
    sibling = max(reliance.siblings, key=lambda ref: ref.created, default=None)
    ref = reliance.newest or base or sibling
    if ref is None or not reliance.doomed.blobs.isdisjoint(ref.stored):
        return None
    if ref is sibling and not ref.stored.keys() <= reliance.storage.blobs.digests_in(reliance.sibling_packs):
        return None  # Some of it is loose, and nobody has asked whether that is condemned.
    return ref if ref is reliance.newest or reliance.includes(ref) else None


def _kept(storage: Storage, digest: bytes, size: int, ref: Ref) -> bytes | None:
    """A blob, from where gc keeps it for the generation; None if it is damaged there, or is only elsewhere."""
    try:
        parts = storage.blobs.parts(Wanted([(digest, size)]), ref.packs)
        return next((bytes(data) for part in parts for _, data in part.load()), None)
    except (IntegrityError, OSError) as error:
        log.debug("the manifest of generation %d of %s is not followed: %s", ref.generation, ref.scope, error)
        return None
