"""Tables for terminals and pipes of 80 columns."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kstore.words import shorten

NARROW = 80
_GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    """One column."""

    title: str
    right: bool = False
    floor: int = 0
    """To how many characters its cells may be shortened; 0 for not at all."""
    last_resort: bool = False
    """Shortened only when the other columns are at their floor."""


def screen_width() -> int:
    """Columns of the terminal; 80 where there is none."""
    try:
        return max(NARROW, os.get_terminal_size(sys.stdout.fileno()).columns)
    except (OSError, ValueError):
        return NARROW


def render(columns: Sequence[Column], rows: Sequence[Sequence[str]], indent: int = 0) -> Iterator[str]:
    """The lines of a table."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    room = screen_width() - indent
    widths = fit(columns, rows, room)
    style = "" if os.environ.get("NO_COLOR") else "bold"
    table = Table(box=None, padding=(0, _GAP, 0, 0), header_style=style)
    for column, width in zip(columns, widths, strict=True):
        table.add_column(column.title, justify="right" if column.right else "left", no_wrap=True, width=width)
    for row in rows:
        table.add_row(*(Text(shorten(cell, width)) for cell, width in zip(row, widths, strict=True)))
    console = Console(file=sys.stdout, width=room + _GAP, highlight=False)
    with console.capture() as captured:
        console.print(table)
    yield from (f"{' ' * indent}{line.rstrip()}" for line in captured.get().splitlines())


def fit(columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int) -> list[int]:
    """Widths that fit into `room`: the widest column that may be shortened loses first."""
    widths = [max(map(len, cells)) for cells in zip([column.title for column in columns], *rows, strict=True)]
    excess = sum(widths) + _GAP * (len(columns) - 1) - room
    for last_resort in (False, True):
        able = [i for i, column in enumerate(columns) if column.floor and column.last_resort is last_resort]
        while excess > 0 and (wide := [i for i in able if widths[i] > columns[i].floor]):
            widths[max(wide, key=widths.__getitem__)] -= 1
            excess -= 1
    return widths
