"""`--wait` and `--lease-ttl`, of `kstore restore` and `kstore exec`."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import sys

import pytest

from tests.cli.commandline import REPOSITORY, Cli, compiling, read_terminal

LEADS = "the others wait for what this worker compiles"


def lead(cli: Cli, *options: str) -> None:
    """Another worker takes the lease and compiles for ever."""
    root = cli.folder / "leader"
    assert LEADS in cli("restore", "my/v1", "--wait", "5m", "--cache-root", str(root), *options).out


@pytest.mark.parametrize("command", ["restore", "exec"])
def test_the_first_goes_on_at_once(cli: Cli, command: str) -> None:
    result = cli.process(command, "my/v1", "--wait", "300", *(("--", "true") if command == "exec" else ()))

    assert result.code == 0
    assert f"yet; {LEADS}" in result.out + result.err
    assert "waiting" not in result.err


def test_exec_waits_for_what_another_exec_commits(cli: Cli) -> None:
    go = cli.folder / "go"
    body = f"echo leads; while [ ! -e {go} ]; do sleep 0.05; done; {compiling('one')}"
    first = cli.start("exec", "my/v1", "--wait", "300", "--", "sh", "-ec", body, KSTORE_LEASE_TTL="5")
    assert first.stdout is not None
    assert first.stdout.readline() == "leads\n"
    root = cli.folder / "second"
    second = cli.start("exec", "my/v1", "--wait", "5m", "--json", "--", "true", KSTORE_CACHE_ROOT=str(root))
    go.touch()
    (_, first_err), (_, second_err) = first.communicate(timeout=60), second.communicate(timeout=60)

    assert "committed my/v1 generation 1" in first_err
    report = json.loads(second_err)["restore"]
    assert (report["status"], report["leads"], report["generation"]) == ("restored", False, 1)


def test_one_line_says_who_is_waited_for_and_the_summary_how_long(cli: Cli) -> None:
    lead(cli)
    result = cli("restore", "my/v1", "--wait", "1")
    (line,) = [line for line in result.err.splitlines() if "waiting for" in line]

    assert re.fullmatch(
        r"kstore: waiting for \S+@\S+, who has been compiling for \d+ s; nothing is published so far", line
    )
    assert re.search(r"yet, after waiting \d.* s for \S+@\S+\n", result.out)


def test_json_says_for_how_long_and_for_whom(cli: Cli) -> None:
    lead(cli)
    result = cli("restore", "my/v1", "--wait", "1", "--json")

    assert (result.json["status"], result.json["leads"], result.err) == ("miss", False, "")
    assert result.json["waited"] > 0
    assert "@" in result.json["waited_for"]


def test_a_terminal_shows_who_is_waited_for(cli: Cli) -> None:
    lead(cli)
    process, terminal = pty.fork()
    if not process:
        os.chdir(REPOSITORY)
        os.environ |= {"TERM": "xterm", "COLUMNS": "200"}
        os.execv(sys.executable, [sys.executable, "-m", "kstore", "restore", "my/v1", "--wait", "60"])
    shown, wanted = b"", rb"restoring my/v1: waiting for \S+@\S+, who has been compiling for [1-9]"
    while not re.search(wanted, shown) and select.select([terminal], [], [], 60)[0]:
        shown += (data := read_terminal(terminal))
        assert data, shown
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


@pytest.mark.parametrize("command", ["restore", "exec"])
def test_with_require_it_waits_and_never_leads(cli: Cli, command: str) -> None:
    result = cli.process(
        command, "my/v1", "--wait", "1", "--require", *(("--", "echo", "ran") if command == "exec" else ())
    )

    assert (result.code, result.out) == (3, "")
    assert LEADS not in result.err
    assert not (cli.store / "leases").exists()


def test_a_restore_leaves_the_lease_to_the_commit(cli: Cli) -> None:
    """Two commands, two processes: the lease lasts from one to the other."""
    assert LEADS in cli.process("restore", "my/v1", "--wait", "1", "--lease-ttl", "10m").out
    cli.write("inductor/ab/cone.py", "one")
    other = ("restore", "my/v1", "--cache-root", str(cli.folder / "other"), "--wait")
    assert "nothing is published" in cli(*other, "1").out
    cli.process("commit", "my/v1")

    assert cli(*other, "5m").out.startswith("restored my/v1 generation 1")


def test_the_lease_lasts_for_as_long_as_the_option_says(cli: Cli) -> None:
    lead(cli, "--lease-ttl", "1")
    result = cli("restore", "my/v1", "--wait", "5m")

    assert LEADS in result.out


def test_an_exec_that_is_killed_delays_the_next_for_no_longer_than_that(cli: Cli) -> None:
    first = cli.start("exec", "my/v1", "--wait", "5m", "--lease-ttl", "1", "--", "sh", "-c", "echo $$; exec sleep 600")
    assert first.stdout is not None
    child = int(first.stdout.readline())
    first.kill()
    first.wait(60)
    result = cli("restore", "my/v1", "--wait", "5m", "--cache-root", str(cli.folder / "second"))
    os.kill(child, 9)
    first.communicate(timeout=60)

    assert LEADS in result.out


def test_a_command_that_cannot_run_gives_the_lease_back(cli: Cli) -> None:
    assert cli.process("exec", "my/v1", "--wait", "5m", "--", "no-such-command").code == 127

    assert LEADS in cli("restore", "my/v1", "--wait", "5m", "--cache-root", str(cli.folder / "second")).out


@pytest.mark.parametrize("option", ["--wait", "--lease-ttl"])
@pytest.mark.parametrize(
    ("value", "why"),
    [("soon", "is not a duration such as 90s"), ("-1", "is not a duration such as 90s"), ("0", "is too short")],
)
def test_a_senseless_duration_is_a_usage_error(cli: Cli, option: str, value: str, why: str) -> None:
    result = cli("restore", "my/v1", option, value)

    assert result.code == 2
    assert why in result.err
