"""Measures the functions of fal.toolkit against kstore's of the same names, on real artifacts, in one run.

    python -m tools.bench.fal [--corpus DIR] [--kernels N] [--work DIR] [--rounds N]

Every call is in a process of its own, each worker has an empty /tmp of its own, and rounds are interleaved. The corpus
is built by `python -m tools.corpus` if it is not there; one of its kernels is kept back, to be compiled later.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.bench.peers import tree_bytes

PROGRAM = Path(__file__).parents[2] / "tests/programs/share_with_fal.py"
CONTENDERS = {"fal": "", "kstore, loose": "loose", "kstore, packed": "packed"}
"""Name → layout of the store."""
Numbers = dict[str, dict[str, list[float]]]
"""Measure → contender → one number for each round."""


@dataclass(frozen=True)
class Contender:
    """One way to share caches, in one round."""

    folder: Path
    layout: str

    def run(self, worker: str, *steps: object) -> Mapping[str, float]:
        """Seconds of the last load and sync among the steps."""
        tmp, data = self.folder / worker, self.folder / "data"
        tmp.mkdir(parents=True, exist_ok=True)
        data.mkdir(exist_ok=True)
        variables = {
            "KSTORE_ROOT": str(data / "kstore"),
            "KSTORE_LAYOUT": self.layout,
            "KSTORE_GPU": "nvidia-test-sm90",
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("KSTORE", "TORCH", "TRITON"))}
        command = [sys.executable, str(PROGRAM), "OURS" if self.layout else "THEIRS", tmp, data, "bench", *steps]
        done = subprocess.run(
            list(map(str, command)), env=kept | variables, check=True, stdout=subprocess.PIPE, text=True
        )
        seconds: dict[str, float] = json.loads(done.stdout.splitlines()[-1])["seconds"]
        return seconds

    def stored(self) -> int:
        """Bytes that all workers share."""
        return tree_bytes(self.folder / "data")


def measure(contender: Contender, corpus: Path, kernel: Path) -> dict[str, float]:
    """One round of one contender: each measure in seconds or bytes."""
    first = contender.run("first", "load", "fill", corpus, "sync")
    stored = contender.stored()
    second = contender.run("second", "load", "sync")
    third = contender.run("third", "load", "add", kernel, "sync")
    # fal's zip takes the place of the one before: all of it is written anew.
    before = stored if contender.layout else 0
    return {
        "first sync": first["sync"],
        "bytes stored": stored,
        "load into an empty folder": second["load"],
        "sync with nothing new": second["sync"],
        "sync with one more kernel": third["sync"],
        "bytes written for it": contender.stored() - before,
    }


def main() -> None:
    """Run everything and print the table."""
    options = _options()
    build = [sys.executable, "-m", "tools.corpus", str(options.corpus), "--kernels", str(options.kernels)]
    subprocess.run(build, check=True, stdout=sys.stderr)
    work = Path(tempfile.mkdtemp(prefix="kstore-bench-", dir=options.work))
    try:
        corpus = work / "corpus"
        subprocess.run(["cp", "-a", str(options.corpus), str(corpus)], check=True)
        kernel = shutil.move(min(path.parent for path in corpus.glob("triton/*/*.cubin")), work)
        files, size = sum(path.is_file() for path in corpus.rglob("*")), tree_bytes(corpus)
        numbers = run(work, corpus, Path(kernel), options.rounds)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"{files:,} artifacts, {size:,} bytes; {options.rounds} interleaved rounds, medians.\n\n{render(numbers)}")


def run(work: Path, corpus: Path, kernel: Path, rounds: int) -> Numbers:
    """All rounds of all contenders."""
    numbers: Numbers = defaultdict(lambda: defaultdict(list))
    for number in range(rounds):
        for name, layout in CONTENDERS.items():
            os.sync()
            for what, value in measure(Contender(work / f"{number}-{name}", layout), corpus, kernel).items():
                numbers[what][name].append(value)
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return numbers


def render(numbers: Numbers) -> str:
    """The table, as Markdown: what fal takes, and kstore's part of that."""
    lines = ["| | " + " | ".join(CONTENDERS) + " |", "|---|" + "---:|" * len(CONTENDERS)]
    for what, of in numbers.items():
        medians = {name: statistics.median(values) for name, values in of.items()}
        cells = [_cell(what, value, value / medians["fal"]) for value in medians.values()]
        lines.append(f"| {what} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(what: str, value: float, ratio: float) -> str:
    text = f"{value:,.0f}" if what.startswith("bytes") else f"{value:.3f} s"
    return f"{text} ({ratio:.3f})" if ratio != 1 else text


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools.bench.fal", description="Measure fal's functions against kstore's.")
    parser.add_argument("--corpus", type=Path, default=Path.home() / ".cache/kstore-corpus/fal")
    parser.add_argument("--kernels", type=int, default=200, help="of the corpus")
    parser.add_argument("--work", type=Path, help="where to work; decides the filesystem that is measured")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
