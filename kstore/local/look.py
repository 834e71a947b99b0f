"""Looks at folders: by their times alone, where these tell that nothing has changed in them, else by listing them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from kstore.calls import Listing, Status, list_each
from kstore.local.found import Place
from kstore.local.index import Index, KnownFolder
from kstore.local.untouched import Untouched
from kstore.threads import map_ahead

_COUNT = 256
"""Folders that are listed in one go."""


class Seen(NamedTuple):
    """What is known of a folder: one of these."""

    known: KnownFolder | None = None
    """It is as the index has it."""
    placed: KnownFolder | None = None
    """It is as a restore has placed it."""
    listing: Listing | None = None


_UNKNOWN = Seen()


class Looker:
    """Looks at the folders of one cache root."""

    def __init__(self, index: Index, untouched: Untouched) -> None:
        self._index = index
        self._untouched = untouched

    def look(self, places: Sequence[tuple[Place, Status]]) -> Iterator[tuple[Place, Seen]]:
        """What is known of each folder, given with its status, or what is in it, in their order."""
        seen = [self._remembered(place, status) for place, status in places]
        listings = _list([place.local for (place, _), known in zip(places, seen, strict=True) if known is _UNKNOWN])
        for (place, _), known in zip(places, seen, strict=True):
            yield place, Seen(listing=next(listings)) if known is _UNKNOWN else known

    def _remembered(self, place: Place, status: Status) -> Seen:
        known = self._index.folders.get(place.path)
        if known and not status.error and known.still_is(status):
            return Seen(known=known)
        placed = self._untouched.folder(place.path, status)
        return Seen(placed=placed) if placed else _UNKNOWN


def _list(folders: Sequence[str]) -> Iterator[Listing]:
    """What is in each. While some are looked through, a thread lists the next ones."""
    some = [folders[at : at + _COUNT] for at in range(0, len(folders), _COUNT)]
    return chain.from_iterable(map_ahead(list_each, some) if len(some) > 1 else map(list_each, some))
