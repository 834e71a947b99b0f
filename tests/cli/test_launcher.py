from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from kstore.cli.launcher import Launcher


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    with Launcher() as launcher:
        yield launcher


@pytest.fixture
def holder(launcher: Launcher) -> Iterator[int]:
    """A process that has everything open that this one has."""
    process = os.fork()
    if not process:
        signal.pause()
        os._exit(1)
    yield process
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("holder")
def test_a_process_that_has_our_files_open_does_not_hold_up_the_command(launcher: Launcher) -> None:
    process = launcher.run(["sh", "-c", "exit 7"], os.environ, ())

    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 7
