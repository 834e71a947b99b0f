"""One folder that another user hides, as one of a worker whose umask keeps others out, hides only what is in it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kstore.cli.keys import keys_beginning
from kstore.cli.options import Invocation
from tests.cli.commandline import ENVIRONMENT, GPU, Cli
from tests.faults.reading import unlistable

HIDDEN = (f"refs/{GPU}/my/v2", f"refs/{GPU}/my/v2/@{ENVIRONMENT}")
"""A folder of keys, and what one key has for one environment."""


@pytest.fixture(params=HIDDEN, ids=["keys", "scope"])
def hidden(request: pytest.FixtureRequest, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> str:
    cli.publish("my/v1", "one")
    cli.publish("my/v2", "two")
    folder: str = request.param
    unlistable(monkeypatch, folder, PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder))
    return folder


@pytest.mark.parametrize("command", ["stats", "du"])
def test_statistics_say_what_they_lack(cli: Cli, hidden: str, command: str) -> None:
    result = cli(command)

    assert result.code == 4
    assert "my/v1" in result.out
    (line,) = result.err.splitlines()
    assert "warning: cannot be read, and is not counted: my/v2" in line and "Permission denied" in line


def test_statistics_of_another_key_lack_nothing(cli: Cli, hidden: str) -> None:
    assert cli("stats", "my/v1").code == 0


def test_a_report_says_what_it_lacks_and_that_gc_cannot_tell(cli: Cli, hidden: str, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    result = cli("report", "-o", str(path))

    assert result.code == 4
    assert "cannot be read, and is not counted: my/v2" in result.err
    assert '"my/v1"' in path.read_text()
    assert '"gc":null' in path.read_text()


def test_a_shell_is_offered_the_other_keys(cli: Cli, hidden: str) -> None:
    assert "my/v1" in keys_beginning(Invocation(), "my/")
