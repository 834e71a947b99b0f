from __future__ import annotations

import base64
import json

import pytest

from tests.cli.commandline import Cli, on_terminal
from tests.cli.test_diff import HOSTILE, commit
from tests.inspect.caches import put_kernel


@pytest.fixture
def kernel(cli: Cli) -> str:
    folders: list[str] = []
    commit(cli, "my/v1", lambda tree: folders.append(put_kernel(tree, "triton_add", code=f"add\t{HOSTILE}")))
    return folders[0]


def test_it_prints_the_bytes_exactly(cli: Cli, kernel: str) -> None:
    import subprocess
    import sys

    for suffix in ("ttir", "cubin"):
        command = [sys.executable, "-m", "kstore", "cat", "my/v1", f"triton_add.{suffix}"]
        done = subprocess.run(command, capture_output=True, check=True, timeout=120)

        assert done.stdout == (cli.folder / "builders/my/v1" / kernel / f"triton_add.{suffix}").read_bytes()
        assert done.stderr == b""


def test_a_generation_can_be_named(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    cli.publish("my/v1", "one", "two")

    assert cli("cat", "my/v1@2", "ctwo.py").out == "two"
    assert cli("cat", "my/v1@1", "ctwo.py").code == 3


def test_placeholders_stay(cli: Cli, kernel: str) -> None:
    content = json.loads(cli("cat", "my/v1", "__grp__triton_add.json").out)

    assert content["child_paths"]["triton_add.ptx"].startswith("@kstore-component@/")


def test_json_has_text_as_text_and_binary_as_base64(cli: Cli, kernel: str) -> None:
    text = cli("cat", "my/v1", "triton_add.ttir", "--json").json
    binary = cli("cat", "my/v1", "triton_add.cubin", "--json").json

    assert text["path"] == f"{kernel}/triton_add.ttir" and HOSTILE in text["text"] and text["mode"] == "0644"
    assert base64.b64decode(binary["base64"]).startswith(b"\x7fELF")


def test_a_terminal_gets_no_binary(cli: Cli, kernel: str) -> None:
    assert on_terminal("cat", "my/v1", "triton_add.cubin") == ""


def test_a_terminal_gets_text_that_cannot_steer_it(cli: Cli, kernel: str) -> None:
    out = on_terminal("cat", "my/v1", "triton_add.ttir")

    assert "  add   evil" in out
    assert "\x1b" not in out and "\u202e" not in out


def test_a_terminal_gets_the_lines_of_a_text(cli: Cli) -> None:
    commit(cli, "my/v1", lambda tree: tree.put("inductor/ab/cone.py", b"\tone\n\n\ttwo\n"))

    assert on_terminal("cat", "my/v1", "cone.py").split("\r\n") == ["        one", "", "        two", ""]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("my/v1", "triton_add"), 2, "could be any of __grp__triton_add.json, triton_add.cubin"),
        (("my/v1", "nothing"), 3, "my/v1@1 has no artifact 'nothing'"),
        (("my/v1", "nothing"), 3, "`kstore files my/v1@1` lists them"),
        (("my/v1", "triton_ad.cubin"), 3, "'triton_ad.cubin'; there is triton_add.cubin"),
        (("no/key", "x"), 3, "nothing is published for no/key"),
        (("my/v1", "triton_add.ptx", "--gpu", "x"), 3, "my/v1 is not published for x; choose: --gpu "),
    ],
)
def test_a_mistake_says_what_is_wrong(
    cli: Cli, kernel: str, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = cli("cat", *arguments)

    assert (result.code, result.out) == (code, "")
    assert message in result.err
