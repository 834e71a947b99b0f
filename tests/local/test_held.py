"""Whether another process is at work on a local file or folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kstore.local.held import held, is_held


def test_a_folder_is_held_until_whoever_holds_it_is_done(tmp_path: Path) -> None:
    with held(str(tmp_path)):
        assert is_held(str(tmp_path))
    assert not is_held(str(tmp_path))


def test_what_is_not_there_is_not_held(tmp_path: Path) -> None:
    assert not is_held(str(tmp_path / "nothing"))


@pytest.mark.usefixtures("forked")
def test_whoever_is_done_holds_it_no_more_though_a_child_lives_on(tmp_path: Path) -> None:
    with held(str(tmp_path)):
        assert is_held(str(tmp_path))
    assert not is_held(str(tmp_path))
    assert not is_held(str(tmp_path)), "to ask is not to hold"


def test_whoever_dies_holds_it_no_more(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from kstore.local.held import held\n"
        "with held(sys.argv[1]):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
        "    os._exit(1)\n"
    )
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"held\n"
        assert is_held(str(tmp_path))
        process.communicate()
    assert not is_held(str(tmp_path))
