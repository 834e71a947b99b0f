"""forget, quarantine, rollback, pin and unpin."""

from __future__ import annotations

import pytest

from tests.cli.commandline import ENVIRONMENT, GPU, Cli


def files(cli: Cli) -> set[str]:
    """What a fresh worker gets."""
    root = cli.folder / "fresh" / str(len(list(cli.folder.glob("fresh/*"))))
    cli("restore", "my/v1", "--cache-root", str(root))
    return {path.name for path in root.rglob("c*.py")}


def test_a_forgotten_key_misses_and_is_not_listed(cli: Cli) -> None:
    cli.publish("my/v1")
    result = cli("forget", "my/v1")

    assert result.code == 0
    assert f"forgotten: my/v1 ({GPU}" in result.out
    assert files(cli) == set()
    assert cli("ls", "--json").json["scopes"] == []


def test_settings_that_exclude_all_of_a_key_are_named(cli: Cli) -> None:
    cli.publish("my/v1")
    result = cli("forget", "my/v1", "--gpu", "another")

    assert result.code == 3
    assert "my/v1 is not published for another" in result.err
    assert f"choose: --gpu {GPU} --environment" in result.err


def test_a_quarantined_key_misses_until_something_new_is_committed(cli: Cli) -> None:
    cli.publish("my/v1", "bad")
    assert cli("quarantine", "my/v1").code == 0
    assert files(cli) == set()
    again = cli("commit", "my/v1", "--cache-root", str(cli.folder / "builders/my/v1"))
    assert "nothing is committed to my/v1: it was forgotten or quarantined" in again.out
    assert files(cli) == set()
    cli.publish("my/v1", "good")
    assert files(cli) == {"cgood.py"}


def test_a_rollback_publishes_what_was_there_before(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    cli.publish("my/v1", "one", "two")
    result = cli("rollback", "my/v1")

    assert result.code == 0
    assert "generation 3" in result.out
    assert files(cli) == {"cone.py"}
    cli("rollback", "my/v1", "2")
    assert files(cli) == {"cone.py", "ctwo.py"}


def test_a_quarantine_can_be_rolled_back(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    cli("quarantine", "my/v1")
    cli("rollback", "my/v1")

    assert files(cli) == {"cone.py"}


def test_a_quarantine_of_several_scopes_says_how_to_undo_each(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.publish("my/v1")
    cli.write("inductor/ab/cone.py")
    cli("commit", "my/v1", "--gpu", "other-gpu")
    monkeypatch.delenv("KSTORE_GPU")
    lines = cli("quarantine", "my/v1").err.splitlines()

    assert len(lines) == 2
    for line in lines:
        assert cli(*line.removeprefix("kstore: to undo it: kstore ").split()).code == 0
    assert "quarantined" not in cli("ls", "--json").out


def test_there_must_be_something_to_roll_back_to(cli: Cli) -> None:
    cli.publish("my/v1")
    result = cli("rollback", "my/v1")

    assert result.code == 3
    assert "no earlier generation" in result.err


def test_a_pinned_generation_is_shown_and_kept(cli: Cli) -> None:
    for name in ("one", "two", "three"):
        cli.publish("my/v1", name)
    assert cli("pin", "my/v1", "1").code == 0
    assert "pinned" in cli("show", "my/v1").out
    cli("gc", "--keep", "1", "--offline")
    (scope,) = cli("show", "my/v1", "--json").json["scopes"]
    assert [(one["generation"], one["pinned"]) for one in scope["generations"]] == [(3, False), (1, True)]

    cli("unpin", "my/v1", "1")
    cli("gc", "--keep", "1", "--offline")
    (scope,) = cli("show", "my/v1", "--json").json["scopes"]
    assert [one["generation"] for one in scope["generations"]] == [3]


def test_only_what_is_pinned_can_be_unpinned(cli: Cli) -> None:
    cli.publish("my/v1")
    result = cli("unpin", "my/v1", "1")
    assert (result.code, result.out) == (3, "")
    assert f"generation 1 of my/v1 ({GPU}" in result.err and "is not pinned; `kstore show my/v1`" in result.err


def test_a_pin_whose_generation_is_gone_can_be_removed(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    cli.publish("my/v1", "two")
    cli("pin", "my/v1", "1")
    (ref,) = cli.store.glob("refs/*/my/v1/*/1")
    ref.unlink()
    assert cli("unpin", "my/v1", "1").code == 0
    assert list(cli.store.rglob("*.pin")) == []


@pytest.mark.parametrize(
    "command", [("pin", "my/v1", "9"), ("forget", "your/v1"), ("quarantine", "your/v1"), ("rollback", "my/v1", "9")]
)
def test_what_is_not_there_is_a_miss(cli: Cli, command: tuple[str, ...]) -> None:
    cli.publish("my/v1")

    assert cli(*command).code == 3


@pytest.fixture
def two_scopes(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KSTORE_GPU")
    for gpu in ("one-gpu", "other-gpu"):
        cli.write("inductor/ab/cone.py", "one")
        cli("commit", "my/v1", "--gpu", gpu)


@pytest.mark.parametrize("command", [("pin", "my/v1", "1"), ("rollback", "my/v1", "1")])
@pytest.mark.usefixtures("two_scopes")
def test_which_scope_is_meant_must_be_clear(cli: Cli, command: tuple[str, ...]) -> None:
    result = cli(*command)

    assert result.code == 2
    assert "--gpu other-gpu" in result.err
    assert cli(*command, "--gpu", "one-gpu").code == 0


@pytest.mark.parametrize("command", [("pin", "my/v1", "1"), ("rollback", "my/v1", "1")])
@pytest.mark.usefixtures("two_scopes")
def test_a_scope_that_was_forgotten_is_meant_only_where_there_is_no_other(cli: Cli, command: tuple[str, ...]) -> None:
    cli("forget", "my/v1", "--gpu", "one-gpu")
    result = cli(*command)
    assert (result.code, "other-gpu" in result.out) == (0, True)

    cli("forget", "my/v1", "--gpu", "other-gpu")
    assert cli(*command).code == 2


@pytest.mark.parametrize(
    "command",
    [("forget", "my/v1"), ("quarantine", "my/v1"), ("rollback", "my/v1", "1"), ("pin", "my/v1", "1"),
     ("verify", "my/v1"), ("show", "my/v1"), ("files", "my/v1")],
)  # fmt: skip
def test_a_scope_that_a_failed_commit_left_empty_does_not_count(
    cli: Cli, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.publish("my/v1")
    (cli.store / "refs" / "other-gpu" / "my" / "v1" / f"@{ENVIRONMENT}").mkdir(parents=True)
    monkeypatch.delenv("KSTORE_GPU")
    result = cli(*command)
    assert (result.code, "other-gpu" in result.out + result.err) == (0, False)


def test_a_key_of_which_only_an_empty_scope_is_left_does_not_count(cli: Cli) -> None:
    cli("init")
    (cli.store / "refs" / GPU / "my" / "v1" / f"@{ENVIRONMENT}").mkdir(parents=True)
    result = cli("forget", "my/v1")
    assert (result.code, "nothing is published for my/v1" in result.err) == (3, True)


@pytest.mark.parametrize(
    "command", [("forget", "my/v1"), ("quarantine", "my/v1"), ("rollback", "my/v1", "1"), ("pin", "my/v1", "1")]
)
def test_each_says_in_json_what_it_did(cli: Cli, command: tuple[str, ...]) -> None:
    cli.publish("my/v1")
    content = cli(*command, "--json").json

    assert content["store"] == str(cli.store) and content["command"] == command[0]


@pytest.mark.parametrize("command", [["pin"], ["unpin"], ["rollback"], ["restore", "--generation"]])
@pytest.mark.parametrize("number", ["0", "1.5", "newest"])
def test_a_number_that_is_not_a_generation_is_refused(cli: Cli, command: list[str], number: str) -> None:
    result = cli(command[0], "my/v1", *command[1:], number)

    assert result.code == 2
    assert f"{number} is not a whole number from 1 on; `kstore show KEY` lists generations" in result.err
