"""Tests for shells that are not installed are skipped and say so. What shells ask of kstore is tested all the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kstore.cli.program import COMMANDS
from kstore.storage import Storage
from tests.cli.commandline import Cli
from tests.cli.test_help import command_of

SHELLS = ("bash", "zsh", "fish")
TAKES_KEY = ("exec", "restore", "commit", "watch", "env", "show", "files", "diff", "cat", "verify", "forget")
TAKES_KEY += ("quarantine", "rollback", "pin", "unpin", "ls", "clean", "why", "doctor", "export", "stats", "du")


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `kstore` command as an installation has it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "kstore"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m kstore "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("HOME", str(tmp_path))
    return folder


def found(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def lines_of(*command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def bash(line: str) -> list[str]:
    """What bash offers after `line`."""
    words = [f"'{word}'" for word in line.split(" ")]
    script = (
        'eval "$(kstore completion bash)"\n'
        f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}\n"
        "_kstore_completion kstore\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return lines_of(found("bash"), "--norc", "-c", script)


def fish(line: str) -> list[str]:
    script = f"kstore completion fish | source; complete --do-complete='{line}'"
    done = subprocess.run([found("fish"), "--no-config", "-c", script], capture_output=True, text=True, check=True)
    return [offer.partition("\t")[0] for offer in done.stdout.splitlines()]


ASK = {"bash": bash, "fish": fish}


@pytest.mark.parametrize("shell", ASK)
def test_commands_are_completed(cli: Cli, on_path: Path, shell: str) -> None:
    assert sorted(ASK[shell]("kstore re")) == ["report", "restore"]
    assert {"exec", "diff", "cat", "completion"} <= set(ASK[shell]("kstore "))


@pytest.mark.parametrize("shell", ASK)
def test_options_are_completed(cli: Cli, on_path: Path, shell: str) -> None:
    assert sorted(ASK[shell]("kstore diff --na")) == ["--name-only"]


@pytest.mark.parametrize("shell", ASK)
def test_keys_are_completed_from_the_store(cli: Cli, on_path: Path, shell: str) -> None:
    for key in ("my-model/v1", "my-model/v2", "other"):
        cli.publish(key)

    assert sorted(ASK[shell]("kstore show my-model/")) == ["my-model/v1", "my-model/v2"]
    assert sorted(ASK[shell]("kstore diff my-model/v1 o")) == ["other"]


@pytest.mark.parametrize("shell", ASK)
def test_after_a_word_that_is_no_command_nothing_is_offered_and_nothing_said(
    cli: Cli, on_path: Path, shell: str
) -> None:
    assert ASK[shell]("kstore unknown my") == []


@pytest.mark.parametrize("shell", ASK)
def test_without_a_store_nothing_is_offered_and_nothing_said(cli: Cli, on_path: Path, shell: str) -> None:
    assert ASK[shell]("kstore show my") == []


@pytest.mark.parametrize(
    ("shell", "options", "load"),
    [
        ("bash", ("--norc", "-i"), 'eval "$(kstore completion bash)"'),
        ("zsh", ("-f", "-i"), 'autoload -U compinit; compinit -u -D; eval "$(kstore completion zsh)"'),
    ],
)
def test_a_line_typed_on_a_terminal_is_completed(
    cli: Cli, on_path: Path, shell: str, options: tuple[str, ...], load: str
) -> None:
    cli.publish("my-model/v1")
    path = found(shell)
    controller, terminal = os.openpty()
    process = subprocess.Popen(
        [path, *options], stdin=terminal, stdout=terminal, stderr=terminal,
        env=os.environ | {"TERM": "dumb"}, start_new_session=True,
    )  # fmt: skip
    os.close(terminal)
    try:
        os.write(controller, f'{load}; echo lo"aded"\n'.encode())
        read_until(controller, b"loaded\r\n")
        os.write(controller, b"kstore show my-\t")
        read_until(controller, b"model/v1")
    finally:
        process.kill()
        process.wait()
        os.close(controller)


def read_until(terminal: int, text: bytes) -> None:
    out = b""
    while text not in out:
        out += os.read(terminal, 4096)


def ask(cli: Cli, line: str, **variables: str) -> tuple[list[str], str]:
    """What click answers to a bash that completes `line`."""
    words = line.split(" ")
    asked = {"_KSTORE_COMPLETE": "bash_complete", "COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    result = cli.process(env=os.environ | asked | variables)
    return [offer.partition(",")[2] for offer in result.out.splitlines() if offer], result.err


@pytest.mark.parametrize("name", TAKES_KEY)
def test_every_command_completes_its_key(cli: Cli, name: str) -> None:
    cli.publish("my-model/v1")

    # On a starved machine it gives up rather than keep a shell waiting.
    answers = (ask(cli, f"kstore {name} my-mod") for _ in range(5))
    assert next((answer for answer in answers if answer[0]), None) == (["my-model/v1"], "")


def test_no_command_that_takes_a_key_is_forgotten() -> None:
    commands = {name: command_of(name) for name in COMMANDS}
    names = {name: {parameter.name for parameter in command.params} for name, command in commands.items()}

    assert {name for name, parameters in names.items() if parameters & {"key", "prefix", "left"}} == set(TAKES_KEY)


def test_the_store_named_on_the_line_is_asked(cli: Cli, tmp_path: Path) -> None:
    cli.publish("my-model/v1")
    moved = cli.store.rename(tmp_path / "elsewhere")

    assert ask(cli, "kstore show my-mod") == ([], "")
    assert ask(cli, f"kstore show --store {moved} my-mod") == (["my-model/v1"], "")


def test_keys_of_several_gpus_are_offered_once(cli: Cli) -> None:
    cli.publish("my-model/v1")
    cli.write("inductor/ab/cone.py")
    cli("commit", "my-model/v1", "--gpu", "other-gpu")

    assert ask(cli, "kstore show ") == (["my-model/v1"], "")


@pytest.mark.parametrize("incomplete", ["../", "/", "my/../", "a" * 300 + "/", "@", "my-model/v1@"])
def test_what_can_begin_no_key_is_completed_by_nothing(cli: Cli, incomplete: str) -> None:
    cli.publish("my-model/v1")

    assert ask(cli, f"kstore show {incomplete}") == ([], "")


def test_trouble_is_not_reported(cli: Cli, tmp_path: Path) -> None:
    cli.publish("my-model/v1")

    assert ask(cli, "kstore show my", KSTORE_LAYOUT="nonsense") == ([], "")
    assert ask(cli, "kstore show my", KSTORE_ROOT=str(tmp_path / "not" / "there")) == ([], "")
    cli.store.rename(tmp_path / "elsewhere")
    cli.store.write_text("a file where the store was")
    assert ask(cli, "kstore show my") == ([], "")


def test_a_store_that_hangs_is_given_up(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from kstore.cli import keys
    from kstore.cli.options import Invocation
    from kstore.published.refs import Refs

    cli.publish("my-model/v1")
    monkeypatch.setattr(keys, "_PATIENCE", 0.05)
    monkeypatch.setattr(Refs, "gpus", lambda self: time.sleep(1))

    assert keys.keys_beginning(Invocation(), "my") == []


def test_asking_makes_no_store(cli: Cli) -> None:
    ask(cli, "kstore show my")

    assert not Path(Storage(cli.store).location).exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_printed(cli: Cli, shell: str) -> None:
    result = cli("completion", shell)

    assert (result.code, result.err) == (0, "")
    assert f"_KSTORE_COMPLETE={shell}_complete" in result.out
    assert cli("completion", shell, "--json").json["script"] == result.out


def test_another_shell_is_a_usage_error(cli: Cli) -> None:
    assert cli("completion", "tcsh").code == 2
