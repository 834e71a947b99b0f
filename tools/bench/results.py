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
    """Our column."""
    limit: float
    peer: str = ""
    """The other's column; empty for a limit in the row's own unit."""
    peer_row: str = ""
    """The other's row, if it is another one."""
    floor: str = ""
    """The column of a program that does only what nobody can leave out."""


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
        """What is compared with the limit."""
        return self.ours / self.peer if self.peer else float("inf")

    @property
    def is_met(self) -> bool:
        """Whether it holds."""
        return self.ratio <= self.claim.limit

    @property
    def floor_ratio(self) -> float | None:
        """The floor's own ratio to the peer; None if that is within the limit."""
        ratio = self.floor / self.peer if self.floor and self.peer else None
        return ratio if ratio and ratio > self.claim.limit else None


@dataclass(slots=True)
class Table:
    """Row → column → one number for each round. Everything is from one run."""

    name: str
    title: str
    units: dict[str, Unit] = field(default_factory=dict)
    """Row → its unit, in the order of the table."""
    samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)
    """Where, with what, how often."""
    notes: list[str] = field(default_factory=list)
    """What one must know to read it: which columns are missing and why, statuses that are not a success."""

    def add(self, row: str, column: str, value: float, unit: Unit) -> None:
        """Add the number of one more round."""
        self.units.setdefault(row, unit)
        self.samples.setdefault(row, {}).setdefault(column, []).append(value)

    def note(self, text: str) -> None:
        """Add a note, unless the table has it."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def columns(self) -> list[str]:
        """All columns, in the order of their first appearance."""
        return list(dict.fromkeys(column for of in self.samples.values() for column in of))

    def median(self, row: str, column: str) -> float | None:
        """The median of a cell; None if it was not measured."""
        values = self.samples.get(row, {}).get(column)
        return statistics.median(values) if values else None

    def verdict(self, claim: Claim) -> Verdict | None:
        """What became of a claim; None if either of its cells was not measured."""
        ours = self.median(claim.row, claim.ours)
        peer = self.median(claim.peer_row or claim.row, claim.peer) if claim.peer else 1.0
        return None if ours is None or peer is None else Verdict(claim, ours, peer, self._floor(claim))

    def _floor(self, claim: Claim) -> float | None:
        """The floor is measured in a single row, with everything read beforehand."""
        found = (self.median(row, claim.floor) for row in self.units)
        return next((median for median in found if median is not None), None)

    def as_json(self) -> dict[str, Any]:
        """The table for machines, with every sample and every verdict."""
        verdicts = [self.verdict(claim) for claim in self.claims]
        told = [None if found is None else {"ratio": found.ratio, "met": found.is_met} for found in verdicts]
        return asdict(self) | {"verdicts": told}


def from_json(content: dict[str, Any]) -> Table:
    """The table of which `as_json` made this content."""
    claims = [Claim(**claim) for claim in content["claims"]]
    units = {row: Unit(unit) for row, unit in content["units"].items()}
    kept = {name: content[name] for name in ("name", "title", "samples", "conditions", "notes")}
    return Table(**kept, units=units, claims=claims)
