"""A job that is told to end while it forks."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trees import Node

PATIENCE = 60
REPOSITORY = Path(__file__).parents[2]
JOB = """
import functools, os, signal
# What is registered first is called last, right before the kernel forks. No bytecode runs until that is done.
os.register_at_fork(before=functools.partial(signal.raise_signal, signal.SIGTERM))
import sys, time, kstore
from tests.trees import KEY, Tree
folder = sys.argv[1]
settings = dict(store=folder + "/store", cache_root=folder + "/node", gpu="nvidia-test-sm90", environment="torch-test")
HANDLER
with kstore.synchronized(KEY, live=LIVE, grace_period=30, **settings):
    Tree(__import__("pathlib").Path(folder, "node")).kernel()
    if not os.fork(): os._exit(0)
    for _ in range(600): time.sleep(0.1)
"""


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(
    ("handler", "code"),
    [("", -signal.SIGTERM), ("signal.signal(signal.SIGTERM, lambda *what: sys.exit(3))", 3)],
    ids=["default", "its own"],
)
def test_a_job_that_is_told_to_end_while_it_forks_publishes_and_ends(
    tmp_path: Path, handler: str, code: int, live: bool
) -> None:
    program = JOB.replace("HANDLER", handler).replace("LIVE", str(live))
    command = [sys.executable, "-W", "ignore", "-c", program, str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == code, done.stderr
    assert len(Node(tmp_path, "reader").published()) == 8
