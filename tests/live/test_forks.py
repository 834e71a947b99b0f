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
JOB_OF_TWO = """
import os, signal, sys, threading, kstore
from kstore.live.imports import import_commit
from tests.trees import KEY, Tree
import_commit()
folder = sys.argv[1]
settings = dict(store=folder + "/store", cache_root=folder + "/node", gpu="nvidia-test-sm90", environment="torch-test")
def fork():
    if pid := os.fork(): os.waitpid(pid, 0)
    else: os._exit(0)
def before():
    # Called before what takes locks: all that does was imported earlier.
    if threading.current_thread() is threading.main_thread():
        other = threading.Thread(target=fork)
        other.start()
        other.join()
        signal.raise_signal(signal.SIGTERM)
os.register_at_fork(before=before)
signal.signal(signal.SIGTERM, lambda *what: sys.exit(3))
with kstore.synchronized(KEY, grace_period=30, **settings):
    Tree(__import__("pathlib").Path(folder, "node")).kernel()
    fork()
    threading.Event().wait(30)
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
    done = run(JOB.replace("HANDLER", handler).replace("LIVE", str(live)), tmp_path)
    assert done.returncode == code, done.stderr
    assert len(Node(tmp_path, "reader").published()) == 8


def test_a_job_whose_other_thread_forks_meanwhile_publishes_and_ends(tmp_path: Path) -> None:
    done = run(JOB_OF_TWO, tmp_path)
    assert done.returncode == 3, done.stderr
    assert len(Node(tmp_path, "reader").published()) == 8


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", program, str(folder)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE, check=False)
