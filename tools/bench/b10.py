"""Measures the functions of b10-transfer against kstore's of the same names, on real artifacts, in one run.

    python -m tools.bench.b10 [--corpus DIR] [--work DIR] [--rounds N]

Every call is in a process of its own, in which torch is imported before the clock starts, and rounds are interleaved.
The tree is Inductor's folder with Triton's kernels in `triton/0`, as torch makes it. The corpus is built by
`python -m tools.corpus` if it is not there; one of its kernels is kept back, to be compiled later.
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
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tools.bench.peers import tree_bytes

REPOSITORY = Path(__file__).parents[2]
CONTENDERS = {"b10-transfer": "", "kstore, loose": "loose", "kstore, packed": "packed"}
"""Name → layout of the store."""
_CALL = """
import json, sys, time
from pathlib import Path
import torch
from share_b10 import load_package
which, top, function = sys.argv[1:]
package = load_package(which, Path(top))
started = time.perf_counter()
status = getattr(package, function)()
print(json.dumps([status.name, time.perf_counter() - started]))
"""


class Result(NamedTuple):
    """One measure of one round."""

    value: float
    """Seconds or bytes."""
    status: str = ""


@dataclass(frozen=True)
class Deployment:
    """Replicas that share a volume by one of the packages, in one round."""

    folder: Path
    layout: str

    def tree(self, replica: str) -> Path:
        """Torch's folder of a replica."""
        return self.folder / replica / ".cache/torchinductor"

    def call(self, replica: str, function: str) -> Result:
        """One function, in a process of that replica."""
        home = self.folder / replica
        home.mkdir(parents=True, exist_ok=True)
        for name in ("app", "cache/model/compile_cache"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("KSTORE", "TORCH", "TRITON"))}
        path = [str(REPOSITORY / "tests/programs"), str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {
            "HOME": str(home), "TORCHINDUCTOR_CACHE_DIR": str(self.tree(replica)),
            "KSTORE_CACHE_ROOT": str(home / "root"),
            "KSTORE_LAYOUT": self.layout or "auto", "B10FS_CACHE_DIR": str(self.volume), "PYTHONPATH": ":".join(path),
            "LOCAL_WORK_DIR": str(self.folder / "app"), "BASETEN_FS_ENABLED": "1",
            "MIN_B10FS_SPACE_MB": "0", "MIN_LOCAL_SPACE_MB": "0", "MAX_CONCURRENT_SAVES": "1",
        }  # fmt: skip
        command = [sys.executable, "-c", _CALL, "ours" if self.layout else "real", str(self.folder), function]
        done = subprocess.run(command, env=kept | variables, check=True, stdout=subprocess.PIPE, text=True)
        status, seconds = json.loads(done.stdout.splitlines()[-1])
        return Result(seconds, status)

    @property
    def volume(self) -> Path:
        """What the replicas share."""
        return self.folder / "cache/model/compile_cache"


def measure(deployment: Deployment, tree: Path, kernel: Path) -> dict[str, Result]:
    """One round: everything, and then one more kernel."""
    add(tree, deployment.tree("first"))
    first = deployment.call("first", "save_compile_cache")
    stored = tree_bytes(deployment.volume)
    again = deployment.call("first", "save_compile_cache")
    load = deployment.call("second", "load_compile_cache")
    add(kernel, deployment.tree("half") / "triton/0" / kernel.name)
    half = deployment.call("half", "load_compile_cache")
    add(kernel, deployment.tree("first") / "triton/0" / kernel.name)
    later = deployment.call("first", "save_compile_cache")
    return {
        "first save": first,
        "bytes stored": Result(stored),
        "save with nothing new": again,
        "load into an empty folder": load,
        "load into a folder with one other kernel": half,
        "save with one more kernel": later,
        "bytes written for it": Result(tree_bytes(deployment.volume) - stored),
    }


def add(source: Path, target: Path) -> None:
    """Copy a folder to a path that does not exist yet, with its times."""
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def main() -> None:
    """Run everything and print the table."""
    options = _options()
    subprocess.run([sys.executable, "-m", "tools.corpus", str(options.corpus)], check=True, stdout=sys.stderr)
    work = Path(tempfile.mkdtemp(prefix="kstore-bench-", dir=options.work))
    try:
        tree = work / "tree"
        add(options.corpus / "inductor", tree)
        add(options.corpus / "triton", tree / "triton/0")
        kernel = Path(shutil.move(min(path.parent for path in tree.glob("triton/0/*/*.cubin")), work))
        files, size = sum(path.is_file() for path in tree.rglob("*")), tree_bytes(tree)
        results = run(work, tree, kernel, options.rounds)
        head = f"{files:,} artifacts, {size:,} bytes; {options.rounds} interleaved rounds, medians."
        print(f"{head}\n\n{render(results)}", flush=True)  # Before the trees are deleted, which takes minutes.
    finally:
        shutil.rmtree(work, ignore_errors=True)


def run(work: Path, tree: Path, kernel: Path, rounds: int) -> dict[str, dict[str, list[Result]]]:
    """Measure → contender → a result for each round."""
    results: dict[str, dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for number in range(rounds):
        for name, layout in CONTENDERS.items():
            os.sync()
            for what, result in measure(Deployment(work / f"{number}-{name}", layout), tree, kernel).items():
                results[what][name].append(result)
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return results


def render(results: dict[str, dict[str, list[Result]]]) -> str:
    """The table, as Markdown. A status is named where it is not SUCCESS."""
    lines = ["| | " + " | ".join(CONTENDERS) + " |", "|---|" + "---:|" * len(CONTENDERS)]
    for what, of in results.items():
        lines.append(f"| {what} | " + " | ".join(_cell(what, rounds) for rounds in of.values()) + " |")
    return "\n".join(lines)


def _cell(what: str, rounds: list[Result]) -> str:
    value = statistics.median(result.value for result in rounds)
    statuses = " ".join(sorted({result.status for result in rounds} - {"SUCCESS", ""}))
    text = f"{value:,.0f}" if what.startswith("bytes") else f"{value:.3f} s"
    return f"{text}, {statuses}" if statuses else text


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools.bench.b10", description="Measure b10-transfer against kstore.")
    parser.add_argument("--corpus", type=Path, default=Path.home() / ".cache/kstore-corpus/bench")
    parser.add_argument("--work", type=Path, help="where to work; decides the filesystem that is measured")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
