"""Tables, and other output that must fit a terminal. If there is no terminal, nothing is cut."""

from __future__ import annotations

import os
import sys
import textwrap
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
    """The number of characters that its cells may be shortened to; 0 for not at all."""
    last_resort: bool = False
    """Whether it is the last to be shortened among columns of equal width."""


KEY = Column("KEY", floor=12, last_resort=True)
GPU = Column("GPU", floor=9)
ENVIRONMENT = Column("ENVIRONMENT", floor=11)


def terminal_width() -> int | None:
    """Columns of the terminal, never less than 80; None if stdout is not a terminal."""
    try:
        return max(NARROW, os.get_terminal_size(sys.stdout.fileno()).columns)
    except (OSError, ValueError):
        return None


def screen_width() -> int:
    """The column at which sentences are wrapped: 80 if there is no terminal."""
    return terminal_width() or NARROW


def wrapped(text: str, first: str, rest: str) -> list[str]:
    """Lines that fit the screen, beginning with `first` and then with `rest`. A path stays whole, however long."""
    return textwrap.wrap(
        text, screen_width(), initial_indent=first, subsequent_indent=rest, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def cut(text: str, indent: int) -> str:
    """As much of the text as the terminal has room for after `indent` characters; all of it if there is no terminal."""
    width = terminal_width()
    return text if width is None else shorten(text, width - indent)


def render(columns: Sequence[Column], rows: Sequence[Sequence[str]], indent: int = 0) -> Iterator[str]:
    """The lines of a table."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width = terminal_width()
    widths = fit(columns, rows, None if width is None else width - indent)
    style = "" if os.environ.get("NO_COLOR") else "bold"
    table = Table(box=None, padding=0, header_style=style)
    for column, width in zip(columns, widths, strict=True):
        if table.columns:
            table.add_column(width=_GAP)  # Before version 14.3, rich takes padding away from the width of a column.
        table.add_column(column.title, justify="right" if column.right else "left", no_wrap=True, width=width)
    for row in rows:
        cells = (Text(shorten(cell, width)) for cell, width in zip(row, widths, strict=True))
        table.add_row(*[part for cell in cells for part in ("", cell)][1:])
    # As wide as the table, or rich would cut numbers and headings to make it fit. Without a height, rich treats any
    # dumb terminal as 80 columns wide.
    console = Console(
        file=sys.stdout, width=sum(widths) + _GAP * (len(widths) - 1), height=len(rows) + 1, highlight=False
    )
    with console.capture() as captured:
        console.print(table)
    yield from (f"{' ' * indent}{line.rstrip()}" for line in captured.get().splitlines())


def fit(columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int | None) -> list[int]:
    """Widths that fit into `room`, if it is limited: the widest column that may be shortened gives way first."""
    widths = [max(map(len, cells)) for cells in zip([column.title for column in columns], *rows, strict=True)]
    excess = 0 if room is None else sum(widths) + _GAP * (len(columns) - 1) - room
    able = [i for i, column in enumerate(columns) if column.floor]
    while excess > 0 and (wide := [i for i in able if widths[i] > columns[i].floor]):
        widths[max(wide, key=lambda i: (widths[i], not columns[i].last_resort))] -= 1
        excess -= 1
    return widths
