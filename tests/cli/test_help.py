from __future__ import annotations

import re
import subprocess
import sys

import click
import pytest

from kstore import __version__
from kstore.cli.imports import SOURCES
from kstore.cli.program import COMMANDS, SECTIONS, program
from tests.cli.commandline import REPOSITORY, Cli

LINES = [(name,) for name in COMMANDS if name != "import"] + [("import", name) for name in SOURCES]
"""The words that name each command."""


def command_of(*words: str) -> click.Command:
    command: click.Command = program
    for word in words:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found
        command = found
    return command


def modules_after(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_the_help_names_every_command(cli: Cli) -> None:
    result = cli("--help")

    assert result.code == 0
    assert all(f"\n  {name} " in result.out for name in COMMANDS)


def test_the_help_has_commands_of_one_purpose_below_one_heading(cli: Cli) -> None:
    parts = re.split(r"\n(?=\S)", cli("--help").out.partition("Options:")[2])[1:]
    found = {part.partition(":\n")[0]: re.findall(r"^  (\w+)", part, re.MULTILINE) for part in parts}

    assert found == {heading: list(section) for heading, section in SECTIONS.items()}


def test_in_the_help_what_commands_do_begins_in_one_column(cli: Cli) -> None:
    out = cli("--help").out

    assert len({out.index(text[:20]) - out.rindex("\n", 0, out.index(text[:20])) for text in COMMANDS.values()}) == 1


def test_no_command_is_below_two_headings() -> None:
    assert len(COMMANDS) == sum(map(len, SECTIONS.values()))


def test_without_arguments_it_prints_its_help(cli: Cli) -> None:
    assert cli() == cli("--help")


def test_it_runs_as_a_module(cli: Cli) -> None:
    assert cli.process("--help") == cli("--help")


def test_the_help_loads_neither_the_store_nor_torch_nor_rich() -> None:
    loaded = modules_after("from kstore.cli.program import run; run(['--help'])")

    assert not loaded & {"torch", "rich", "lmdb", "kstore.store", *(f"kstore.cli.{name}" for name in COMMANDS)}


def test_importing_the_command_line_loads_nothing_else() -> None:
    assert not modules_after("import kstore.cli") & {"torch", "rich", "click", "kstore.store"}


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_every_commands_help_lists_its_exit_codes(cli: Cli, words: tuple[str, ...]) -> None:
    result = cli(*words, "--help")

    assert result.code == 0
    codes = result.out.partition("Exit codes:")[2]
    assert "2" in codes and "usage" in codes


@pytest.mark.parametrize("name", COMMANDS)
def test_a_commands_help_begins_as_the_list_of_commands_says(name: str) -> None:
    command = command_of(name)

    assert command.name == name
    assert (command.help or "").startswith(COMMANDS[name].rstrip("."))


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_every_command_has_the_common_options(words: tuple[str, ...]) -> None:
    options = {text for parameter in command_of(*words).params for text in parameter.opts}

    assert {"--json", "-q", "--quiet", "-v", "--verbose"} <= options
    assert "--store" in options or words[0] in ("demo", "copy", "completion")


DETECTING = {"exec", "restore", "commit", "watch", "env", "doctor", "why", "fal", "b10", "megacache"}


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_the_help_says_whether_a_gpu_takes_the_place_of_the_one_that_is_detected(words: tuple[str, ...]) -> None:
    texts = [option.help for option in command_of(*words).params if isinstance(option, click.Option)
             and option.name in ("gpu", "environment")]  # fmt: skip

    assert all(text and text.startswith("Instead of" if words[-1] in DETECTING else "Only this") for text in texts)


def test_the_help_fits_80_columns(cli: Cli) -> None:
    for words in [("import",), *LINES]:
        assert max(map(len, cli(*words, "--help").out.splitlines())) <= 80


def test_the_version_is_the_packages(cli: Cli) -> None:
    assert cli("--version").out == f"kstore {__version__}\n"


def test_an_unknown_command_is_a_usage_error(cli: Cli) -> None:
    result = cli("unknown")

    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("kstore: No such command 'unknown'")


@pytest.mark.parametrize(("word", "meant"), [("lss", "ls?"), ("restor", "restore or report?"), ("frobnicate", None)])
def test_an_unknown_command_names_what_may_be_meant(cli: Cli, word: str, meant: str | None) -> None:
    hint = f"; did you mean {meant}" if meant else ""

    assert cli(word).err == f"kstore: No such command '{word}'{hint} (see `kstore --help`)\n"


def test_a_choice_that_is_missing_is_named_on_one_line(cli: Cli) -> None:
    result = cli("completion")

    assert result.err.startswith("kstore: Missing argument '{bash|zsh|fish}'. Choose from: bash, zsh, fish (see")
    assert len(result.err.splitlines()) == 1


def test_an_unknown_option_says_where_the_help_is(cli: Cli) -> None:
    result = cli("ls", "--unknown")

    assert (result.code, result.out) == (2, "")
    assert "see `kstore ls --help`" in result.err


def test_a_usage_error_is_json_if_that_was_asked_for(cli: Cli) -> None:
    result = cli("ls", "--json", "--unknown")

    assert result.code == 2
    assert result.json["command"] == "ls"
    assert result.json["error"]["type"] == "UsageError"
    assert "--unknown" in result.json["error"]["message"]
