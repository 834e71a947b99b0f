"""Where the blobs of one generation are: in its packs, loose, or left in a store below that has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING

from kstore.inspect.items import Artifact
from kstore.published.manifest import BELOW
from kstore.storage import reporting_trouble

if TYPE_CHECKING:
    from kstore.published.ref import Ref
    from kstore.storage import Storage


class Place(StrEnum):
    """Where a blob is."""

    PACKED = "packed"
    """In a pack that the generation names."""
    LOOSE = "loose"
    """In a file of its own."""
    BELOW = "below"
    """It was not uploaded, because a store below had it."""
    NOWHERE = "-"
    """None of these: it is lost, or in another generation's pack that this one does not name."""


def places_of(storage: Storage, ref: Ref, artifacts: Iterable[Artifact]) -> Iterator[tuple[Artifact, Place]]:
    """Each artifact of the generation with the place of its blob. A loose blob is looked for only when its turn comes.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    holder = storage.holder(ref)
    packed = holder.blobs.digests_in(ref.packs)
    with reporting_trouble(holder.location, "read"):
        for artifact in artifacts:
            entry = artifact.entry
            if entry.digest in packed:
                yield artifact, Place.PACKED
            elif holder.blobs.loose.has(entry.digest, entry.size):
                yield artifact, Place.LOOSE
            else:
                yield artifact, Place.BELOW if entry.flags & BELOW else Place.NOWHERE
