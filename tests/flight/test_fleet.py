"""Sixteen workers start cold on one key, each a process of its own with the real compiler: only one compiles."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.compilers.programs import GPU, PROGRAMS, TIMEOUT, Container

WORKERS = 16
KERNELS = 2
REPOSITORY = Path(__file__).parents[2]
pytestmark = [pytest.mark.compiler, pytest.mark.slow]


class Fleet:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = Container(folder).environ() | {"KSTORE_ROOT": str(folder / "store"), "KSTORE_GPU": GPU}

    def start(self, number: int, *, lease_ttl: str = "60s") -> subprocess.Popen[str]:
        """A worker that restores, compiles what it lacks, and commits."""
        program = [sys.executable, str(PROGRAMS / "compile_kernels.py"), "--sources", str(self.folder / "sources")]
        program += ["--count", str(KERNELS), "--release", "1"]
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "kstore", "exec", "model/v1", "--wait", "10m", "--lease-ttl", lease_ttl),
                *("--json", "--cache-root", str(self.folder / f"worker-{number}"), "--", *program),
            ],
            cwd=REPOSITORY,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


def finish(worker: subprocess.Popen[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What kstore and the compiler say about it."""
    out, err = worker.communicate(timeout=TIMEOUT)
    assert worker.returncode == 0, err
    return json.loads(err.splitlines()[-1]), json.loads(out)


def test_one_compiles_and_fifteen_restore(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    workers = [fleet.start(number) for number in range(WORKERS)]
    results = [finish(worker) for worker in workers]

    leaders = [compiled for report, compiled in results if report["restore"]["leads"]]
    assert [(found["compiled"], found["hits"]) for found in leaders] == [(KERNELS, 0)]
    others = [(report, compiled) for report, compiled in results if not report["restore"]["leads"]]
    assert {report["restore"]["status"] for report, _ in others} == {"restored"}
    assert {(found["compiled"], found["hits"]) for _, found in others} == {(0, KERNELS)}
    assert {report["commit"]["generation"] for report, _ in results} == {1}


def test_one_of_those_that_wait_takes_the_place_of_a_worker_that_was_killed(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    victim = fleet.start(0, lease_ttl="2s")
    leases = fleet.folder / "store/leases"
    while not list(leases.rglob("1")):
        assert victim.poll() is None
        time.sleep(0.01)
    os.killpg(victim.pid, signal.SIGKILL)
    victim.communicate(timeout=60)
    results = [finish(worker) for worker in [fleet.start(number) for number in range(1, 4)]]

    assert sorted(report["restore"]["leads"] for report, _ in results) == [False, False, True]
    assert sum(found["compiled"] for _, found in results) == KERNELS
