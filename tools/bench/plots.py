"""A bar for each cell of a table, as SVG. Needs matplotlib: the extra `bench`."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tools.bench.results import Table, Unit, quantity

_OURS, _OTHERS = "#0a7d5a", "#9aa3ab"
_BAR = 0.22
"""Inches."""


def draw(folder: Path, tables: Iterable[Table]) -> tuple[dict[str, str], str]:
    """The file of each table's plot, by the table's name; and if there are no plots, why."""
    if importlib.util.find_spec("matplotlib") is None:
        return {}, "matplotlib is not installed; it is in the extra `bench`"
    return {table.name: _draw(folder, table) for table in tables if table.samples}, ""


def _draw(folder: Path, table: Table) -> str:
    import matplotlib

    matplotlib.use("svg")
    # The same numbers give the same file. Text stays text, which is smaller and can be searched.
    matplotlib.rcParams.update({"svg.hashsalt": "kstore", "svg.fonttype": "none", "font.size": 8})
    from matplotlib import pyplot

    counts = [len(table.samples[row]) for row in table.units]
    figure, axes = pyplot.subplots(
        len(counts), 1, squeeze=False, layout="constrained",
        figsize=(7, sum(count * _BAR + 0.55 for count in counts)), height_ratios=[count + 2 for count in counts],
    )  # fmt: skip
    for axis, (row, unit) in zip(axes[:, 0], table.units.items(), strict=True):
        _bars(axis, table, row, unit)
    name = f"{table.name}.svg"
    figure.savefig(folder / name, metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    return name


def _bars(axis: Any, table: Table, row: str, unit: Unit) -> None:
    columns = list(table.samples[row])[::-1]
    medians = [table.median(row, column) or 0.0 for column in columns]
    colours = [_OURS if column.startswith(("kstore", "live", "store of")) else _OTHERS for column in columns]
    bars = axis.barh(columns, medians, color=colours, height=0.7)
    axis.bar_label(bars, [quantity(median, unit) for median in medians], padding=3)
    for place, column in enumerate(columns):
        samples = table.samples[row][column]
        axis.plot(samples, [place] * len(samples), "|", color="black", markersize=5)
    axis.set_title(row if unit is Unit.SECONDS else f"{row}: {unit}", loc="left", fontsize=8)
    axis.set_xticks([])
    axis.set_xlim(0, 1.15 * max(max(of) for of in table.samples[row].values()) or 1)
    axis.spines[["top", "right", "bottom"]].set_visible(False)
