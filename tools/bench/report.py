"""What was found, as Markdown for people and as JSON for machines."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tools.bench import plots
from tools.bench.results import Claim, Table, Unit, Verdict, from_json, quantity

_INTRODUCTION = """\
`python -m tools.bench` measures kstore against what people use instead, on real artifacts of Inductor and Triton, and
writes this page, [results.json](results.json) with every sample, and the plots. `--only NAME` measures one table anew.

Each table is one run: in each round everybody plays the same scene on the same new filesystem, one after the other,
and another one begins each time. Numbers are medians of the rounds. Ratios are of numbers in one table; no number of
one table may be compared with one of another. Processes are fresh, and their import of Python modules is not counted.
"Bare" columns are a C program that makes the system calls of a restore and does nothing else. Where that alone takes
longer than was aimed at, it says so.
"""
_BEGIN, _END = "<!-- begin: python -m tools.bench -->", "<!-- end -->"
_OURS = ("kstore, loose", "kstore, packed")
_PEERS = ("fal", "b10-transfer", "tar, zstd", "cp -al", "cp -a", "rsync -a")
_COLD = "cold"
_FILES = (*_OURS, *_PEERS)
"""README's columns where files are shared."""
_STARTS = (_COLD, *_OURS, "fal", "b10-transfer", "mega-cache", "untouched warm folder")
"""Its columns where models start."""


def conditions(rounds: int, drops: bool) -> list[str]:
    """What holds for a table whatever it measures."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    found = [
        f"{rounds} rounds, interleaved, medians",
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} CPUs, {memory:.0f} GiB, load {os.getloadavg()[0]:.1f} before",
        f"Linux {platform.release()}, Python {platform.python_version()}",
    ]
    if not drops:
        found.append("the page cache was never dropped: that needs root, and is left out by --quick")
    return found


def read(path: Path) -> dict[str, Table]:
    """Tables of an earlier run, by name."""
    if not path.exists():
        return {}
    return {content["name"]: from_json(content) for content in json.loads(path.read_text())["tables"]}


def write(folder: Path, tables: Iterable[Table], gpu: str = "") -> None:
    """The page, the JSON and the plots. Those of a machine with a `gpu` are in a folder below the others'."""
    folder.mkdir(parents=True, exist_ok=True)
    found = list(tables)
    content = {"schema": 1, "tables": [table.as_json() for table in found]}
    (folder / "results.json").write_text(json.dumps(content, indent=1) + "\n")
    drawn, why_not = plots.draw(folder, found)
    (folder / "index.md").write_text("\n".join([*_head(folder, gpu), page(found, drawn, why_not)]))


def _head(folder: Path, gpu: str) -> Iterator[str]:
    yield f"# Benchmarks on {gpu}\n" if gpu else "# Benchmarks\n"
    yield _INTRODUCTION
    others = [each.parent.name for each in sorted(folder.glob("*/index.md"))]
    if others:
        yield f"With a GPU: {', '.join(f'[{name}]({name}/index.md)' for name in others)}.\n"


def page(tables: list[Table], drawn: dict[str, str], why_not: str) -> str:
    """All that was found."""
    parts = ["## What is aimed at\n", summary(tables)]
    if why_not:
        parts.append(f"No plots: {why_not}.\n")
    parts += [section(table, drawn.get(table.name, "")) for table in tables]
    return "\n".join(parts)


def summary(tables: Iterable[Table]) -> str:
    """Every claim of every table."""
    lines = ["| table | what | of | limit | found | |", "|---|---|---|---:|---:|---|"]
    for table in tables:
        for claim in table.claims:
            unit = table.units.get(claim.row, Unit.SECONDS)
            verdict = table.verdict(claim)
            cells = " | ".join(_claim(claim, unit, verdict))
            lines.append(f"| [{table.name}](#{anchor(table.title)}) | {cells} |")
    return "\n".join(lines) + "\n"


def update_readme(path: Path, tables: Iterable[Table]) -> None:
    """Put what a peer does too between the marks: where files are shared, and below that where models start."""
    compared = [table for table in tables if table.claims and not set(_PEERS).isdisjoint(table.columns)]
    starts = [table for table in compared if _COLD in table.columns]
    files = [table for table in compared if _COLD not in table.columns]
    lines = [*_comparison(files, _FILES), "", *_comparison(starts, _STARTS)]
    before, _, rest = path.read_text().partition(_BEGIN)
    _, mark, after = rest.partition(_END)
    if not mark:
        raise ValueError(f"{path} has no place for figures between {_BEGIN} and {_END}")
    path.write_text("\n".join([before + _BEGIN, *lines, mark + after]))


def _comparison(tables: Iterable[Table], columns: Sequence[str]) -> Iterator[str]:
    """Of each table the first row in which something is aimed at."""
    yield from _heading(columns)
    for table in tables:
        row = table.claims[0].row
        yield _row(table, row, columns, f"[{table.title}](docs/benchmarks/index.md#{anchor(table.title)}): {row}")


def _claim(claim: Claim, unit: Unit, verdict: Verdict | None) -> tuple[str, str, str, str, str]:
    peer = " ".join(filter(None, [claim.peer, f"({claim.peer_row})" if claim.peer_row else ""]))
    limit = f"≤ {_ratio(claim.limit)}" if claim.peer else f"≤ {quantity(claim.limit, unit)}"
    if verdict is None:
        found, mark = "", "not measured"
    else:
        found = _ratio(verdict.ratio) if claim.peer else quantity(verdict.ours, unit)
        floor = verdict.floor_ratio
        missed = f"**missed**; {claim.floor} alone: {_ratio(floor)}" if floor else "**missed**"
        mark = "" if verdict.is_met else missed
    return f"{claim.ours}: {claim.row}", peer, limit, found, mark


def section(table: Table, plot: str) -> str:
    """One table."""
    lines = [f"## {table.title}\n", f"`python -m tools.bench --only {table.name}`. {'; '.join(table.conditions)}.\n"]
    if table.samples:
        lines += _heading(table.columns)
        lines += [_row(table, row, table.columns, row) for row in table.units]
        lines.append("")
    lines += [f"- {note}" for note in table.notes]
    lines += [""] * bool(table.notes)
    if plot:
        lines.append(f"![{table.title}]({plot})\n")
    return "\n".join(lines)


def _heading(columns: Sequence[str]) -> list[str]:
    return ["| | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]


def _row(table: Table, row: str, columns: Iterable[str], label: str) -> str:
    medians = (table.median(row, column) for column in columns)
    cells = ("" if value is None else quantity(value, table.units[row]) for value in medians)
    return f"| {label} | " + " | ".join(cells) + " |"


def anchor(title: str) -> str:
    """Where a heading is to be found in the page."""
    return re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-")


def _ratio(ratio: float) -> str:
    return f"1/{1 / ratio:.3g}" if 0 < ratio < 0.5 else f"{ratio:.3g}"
