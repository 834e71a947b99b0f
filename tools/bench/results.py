"""What one measure found: a table of samples, and the claims that it is held to."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Unit(StrEnum):
    """What the numbers of a row count."""

    SECONDS = "s"
    BYTES = "bytes"
    FILES = "files"
    KERNELS = "kernels"


def quantity(value: float, unit: Unit) -> str:
    """A number for people."""
    if unit is not Unit.SECONDS:
        return f"{value:,.0f}"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.3g} ms"


@dataclass(frozen=True, slots=True)
class Claim:
    """That the median of one cell is at most `limit` times that of another; or at most `limit` itself."""

    row: str
    ours: str
    """The column."""
    limit: float
    peer: str = ""
    """The other's column; empty for a limit in the row's own unit."""
    peer_row: str = ""
    """The other's row, if it is not the same."""
    floor: str = ""
    """The column of who does nothing but what nobody can leave out."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a claim."""

    claim: Claim
    ours: float
    peer: float
    """1 where the claim names none."""
    floor: float | None = None
    """None if it was not measured."""

    @property
    def ratio(self) -> float:
        """What is held to the limit."""
        return self.ours / self.peer if self.peer else float("inf")

    @property
    def is_met(self) -> bool:
        """Whether it holds."""
        return self.ratio <= self.claim.limit

    @property
    def floor_ratio(self) -> float | None:
        """What the floor itself takes of the peer's; None if that would do."""
        ratio = self.floor / self.peer if self.floor and self.peer else None
        return ratio if ratio and ratio > self.claim.limit else None


@dataclass(slots=True)
class Table:
    """Row → column → one number for each round. All of it is from one run."""

    name: str
    title: str
    units: dict[str, Unit] = field(default_factory=dict)
    """Row → its unit, in the order of the table."""
    samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)
    """Where, with what, how often."""
    notes: list[str] = field(default_factory=list)
    """What must be known to read it: who is not in it and why, statuses that are not a success."""

    def add(self, row: str, column: str, value: float, unit: Unit) -> None:
        """One more round's number."""
        self.units.setdefault(row, unit)
        self.samples.setdefault(row, {}).setdefault(column, []).append(value)

    def note(self, text: str) -> None:
        """Say it once."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def columns(self) -> list[str]:
        """In the order of their first appearance."""
        return list(dict.fromkeys(column for of in self.samples.values() for column in of))

    def median(self, row: str, column: str) -> float | None:
        """None if it was not measured."""
        values = self.samples.get(row, {}).get(column)
        return statistics.median(values) if values else None

    def verdict(self, claim: Claim) -> Verdict | None:
        """None if one of both was not measured."""
        ours = self.median(claim.row, claim.ours)
        peer = self.median(claim.peer_row or claim.row, claim.peer) if claim.peer else 1.0
        return None if ours is None or peer is None else Verdict(claim, ours, peer, self._floor(claim))

    def _floor(self, claim: Claim) -> float | None:
        """It is measured in one row, with everything read before."""
        found = (self.median(row, claim.floor) for row in self.units)
        return next((median for median in found if median is not None), None)

    def as_json(self) -> dict[str, Any]:
        """For machines, with every sample and every verdict."""
        verdicts = [self.verdict(claim) for claim in self.claims]
        told = [None if found is None else {"ratio": found.ratio, "met": found.is_met} for found in verdicts]
        return asdict(self) | {"verdicts": told}


def from_json(content: dict[str, Any]) -> Table:
    """What `as_json` made of it."""
    claims = [Claim(**claim) for claim in content["claims"]]
    units = {row: Unit(unit) for row, unit in content["units"].items()}
    kept = {name: content[name] for name in ("name", "title", "samples", "conditions", "notes")}
    return Table(**kept, units=units, claims=claims)
