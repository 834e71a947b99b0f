"""Measures kstore against what people use instead, on real artifacts: the command behind docs/benchmarks.

    python -m tools.bench [--only NAME...] [--quick] [--rounds N] [--out DIR] [--work DIR] [--corpus DIR]

Writes OUT/index.md, OUT/results.json and a plot for each table. All are written after every table, so an interrupted
run keeps what it has measured, and `--only` replaces single tables. README.md gets a row for each table that compares
kstore with others. On a machine with an NVIDIA GPU the results belong to that GPU: they go into a folder of its name,
and README.md is left as it is.

As root it makes filesystems of its own and drops the page cache. What is not available is skipped, and the report says
why. The corpus is built if it does not exist, which takes minutes; KSTORE_CORPUS names another folder for it.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tools.bench import places, report
from tools.bench.measures import MEASURES
from tools.bench.places import Absent
from tools.bench.race import Bench, tell
from tools.bench.results import Table
from tools.bench.trees import QUICK, Sizes, Trees
from tools.corpus.__main__ import default_folder

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs/benchmarks"
README = REPOSITORY / "README.md"


def main() -> None:
    """Measure, write, and print the summary."""
    # On the way out, filesystems are unmounted and daemons are ended.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    options = _options()
    sizes = QUICK if options.quick else Sizes()
    rounds = options.rounds or (1 if options.quick else 5)
    gpu = places.nvidia_gpu()
    if options.out is None:
        options.out = Path(tempfile.mkdtemp(prefix="kstore-quick-")) if options.quick else PAGE / gpu
    tables = report.read(options.out / "results.json")
    failed = []
    for name in options.only or MEASURES:
        tell(f"{name} …")
        try:
            tables[name] = _measure(name, options, sizes, rounds)
        except Absent as error:
            tell(f"{name} cannot be measured here: {error}")
            continue
        except Exception as error:
            what = f"{type(error).__name__}: {error}"  # with the file's name, which repr() leaves out
            tell(f"{name} failed: {what}")
            failed.append(f"{name} with {what}")
            continue
        found = [tables[each] for each in MEASURES if each in tables]
        report.write(options.out, found, gpu)
        if options.out == PAGE and not gpu:
            report.update_readme(README, found)
        print(report.section(tables[name], ""))
    print(report.summary(tables[name] for name in MEASURES if name in tables))
    print(f"written to {options.out}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _measure(name: str, options: argparse.Namespace, sizes: Sizes, rounds: int) -> Table:
    work = Path(tempfile.mkdtemp(prefix="kstore-bench-", dir=options.work))
    try:
        trees = Trees(sizes, work, options.corpus or _default_corpus(options.quick), is_given=bool(options.corpus))
        drops = places.can_drop() and not options.quick
        found = report.conditions(rounds, drops)
        table = MEASURES[name](Bench(trees, rounds, work, drops))
        return replace(table, conditions=table.conditions + found)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _default_corpus(quick: bool) -> Path:
    folder = default_folder()
    return folder.with_name(f"{folder.name}-quick") if quick else folder


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools.bench", description="Measure kstore against what people use instead.")
    parser.add_argument("--only", nargs="+", choices=MEASURES, metavar="NAME", help=", ".join(MEASURES))
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: whether it runs, not how fast")
    parser.add_argument("--rounds", type=int, help="how many; by default 5, with --quick 1")
    where = f"by default {PAGE}, or the GPU's folder in it; with --quick a new folder"
    parser.add_argument("--out", type=Path, help=f"where to write; {where}")
    parser.add_argument("--work", type=Path, help="where filesystems and trees are made; needs 30 GB; made if missing")
    parser.add_argument("--corpus", type=Path, help="a tree to use as it is, instead of building a corpus")
    options = parser.parse_args()
    if options.work:
        options.work = options.work.resolve()  # Workers are elsewhere.
        options.work.mkdir(parents=True, exist_ok=True)
    if options.corpus:
        options.corpus = options.corpus.resolve()
    return options


if __name__ == "__main__":
    main()
