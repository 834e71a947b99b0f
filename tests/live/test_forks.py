"""A job that is told to end while it forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kstore.live import forks
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

JOB_WHOSE_THREAD_FORKS = """
import os, signal, sys, threading, kstore
from tests.trees import KEY, Tree
folder = sys.argv[1]
settings = dict(store=folder + "/store", cache_root=folder + "/node", gpu="nvidia-test-sm90", environment="torch-test")
def fork():
    if pid := os.fork(): os.waitpid(pid, 0)
    else: os._exit(0)
with kstore.synchronized(KEY, grace_period=30, **settings):
    Tree(__import__("pathlib").Path(folder, "node")).kernel()
    other = threading.Thread(target=fork)
    other.start()
    other.join()
    signal.raise_signal(signal.SIGTERM)
"""

JOB_WHOSE_CHILD_COMPILES = """
import os, signal, sys, kstore
from tests.trees import KEY, Tree
folder = sys.argv[1]
settings = dict(store=folder + "/store", gpu="nvidia-test-sm90", environment="torch-test")
with kstore.synchronized("the/parent", cache_root=folder + "/parent", **settings):
    pass
if pid := os.fork():
    sys.exit(-os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
with kstore.synchronized(KEY, cache_root=folder + "/node", grace_period=30, **settings):
    Tree(__import__("pathlib").Path(folder, "node")).kernel()
    signal.raise_signal(signal.SIGTERM)
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


def test_a_job_whose_other_thread_has_forked_before_publishes_and_ends(tmp_path: Path) -> None:
    done = run(JOB_WHOSE_THREAD_FORKS, tmp_path)
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert len(Node(tmp_path, "reader").published()) == 8


def test_a_child_that_has_a_block_of_its_own_publishes_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    done = run(JOB_WHOSE_CHILD_COMPILES, tmp_path)
    assert done.returncode == signal.SIGTERM, done.stderr
    assert len(Node(tmp_path, "reader").published()) == 8


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The signals that were sent again."""
    numbers: list[int] = []
    monkeypatch.setattr(forks, "begin", lambda call, process, number: numbers.append(number))
    return numbers


def test_every_signal_that_was_put_off_comes_again(sent: list[int]) -> None:
    fork = forks._Fork()
    fork.start()
    fork.put_off |= {signal.SIGTERM, signal.SIGHUP}
    fork.end()
    assert sorted(sent) == [signal.SIGHUP, signal.SIGTERM]


def test_a_child_that_forks_is_not_told_to_end_in_its_parents_place(sent: list[int]) -> None:
    fork = forks._Fork()
    fork.start()
    fork.put_off |= {signal.SIGTERM}
    fork.forget()  # in the child
    fork.start()
    fork.end()
    assert sent == []


def test_forks_are_followed_once_however_many_blocks_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    forks.follow_forks()
    monkeypatch.setattr(os, "register_at_fork", None)
    forks.follow_forks()


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", program, str(folder)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE, check=False)
