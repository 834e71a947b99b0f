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
ONCE_MORE = """
from kstore.cli import child
reap = child._reap

def reap_as_somebody_types(number):
    code = reap(number)
    os.kill(os.getpid(), signal.SIGINT)
    return code

child._reap = reap_as_somebody_types
"""
ONCE_ALL_IS_DONE = """
from kstore.cli.child import interruptible

code = run_child(Launcher(), sys.argv[1:], os.environ, lambda: None, print)
try:
    with interruptible():
        signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
signal.raise_signal(signal.SIGINT)
print(code)
"""
OF_KERNEL = """
from types import SimpleNamespace
from kstore.cli import child
wait, told = signal.sigwaitinfo, [(signal.SIGXCPU, child._SI_KERNEL), (signal.SIGRTMAX, 0)]

def wait_for_kernel(numbers):
    return SimpleNamespace(**dict(zip(("si_signo", "si_code"), told.pop(0)))) if told else wait(numbers)

signal.sigwaitinfo = wait_for_kernel
"""
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


def test_a_ctrl_c_that_comes_as_the_command_ends_does_not_end_what_follows() -> None:
    assert lines_of(ONCE_MORE + PLAIN, "sh", "-c", "exit 5") == ["5"]


def test_a_ctrl_c_ends_only_what_may_be_interrupted_and_leaves_the_commands_exit_code() -> None:
    assert lines_of(ONCE_ALL_IS_DONE, "sh", "-c", "exit 5") == ["interrupted", "5"]


def test_the_processor_time_that_we_have_used_is_not_the_commands_trouble() -> None:
    assert lines_of(OF_KERNEL + PLAIN, "sleep", "60")[-1] == str(128 + signal.SIGRTMAX)
