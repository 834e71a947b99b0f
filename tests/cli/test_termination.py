"""SIGTERM and SIGHUP before the command runs that they would be passed on to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from kstore.creator import creator
from tests.cli.commandline import REPOSITORY, Cli

WAITING = ("--wait", "5m", "--require")
COMMANDS = [("restore", "my/v1", *WAITING), ("exec", "my/v1", *WAITING, "--", "echo", "ran")]
LEADS = "the others wait for what this worker compiles"
HANG_ONCE_RESTORED = """
import sys, threading
import kstore.stats.record as module
module.record = lambda *what: (print("restored", file=sys.stderr, flush=True), threading.Event().wait())
"""
HANG_WHILE_MARKING = """
import sys, threading
import kstore.gc.collection as module
module.mark = lambda *what: (print("marking", file=sys.stderr, flush=True), threading.Event().wait())
"""
HANG_WHILE_READING = """
import sys, threading
import kstore.published.leaning as module
module.fetch_many = lambda *what: (print("reading", file=sys.stderr, flush=True), threading.Event().wait())
"""
HANG_ONCE_UNPACKED = """
import sys, threading
import kstore.operations.commit as module
module.commit = lambda *what: (print("unpacked", file=sys.stderr, flush=True), threading.Event().wait())
"""
FIRST_PROCESS = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]


@pytest.fixture(autouse=True)
def nothing_ignored() -> Iterator[None]:
    """These tests may themselves run under nohup, which makes everything that is started ignore SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_signal_ends_a_command_that_waits(cli: Cli, arguments: tuple[str, ...], number: signal.Signals) -> None:
    process = cli.start(*arguments)
    assert process.stderr is not None
    assert "waiting for somebody to compile" in process.stderr.readline()
    process.send_signal(number)
    out, err = process.communicate(timeout=60)

    assert (process.returncode, out) == (128 + number, "")
    assert err == f"kstore: ended by {number.name}\n"


@pytest.mark.parametrize("command", ["restore", "exec"])
def test_a_leader_that_is_ended_lets_the_next_lead_at_once(cli: Cli, command: str) -> None:
    (cli.folder / "sitecustomize.py").write_text(HANG_ONCE_RESTORED)
    program = ("--", "true") if command == "exec" else ()
    arguments = (command, "my/v1", "--wait", "5m", "--lease-ttl", "1h", *program)
    process = cli.start(*arguments, PYTHONPATH=f"{cli.folder}:{REPOSITORY}")
    assert process.stderr is not None
    assert process.stderr.readline() == "restored\n"
    process.send_signal(signal.SIGTERM)

    assert process.wait(60) == 128 + signal.SIGTERM
    process.communicate()
    assert LEADS in cli("restore", "my/v1", "--wait", "5m", "--cache-root", str(cli.folder / "second")).out


def test_a_gc_lets_the_next_begin_at_once(cli: Cli) -> None:
    cli.publish("my/v1")
    (cli.folder / "sitecustomize.py").write_text(HANG_WHILE_MARKING)
    process = cli.start("gc", PYTHONPATH=f"{cli.folder}:{REPOSITORY}")
    assert process.stderr is not None
    assert process.stderr.readline() == "marking\n"
    busy = cli("gc", "--json").json
    assert (busy["status"], busy["holder"]) == ("busy", creator())
    process.send_signal(signal.SIGTERM)

    assert process.wait(60) == 128 + signal.SIGTERM
    process.communicate()
    assert cli("gc", "--json").json["status"] == "collected"


def test_an_export_leaves_no_half_archive(cli: Cli) -> None:
    cli.publish("my/v1")
    (cli.folder / "sitecustomize.py").write_text(HANG_WHILE_READING)
    archive = cli.folder / "out/my.tar"
    archive.parent.mkdir()
    process = cli.start("export", "my/v1", "-o", str(archive), PYTHONPATH=f"{cli.folder}:{REPOSITORY}")
    assert process.stderr is not None
    assert process.stderr.readline() == "reading\n"
    assert [path.name for path in archive.parent.iterdir()] == ["my.tar.partial"]
    process.send_signal(signal.SIGTERM)

    assert process.wait(60) == 128 + signal.SIGTERM
    process.communicate()
    assert list(archive.parent.iterdir()) == []


def test_an_import_leaves_nothing_of_what_it_has_unpacked(cli: Cli) -> None:
    (cli.folder / "sitecustomize.py").write_text(HANG_ONCE_UNPACKED)
    temporary, kernel, archive = cli.folder / "temporary", cli.folder / "cone.py", cli.folder / "cache.tar.gz"
    temporary.mkdir()
    kernel.write_text("one")
    with tarfile.open(archive, "w:gz") as file:
        file.add(kernel, "ab/cone.py")
    process = cli.start(
        "import", "b10", str(archive), "--key", "my/v1", PYTHONPATH=f"{cli.folder}:{REPOSITORY}", TMPDIR=str(temporary)
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "unpacked\n"
    assert list(temporary.glob("*/inductor/ab/cone.py"))
    process.send_signal(signal.SIGTERM)

    assert process.wait(60) == 128 + signal.SIGTERM
    process.communicate()
    assert list(temporary.iterdir()) == []


def test_a_thread_that_runs_a_command_handles_no_signals(cli: Cli) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(cli, "restore", "my/v1").result().code == 0


def test_after_a_command_signals_are_as_before(cli: Cli) -> None:
    cli("restore", "my/v1")

    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == [signal.SIG_DFL] * 2


def test_a_process_that_ignores_a_signal_is_not_ended_by_it(cli: Cli) -> None:
    """As nohup does for SIGHUP."""
    arguments = ("restore", "my/v1", "--wait", "5m", "--require")
    process = subprocess.Popen(
        [sys.executable, "-m", "kstore", *arguments], cwd=REPOSITORY, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )  # fmt: skip
    assert process.stderr is not None
    assert "waiting for somebody to compile" in process.stderr.readline()
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
    assert int(status["SigIgn"], 16) & 1 << signal.SIGHUP - 1
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)

    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_signal_ends_process_1_of_a_container(cli: Cli, arguments: tuple[str, ...]) -> None:
    """The kernel sends process 1 no signal that it has no handler for."""
    if subprocess.run([*FIRST_PROCESS, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespace of processes can be made here")
    outer = subprocess.Popen(
        [*FIRST_PROCESS, sys.executable, "-m", "kstore", *arguments],
        cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ),
    )  # fmt: skip
    assert outer.stderr is not None
    assert "waiting for somebody to compile" in outer.stderr.readline()
    (first,) = psutil.Process(outer.pid).children()
    first.terminate()
    out, _ = outer.communicate(timeout=60)

    assert (outer.returncode, out) == (128 + signal.SIGTERM, "")
