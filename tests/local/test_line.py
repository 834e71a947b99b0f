"""Those of one host that publish to the same place go one after the other, and none waits for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kstore.local import line as lines
from kstore.local import numbered
from kstore.local.line import Line

LONG = 60.0
"""Seconds that nobody waits."""


@pytest.fixture
def first() -> Iterator[Line]:
    """Whose turn it is."""
    line = Line("a key")
    assert line.wait(0)
    yield line
    line.leave()


def test_one_goes_after_the_other(first: Line) -> None:
    second = Line("a key")
    assert not second.wait(0)
    first.leave()
    assert second.wait(0)
    assert not first.wait(0)
    second.leave()


def test_it_stays_ones_turn_until_one_leaves(first: Line) -> None:
    assert first.wait(0)
    first.leave()
    assert Line("a key").wait(0)


@pytest.mark.usefixtures("first")
def test_nobody_waits_for_those_that_publish_elsewhere() -> None:
    assert Line("another key").wait(0)


def test_a_store_may_have_a_path_that_is_no_text() -> None:
    first = Line("k\udcffstore")
    assert first.wait(0)
    assert not Line("k\udcffstore").wait(0)
    first.leave()


def test_whoever_waits_goes_when_the_one_before_has_left(first: Line) -> None:
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(lambda: Line("a key").wait(LONG))
        first.leave()
        assert second.result(LONG)


HOLDING = """
import sys
from pathlib import Path
from kstore.local import numbered
from kstore.local.line import Line
numbered.NUMBERED_ROOTS = Path(sys.argv[1])
line = Line("a key")
print(line.wait(0), flush=True)
sys.stdin.read()
"""


def test_whoever_is_killed_holds_nobody_up() -> None:
    command = [sys.executable, "-c", HOLDING, str(numbered.NUMBERED_ROOTS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "True\n"
        assert not Line("a key").wait(0)
        holder.send_signal(signal.SIGKILL)
        assert Line("a key").wait(LONG)


def test_a_child_that_was_forked_meanwhile_holds_nobody_up(first: Line) -> None:
    ready, go = os.pipe()
    child = os.fork()
    if not child:
        os.close(go)
        os.read(ready, 1)
        os._exit(0)
    first.leave()
    assert Line("a key").wait(0)
    os.close(go)
    os.close(ready)
    os.waitpid(child, 0)


def test_without_a_folder_of_its_own_a_worker_stands_in_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.write_text("not a folder")
    monkeypatch.setattr(lines, "numbered_bases", lambda: (own, own))
    line = Line("a key")
    assert not line.wait(LONG)
    line.leave()
