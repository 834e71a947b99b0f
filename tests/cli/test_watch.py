"""`kstore watch`: a sidecar that commits what others compile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.cli.commandline import REPOSITORY, Cli
from tests.cli.test_exec_live import PATIENCE, wait_until_published

WATCHING = "kstore: watching the cache root of my/v1\n"


def start(cli: Cli, *options: str, said: str = WATCHING, **settings: str) -> subprocess.Popen[str]:
    """Start it, and wait until it watches."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kstore", "watch", "my/v1", *options],
        cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | settings,
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stderr.readline() == said
    return process


def end(process: subprocess.Popen[str], by: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
    process.send_signal(by)
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def test_what_others_compile_is_published_meanwhile(cli: Cli) -> None:
    process = start(cli, "--settle", "1s")
    cli.write("inductor/ab/cone.py")
    wait_until_published(cli, 1)
    assert end(process)[0] == 0


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda by: by.name)
def test_what_is_left_is_published_when_it_is_told_to_end(cli: Cli, by: signal.Signals) -> None:
    process = start(cli, "--settle", "1h", "--every", "1h")
    cli.write("inductor/ab/cone.py")
    code, _, err = end(process, by)

    assert code == 0
    assert "kstore: committed my/v1 generation 1: 1 new file of 1" in err


def test_a_hangup_that_was_to_be_ignored_from_the_start_does_not_end_it(cli: Cli) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = start(cli, "--settle", "1s")
    finally:
        signal.signal(signal.SIGHUP, before)
    process.send_signal(signal.SIGHUP)
    for count, name in enumerate(("one", "two"), 1):
        cli.write(f"inductor/ab/c{name}.py")
        wait_until_published(cli, count)
    assert end(process)[0] == 0


def test_it_goes_on_from_what_was_restored(cli: Cli) -> None:
    cli.publish("my/v1", "one", "two")
    cli("restore", "my/v1")
    process = start(cli, "--settle", "1s")
    cli.write("inductor/ab/cthree.py")
    wait_until_published(cli, 3)
    assert end(process)[0] == 0


def lose_the_store(cli: Cli) -> None:
    """After one commit and before another: in one step, since the watch may still be removing what it staged."""
    cli.write("inductor/ab/cone.py")
    wait_until_published(cli, 1)
    cli.store.rename(cli.store.with_name("away"))
    cli.write("inductor/ab/ctwo.py")


def test_trouble_with_the_store_does_not_end_it(cli: Cli) -> None:
    process = start(cli, "--settle", "1s", "--grace-period", "5s")
    lose_the_store(cli)
    code, _, err = end(process)

    assert code == 0
    assert "kstore: warning: the last commit of my/v1 failed: " in err


def test_json_says_why_the_last_commit_failed(cli: Cli) -> None:
    process = cli.start("watch", "my/v1", "--json", "--settle", "1s", "--grace-period", "5s")
    lose_the_store(cli)
    code, out, err = end(process)
    commit = json.loads(out)["commit"]

    assert (code, commit["status"], commit["ok"]) == (0, "failed", False)
    assert commit["error"] in err


def test_in_mode_read_it_does_nothing_until_it_is_told_to_end(cli: Cli) -> None:
    said = "kstore: warning: the mode is read: nothing is committed\n"
    assert end(start(cli, said=said, KSTORE_MODE="read"))[:2] == (0, "")
    assert not cli.store.exists()


def test_in_mode_read_json_says_so_too(cli: Cli) -> None:
    said = "kstore: warning: the mode is read: nothing is committed\n"
    code, out, _ = end(start(cli, "--json", said=said, KSTORE_MODE="read"))
    content = json.loads(out)

    assert code == 0
    assert (content["key"], content["commit"]["status"], content["checkpoints"]) == ("my/v1", "read-only", 0)


def test_a_malformed_key_is_a_usage_error(cli: Cli) -> None:
    assert cli("watch", "../v1").code == 2
