"""What every command says when it is asked for a key or a generation that does not exist."""

from __future__ import annotations

import pytest

from tests.cli.commandline import ENVIRONMENT, GPU, Cli

COUNTING = [("du",), ("stats",)]
CHOOSING = [
    ("show",),
    ("export", "-o", "-", "--format", "kstore"),
    ("cat", "one.py"),
    ("diff", "my/v1"),
    ("forget",),
    ("quarantine",),
    ("rollback",),
    ("pin", "1"),
    ("unpin", "1"),
]


def ask(command: tuple[str, ...], key: str) -> tuple[str, ...]:
    return (command[0], key, *command[1:])


@pytest.mark.parametrize("command", [*COUNTING, *CHOOSING, ("verify",)])
def test_a_key_that_does_not_exist_is_a_miss_in_the_same_words(cli: Cli, command: tuple[str, ...]) -> None:
    cli.publish("my/v1")
    result = cli(*ask(command, "no/key"))

    assert (result.code, result.out) == (3, "")
    assert result.err == f"kstore: nothing is published for no/key in {cli.store}; `kstore ls` lists what is\n"


@pytest.mark.parametrize("command", CHOOSING)
@pytest.mark.parametrize("option", ["--gpu", "--environment"])
def test_where_a_key_is_there_for_others_they_are_named(cli: Cli, command: tuple[str, ...], option: str) -> None:
    cli.publish("my/v1")
    result = cli(*ask(command, "my/v1"), option, "another")

    assert (result.code, result.out) == (3, "")
    number = "1" if command[0] == "diff" else ""
    said, _, choice = result.err.partition("; ")
    assert said.startswith("kstore: my/v1 is not published for ") and "another" in said
    assert choice == f"choose: --gpu{number} {GPU} --environment{number} {ENVIRONMENT}\n"


@pytest.mark.parametrize("command", [*COUNTING, *CHOOSING, ("verify",)])
def test_a_missing_store_is_what_is_reported(cli: Cli, command: tuple[str, ...]) -> None:
    result = cli(*ask(command, "my/v1"))

    assert (result.code, result.out) == (1, "")
    assert f"there is no store at {cli.store}" in result.err
    assert not cli.store.exists()


@pytest.mark.parametrize(("source", "target", "which"), [("none", "copy", "SRC"), ("store", "none/copy", "DST")])
def test_copy_names_the_argument_that_is_to_be_another_one(cli: Cli, source: str, target: str, which: str) -> None:
    cli.publish("my/v1")
    result = cli("copy", str(cli.folder / source), str(cli.folder / target))

    assert result.code == 1
    assert f"or name another store as {which}\n" in result.err


@pytest.mark.parametrize(
    ("command", "where"),
    [
        (("restore",), "name the generation by --generation N"),
        (("pin", "1"), "name the generation after KEY"),
        (("rollback",), "name the generation after KEY"),
        (("show",), "`kstore files`, `kstore cat`, `kstore diff`, `kstore export` and `restore"),
        (("stats",), "`kstore files`, `kstore cat`, `kstore diff`, `kstore export` and `restore"),
        (("verify",), "`kstore files`, `kstore cat`, `kstore diff`, `kstore export` and `restore"),
        (("clean", "--yes"), "`kstore files`, `kstore cat`, `kstore diff`, `kstore export` and `restore"),
    ],
)
def test_where_no_generation_can_be_named_by_key_and_number_the_other_way_is_named(
    cli: Cli, command: tuple[str, ...], where: str
) -> None:
    cli.publish("my/v1")
    result = cli(*ask(command, "my/v1@1"))

    assert (result.code, result.out) == (2, "")
    assert f"'my/v1@1': this command takes no KEY@N; {where}" in result.err
