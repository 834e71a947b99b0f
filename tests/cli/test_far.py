"""Commands that look at a whole store ask a far one for several things at a time, and tell the same of a near one."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from kstore.backends import PosixBackend
from kstore.environment import Host
from tests.cli.commandline import Cli
from tests.stats.stores import busy_store

_PATIENCE = 0.1
"""Seconds that a call waits for another one beside it; without any it goes on by itself."""


def as_json(cli: Cli, *command: str) -> dict[str, Any]:
    found = cli(*command, "--json").json
    return {name: value for name, value in found.items() if name not in ("seconds", "made")}


COMMANDS = [("ls",), ("stats",), ("du",), ("verify",), ("gc", "--dry-run"), ("gc",)]


@pytest.fixture
def busy(tmp_path: Path, host: Host) -> None:
    """A store of several keys and generations in the folder of the command line."""
    busy_store(tmp_path)


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("command", COMMANDS[:-1], ids=" ".join)
def test_a_command_tells_the_same_of_a_far_store(
    cli: Cli, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kstore.far.NEAR", 60.0)
    near = as_json(cli, *command)
    monkeypatch.setattr("kstore.far.NEAR", -1.0)
    assert as_json(cli, *command) == near


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("call", ["get", "list_made"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_asks_a_far_store_for_several_at_a_time(
    cli: Cli, command: tuple[str, ...], call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kstore.far.NEAR", -1.0)
    beside, asking, most = threading.Condition(), list[int](), list[int]()
    real = getattr(PosixBackend, call)

    def wait_for_another(backend: PosixBackend, *what: Any) -> Any:
        with beside:
            asking.append(1)
            most.append(len(asking))
            beside.notify_all()
            beside.wait_for(lambda: max(most) > 1, _PATIENCE)
        try:
            found = real(backend, *what)
            return found if call == "get" else iter([*found])
        finally:
            with beside:
                asking.pop()

    monkeypatch.setattr(PosixBackend, call, wait_for_another)
    assert cli(*command).code == 0
    assert max(most) > 1
