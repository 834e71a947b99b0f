"""`kstore exec` commits while its command runs, however the command ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from kstore.cli.sentences import committed
from kstore.report import CommitReport, CommitStatus
from kstore.store import Store
from tests.cli.commandline import REPOSITORY, Cli, compiling, is_held
from tests.waiting import until

PATIENCE = 60
LATE = ("--settle", "1h", "--every", "1h")
DEAF = "import signal; [signal.signal(n, signal.SIG_IGN) for n in (signal.SIGTERM, signal.SIGINT)]"
WAITING = "print('ready', flush=True); import sys; sys.stdin.readline()"


def compiling_in_python(name: str) -> str:
    return (
        "import os, pathlib; folder = pathlib.Path(os.environ['TORCHINDUCTOR_CACHE_DIR'], 'ab'); "
        f"folder.mkdir(parents=True, exist_ok=True); (folder / 'c{name}.py').write_text('{name}')"
    )


def start(cli: Cli, *options: str, program: str, **settings: str) -> subprocess.Popen[str]:
    """Run Python under `kstore exec` until it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kstore", "exec", "my/v1", *options, "--", sys.executable, "-c", program],
        cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | settings, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def published(cli: Cli) -> int:
    """How many files are published."""
    scopes = cli("ls", "my/v1", "--json").json["scopes"] if cli.store.exists() else []
    return int(scopes[0]["files"]) if scopes else 0


def wait_until_published(cli: Cli, files: int) -> None:
    end = time.monotonic() + PATIENCE
    while published(cli) < files:
        assert time.monotonic() < end, "it was never published"
        time.sleep(0.05)


def test_what_is_compiled_is_published_while_the_command_runs(cli: Cli) -> None:
    process = start(cli, "--settle", "1s", "--json", program=f"{compiling_in_python('one')}; {WAITING}")
    wait_until_published(cli, 1)
    assert process.poll() is None
    _, err = process.communicate("\n", timeout=PATIENCE)
    content = json.loads(err.splitlines()[-1])

    assert process.returncode == 0
    commit = content["commit"]
    assert (content["checkpoints"], commit["status"], commit["generation"], commit["new_files"]) == (
        1,
        "committed",
        1,
        1,
    )


def test_the_last_line_sums_up_what_was_published(cli: Cli) -> None:
    process = start(cli, "--settle", "1s", program=f"{compiling_in_python('one')}; {WAITING}")
    wait_until_published(cli, 1)
    _, err = process.communicate("\n", timeout=PATIENCE)
    assert "kstore: committed my/v1 generation 1 while it ran: 1 new file, " in err
    assert "nothing new" not in err

    two = f"{WAITING}; {compiling_in_python('three')}"
    process = start(cli, "--settle", "1s", program=f"{compiling_in_python('two')}; {two}")
    wait_until_published(cli, 2)
    _, err = process.communicate("\n", timeout=PATIENCE)
    assert "kstore: committed my/v1 generations 2 to 3 while it ran: 2 new files, " in err


def test_the_last_line_does_not_claim_what_others_published_meanwhile(cli: Cli) -> None:
    second, third, fourth = (CommitReport(CommitStatus.COMMITTED, "my/v1", generation=number) for number in (2, 3, 4))
    store = Store(cli.store)

    assert "my/v1 generations 2 to 4 while it ran: " in committed(store, fourth, [second, third, fourth])
    told = committed(store, fourth, [second, fourth])
    assert "my/v1 generations 2 to 4, between those of others, while it ran: " in told


def test_a_command_that_is_killed_with_kstore_leaves_what_was_published(cli: Cli) -> None:
    process = start(cli, "--settle", "1s", program=f"{compiling_in_python('one')}; {WAITING}")
    wait_until_published(cli, 1)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE)

    assert process.returncode == -signal.SIGKILL
    assert published(cli) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_command_that_does_not_end_when_it_is_told_to_has_its_kernels_published(cli: Cli, number: int) -> None:
    process = start(cli, *LATE, program=f"{DEAF}; {compiling_in_python('one')}; {WAITING}")
    process.send_signal(number)
    wait_until_published(cli, 1)
    assert process.poll() is None
    process.kill()
    process.communicate(timeout=PATIENCE)


def test_nobody_waits_for_a_command_that_was_told_to_end(cli: Cli) -> None:
    options = ("--settle", "1s", "--wait", "1h", "--ready-url", "http://127.0.0.1:1/never")
    process = start(cli, *options, program=f"{DEAF}; {compiling_in_python('one')}; {WAITING}")
    wait_until_published(cli, 1)
    assert is_held(cli)
    process.send_signal(signal.SIGTERM)
    until(lambda: not is_held(cli))
    assert process.poll() is None
    process.kill()
    process.communicate(timeout=PATIENCE)


def test_other_signals_mean_nothing_to_kstore(cli: Cli) -> None:
    deaf = "import signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN)"
    process = start(cli, *LATE, program=f"{deaf}; {compiling_in_python('one')}; {WAITING}")
    process.send_signal(signal.SIGUSR1)
    time.sleep(0.5)
    assert published(cli) == 0
    process.communicate("\n", timeout=PATIENCE)
    assert published(cli) == 1


def test_without_live_nothing_is_committed_before_the_end(cli: Cli) -> None:
    process = start(cli, "--no-live", program=f"{compiling_in_python('one')}; {WAITING}")
    time.sleep(6)  # longer than it would take to settle
    assert published(cli) == 0
    process.communicate("\n", timeout=PATIENCE)
    assert published(cli) == 1


HANG = """
import threading
from kstore.backends import PosixBackend
PosixBackend.upload = lambda *what: threading.Event().wait()
"""
HANG_AND_SAY_SO = """
import os, threading
from kstore.backends import PosixBackend
stdout = os.dup(1)  # Once the command runs, kstore leaves the other one to it.
PosixBackend.upload = lambda *what: os.write(stdout, b"uploading\\n") and threading.Event().wait()
"""


HANG_FROM_UPLOADING_ON = """
import sys, threading
from kstore.backends import PosixBackend
def hang(*what):
    PosixBackend.put_if_absent = lambda *what: print("asked once more", file=sys.stderr, flush=True) or hang()
    threading.Event().wait()
PosixBackend.upload = hang
"""


@pytest.mark.parametrize("options", [(), ("--no-live",)], ids=["live", "not live"])
def test_after_a_signal_the_last_commit_has_the_grace_period(cli: Cli, options: tuple[str, ...]) -> None:
    hanging = cli.folder / "hanging"
    hanging.mkdir()
    (hanging / "sitecustomize.py").write_text(HANG)
    program = f"{compiling_in_python('one')}; {WAITING}"
    process = start(cli, *options, "--grace-period", "1s", program=program, PYTHONPATH=f"{hanging}:{REPOSITORY}")
    process.send_signal(signal.SIGTERM)
    process.wait(PATIENCE)
    _, err = process.communicate()

    assert process.returncode == 128 + signal.SIGTERM
    assert "has taken more than 1 s" in err


def told_during_the_last_commit(cli: Cli, *options: str, number: signal.Signals) -> subprocess.Popen[str]:
    """A process that gets a signal while its last commit hangs."""
    hanging = cli.folder / "hanging"
    hanging.mkdir()
    (hanging / "sitecustomize.py").write_text(HANG_AND_SAY_SO)
    program = f"{compiling_in_python('one')}; print('ready', flush=True)"
    process = start(cli, *options, program=program, PYTHONPATH=f"{hanging}:{REPOSITORY}")
    assert process.stdout is not None
    assert process.stdout.readline() == "uploading\n"
    process.send_signal(number)
    process.wait(PATIENCE)
    return process


@pytest.mark.parametrize("options", [LATE, ("--no-live",)], ids=["live", "not live"])
def test_a_signal_during_the_last_commit_leaves_it_the_grace_period(cli: Cli, options: tuple[str, ...]) -> None:
    process = told_during_the_last_commit(cli, *options, "--grace-period", "1s", number=signal.SIGTERM)
    _, err = process.communicate()

    assert process.returncode == 0
    assert "nothing is committed: committing to" in err


@pytest.mark.parametrize("options", [LATE, ("--no-live",)], ids=["live", "not live"])
def test_ctrl_c_during_the_last_commit_gives_it_up(cli: Cli, options: tuple[str, ...]) -> None:
    process = told_during_the_last_commit(cli, *options, number=signal.SIGINT)
    _, err = process.communicate()

    assert process.returncode == 0
    assert "kstore: warning: nothing is committed: it was interrupted\n" in err


def test_a_worker_that_others_wait_for_has_no_longer_either(cli: Cli) -> None:
    """Its lease lapses: a store that hangs is not waited for once more."""
    hanging = cli.folder / "hanging"
    hanging.mkdir()
    (hanging / "sitecustomize.py").write_text(HANG_FROM_UPLOADING_ON)
    options = ("--wait", "1h", "--grace-period", "1s")
    program = f"{compiling_in_python('one')}; {WAITING}"
    process = start(cli, *LATE, *options, program=program, PYTHONPATH=f"{hanging}:{REPOSITORY}")
    process.send_signal(signal.SIGTERM)
    process.wait(PATIENCE)
    _, err = process.communicate()

    assert "the others wait for what this worker compiles" in err
    assert "has taken more than 1 s" in err
    assert "asked once more" not in err


def test_a_worker_that_only_reads_commits_nothing(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    process = start(cli, program=WAITING, KSTORE_MODE="read")
    _, err = process.communicate("\n", timeout=PATIENCE)

    assert "nothing is committed to my/v1: the mode is read" in err


@pytest.mark.parametrize("option", ["--settle", "--every", "--grace-period"])
def test_no_time_at_all_is_a_mistake(cli: Cli, option: str) -> None:
    assert cli("exec", "my/v1", option, "0", "--", "true").code == 2


def test_a_store_that_is_away_is_reported_once(cli: Cli) -> None:
    process = start(
        cli, "--settle", "1s", "--store", "/nowhere/at/all", program=f"{compiling_in_python('one')}; {WAITING}"
    )
    time.sleep(4)
    _, err = process.communicate("\n", timeout=PATIENCE)

    assert process.returncode == 0
    assert err.count("is not published for now") == 1


def test_quick_commands_are_committed_once(cli: Cli) -> None:
    result = cli.process("exec", "my/v1", "--", "sh", "-ec", compiling("one"))
    assert "committed my/v1 generation 1: 1 new file of 1" in result.err
