"""A real compile that is ended half-way: its successor finds what was finished, and compiles only the rest."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kstore.published.ref import Ref
from kstore.store import Store
from tests.compilers.programs import GPU, PROGRAMS, TIMEOUT, Container, compiled_graphs

pytestmark = pytest.mark.compiler

GRAPHS = [f"mlp-{letter}" for letter in "abcd"]
HALF = 2
"""The number of graphs after which the process is ended."""


class Job:
    """`kstore exec` of a program that compiles one graph after the other."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.environ = Container(folder).environ() | {
            "KSTORE_ROOT": str(folder / "store"), "KSTORE_CACHE_ROOT": str(self.root), "KSTORE_GPU": GPU,
        }  # fmt: skip
        self.store = Store(folder / "store", cache_root=self.root, gpu=GPU, environ={})

    def start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "kstore", "exec", "m/v1", "--settle", "1s", "--every", "2s", "--"]
        command += [sys.executable, str(PROGRAMS / "compile_models.py"), *GRAPHS]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self.environ, stdout=pipe, stderr=pipe, text=True, start_new_session=True)

    def run(self) -> dict[str, Any]:
        """Returns what the program reports."""
        output, errors = self.start().communicate(timeout=TIMEOUT)
        report: dict[str, Any] = json.loads(output.splitlines()[-1]) if output else pytest.fail(errors)
        return report

    def newest(self) -> Ref | None:
        return self.store.newest(self.store.scope("m/v1"))

    def graphs(self) -> int:
        """How many graphs are published."""
        ref = self.newest()
        files = self.store.snapshot(ref).manifest.files if ref else {}
        return len({path.split("/")[3] for path in files if path.startswith("inductor/fxgraph/")})


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive)],
    ids=lambda number: number.name,
)
def test_the_successor_of_a_process_that_was_ended_half_way_compiles_only_the_rest(tmp_path: Path, number: int) -> None:
    job = Job(tmp_path)
    process = job.start()
    while job.graphs() < HALF:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    if number == signal.SIGKILL:
        os.killpg(process.pid, number)  # The machine is gone.
    else:
        process.send_signal(number)
    process.communicate(timeout=TIMEOUT)
    found = job.graphs()
    assert HALF <= found < len(GRAPHS)

    shutil.rmtree(job.root)
    report = job.run()
    assert compiled_graphs(report)["fxgraph_cache_miss"] == len(GRAPHS) - found
    assert job.graphs() == len(GRAPHS)

    shutil.rmtree(job.root)
    again = job.run()
    assert compiled_graphs(again) == {}
    assert again["outputs"] == report["outputs"]
