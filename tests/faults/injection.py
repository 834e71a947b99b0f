"""Makes one call fail: a call to the backend, or a system call on a file below a folder.

The calls of an operation are numbered from 0 in the order in which they are made. A test strikes each call in turn,
until the operation ends before it reaches the call whose turn it is.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kstore.backends import PosixBackend
from kstore.calls import plain

Call = Callable[..., Any]


class Reply(StrEnum):
    """What a faulty call does."""

    REFUSED = "refused"
    """Nothing but raise an error."""
    LOST = "lost"
    """Its work; then it raises an error, as when a server's reply is lost."""
    LOST_TO_EXISTS = "lost to exists"
    """Its work; then it says that what it has just created existed already."""
    SHORT = "short"
    """Half of what was asked for."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with one call."""

    code: int = 0
    reply: Reply = Reply.REFUSED
    lasting: bool = False
    """Whether all calls after it fail as well."""

    def __str__(self) -> str:
        words = [errno.errorcode.get(self.code, ""), "" if self.reply is Reply.REFUSED else self.reply]
        return " ".join(filter(None, [*words, "from then on" if self.lasting else ""]))

    def error(self, name: str) -> OSError:
        return OSError(self.code, os.strerror(self.code), name)


REFUSALS = [Fault(code) for code in (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.ESTALE)]
HEALING = Fault(errno.ENOENT)
GONE = [Fault(code, lasting=True) for code in (errno.EIO, errno.ESTALE)]
LOST = Fault(errno.EIO, Reply.LOST)
LOST_TO_EXISTS = Fault(0, Reply.LOST_TO_EXISTS)
SHORT = Fault(0, Reply.SHORT)


@dataclass(frozen=True)
class Faults:
    """What strikes each call in turn: always the same fault, or one after another."""

    name: str
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        return self.name

    def of_call(self, number: int) -> Fault:
        return self.faults[number % len(self.faults)]


REFUSED = [
    Faults(f"refused from {REFUSALS[first]} on", (*REFUSALS[first:], *REFUSALS[:first]))
    for first in range(len(REFUSALS))
]
"""Together they strike each call with each error."""
LOST_ANSWERS = Faults("lost", (LOST,))
FAULTS = [REFUSED[0], LOST_ANSWERS]
REFUSED_OR_LOST = Faults("refused or lost", tuple(fault for refusal in REFUSALS for fault in (refusal, LOST)))
"""Each call with one of the two."""
HEALING_OR_GONE = Faults("healing or gone", (HEALING, GONE[0]))
SHORT_READS = Faults("short", (SHORT,))
USUAL_FAULTS = [REFUSED_OR_LOST, HEALING_OR_GONE, SHORT_READS]
MORE_FAULTS = [*REFUSED[1:], *(Faults(str(fault), (fault,)) for fault in (HEALING, *GONE))]


class Striker:
    """Counts calls, and says which one is struck."""

    def __init__(self, fault: Fault, number: int) -> None:
        self.fault = fault
        self._number = number
        self._calls = 0
        self._lock = threading.Lock()
        self.struck = ""
        """The call that was struck; empty until then."""

    def hits(self, what: str, can_strike: bool = True) -> bool:
        """Whether this call is struck. A call that the fault does not apply to is not counted."""
        if not can_strike:
            return False
        with self._lock:
            number, self._calls = self._calls, self._calls + 1
            hit = number == self._number or (self.fault.lasting and number > self._number)
            if hit and not self.struck:
                self.struck = what
        return hit


# ---- Calls to the backend


class FaultyBackend:
    """A backend in which one call fails; an upload's calls count too."""

    def __init__(self, real: PosixBackend, striker: Striker) -> None:
        self._real = real
        self._striker = striker

    def path(self, name: str) -> str:
        """No call to the storage."""
        return self._real.path(name)

    def staging_path(self) -> str:
        """No call to the storage."""
        return self._real.staging_path()

    def rely_on(self, name: str) -> None:
        """No call to the storage."""
        self._real.rely_on(name)

    def look_ahead(self, names: Sequence[str]) -> None:
        """No call whose answer anybody waits for."""

    def make_ahead(self, folder: str) -> Callable[[], None]:
        """No call whose answer anybody waits for."""
        return lambda: None

    def __getattr__(self, method: str) -> Call:
        real = getattr(self._real, method)
        if method == "upload":
            return lambda: self._upload(real)
        if method == "open":
            read = partial(_strike, self._striker, "read")
            return lambda name: OpenedThrough(_strike(self._striker, "open", real, (name,)), read)
        return lambda *arguments: _strike(self._striker, method, real, arguments)

    @contextmanager
    def _upload(self, real: Call) -> Iterator[FaultyUpload]:
        with _strike(self._striker, "upload", real, ()) as upload:
            yield FaultyUpload(upload, self._striker)


class OpenedThrough:
    """An object that is being read; its calls are made through somebody else."""

    def __init__(self, real: Any, make: Callable[[Call, tuple[int, int]], bytes]) -> None:
        self._real = real
        self._make = make
        self.size = real.size

    def read(self, offset: int, length: int) -> bytes:
        return self._make(self._real.read, (offset, length))

    def close(self) -> None:
        self._real.close()


class FaultyUpload:
    def __init__(self, real: Any, striker: Striker) -> None:
        self._real = real
        self._striker = striker

    def write(self, data: bytes | memoryview) -> None:
        _strike(self._striker, "write", self._real.write, (data,))

    def publish(self, name: str, fraction_ns: int | None = None) -> bool:
        return bool(_strike(self._striker, "publish", self._real.publish, (name, fraction_ns)))


_CREATING: dict[str, Call] = {
    "put_if_absent": lambda created: False,
    "put_many": lambda created: [False] * len(created),
    "publish": lambda created: False,
}


def _strike(striker: Striker, method: str, real: Call, arguments: tuple[Any, ...]) -> Any:
    reply = striker.fault.reply
    applies = {Reply.LOST_TO_EXISTS: method in _CREATING, Reply.SHORT: method in ("get", "read")}
    if not striker.hits(method, applies.get(reply, True)):
        return real(*arguments)
    if reply is Reply.REFUSED:
        raise striker.fault.error(str(arguments[0]) if arguments else method)
    done = real(*arguments)
    if reply is Reply.SHORT:
        return done[: len(done) // 2]
    if reply is Reply.LOST_TO_EXISTS:
        return _CREATING[method](done)
    raise striker.fault.error(str(arguments[0]) if arguments else method)


@contextmanager
def backend_fault(fault: Fault, number: int) -> Iterator[Striker]:
    """Strike call `number` to any store's backend."""
    striker = Striker(fault, number)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kstore.storage.PosixBackend", lambda root: FaultyBackend(PosixBackend(root), striker))
        yield striker


# ---- System calls

_SYSTEM_CALLS = (
    "chmod", "close", "fstat", "link", "listdir", "lstat", "mkdir", "open", "pread", "read", "rename",
    "replace", "rmdir", "scandir", "stat", "unlink", "utime", "write",
)  # fmt: skip
_TRANSFERS = ("pread", "read", "write")
_SIZED = ("pread", "read")


def keep_in_order(patch: pytest.MonkeyPatch) -> None:
    """Nothing is called ahead: otherwise the order of calls would vary."""
    for ahead in ("look_ahead", "make_ahead"):
        patch.setattr(PosixBackend, ahead, getattr(FaultyBackend, ahead))


@contextmanager
def system_fault(fault: Fault, number: int, folder: Path) -> Iterator[Striker]:
    """Strike system call `number` among those that concern something below `folder`."""
    striker = Striker(fault, number)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kstore.calls._calls", plain)
        keep_in_order(patch)
        for name in _SYSTEM_CALLS:
            patch.setattr(os, name, _faulty(name, getattr(os, name), striker, f"{folder}/"))
        patch.setattr(builtins, "open", _faulty("open()", builtins.open, striker, f"{folder}/"))
        patch.setattr(fcntl, "ioctl", _faulty("ioctl", fcntl.ioctl, striker, f"{folder}/"))
        yield striker


_readlink = os.readlink
_close = os.close


def _faulty(name: str, real: Call, striker: Striker, folder: str) -> Call:
    reply = striker.fault.reply
    can_strike = {Reply.LOST_TO_EXISTS: name == "link", Reply.SHORT: name in _TRANSFERS}.get(reply, True)

    def call(*arguments: Any, **options: Any) -> Any:
        where = _concerned(arguments, options)
        if not where.startswith(folder) or not striker.hits(f"{name} {where}", can_strike):
            return real(*arguments, **options)
        if reply is Reply.SHORT:
            return real(*_halved(name, arguments))
        if reply is Reply.LOST_TO_EXISTS:
            real(*arguments, **options)
            raise FileExistsError(errno.EEXIST, "exists", where)
        if reply is Reply.LOST or name == "close":  # A descriptor is closed whatever close(2) says.
            _discard(name, real(*arguments, **options))
        raise striker.fault.error(where)

    return call


def _concerned(arguments: tuple[Any, ...], options: dict[str, Any]) -> str:
    """The path that a call is about: by name, by descriptor, or by a name in a folder's descriptor."""
    first = arguments[0] if arguments else "."
    if isinstance(first, int):
        return _of_descriptor(first)
    name = os.fspath(first)
    folder = options.get("dir_fd")
    name = name if isinstance(name, str) else os.fsdecode(name)
    return f"{_of_descriptor(folder)}/{name}" if folder is not None else name


def _of_descriptor(fd: int) -> str:
    try:
        return _readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def _halved(name: str, arguments: tuple[Any, ...]) -> Sequence[Any]:
    fd, amount, *rest = arguments
    half = (amount + 1) // 2 if name in _SIZED else memoryview(amount)[: (len(amount) + 1) // 2]
    return (fd, half, *rest)


def _discard(name: str, answer: Any) -> None:
    """Close what nobody else will close."""
    if name == "open":
        _close(answer)
    elif hasattr(answer, "close"):
        answer.close()


# ---- What strikes each call in turn

Strike = Callable[[int, Path], AbstractContextManager[Striker]]
"""Takes the number of the call, and the scene's folder."""


def _marked(faults: Sequence[Faults], mark: pytest.MarkDecorator) -> list[Any]:
    return [pytest.param(fault, marks=mark) for fault in faults]


every_fault = pytest.mark.parametrize(
    "faults",
    [
        REFUSED_OR_LOST,
        *_marked(USUAL_FAULTS[1:], pytest.mark.slow),
        *_marked([*FAULTS, *MORE_FAULTS], pytest.mark.exhaustive),
    ],
    ids=str,
)
every_usual_fault = pytest.mark.parametrize(
    "faults",
    [REFUSED_OR_LOST, *_marked([*FAULTS, SHORT_READS, *MORE_FAULTS], pytest.mark.exhaustive)],
    ids=str,
)
"""For operations whose preparation takes long."""
every_fault_at_length = pytest.mark.parametrize(
    "faults",
    [
        *_marked(FAULTS[:1], pytest.mark.slow),
        *_marked([*FAULTS[1:], SHORT_READS, *MORE_FAULTS], pytest.mark.exhaustive),
    ],
    ids=str,
)
"""Where there are so many calls that most kinds of faults are left to the exhaustive tests."""


def of_backend(faults: Faults) -> Strike:
    return lambda number, folder: backend_fault(faults.of_call(number), number)


def of_filesystem(faults: Faults) -> Strike:
    # Only a client of a file server can take an existing file for absent for a while.
    below = "store" if faults.faults == (HEALING,) else ""
    return lambda number, folder: system_fault(faults.of_call(number), number, folder / below)
