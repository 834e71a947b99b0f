"""Runs the command line as a user would."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kstore.cli.program import run
from kstore.stats.record import finish

GPU = "cpu-test"
ENVIRONMENT = "torch9.9.9-triton9.9.9-cp399-x86_64-0123abcd"
REPOSITORY = Path(__file__).parents[2]


TICK = "sleep 0.02"
"""A shell command that lasts until the clock of file times advances, which the kernel does some hundred times a second:
no job reads or compiles as soon after a restore as the jobs of these tests would.
"""


HANG = """
import threading
from kstore.backends import PosixBackend
PosixBackend.get = lambda *what: threading.Event().wait()
"""


FULL = """
import errno, os
close = os.close
def close_full(fd):
    is_stdout = os.path.samestat(os.fstat(fd), os.fstat(1))
    close(fd)
    if is_stdout:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
os.close = close_full
"""
"""For a process whose stdout is on a server that says only when a file is closed that it has no room for it."""


def compiling(name: str) -> str:
    """A shell command that writes what a compiler would, under the given name."""
    folder = "$TORCHINDUCTOR_CACHE_DIR/ab"
    return f'{TICK} && mkdir -p "{folder}" && printf %s {name} > "{folder}/c{name}.py"'


@dataclass
class Result:
    """What one command line did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object on stdout."""
        (line,) = self.out.splitlines()
        content: dict[str, Any] = json.loads(line)
        assert content["schema"] == 1
        return content


@contextmanager
def environment_kept() -> Iterator[None]:
    """Afterwards the environment is as it was before, as after a process."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class Cli:
    """The command line of one user: in this process, or as a real process."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.cache_root = folder / "cache"
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Result:
        """Run it in this process."""
        self._capsys.readouterr()
        with environment_kept():
            code = run(arguments)
        finish(10)  # what the end of a process waits for, if not as long
        return Result(code, *self._capsys.readouterr())

    def process(self, *arguments: str, **options: Any) -> Result:
        """Run it as a process."""
        done = subprocess.run(
            [sys.executable, "-m", "kstore", *arguments],
            capture_output=True, text=True, timeout=500, check=False, **{"cwd": REPOSITORY, **options},
        )  # fmt: skip
        return Result(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str, process_group: int | None = None, **variables: str) -> subprocess.Popen[str]:
        """Start it as a process, with additional environment variables. Its output is buffered, as it is by default."""
        environment = os.environ | {"PYTHONUNBUFFERED": ""} | variables
        return subprocess.Popen(
            [sys.executable, "-m", "kstore", *arguments],
            cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
            process_group=process_group,
        )  # fmt: skip

    def hanging(self) -> dict[str, str]:
        """Variables of a process whose store does not answer."""
        folder = self.folder / "hanging"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(HANG)
        return {"PYTHONPATH": f"{folder}:{REPOSITORY}"}

    def write(self, path: str, content: str = "content") -> Path:
        """What a compiler would leave in the cache root."""
        target = self.cache_root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
        return target

    def publish(self, key: str, *names: str) -> None:
        """Commit generated modules of these names under `key`, from a cache root of its own."""
        root = self.folder / "builders" / key
        for name in names or ("one",):
            path = root / "inductor" / "ab" / f"c{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
        result = self("commit", key, "--cache-root", str(root), "--layout", "loose")
        assert result.code == 0, result.err


def is_held(cli: Cli) -> bool:
    """Whether others wait for what a worker compiles."""
    claims = [path for path in (cli.store / "leases").rglob("*") if path.is_file()]
    newest = max(claims, key=lambda path: int(path.name), default=None)
    return newest is not None and not json.loads(newest.read_text())["released"]


def read_terminal(terminal: int) -> bytes:
    """What was written to the terminal since the last call; nothing once every writer has closed it."""
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""


def on_terminal(*arguments: str, **variables: str) -> str:
    """What the command line writes to a terminal of 80 columns: only stdout, as the terminal receives it."""
    controller, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environ = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | variables
    subprocess.run(
        [sys.executable, "-m", "kstore", *arguments],
        cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=terminal, stderr=subprocess.DEVNULL, env=environ,
        timeout=120, check=False,
    )  # fmt: skip
    os.close(terminal)
    out = b""
    while chunk := read_terminal(controller):
        out += chunk
    os.close(controller)
    return out.decode()
