"""How the ranks of a job agree on one generation: rank 0 offers it, every rank votes, one verdict stands for ever.

The notes of an earlier run of the same job may still be on the board, since nothing in the environment tells two runs
apart. So each offer has a name of its own, each vote another one, and a verdict lists the votes that it was reached
with: a rank that is not among them has taken an old offer, and waits for the new one.

The verdict is written by rank 0 once all have voted, or by whoever cannot wait any longer; the first one stands.
So nobody leaves believing that no rank restores while the others do.
"""

from __future__ import annotations

import json
import logging
import math
import re
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from kstore.errors import StoreUnavailable, WaitTimeout, described, reason_of
from kstore.ranks.board import Board

log = logging.getLogger(__name__)

Found = TypeVar("Found")

_SHARE, _SHARE_OF_RANK_0 = 0.9, 0.8
"""Shares of the time that the job waits for its restore. All must have agreed before anybody leaves, and rank 0, which
knows why they have not, gives up first.
"""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5
"""Seconds between two looks at the board."""
_SILENCE = 15.0
"""Seconds that a rank waits for another one before it says so."""
_NONCE = re.compile(r"[A-Za-z0-9-]{1,64}")
_OFFER = {"nonce": str, "uniform": bool, "choice": dict}
_VOTE = {"vote": str, "trouble": str}
_VERDICT = {"go": bool, "why": str, "votes": dict}
"""What the notes say, each thing under its name."""


class Superseded(Exception):
    """The offer was from an earlier run; there is a new one."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What rank 0 has chosen."""

    nonce: str
    uniform: bool
    """Whether no rank restores if one cannot."""
    choice: Mapping[str, Any]
    """The generation, as rank 0 describes it; empty if there is nothing to restore."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an agreement ended."""

    go: bool
    why: str = ""
    """What kept ranks from restoring, if anything did."""


class Agreement:
    """One agreement, as one rank takes part in it."""

    def __init__(
        self, board: Board, rank: int, size: int, call: str, *, seconds: float, uniform: bool, patience: float = 0.0
    ) -> None:
        """`call` names the agreement, on all ranks alike. `seconds` is how long the job waits for its restore, beyond
        the `patience` that rank 0 has with another job that compiles; 0 means no limit.

        `uniform` is what rank 0 says.
        """
        self.rank = rank
        self._board = board
        self._size = size
        self._call = call
        self._uniform = uniform
        self._seconds = patience + seconds * (_SHARE if rank else _SHARE_OF_RANK_0)
        self._end = time.monotonic() + self._seconds if seconds else math.inf
        self._silent_until = time.monotonic() + patience + _SILENCE
        self._vote = secrets.token_hex(8)
        self._offer = Offer("", uniform, {})
        self._refused: set[str] = set()
        self._why_not_alone = f"another process is also rank {rank}"

    def offer(self, choice: Mapping[str, Any]) -> Offer:
        """Rank 0: say what to restore."""
        self._offer = Offer(secrets.token_hex(8), self._uniform, choice)
        content = {"nonce": self._offer.nonce, "uniform": self._uniform, "choice": dict(choice)}
        self._board.put(self._call, _dump(content))
        return self._offer

    def read_offer(self) -> Offer:
        """Every other rank: wait for what rank 0 says.

        Raises:
            WaitTimeout: it has said nothing.
        """
        offer = self._wait(self._new_offer, 0)
        if offer is None:
            raise WaitTimeout(
                f"rank {self.rank} has waited {self._seconds:g} s for rank 0 to say what to restore; "
                "all ranks must restore the key with `group`, from the same store"
            )
        self._offer = offer
        return offer

    def vote(self, trouble: str = "") -> Verdict:
        """Say that this rank is ready, or what keeps it from restoring, and wait for the verdict.

        Raises:
            Superseded: there is a newer offer.
            WaitTimeout: there was no verdict in time, and now there is one: nobody restores.
        """
        self._board.put(self._name(str(self.rank)), _dump({"vote": self._vote, "trouble": trouble}))
        verdict = self._count() if self.rank == 0 else self._wait(self._verdict_or_newer_offer, 0)
        if verdict is None:
            verdict = self._decide({"go": False, "why": f"rank {self.rank} had to leave", "votes": {}})
            if not verdict["go"]:
                raise WaitTimeout(f"rank {self.rank} has waited {self._seconds:g} s for the decision of rank 0")
        if verdict["go"] and verdict["votes"].get(str(self.rank)) != self._vote:
            return Verdict(False, self._why_not_alone)
        return Verdict(verdict["go"], verdict["why"])

    def _count(self) -> dict[str, Any]:
        """Rank 0: wait for all votes, and write the verdict."""
        votes: dict[str, str] = {}
        troubles = []
        for number in range(self._size):
            rank = str(number)
            vote = self._wait(partial(self._vote_or_verdict, rank), number)
            if vote and "go" in vote:  # Somebody had to leave, or nobody answers.
                return vote
            if vote is None:
                troubles.append(f"rank {rank} has not been heard of for {self._seconds:g} s")
                continue
            votes[rank] = vote["vote"]
            if vote["trouble"]:
                troubles.append(f"rank {rank}: {vote['trouble']}")
        go = not (troubles and self._uniform)
        return self._decide({"go": go, "why": "; ".join(troubles), "votes": votes})

    def _vote_or_verdict(self, rank: str) -> dict[str, Any] | None:
        return self._read(self._name(rank), _VOTE) or self._read(self._name("verdict"), _VERDICT) or self._outdone()

    def _outdone(self) -> dict[str, Any] | None:
        """Rank 0: how it ends for this process if another one has made a newer offer, which the other ranks answer.

        This is not written: whoever has voted for this offer is to begin again.
        """
        if self._has_newer_offer():
            return {"go": False, "why": self._why_not_alone, "votes": {}}
        return None

    def _has_newer_offer(self) -> bool:
        newest = self._read(self._call, _OFFER)
        return newest is not None and newest["nonce"] != self._offer.nonce

    def _decide(self, verdict: Mapping[str, Any]) -> dict[str, Any]:
        """Write the verdict unless there is one; returns the one that stands."""
        return _load(self._board.put_if_absent(self._name("verdict"), _dump(verdict)), _VERDICT)

    def _verdict_or_newer_offer(self) -> dict[str, Any] | None:
        verdict = self._read(self._name("verdict"), _VERDICT)
        if verdict is None and self._has_newer_offer():
            raise Superseded
        return verdict

    def _new_offer(self) -> Offer | None:
        """The offer, unless there is already a verdict, without this rank's vote: then it was another run's."""
        found = self._read(self._call, _OFFER)
        if found is None or found["nonce"] in self._refused:
            return None
        if not _NONCE.fullmatch(found["nonce"]):  # It becomes a part of names.
            raise StoreUnavailable(f"what another rank wrote has a nonce that no rank makes: {found['nonce'][:80]!r}")
        if self._read(f"{self._call}.{found['nonce']}.verdict", _VERDICT):
            self._refused.add(found["nonce"])
            return None
        return Offer(found["nonce"], found["uniform"], found["choice"])

    def _name(self, what: str) -> str:
        return f"{self._call}.{self._offer.nonce}.{what}"

    def _read(self, name: str, shape: Mapping[str, type]) -> dict[str, Any] | None:
        note = self._board.get(name)
        return None if note is None else _load(note, shape)

    def _wait(self, look: Callable[[], Found | None], rank: int) -> Found | None:
        """What `look` finds from that rank; None if it has found nothing by the end."""
        pause = _FIRST_PAUSE
        while (found := look()) is None and time.monotonic() < self._end:
            if time.monotonic() >= self._silent_until:
                self._tell_of(rank)
            time.sleep(max(0.0, min(pause, self._end - time.monotonic())))
            pause = min(2 * pause, _LONGEST_PAUSE)
        return found

    def _tell_of(self, rank: int) -> None:
        """Say, once, which rank this one is waiting for."""
        self._silent_until = math.inf
        left = max(self._end - time.monotonic(), 0.0)
        limit = f", for {left:.0f} s more at most" if left < math.inf else ""
        log.warning("rank %d of %d is waiting for rank %d%s", self.rank, self._size, rank, limit)


def describe(error: Exception) -> str:
    """What an error says, for the other ranks."""
    return f"{reason_of(error)} (on {socket.gethostname()})"


def _dump(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode()


def _load(note: bytes, shape: Mapping[str, type]) -> dict[str, Any]:
    try:
        content = dict(json.loads(note))
    except (ValueError, TypeError, RecursionError) as error:
        raise StoreUnavailable(f"what another rank wrote cannot be read: {described(error)}") from error
    for name, kind in shape.items():
        if not isinstance(content.get(name), kind):
            raise StoreUnavailable(f"what another rank wrote has no {name}, or something else under that name")
    return content
