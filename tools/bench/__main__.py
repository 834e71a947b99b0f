"""Measures kstore against what people use instead, on real artifacts, in one run.

    python -m tools.bench [--corpus DIR] [--work DIR] [--rounds N] [--json FILE] [--markdown FILE]

Rounds are interleaved: each runs every measure once, and medians are compared. The page cache is warm.
The corpus is built by `python -m tools.corpus` if it is not there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from tools.bench import floor, peers
from tools.bench.peers import Measure, Place, tree_bytes


class Row(NamedTuple):
    """One line of the report: a ratio, and the target that it is held to."""

    name: str
    value: str
    ratio: float
    target: float


MEASURES: dict[str, Measure] = {
    "first commit, loose": peers.first_commit("loose"),
    "first commit, packed": peers.first_commit("packed"),
    "zip of the folder": peers.zip_archive,
    "restore by link": peers.restore("loose"),
    "cp -al": peers.copy("-al"),
    "system calls of a restore by link": floor.links,
    "restore from a pack": peers.restore("packed"),
    "cp -a": peers.copy("-a"),
    "system calls of a restore by copy": floor.copies,
    "commit, nothing new": peers.unchanged_commit("packed"),
    "python -c pass": peers.command(sys.executable, "-c", "pass"),
    "import kstore": peers.command(sys.executable, "-c", "import kstore, sys; assert 'torch' not in sys.modules"),
    "kstore --help": peers.command(sys.executable, "-m", "kstore", "--help"),
}


def main() -> None:
    """Run everything and print the report."""
    options = _options()
    subprocess.run([sys.executable, "-m", "tools.corpus", str(options.corpus)], check=True, stdout=sys.stderr)
    work = Path(tempfile.mkdtemp(prefix="kstore-bench-", dir=options.work))
    corpus = work / "corpus"
    subprocess.run(["cp", "-a", str(options.corpus), str(corpus)], check=True)
    try:
        seconds, sizes = run(corpus, work, options.rounds)
        report = render(work, options.rounds, seconds, sizes)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(report)
    if options.markdown:
        options.markdown.write_text(report)
    if options.json:
        options.json.write_text(json.dumps({"seconds": seconds, "bytes": sizes}, indent=1))


def run(corpus: Path, work: Path, rounds: int) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Seconds of every measure in every round, and the bytes that a first commit stores."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        place = Place(corpus, work, number)
        for name, measure in MEASURES.items():
            os.sync()
            seconds[name].append(measure(place))
            print(f"{number} {name}: {seconds[name][-1]:.3f} s", file=sys.stderr)
    sizes = {
        "corpus": tree_bytes(corpus),
        "files": sum(1 for path in corpus.rglob("*") if path.is_file()),
        "zip": tree_bytes(work / "archive-0.zip"),
        "loose": tree_bytes(work / "store-loose-0"),
        "packed": tree_bytes(work / "store-packed-0"),
    }
    return dict(seconds), sizes


def rows(seconds: dict[str, list[float]], sizes: dict[str, int]) -> list[Row]:
    """The ratios that matter, each with its target."""
    median = {name: statistics.median(values) for name, values in seconds.items()}

    def against(name: str, peer: str, target: float) -> Row:
        return Row(
            f"{name} / {peer}", f"{median[name]:.3f} s / {median[peer]:.3f} s", median[name] / median[peer], target
        )

    nothing = median["commit, nothing new"]
    per_ten_thousand = nothing * 10_000 / sizes["files"]
    start = median["import kstore"] - median["python -c pass"]
    return [
        against("restore by link", "cp -al", 0.4),
        against("restore by link", "system calls of a restore by link", 1.5),
        against("restore from a pack", "cp -a", 0.7),
        against("restore from a pack", "system calls of a restore by copy", 1.5),
        against("first commit, loose", "zip of the folder", 0.25),
        against("first commit, packed", "zip of the folder", 0.25),
        Row("bytes, packed / zip", f"{sizes['packed']:,} / {sizes['zip']:,}", sizes["packed"] / sizes["zip"], 1 / 3),
        Row("commit, nothing new, per 10,000 files / 60 ms", f"{nothing:.3f} s", per_ten_thousand / 0.060, 1.0),
        Row("import kstore / 50 ms", f"{start * 1e3:.0f} ms", start / 0.050, 1.0),
        Row("kstore --help / 200 ms", f"{median['kstore --help'] * 1e3:.0f} ms", median["kstore --help"] / 0.2, 1.0),
    ]


def render(work: Path, rounds: int, seconds: dict[str, list[float]], sizes: dict[str, int]) -> str:
    """The report, as Markdown."""
    lines = [
        f"{sizes['files']:,} artifacts, {sizes['corpus']:,} bytes; {rounds} interleaved rounds, medians; "
        f"{_filesystem(work)}, page cache warm; {os.cpu_count()} CPUs, Linux {platform.release()}, "
        f"Python {platform.python_version()}.",
        "",
        "| measure | value | ratio | target |",
        "|---|---|---:|---:|",
    ]
    for row in rows(seconds, sizes):
        verdict = "" if row.ratio <= row.target else " (missed)"
        lines.append(f"| {row.name} | {row.value} | {row.ratio:.2f} | ≤ {row.target:.2f}{verdict} |")
    return "\n".join(lines) + "\n"


def _filesystem(path: Path) -> str:
    done = subprocess.run(["stat", "-f", "-c", "%T", str(path)], capture_output=True, text=True, check=True)
    return done.stdout.strip().replace("ext2/ext3", "ext4")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools.bench", description="Measure kstore against what people use instead.")
    parser.add_argument("--corpus", type=Path, default=Path.home() / ".cache/kstore-corpus/bench")
    parser.add_argument("--work", type=Path, help="where to work; decides the filesystem that is measured")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
