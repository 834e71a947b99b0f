"""Measures what live commits cost a compile: the same kernels, compiled with and without, in turn.

    python -m tools.bench.live [--kernels N] [--rounds N] [--work DIR] [--json FILE]

Triton compiles for a GPU that need not be there. It compiles under `kstore exec`, where the watch has a process of
its own, and within `kstore.synchronized`, where it shares the interpreter's lock with the compiler. Compared are the
program's own wall time, and the processor's time of all processes, with kstore's commits; medians of rounds that
take turns. The settings are much busier than the defaults, so that a short run has many checkpoints.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

TARGET = 1.02
REPOSITORY = Path(__file__).parents[2]
_PROGRAM = REPOSITORY / "tests/programs/compile_kernels.py"
_WITHIN = """
import runpy, sys, kstore
live, program, *sys.argv[1:] = sys.argv[1:]
with kstore.synchronized("bench/live", live=live == "live", settle=1, every=5):
    runpy.run_path(program, run_name="__main__")
"""


class Cost(NamedTuple):
    """Of one compile, in seconds."""

    wall: float
    """As the program itself says: without its start."""
    processor: float
    """Of all its processes, and of kstore."""


def main() -> None:
    """Run everything and print a line for each way."""
    options = _options()
    work = Path(tempfile.mkdtemp(prefix="kstore-live-", dir=options.work))
    costs: dict[str, list[Cost]] = defaultdict(list)
    try:
        for number in range(options.rounds):
            for name in ("exec, not live", "exec, live", "within, live", "within, not live"):
                costs[name].append(compile_once(work / f"{name}-{number}".replace(", ", "-"), name, options.kernels))
                print(f"{number} {name}: {costs[name][-1]}", file=sys.stderr)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    for way in ("exec", "within"):
        print(line(way, costs[f"{way}, live"], costs[f"{way}, not live"]))
    if options.json:
        options.json.write_text(json.dumps(costs, indent=1))


def compile_once(folder: Path, name: str, kernels: int) -> Cost:
    """Compile into an empty cache root for an empty store."""
    environ = os.environ | {
        "KSTORE_ROOT": str(folder / "store"), "KSTORE_CACHE_ROOT": str(folder / "root"), "KSTORE_GPU": "bench-sm90",
        "PYTHONPATH": str(REPOSITORY),
    }  # fmt: skip
    folder.mkdir()
    way, how = name.split(", ")
    arguments = [str(_PROGRAM), "--sources", str(folder / "sources"), "--count", str(kernels), "--release", "1"]
    if way == "exec":
        options = ["--settle", "1s", "--every", "5s"] if how == "live" else ["--no-live"]
        command = ["-m", "kstore", "exec", "bench/live", *options, "--", sys.executable, *arguments]
    else:
        command = ["-c", _WITHIN, how, *arguments]
    before = _processor_time()
    done = subprocess.run([sys.executable, *command], env=environ, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout.splitlines()[-1])
    if report["compiled"] != kernels:
        raise RuntimeError(f"{name}: {report}")
    return Cost(report["seconds"], _processor_time() - before)


def line(way: str, live: list[Cost], plain: list[Cost]) -> str:
    """The ratios of the medians, and the target that the wall time is held to."""
    wall = [statistics.median(cost.wall for cost in costs) for costs in (live, plain)]
    processor = [statistics.median(cost.processor for cost in costs) for costs in (live, plain)]
    ratio = wall[0] / wall[1]
    verdict = "" if ratio <= TARGET else " (missed)"
    return (
        f"{way}: wall {wall[0]:.2f} s / {wall[1]:.2f} s = {ratio:.3f}, target ≤ {TARGET}{verdict}; "
        f"processor {processor[0]:.2f} s / {processor[1]:.2f} s = {processor[0] / processor[1]:.3f}"
    )


def _processor_time() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools.bench.live", description="Measure what live commits cost a compile.")
    parser.add_argument("--kernels", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, help="where to work; decides the filesystem")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
