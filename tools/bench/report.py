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
`python -m tools.bench` measures kstore against what people use instead, on real Inductor and Triton artifacts. It
writes this page, the plots, and [results.json](results.json) with every sample. `--only NAME` measures one table again.

Each table comes from one run. In each round every way of sharing does the same work on the same new filesystem, one
after the other, and another one begins each time. Figures are medians of the rounds; the plots show every round as a
mark on the bar. Figures without a unit are bytes or, where the row says so, files or kernels. An empty cell was not
measured. Compare figures only within a table.

Every worker is a new process. Its import of Python modules is not counted, except where a whole process or a command
is measured; [what kstore's takes](#the-start-of-kstore-itself). Above each table are the command that measures it and
the conditions, which end with the rounds, the date and the machine; "load" is its load average before the run. Notes
below a table name unexpected statuses.

The columns:

- **kstore, loose**: each artifact is an uncompressed file in the store, which a restore links, clones (on XFS) or
  copies. kstore chooses this where the cache root can link from the store.
- **kstore, packed**: the store holds packs, each with many compressed artifacts. kstore chooses this elsewhere, such as
  on a network filesystem.
- **fal**, **b10-transfer**: the functions of these packages, which keep one archive for each key. **kstore for fal**
  and **kstore for b10** are kstore's functions of the same names.
- **tar, zstd**, **cp -a**, **cp -al**, **rsync -a**: these commands. `cp -al` makes hard links.
- **bare …**: a C program that makes the system calls of a restore or a commit, in one thread, and does nothing else.
- **cold**: a model's start that compiles everything. **untouched warm folder**: one that uses the cache folder of an
  earlier start, into which nothing is restored. **mega-cache**: one that loads torch's own artifacts from one file.

"Page cache warm" means that what was published is still in memory, "page cache dropped" that it has to be read from
disk. "Wall" and "processor" are wall-clock time and processor time.
"""
_TARGETS = """\
## Targets

Each row compares a median, that of the column and row under *what*, with a limit. If *of* names a column, *limit* and
*found* are ratios to that column's median in the same row, or in the row in parentheses: 1/25 means 25 times less.
Otherwise they are plain figures. Where the bare system calls alone take longer than the limit allows, a missed target
says so, with their own ratio.
"""
_BEGIN, _END = "<!-- begin: python -m tools.bench -->", "<!-- end -->"
_OURS = ("kstore, loose", "kstore, packed")
_PEERS = ("fal", "b10-transfer", "tar, zstd", "cp -al", "cp -a", "rsync -a")
_COLD = "cold"
_FILES = (*_OURS, *_PEERS)
"""The columns of README's table of ways to share files."""
_STARTS = (_COLD, *_OURS, "fal", "b10-transfer", "mega-cache", "untouched warm folder")
"""The columns of its table of models' starts."""


def conditions(rounds: int, drops: bool) -> list[str]:
    """The conditions of every table, whatever it measures."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    found = [
        f"{rounds} rounds, interleaved, medians",
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} CPUs, {memory:.0f} GiB, load {os.getloadavg()[0]:.1f} before",
        f"Linux {platform.release()}, Python {platform.python_version()}",
    ]
    if not drops:
        found.append("the page cache was never dropped: that needs root, and --quick leaves it out")
    return found


def read(path: Path) -> dict[str, Table]:
    """Tables of an earlier run, by name."""
    if not path.exists():
        return {}
    return {content["name"]: from_json(content) for content in json.loads(path.read_text())["tables"]}


def write(folder: Path, tables: Iterable[Table], gpu: str = "") -> None:
    """Write the page, the JSON and the plots. Those of a machine with a `gpu` go into a folder below the others'."""
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
    """Everything that was found."""
    parts = [_TARGETS, summary(tables)]
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
    """Put what peers do too between the marks: the table of ways to share files, then that of models' starts."""
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
    """One row for each table: the row of its first claim."""
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
    """The anchor that a heading has in the page."""
    return re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-")


def _ratio(ratio: float) -> str:
    return f"1/{1 / ratio:.3g}" if 0 < ratio < 0.5 else f"{ratio:.3g}"
