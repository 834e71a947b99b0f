"""Measures a start from torch's mega-cache and from a kstore generation, beside a cold one.

    python -m tools.bench.megacache [--models NAME...] [--rounds N] [--work DIR] [--json FILE]

The same models are compiled on the CPU in every start, in a process of its own with empty cache folders. Its time is
that of the load or restore, the compile and one run, without the import of torch. Rounds take turns; medians are
compared. The precompiled headers, which torch keeps apart from its caches, are there in all starts. The processor's
time is that of the whole process and its children, the C++ compiler's among them, with the import of torch.
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
from typing import Any, NamedTuple

from tools.bench.peers import tree_bytes

KEY = "bench/megacache"
REPOSITORY = Path(__file__).parents[2]
_PROGRAM = REPOSITORY / "tests/programs/use_megacache.py"


class Cost(NamedTuple):
    """Of one start, in seconds."""

    wall: float
    processor: float


def main() -> None:
    """Run everything and print a table."""
    options = _options()
    work = Path(tempfile.mkdtemp(prefix="kstore-megacache-", dir=options.work))
    try:
        start(work, "headers", "mlp-headers")
        costs = run(work, options.models, options.rounds)
        sizes = {"megacache": tree_bytes(work / "saved.bin"), "kstore": tree_bytes(work / "store")}
        restored = int(newest(work)["bytes"])
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(render(options.models, options.rounds, costs, sizes, restored))
    if options.json:
        options.json.write_text(json.dumps({"costs": costs, "bytes": sizes, "restored": restored}, indent=1))


def run(work: Path, models: list[str], rounds: int) -> dict[str, list[Cost]]:
    """What every start takes in every round. The first cold one fills the store and writes the mega-cache."""
    costs: dict[str, list[Cost]] = defaultdict(list)
    first = ["--restore", KEY, "--save", str(work / "saved.bin"), "--commit", KEY]
    start(work, "builder", *first, *models)
    for number in range(rounds):
        starts = {"cold": [], "megacache": ["--load", str(work / "saved.bin")], "kstore": ["--restore", KEY]}
        for name, how in starts.items():
            before = _processor_time()
            report = start(work, f"{name}-{number}", *how, *models)
            missed = report["counters"]["inductor"].get("fxgraph_cache_miss", 0)
            if bool(missed) != (name == "cold"):
                raise RuntimeError(f"{name}: {missed} graphs were compiled")
            costs[name].append(Cost(report["seconds"], _processor_time() - before))
            print(f"{number} {name}: {costs[name][-1]}", file=sys.stderr)
    return dict(costs)


def start(work: Path, name: str, *arguments: str) -> dict[str, Any]:
    """One process with cache folders of its own."""
    environ = _environ(work) | {
        "KSTORE_CACHE_ROOT": str(work / name), "TORCHINDUCTOR_COMPILE_THREADS": "1", "TMPDIR": str(work),
    }  # fmt: skip
    if "--restore" not in arguments:
        environ["TORCHINDUCTOR_CACHE_DIR"] = str(work / name)
    command = [sys.executable, str(_PROGRAM), *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def newest(work: Path) -> dict[str, Any]:
    """The newest generation."""
    command = [sys.executable, "-m", "kstore", "ls", "--json"]
    done = subprocess.run(command, env=_environ(work), capture_output=True, text=True, check=True)
    (found,) = json.loads(done.stdout)["scopes"]
    return dict(found)


def render(models: list[str], rounds: int, costs: dict[str, list[Cost]], sizes: dict[str, int], restored: int) -> str:
    """The table, as Markdown."""
    median = {name: Cost(*map(statistics.median, zip(*taken, strict=True))) for name, taken in costs.items()}
    rows = {
        "cold": ("cold", ""),
        "megacache": ("`load_cache_artifacts`", f"{sizes['megacache']:,}"),
        "kstore": ("`kstore.restore`", f"{sizes['kstore']:,}, from which {restored:,} are restored"),
    }
    lines = [
        f"{', '.join(models)} on {os.cpu_count()} CPUs; {rounds} rounds, medians.",
        "",
        "| start | wall | of cold | processor | of cold | bytes kept |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    cold = median["cold"]
    for name, (title, kept) in rows.items():
        wall, processor = median[name]
        shares = f"{wall:.1f} s | {wall / cold.wall:.2f} | {processor:.1f} s | {processor / cold.processor:.2f}"
        lines.append(f"| {title} | {shares} | {kept} |")
    return "\n".join(lines)


def _processor_time() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _environ(work: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KSTORE_")}
    kept.pop("TRITON_CACHE_DIR", None)
    return kept | {"KSTORE_ROOT": str(work / "store"), "KSTORE_LAYOUT": "packed", "PYTHONPATH": str(REPOSITORY)}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools.bench.megacache", description="Measure starts from a mega-cache.")
    parser.add_argument("--models", nargs="+", default=["transformer"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, help="where to work; decides the filesystem")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
