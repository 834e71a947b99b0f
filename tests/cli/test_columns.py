from __future__ import annotations

import click
import pytest

from kstore.cli import columns
from kstore.cli.columns import Column, fit, render

NAME = Column("NAME", floor=5, last_resort=True)
PLACE = Column("PLACE", floor=5)
COUNT = Column("COUNT", right=True)


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert fit([NAME, COUNT], [["abcdefgh", "1"]], room=80) == [8, 5]


def test_a_column_that_may_be_shortened_makes_room() -> None:
    assert fit([NAME, PLACE, COUNT], [["n" * 10, "p" * 30, "1"]], room=40) == [10, 21, 5]


def test_the_widest_column_is_shortened_first() -> None:
    assert fit([NAME, PLACE, COUNT], [["n" * 100, "p" * 20, "1"]], room=80) == [51, 20, 5]


def test_of_columns_that_are_equally_wide_the_last_resort_is_shortened_last() -> None:
    assert fit([NAME, PLACE, COUNT], [["n" * 30, "p" * 30, "1"]], room=30) == [11, 10, 5]


def test_without_a_limit_nothing_is_shortened() -> None:
    assert fit([NAME, COUNT], [["n" * 300, "9" * 300]], room=None) == [300, 300]


def test_nothing_is_shortened_below_its_floor() -> None:
    assert fit([NAME, COUNT], [["n" * 30, "9" * 30]], room=20) == [5, 30]


def test_numbers_end_in_one_column_and_lines_do_not_end_in_spaces() -> None:
    assert list(render([NAME, COUNT, PLACE], [["a", "1", "here"], ["b", "1234567", ""]], indent=1)) == [
        " NAME    COUNT  PLACE",
        " a           1  here",
        " b     1234567",
    ]


@pytest.mark.parametrize("is_bold", [False, True])
def test_no_line_is_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch, is_bold: bool) -> None:
    """The heading is not wider either, with the codes that make it bold: a terminal would break the line."""
    monkeypatch.setattr(columns, "terminal_width", lambda: 80)
    if is_bold:
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the test's stdout for a terminal
        monkeypatch.setenv("TERM", "xterm")
    lines = [click.unstyle(line) for line in render([NAME, PLACE, COUNT], [["n" * 50, "p" * 50, "12345"]])]

    assert [len(line) for line in lines] == [80, 80]


def test_neither_numbers_nor_headings_are_cut_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "terminal_width", lambda: 20)
    lines = list(render([NAME, *[COUNT] * 5], [["n" * 30, *["1234567"] * 5]]))

    assert lines[0].split() == ["NAME", *["COUNT"] * 5]
    assert lines[1].split()[1:] == ["1234567"] * 5


def test_nothing_is_cut_for_a_terminal_that_knows_no_control_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the test's stdout for a terminal
    monkeypatch.setenv("TERM", "dumb")

    assert list(render([NAME, COUNT], [["n" * 120, "1234567"]]))[1].split() == ["n" * 120, "1234567"]


def test_brackets_are_no_markup() -> None:
    assert list(render([NAME], [["[red]x[/]"]]))[1] == "[red]x[/]"


@pytest.mark.parametrize("no_color", [False, True])
def test_headings_are_bold_on_a_terminal_unless_no_color_is_set(
    monkeypatch: pytest.MonkeyPatch, no_color: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the test's stdout for a terminal
    monkeypatch.setenv("TERM", "xterm")
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")

    assert ("\x1b" in "".join(render([NAME], [["x"]]))) is not no_color
