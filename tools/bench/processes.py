"""Starts workers, each in a process of its own, and reads their answers."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
_FOLDER = "/"
"""Where a worker is, as in a container that names no other folder. In this repository every kstore would read a
pyproject.toml that has much about kstore.
"""
_STRANGE = ("KSTORE", "TORCH", "TRITON", "B10", "BASETEN", "CUDA_CACHE")
_LIMIT = 1800
"""Seconds after which a worker counts as hung."""
_PATIENCE = 300
"""Seconds within which every worker of a crowd must be ready."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one step of a worker took."""

    seconds: float
    status: str
    verb: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """What a worker reported at its end."""

    steps: list[Step]
    peak: int
    """The most bytes that its process had in memory at a time."""
    wall: float = 0.0
    """Seconds of the whole process."""
    ended: float = 0.0
    """When the last step was done, by `time.monotonic`."""
    processor: float = 0.0
    """Seconds of all processors, its children's included."""

    @property
    def last(self) -> Step:
        """The step that is asked about most often."""
        return self.steps[-1]


@dataclass(frozen=True, slots=True)
class Spec:
    """Who a worker is, and what it has to do."""

    way: str
    folders: Mapping[str, str]
    steps: Sequence[Sequence[str]]
    variables: Mapping[str, str]

    @property
    def command(self) -> list[str]:
        """The command line of its process."""
        spec = {"way": self.way, "folders": dict(self.folders), "steps": [list(step) for step in self.steps]}
        return [sys.executable, "-m", "tools.bench.worker", json.dumps(spec)]


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Ours, without what would lead a worker elsewhere. Modules are compiled once, as in an installed package."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_STRANGE)}
    path = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": ""} | dict(variables)


def run(spec: Spec) -> Told:
    """Run one worker to its end."""
    started, used = time.perf_counter(), processor_time()
    done = subprocess.run(
        spec.command, cwd=_FOLDER, env=environment(spec.variables), capture_output=True, text=True, timeout=_LIMIT
    )
    wall, processor = time.perf_counter() - started, processor_time() - used
    return replace(_told(spec, done.returncode, done.stdout, done.stderr), wall=wall, processor=processor)


def processor_time() -> float:
    """Seconds of all processors that were used by child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_crowd(specs: Sequence[Spec], work: Path) -> tuple[float, list[Told]]:
    """Run all at once, when all are ready: seconds until the last has ended its steps, and what all reported."""
    folder = Path(tempfile.mkdtemp(prefix="crowd-", dir=work))
    waiting = [_waiting(spec, folder, number) for number, spec in enumerate(specs)]
    # Output goes to files: a full pipe would hold a worker up.
    files = [(open(folder / f"{n}.out", "w+"), open(folder / f"{n}.err", "w+")) for n in range(len(specs))]
    processes = [
        subprocess.Popen(spec.command, cwd=_FOLDER, env=environment(spec.variables), stdout=out, stderr=err, text=True)
        for spec, (out, err) in zip(waiting, files, strict=True)
    ]
    _await_ready(processes, folder, len(specs))
    started = time.monotonic()
    (folder / "start").touch()
    told = []
    for spec, process, (out, err) in zip(waiting, processes, files, strict=True):
        code = process.wait(_LIMIT)
        out.seek(0)
        err.seek(0)
        told.append(_told(spec, code, out.read(), err.read()))
        out.close()
        err.close()
    return max(each.ended for each in told) - started, told


def _waiting(spec: Spec, folder: Path, number: int) -> Spec:
    """The same worker, but it waits before its last step."""
    *before, last = spec.steps
    barrier = ("barrier", str(folder / f"{number}.ready"), str(folder / "start"))
    return Spec(spec.way, spec.folders, [*before, barrier, last], spec.variables)


def _await_ready(processes: Sequence[subprocess.Popen[str]], folder: Path, count: int) -> None:
    until = time.monotonic() + _PATIENCE
    while len(list(folder.glob("*.ready"))) < count:
        if time.monotonic() > until or any(process.poll() for process in processes):
            for process in processes:
                process.kill()
            break
        time.sleep(0.01)


def _told(spec: Spec, code: int, output: str, errors: str) -> Told:
    if code:
        raise RuntimeError(f"a worker of {spec.way} ended with {code}: {errors[-2000:]}")
    answer: dict[str, Any] = json.loads(output.splitlines()[-1])
    steps = [Step(**step) for step in answer["steps"]]
    return Told(steps, answer["peak"], ended=answer["ended"])
