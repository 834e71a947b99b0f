from __future__ import annotations

import signal
import subprocess
import sys

from tests.cli.commandline import REPOSITORY

PROGRAM = """
import ctypes, os, signal, subprocess, sys, threading
from kstore.cli.child import run_child
from kstore.cli.launcher import Launcher

ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: whoever is left comes to this process, as in a container
"""
WITH_A_COMPILER = """
noted = threading.Event()

def ask_the_compiler():
    compiler = subprocess.Popen(["sh", "-c", "exit 7"])
    os.waitid(os.P_PID, compiler.pid, os.WEXITED | os.WNOWAIT)
    os.kill(os.getpid(), signal.SIGURG)  # It has a higher number than SIGCHLD, and comes after it.
    noted.wait()
    print(compiler.wait(), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

def note(number):
    noted.set()

asks = threading.Thread(target=ask_the_compiler).start
print(run_child(Launcher(), ["sleep", "60"], os.environ, asks, note))
"""
PLAIN = "print(run_child(Launcher(), sys.argv[1:], os.environ, lambda: None, print))"
LEAVES_AN_ORPHAN = """
orphan=$(sh -c 'sleep 0 >/dev/null & echo $!')
for i in $(seq 1000); do [ -e /proc/$orphan ] || exit 5; sleep 0.02; done
"""


def lines_of(program: str, *arguments: str) -> list[str]:
    return subprocess.check_output(
        [sys.executable, "-c", PROGRAM + program, *arguments], cwd=REPOSITORY, text=True, timeout=100
    ).splitlines()


def test_what_another_thread_runs_is_its_own_to_wait_for() -> None:
    assert lines_of(WITH_A_COMPILER) == ["7", str(128 + signal.SIGTERM)]


def test_an_orphan_of_the_command_does_not_stay_a_zombie() -> None:
    assert lines_of(PLAIN, "sh", "-c", LEAVES_AN_ORPHAN) == ["5"]
