"""What live commits cost a compile: the same kernels are compiled with and without them, in turn.

Triton compiles for a GPU that need not be present. It compiles under `kstore exec`, where the watch has a process of
its own, and within `kstore.synchronized`, where it shares the interpreter's lock with the compiler. The settings are
much busier than the defaults, so that a short run has many checkpoints.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tools.bench import processes
from tools.bench.race import Bench, rotated, tell
from tools.bench.results import Claim, Table, Unit

_PROGRAM = processes.REPOSITORY / "tests/programs/compile_kernels.py"
_WITHIN = """
import runpy, sys, kstore
live, program, *sys.argv[1:] = sys.argv[1:]
with kstore.synchronized("bench/live", live=live == "live", settle=1, every=5):
    runpy.run_path(program, run_name="__main__")
"""
_COLUMNS = ("live", "not live")
_ROWS = {"exec": "kstore exec", "within": "kstore.synchronized"}


def live(bench: Bench) -> Table:
    """The program's own wall time without its start, and the processor time of all processes, kstore's included."""
    kernels = bench.trees.sizes.live_kernels
    table = Table("live", "What live commits cost a compile")
    table.conditions.append(f"{kernels} Triton kernels, a checkpoint every 5 s")
    with bench.place("local", table) as place:
        for number in range(bench.rounds):
            for way, row in _ROWS.items():
                for column in rotated(_COLUMNS, number):
                    wall, processor = _compile(place.local / f"{way}-{column}-{number}", way, column, kernels)
                    table.add(f"{row}: wall", column, wall, Unit.SECONDS)
                    table.add(f"{row}: processor", column, processor, Unit.SECONDS)
            tell(f"live: round {number + 1} of {bench.rounds}")
    table.note("Wall: the program's own time, without its start. Processor: the time of all processes, with kstore's.")
    table.claims += [Claim(f"{row}: wall", "live", 1.02, "not live") for row in _ROWS.values()]
    return table


def _compile(folder: Path, way: str, column: str, kernels: int) -> tuple[float, float]:
    """Compile into an empty cache root, with an empty store: seconds of wall time and of processor time."""
    folder.mkdir()
    variables = {
        "KSTORE_ROOT": str(folder / "store"), "KSTORE_CACHE_ROOT": str(folder / "root"), "KSTORE_GPU": "bench-sm90",
    }  # fmt: skip
    arguments = [str(_PROGRAM), "--sources", str(folder / "sources"), "--count", str(kernels), "--release", "1"]
    if way == "exec":
        options = ["--settle", "1s", "--every", "5s"] if column == "live" else ["--no-live"]
        command = ["-m", "kstore", "exec", "bench/live", *options, "--", sys.executable, *arguments]
    else:
        command = ["-c", _WITHIN, column, *arguments]
    before = processes.processor_time()
    done = subprocess.run(
        [sys.executable, *command], env=processes.environment(variables), capture_output=True, text=True, check=True
    )
    report = json.loads(done.stdout.splitlines()[-1])
    if report["compiled"] != kernels:
        raise RuntimeError(f"{way}, {column}: {report}")
    return report["seconds"], processes.processor_time() - before
