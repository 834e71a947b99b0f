from __future__ import annotations

import errno
import os
import re
from typing import Any

import pytest

from kstore.backends import PosixBackend
from tests.cli.commandline import ENVIRONMENT, GPU, Cli, on_terminal
from tests.faults.reading import unlistable


def test_it_lists_a_row_for_each_scope(cli: Cli) -> None:
    cli.publish("my/v2")
    cli.publish("my/v1", "one", "two")
    cli.write("inductor/ab/cone.py", "one")
    cli("commit", "my/v1", "--gpu", "other-gpu")
    result = cli("ls")
    rows = [line.split() for line in result.out.splitlines()]

    assert (result.code, result.err) == (0, "")
    assert rows[0] == ["KEY", "GPU", "ENVIRONMENT", "GEN", "FILES", "SIZE", "AGE"]
    assert [(row[0], row[1], *row[3:7]) for row in rows[1:]] == [
        ("my/v1", GPU, "1", "2", "6", "B"),
        ("my/v1", "other-gpu", "1", "1", "3", "B"),
        ("my/v2", GPU, "1", "1", "3", "B"),
    ]


LONG = (
    "a-team/a-rather-long-name/v1",
    "nvidia-rtx-pro-6000-blackwell-server-edition-sm120",
    "torch2.13.0-cu130-triton3.7.1-cp312-x86_64-3f2a9c1e",
)


@pytest.fixture
def long_names(cli: Cli) -> None:
    key, gpu, environment = LONG
    cli.write("inductor/ab/cone.py")
    cli("commit", key, "--gpu", gpu, "--environment", environment)


@pytest.mark.usefixtures("long_names")
def test_it_fits_a_terminal_and_keeps_what_tells_environments_apart() -> None:
    lines = on_terminal("ls", NO_COLOR="1").splitlines()

    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["KEY", "GPU", "ENVIRONMENT", "GEN", "FILES", "SIZE", "AGE"]
    assert lines[1].startswith("a-team/") and "/v1 " in lines[1] and "3f2a9c1e" in lines[1]
    assert lines[1].split()[3:6] == ["1", "1", "7"]


@pytest.mark.usefixtures("long_names")
def test_a_pipe_gets_every_name_whole(cli: Cli) -> None:
    assert tuple(cli.process("ls").out.splitlines()[1].split()[:3]) == LONG


def test_a_prefix_limits_it(cli: Cli) -> None:
    for key in ("my/v1", "my-other/v1", "your/v1"):
        cli.publish(key)

    assert [scope["key"] for scope in cli("ls", "my", "--json").json["scopes"]] == ["my-other/v1", "my/v1"]
    assert [scope["key"] for scope in cli("ls", "my/", "--json").json["scopes"]] == ["my/v1"]


def test_a_prefix_that_fits_nothing_says_so(cli: Cli) -> None:
    cli.publish("my/v1")
    result = cli("ls", "your")

    assert (result.code, result.out) == (0, "")
    assert "begins with 'your'" in result.err


def test_an_empty_store_says_what_to_do_next(cli: Cli) -> None:
    cli("init")
    result = cli("ls")

    assert (result.code, result.out) == (0, "")
    assert "is empty" in result.err and "kstore exec" in result.err


def test_without_a_store_it_says_how_to_make_one(cli: Cli) -> None:
    result = cli("ls")

    assert (result.code, result.out) == (0, "")
    assert "kstore init" in result.err


def test_a_folder_that_holds_something_else_is_reported_as_such(cli: Cli) -> None:
    cli.store.mkdir()
    (cli.store / "thesis.tex").touch()
    result = cli("ls")

    assert (result.code, result.out) == (1, "")
    assert "is not a store but holds 'thesis.tex'" in result.err
    assert "kstore init" not in result.err


def test_json_has_everything_in_full(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    cli.publish("my/v1", "one", "two")
    content = cli("ls", "--json").json
    (scope,) = content["scopes"]

    assert content["store"] == str(cli.store)
    assert (scope["key"], scope["gpu"], scope["environment"]) == ("my/v1", GPU, ENVIRONMENT)
    assert (scope["generation"], scope["parent"], scope["files"], scope["bytes"]) == (2, 1, 2, 6)
    assert scope["created"] > 0 and "@" in scope["creator"] and scope["packs"] == []


def test_an_empty_store_is_an_empty_list_in_json(cli: Cli) -> None:
    assert cli("ls", "--json").json["scopes"] == []


@pytest.mark.parametrize("created", ["-Infinity", "NaN", "1e18"])
def test_a_time_that_no_clock_shows_is_no_trouble(cli: Cli, created: str) -> None:
    cli.publish("my/v1")
    ref = cli.store / "refs" / GPU / "my/v1" / f"@{ENVIRONMENT}" / "1"
    ref.chmod(0o644)
    ref.write_text(re.sub(r'"created": [\d.]+', f'"created": {created}', ref.read_text()))

    for command in (("ls",), ("show", "my/v1"), ("stats",)):
        assert cli(*command).code == 0


def test_a_damaged_ref_does_not_hide_the_others(cli: Cli) -> None:
    cli.publish("my/v1")
    cli.publish("my/v2")
    ref = cli.store / "refs" / GPU / "my/v1" / f"@{ENVIRONMENT}" / "1"
    ref.chmod(0o644)
    ref.write_text("{")
    result = cli("ls")

    assert result.code == 4
    assert result.out.splitlines()[1].startswith("my/v2 ")
    assert "warning: generation 1 of my/v1" in result.err


def test_what_a_newer_kstore_wrote_does_not_hide_the_others(cli: Cli) -> None:
    cli.publish("my/v1")
    cli.publish("my/v2")
    ref = cli.store / "refs" / GPU / "my/v1" / f"@{ENVIRONMENT}" / "1"
    ref.chmod(0o644)
    ref.write_text(ref.read_text().replace('"format": 1', '"format": 99'))
    result = cli("ls")

    assert result.code == 1
    assert result.out.splitlines()[1].startswith("my/v2 ")
    assert "warning: generation 1 of my/v1" in result.err and "install the version that made it" in result.err


def test_a_ref_that_cannot_be_read_does_not_hide_the_others(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.publish("my/v1")
    cli.publish("my/v2")
    get = PosixBackend.get

    def fail(backend: PosixBackend, name: str, *part: Any) -> bytes:
        if "my/v1" in name:
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)
        return get(backend, name, *part)

    monkeypatch.setattr(PosixBackend, "get", fail)
    result = cli("ls")

    assert result.code == 1
    assert result.out.splitlines()[1].startswith("my/v2 ")
    assert re.search("warning: cannot read the store .*Input/output error .*my/v1", result.err)


def test_a_folder_that_cannot_be_listed_hides_only_what_is_in_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of a worker whose umask keeps others out."""
    cli.publish("my/v1")
    cli.publish("my/v2/x")
    unlistable(monkeypatch, f"refs/{GPU}/my/v2", PermissionError(errno.EACCES, os.strerror(errno.EACCES), "my/v2"))
    for prefix in ("", "my/", "my/v2/"):
        result = cli("ls", prefix)

        assert result.code == 1
        assert ("my/v1 " in result.out) == (prefix != "my/v2/")
        assert re.search("warning: cannot read the store .*Permission denied .*my/v2", result.err)
    for prefix in ("my/v1", "my/v22"):
        assert cli("ls", prefix).code == 0


def test_a_store_whose_only_key_is_damaged_is_not_called_empty(cli: Cli) -> None:
    cli.publish("my/v1")
    (ref,) = cli.store.glob("refs/*/my/v1/*/1")
    ref.chmod(0o644)
    ref.write_text("{")
    result = cli("ls")

    assert (result.code, result.out) == (4, "")
    (line,) = result.err.splitlines()
    assert "warning: generation 1 of my/v1" in line


def test_what_was_quarantined_says_so(cli: Cli) -> None:
    cli.publish("my/v1")
    assert "STATE" not in cli("ls").out
    cli("quarantine", "my/v1")
    head, row = cli("ls").out.splitlines()
    assert (head.split()[-1], row.split()[-1]) == ("STATE", "quarantined")


def test_a_store_in_which_all_is_forgotten_is_not_said_to_be_empty(cli: Cli) -> None:
    cli.publish("my/v1")
    cli("forget", "my/v1")
    said = cli("ls").err
    assert "nothing is published, my/v1 was forgotten; `kstore rollback my/v1" in said
    cli.publish("your/v1")
    assert "published, my/v1 was forgotten" in cli("ls", "my/").err
