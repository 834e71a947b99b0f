from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kstore.cli.launcher import Launcher

PATIENCE = 60


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


def test_it_ends_when_whoever_made_it_is_killed() -> None:
    """Else whoever reads the output of the killed process would wait for ever."""
    output, its_output = os.pipe()
    maker = os.fork()
    if not maker:
        launcher = Launcher()
        os.write(its_output, str(launcher._process).encode())
        signal.pause()
        os._exit(1)
    os.close(its_output)
    process = int(os.read(output, 20))
    os.kill(maker, signal.SIGKILL)
    os.waitpid(maker, 0)
    ended, _, _ = select.select([output], [], [], PATIENCE)
    if not ended:
        os.kill(process, signal.SIGKILL)
    assert ended
    assert os.read(output, 1) == b""
    os.close(output)


@pytest.mark.parametrize("number", [errno.ESTALE, errno.ENODEV, errno.ETIMEDOUT])
def test_a_folder_of_a_server_that_is_gone_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    execute = os.execve

    def ask(path: str, command: list[str], environ: dict[str, str]) -> None:
        if Path(path).parent == tmp_path:
            raise OSError(number, os.strerror(number))
        execute(path, command, environ)

    monkeypatch.setattr(os, "execve", ask)
    with Launcher() as launcher:
        process = launcher.run(["sh", "-c", "exit 7"], {"PATH": f"{tmp_path}:{os.environ['PATH']}"}, ())

    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 7


def test_the_command_is_looked_for_where_its_own_variables_say(launcher: Launcher, tmp_path: Path) -> None:
    (tool := tmp_path / "tool-of-the-command").write_text("#!/bin/sh\nexit 7\n")
    tool.chmod(0o755)
    process = launcher.run([tool.name], {"PATH": f"/nowhere:{tmp_path}"}, ())

    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 7


@pytest.mark.parametrize(
    ("name", "variables", "number"),
    [
        ("tool", {}, errno.EACCES),  # There is one, but it may not be executed.
        ("other", {}, errno.ENOENT),
        ("sh", {"": "nameless"}, errno.EINVAL),
    ],
)
def test_why_there_is_no_command_is_told(
    launcher: Launcher, tmp_path: Path, name: str, variables: dict[str, str], number: int
) -> None:
    (tmp_path / "tool").write_text("exit 7")
    with pytest.raises(OSError) as told:
        launcher.run([name], {"PATH": f"{tmp_path}:/nowhere:/bin", **variables}, ())

    assert told.value.errno == number


def test_the_command_has_the_signals_blocked_that_it_is_to_have(launcher: Launcher, tmp_path: Path) -> None:
    script = f"exec grep ^SigBlk: /proc/self/status > {tmp_path}/told"
    process = launcher.run(["sh", "-c", script], os.environ, [signal.SIGUSR1])
    os.waitpid(process, 0)

    assert int((tmp_path / "told").read_text().split()[1], 16) & 0x7FFFFFFF == 1 << signal.SIGUSR1 - 1
