"""Rounds: each way of sharing plays the same scene on the same filesystem, one after the other."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from tools.bench import places
from tools.bench.places import Absent, Place
from tools.bench.processes import Step
from tools.bench.results import Table, Unit
from tools.bench.sharing import Sharing, present
from tools.bench.trees import Trees, files_in

Item = TypeVar("Item")


class Reading(NamedTuple):
    """What a scene found in one round."""

    row: str
    value: float
    unit: Unit = Unit.SECONDS
    status: str = ""
    """The status of a step, if it is not a success."""


Scene = Callable[[Sharing], Iterable[Reading]]


@dataclass
class Bench:
    """How everything is measured."""

    trees: Trees
    rounds: int
    work: Path
    drops: bool
    """Whether the page cache may be dropped. Everything that runs on the machine then has to read its files again."""

    @contextmanager
    def place(self, kind: str, table: Table) -> Iterator[Place]:
        """A new place; the table says what filesystem it is. Raises Absent."""
        with places.open_place(kind, self.work) as place:
            told = f"filesystem: {place.filesystem}"
            if told not in table.conditions:
                table.conditions.append(told)
            yield place

    def race(self, table: Table, kind: str, ways: Sequence[type[Sharing]], scene: Scene) -> None:
        """Play the scene with every way of sharing, in every round. Another one begins each time."""
        here, reasons = present(ways)
        for reason in reasons:
            table.note(reason)
        try:
            for number in range(self.rounds):
                with self.place(kind, table) as place:
                    for way in rotated(here, number):
                        os.sync()
                        self._play(table, way(place), scene)
                tell(f"{table.name}: round {number + 1} of {self.rounds}")
        except Absent as error:
            table.note(f"Not measured: {error}.")

    def cold_or_warm(self, sharing: Sharing, what: str = "restore") -> Iterator[Reading]:
        """Fetch while what was published is in the page cache, and again after the cache was dropped."""
        os.sync()
        yield reading(f"{what}, page cache warm", sharing.fetch("warm", 1))
        if self.drops:
            places.drop_page_cache()
            yield reading(f"{what}, page cache dropped", sharing.fetch("cold", 1))

    def _play(self, table: Table, sharing: Sharing, scene: Scene) -> None:
        for row, value, unit, status in scene(sharing):
            table.add(row, sharing.name, value, unit)
            if status:
                table.note(f'{sharing.name}, {row}: the status was "{status}".')


def reading(row: str, step: Step, good: Sequence[str] = ()) -> Reading:
    """The seconds of a step, and its status if that is not among the `good` ones."""
    return Reading(row, step.seconds, Unit.SECONDS, bad_statuses([step], good))


def bad_statuses(steps: Iterable[Step], good: Sequence[str] = ()) -> str:
    """The statuses that are not a success."""
    return " ".join(sorted({step.status for step in steps} - {"", *GOOD, *good}))


GOOD = ("restored", "committed", "unchanged", "loaded", "synced", "SUCCESS")


def describe(table: Table, tree: Path, what: str) -> None:
    """Say in the table what is shared."""
    files = files_in(tree)
    size = sum(file.lstat().st_size for file in files)
    table.conditions.append(f"{what}: {len(files):,} files, {size:,} bytes")


def note_missing(bench: Bench, table: Table) -> None:
    """Say in the table which models cannot be built here."""
    if bench.trees.missing:
        table.note(f"Not measured: {', '.join(bench.trees.missing)}; the extra `models` installs what builds them.")


def rotated(items: Sequence[Item], by: int) -> list[Item]:
    """The same items, beginning with another one each time."""
    start = by % len(items) if items else 0
    return [*items[start:], *items[:start]]


def tell(message: str) -> None:
    """Print progress."""
    print(message, file=sys.stderr, flush=True)
