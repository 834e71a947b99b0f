from __future__ import annotations

import shlex
import shutil
import subprocess
import sys

import pytest

from kstore.components.variables import MANAGED, read_managed
from tests.cli.commandline import REPOSITORY, Cli, compiling


def in_shell(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-ec", script], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )


def kstore(*arguments: str) -> str:
    return shlex.join([sys.executable, "-m", "kstore", *arguments])


def test_a_shell_that_evaluates_it_has_the_variables(cli: Cli) -> None:
    done = in_shell(f'eval "$({kstore("env", "my/v1")})"; printf %s "$TORCHINDUCTOR_CACHE_DIR"')

    assert (done.returncode, done.stdout) == (0, str(cli.cache_root / "inductor")), done.stderr


def test_a_shell_that_evaluates_it_knows_what_kstore_set(cli: Cli) -> None:
    done = in_shell(f'eval "$({kstore("env", "my/v1")})"; printf %s "$KSTORE_MANAGED"')
    variables = cli("env", "my/v1", "--json").json["variables"]

    assert done.stdout == variables.pop(MANAGED)
    assert read_managed({MANAGED: done.stdout}) == variables


def test_what_was_compiled_in_such_a_shell_can_be_committed_from_it(cli: Cli) -> None:
    done = in_shell(f'eval "$({kstore("env", "my/v1")})"; {compiling("one")}; {kstore("commit", "my/v1")}')

    assert done.stdout.startswith("committed my/v1 generation 1: 1 new file of 1"), done.stderr


def test_another_key_takes_over_what_kstore_set(cli: Cli) -> None:
    other = cli.folder / "other"
    script = f'eval "$({kstore("env", "a")})"; eval "$({kstore("env", "b", "--cache-root", str(other))})"'
    done = in_shell(f'{script}; printf %s "$TRITON_CACHE_DIR"')

    assert done.stdout == str(other / "triton")


@pytest.mark.parametrize("name", ["with space", "quote's", "$(false)", "new\nline", "back\\slash", "ünï"])
def test_any_path_survives_the_shell(cli: Cli, name: str) -> None:
    root = cli.folder / name
    done = in_shell(f'eval "$({kstore("env", "my/v1", "--cache-root", str(root))})"; printf %s "$TRITON_CACHE_DIR"')

    assert done.stdout == str(root / "triton")


def test_fish_has_its_own_syntax(cli: Cli) -> None:
    root = cli.folder / "it's \\ here"
    lines = cli("env", "my/v1", "--shell", "fish", "--cache-root", str(root)).out.splitlines()
    escaped = str(root).replace("\\", "\\\\").replace("'", "\\'")

    assert lines[0] == f"set -gx TORCHINDUCTOR_CACHE_DIR '{escaped}/inductor'"


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
def test_fish_can_source_it(cli: Cli) -> None:
    root = cli.folder / "it's \\ here"
    script = f"{kstore('env', 'my/v1', '--shell', 'fish', '--cache-root', str(root))} | source; echo $TRITON_CACHE_DIR"
    done = subprocess.run(["fish", "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True)

    assert done.stdout == f"{root}/triton\n"


def test_a_variable_of_the_users_is_left_out(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cli.folder / "mine"))
    result = cli("env", "my/v1")

    assert "TRITON_CACHE_DIR" not in result.out
    assert "export TORCHINDUCTOR_CACHE_DIR=" in result.out


def test_json_is_a_map(cli: Cli) -> None:
    content = cli("env", "my/v1", "--json").json

    assert content["cache_root"] == str(cli.cache_root)
    assert content["variables"]["TRITON_CACHE_DIR"] == str(cli.cache_root / "triton")


def test_quiet_keeps_what_was_asked_for(cli: Cli) -> None:
    assert cli("env", "my/v1", "-q").out == cli("env", "my/v1").out


def test_it_restores_nothing(cli: Cli) -> None:
    cli.publish("my/v1")
    cli("env", "my/v1")

    assert not (cli.cache_root / "inductor").exists()
