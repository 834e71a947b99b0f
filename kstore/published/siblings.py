"""Keys beside a new one, which likely share blobs with it: `my-model/v6` for `my-model/v7`."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from kstore.errors import KstoreError
from kstore.published.ref import Ref, RefState
from kstore.scope import Scope

if TYPE_CHECKING:
    from kstore.storage import Storage

_MOST = 32
"""How many are looked at: each costs two round trips, and the index of its packs."""
_RUNS = re.compile("([^0-9]*)([0-9]*)")


def siblings(storage: Storage, scope: Scope) -> list[Ref]:
    """The newest generations of the keys beside the scope's that are named most like it, of its GPU and environment."""
    found: list[Ref] = []
    parent, _, own = scope.key.rpartition("/")
    for name in nearest(own, storage.refs.parts(scope.gpu, parent))[:_MOST]:
        # A sibling that cannot be read is not this key's trouble.
        with suppress(KstoreError, OSError):
            ref = storage.refs.newest(replace(scope, key=f"{parent}/{name}" if parent else name))
            if ref and ref.state is RefState.LIVE:
                found.append(ref)
    return found


def nearest(own: str, names: Iterable[str]) -> list[str]:
    """Other names: those that sort before `own`, the nearest first, and then those after it. Of a hundred releases, a
    new one resembles the last. `v9` is before `v10`.
    """
    others = sorted({*names} - {own}, key=_by_numbers)
    here = bisect_left(others, _by_numbers(own), key=_by_numbers)
    return others[:here][::-1] + others[here:]


def _by_numbers(name: str) -> list[tuple[str, int]]:
    return [(text, int(number or 0)) for text, number in _RUNS.findall(name)]
