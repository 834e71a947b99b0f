"""A lease: who does something that need not be done twice. Nothing relies on it for safety.

It is a row of numbered files, the newest of which says who holds it. Taking, renewing or releasing it means creating
the next number, which only one process can do: of many that find that a holder is gone, one takes its place, and a
holder that was merely slow finds out when it renews. Numbers never go back: after a release the last file stays.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from kstore.backends.base import numbers_in
from kstore.creator import creator

if TYPE_CHECKING:
    from kstore.storage import Storage

_SECOND = 1_000_000_000
_ATTEMPTS = 10
_KEPT = 2
"""Files that stay: a listing during which one appears and one goes still shows one of them."""
_MOST_BYTES = 1 << 16
_LONGEST = 30 * 86400.0
"""Seconds: no worker claims to be away for longer."""


class Claim(NamedTuple):
    """What the newest file says."""

    number: int
    nonce: str = ""
    """Whose it is: the same in all that one holder writes."""
    holder: str = ""
    """`user@host`: for people only."""
    ttl: float = 0.0
    """Seconds after which a holder that has not renewed it is gone."""
    held: float = 0.0
    """Seconds for which it had been held by then, by the holder's own clock."""
    is_released: bool = False


class Lease:
    """One name under `leases/`, to be held by one process at a time."""

    def __init__(self, storage: Storage, name: str, ttl: float, nonce: str = "") -> None:
        """`ttl` is in seconds. `nonce` is that of a lease which another process has taken for this one."""
        self._storage = storage
        self._backend = storage.backend
        self._folder = f"leases/{name}"
        self._since = time.monotonic()
        self.ttl = ttl
        self.nonce = nonce or secrets.token_hex(16)

    def newest(self, seen: Claim | None = None) -> Claim | None:
        """The newest claim; None if nobody ever held it. One that was `seen` is not read again."""
        number = 0
        for _ in range(_ATTEMPTS):
            number = max(self._numbers(), default=0)
            if not number or (seen and seen.number == number):
                return seen if number else None
            with suppress(FileNotFoundError):  # newer ones came since the listing
                return _parse(number, self._backend.get(self._name(number), 0, _MOST_BYTES), self.ttl)
        return Claim(number, ttl=self.ttl)

    def acquire(self) -> bool:
        """Take it if nobody holds it, or its holder is gone by the store's own clock. If that clock was ahead, a claim
        is from the future, and would otherwise be held until then.
        """
        newest = self.newest()
        return (not newest or newest.is_released or abs(self.age(newest)) > newest.ttl) and self.take(newest)

    def age(self, claim: Claim, now: int | None = None) -> float:
        """Seconds since it was made, at `now` in nanoseconds; by default by the store's own clock, and asking that is a
        write.
        """
        try:
            made = self._backend.stat(self._name(claim.number)).mtime_ns
        except FileNotFoundError:  # it was renewed just now
            return 0.0
        return ((self._storage.clock() if now is None else now) - made) / _SECOND

    def take(self, after: Claim | None) -> bool:
        """Take it over from `after`, the newest claim as last seen. Of many that try, one succeeds."""
        self._since = time.monotonic()
        return self._put(after.number + 1 if after else 1)

    def renew(self) -> bool:
        """Say that the holder is still there. False if the lease is no longer ours."""
        newest = self.newest()
        if not newest:  # Its volume is away: what was written there will be back with it.
            return True
        if not self._is_ours(newest):
            return False
        self._put(newest.number + 1)
        return True

    def release(self) -> None:
        """Give it up, if it is still ours."""
        for _ in range(_ATTEMPTS):
            newest = self.newest()
            if not newest or not self._is_ours(newest) or self._put(newest.number + 1, is_released=True):
                return

    def _is_ours(self, claim: Claim) -> bool:
        return claim.nonce == self.nonce and not claim.is_released

    def _put(self, number: int, *, is_released: bool = False) -> bool:
        content = {
            "nonce": self.nonce,
            "holder": creator(),
            "ttl": self.ttl,
            "held": time.monotonic() - self._since,
            "released": is_released,
        }
        if not self._backend.put_if_absent(self._name(number), json.dumps(content).encode()):
            return False
        *older, newest = sorted({*self._numbers(), number})
        if newest != number:  # It was free again, since others have gone on from it meanwhile.
            self._backend.delete(self._name(number))
            return False
        for old in older[: 1 - _KEPT]:
            self._backend.delete(self._name(old))
        return True

    def _numbers(self) -> list[int]:
        return numbers_in(child.name for child in self._backend.list(self._folder) if not child.is_folder)

    def _name(self, number: int) -> str:
        return f"{self._folder}/{number}"


def _parse(number: int, data: bytes, ttl: float) -> Claim:
    """A claim that cannot be read is somebody's all the same, for `ttl` seconds."""
    try:
        content = json.loads(data)
        claim = Claim(
            number,
            str(content["nonce"]),
            str(content["holder"]),
            float(content["ttl"]),
            float(content["held"]),
            content["released"] is True,
        )
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return Claim(number, ttl=ttl)
    return claim if 0 < claim.ttl <= _LONGEST and 0 <= claim.held < math.inf else Claim(number, ttl=ttl)
