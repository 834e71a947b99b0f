"""A store in memory. Its contents are a value, and whatever happens to them is one of the `Step`s.

A step is what happens at once on a real store: a read, a directory listing, a name that appears or disappears. Writing
to a file under `tmp/` before it gets its name is no step, because nobody reads it there. Neither are the files through
which loose blobs get their names: if gc removes one, its commit fails as on any other trouble with the store.
"""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

from kstore.backends import Child, NewObject, StagingLost, Stat, check_name
from kstore.backends.base import STAGING

_SECOND = 1_000_000_000


class Kind(Enum):
    """What a step does."""

    GET = "get"
    STAT = "stat"
    LIST = "list"
    CREATE = "create"
    """Unless the name is taken."""
    REPLACE = "replace"
    """Or create."""
    LINK = "link"
    """Give an object a second name, unless that is taken."""
    DELETE = "delete"
    MOVE = "move"
    LOOK_AT_CLOCK = "clock"
    WAIT = "wait"
    """Time passes, for everybody."""


MAKES = frozenset({Kind.CREATE, Kind.REPLACE, Kind.LINK})
WRITES = MAKES | {Kind.DELETE, Kind.MOVE}


class Step(NamedTuple):
    """One step, with everything that it depends on except the contents."""

    kind: Kind
    name: str = ""
    to: str = ""
    """Where it is moved."""
    data: bytes = b""
    fraction_ns: int | None = None
    offset: int = 0
    length: int | None = None
    seconds: float = 0.0
    """How long a wait is."""
    identity: int = 0
    """The identity of the object that it makes: what an inode number is to a file."""

    def __str__(self) -> str:
        words = (self.kind.value, self.name, f"→ {self.to}" if self.to else "", f"{self.seconds:g} s")
        return " ".join(word for word in words if word and word != "0 s")


class Failure(NamedTuple):
    """The answer to a step that failed."""

    code: int
    """An errno."""


Answer = Hashable
Performer = Callable[[Step], Any]
"""Does a step and returns its answer, or a `Failure`."""


class Object(NamedTuple):
    """One stored object."""

    data: bytes
    mtime_ns: int
    identity: int


@dataclass(frozen=True, eq=False)
class Contents:
    """Everything that a store holds at one moment."""

    objects: Mapping[str, Object] = field(default_factory=dict)
    folders: frozenset[str] = frozenset({""})
    """A folder stays when it becomes empty, as on a filesystem."""
    now_ns: int = 1_000_000 * _SECOND
    """By the store's clock and, counted from another start, by everybody's."""
    refs: frozenset[tuple[str, bytes]] = frozenset()
    """Every ref that was ever created, for the checks: no step shows it."""

    @cached_property
    def key(self) -> Hashable:
        """Equal for equal contents."""
        return frozenset(self.objects.items()), self.folders, self.now_ns, self.refs

    def with_object(self, name: str, new: Object) -> Contents:
        """The contents after an object has got a name."""
        refs = self.refs | {(name, new.data)} if name.startswith("refs/") else self.refs
        return Contents({**self.objects, name: new}, self.folders.union(parents(name)), self.now_ns, refs)

    def without(self, name: str) -> Contents:
        """The contents after a name is gone."""
        left = {other: found for other, found in self.objects.items() if other != name}
        return Contents(left, self.folders, self.now_ns, self.refs)

    def children(self, folder: str) -> frozenset[Child]:
        """What a listing of the folder shows."""
        if folder not in self.folders:
            return frozenset()
        files = {Child(base, False) for parent, base in map(_split, self.objects) if parent == folder}
        folders = {Child(base, True) for parent, base in map(_split, self.folders - {""}) if parent == folder}
        return frozenset(child for child in files | folders if not child.name.startswith("."))


def parents(name: str) -> Iterator[str]:
    """The folders that a name is in, the root last."""
    while name:
        name = _split(name)[0]
        yield name


def _split(name: str) -> tuple[str, str]:
    parent, _, base = name.rpartition("/")
    return parent, base


def perform(contents: Contents, step: Step) -> tuple[Contents, Any]:
    """Do one step: the contents after it, and its answer."""
    return _EFFECTS[step.kind](contents, step)


def _get(contents: Contents, step: Step) -> tuple[Contents, Any]:
    found = contents.objects.get(step.name)
    if found is None:
        return contents, Failure(errno.EISDIR if step.name in contents.folders else errno.ENOENT)
    end = None if step.length is None else step.offset + step.length
    return contents, found.data[step.offset : end]


def _stat(contents: Contents, step: Step) -> tuple[Contents, Any]:
    found = contents.objects.get(step.name)
    return contents, Failure(errno.ENOENT) if found is None else Stat(len(found.data), found.mtime_ns, found.identity)


def _list(contents: Contents, step: Step) -> tuple[Contents, Any]:
    return contents, contents.children(step.name)


def _create(contents: Contents, step: Step) -> tuple[Contents, Any]:
    return (contents, False) if step.name in contents.objects else _replace(contents, step)


def _replace(contents: Contents, step: Step) -> tuple[Contents, Any]:
    mtime_ns = contents.now_ns
    if step.fraction_ns is not None:
        mtime_ns = mtime_ns // _SECOND * _SECOND + step.fraction_ns
    return contents.with_object(step.name, Object(step.data, mtime_ns, step.identity)), True


def _link(contents: Contents, step: Step) -> tuple[Contents, Any]:
    """What was written to an upload appears only now: nobody reads it before."""
    if step.name not in contents.objects:
        return contents, Failure(errno.ENOENT)
    return _create(contents, step._replace(name=step.to))


def _delete(contents: Contents, step: Step) -> tuple[Contents, Any]:
    return contents.without(step.name) if step.name in contents.objects else contents, None


def _move(contents: Contents, step: Step) -> tuple[Contents, Any]:
    found = contents.objects.get(step.name)
    if found is None:
        return contents, Failure(errno.ENOENT)
    return contents.without(step.name).with_object(step.to, found), None


def _look_at_clock(contents: Contents, step: Step) -> tuple[Contents, Any]:
    return contents, contents.now_ns


def _wait(contents: Contents, step: Step) -> tuple[Contents, Any]:
    then = contents.now_ns + int(step.seconds * _SECOND)
    return Contents(contents.objects, contents.folders, then, contents.refs), None


_EFFECTS = {
    Kind.GET: _get,
    Kind.STAT: _stat,
    Kind.LIST: _list,
    Kind.CREATE: _create,
    Kind.REPLACE: _replace,
    Kind.LINK: _link,
    Kind.DELETE: _delete,
    Kind.MOVE: _move,
    Kind.LOOK_AT_CLOCK: _look_at_clock,
    Kind.WAIT: _wait,
}


class MemoryBackend:
    """The interface of a backend, each call as one step or several; whoever performs the steps decides when."""

    def __init__(self, performer: Performer) -> None:
        self._performer = performer

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        return bytes(self._do(Step(Kind.GET, check_name(name), offset=offset, length=length)))

    def get_many(self, wanted: Sequence[tuple[str, int]]) -> list[bytes | None]:
        """Each object is looked at separately."""
        return [self._get_whole(name, size) for name, size in wanted]

    def _get_whole(self, name: str, size: int) -> bytes | None:
        try:
            data = self.get(name, 0, size + 1)
        except OSError:
            return None
        return data if len(data) == size else None

    def open(self, name: str) -> MemoryFile:
        """What the object is now is what will be read of it."""
        try:
            return MemoryFile(self.get(name))
        except IsADirectoryError as error:
            raise FileNotFoundError(*error.args) from error

    def put(self, name: str, data: bytes, fraction_ns: int | None = None) -> None:
        self._do(Step(Kind.REPLACE, check_name(name), data=data, fraction_ns=fraction_ns))

    def touch(self, name: str) -> bool:
        try:
            self.put(name, self.get(name))
        except FileNotFoundError:
            return False
        return True

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return self.put_many([NewObject(name, data)])[0]

    def write_out(self, name: str) -> None:
        """Memory has nowhere else to write to."""

    def put_many(self, objects: Sequence[NewObject]) -> list[bool]:
        """Each object appears separately."""
        steps = [Step(Kind.CREATE, check_name(o.name), data=o.data, fraction_ns=o.fraction_ns) for o in objects]
        return [bool(self._do(step)) for step in steps]

    @contextmanager
    def upload(self) -> Iterator[MemoryUpload]:
        upload = MemoryUpload(self, f"{STAGING}/host-1-{secrets.token_hex(8)}")
        self.put_if_absent(upload.staged, b"")
        try:
            yield upload
        finally:
            self.delete(upload.staged)

    def rely_on(self, name: str) -> None:
        pass

    def look_ahead(self, names: Sequence[str]) -> None:
        pass

    def make_ahead(self, folder: str) -> Callable[[], None]:
        return lambda: None

    def stat(self, name: str) -> Stat:
        found: Stat = self._do(Step(Kind.STAT, check_name(name)))
        return found

    def stat_many(self, names: Sequence[str]) -> list[Stat | None]:
        """Each object is looked at separately."""
        return [self._stat_if_there(name) for name in names]

    def _stat_if_there(self, name: str) -> Stat | None:
        try:
            return self.stat(name)
        except FileNotFoundError:
            return None

    def list(self, folder: str) -> Iterator[Child]:
        # Sorted: a folder's order is the filesystem's choice, and each choice would be another schedule.
        yield from sorted(self._do(Step(Kind.LIST, folder and check_name(folder))))

    def list_made(self, folder: str) -> Iterator[Child]:
        """A folder in which nothing is left still is one."""
        return self.list(folder)

    def delete(self, name: str) -> None:
        self._do(Step(Kind.DELETE, check_name(name)))

    def move(self, name: str, to: str) -> None:
        self._do(Step(Kind.MOVE, check_name(name), to=check_name(to)))

    def clock(self) -> int:
        return int(self._do(Step(Kind.LOOK_AT_CLOCK)))

    def wait(self, seconds: float) -> None:
        """Let time pass for everybody."""
        self._do(Step(Kind.WAIT, seconds=seconds))

    def _do(self, step: Step) -> Any:
        answer = self._performer(step)
        if isinstance(answer, Failure):
            raise OSError(answer.code, os.strerror(answer.code), step.name)
        return answer


class MemoryFile:
    """An object that is being read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]

    def close(self) -> None:
        """Nothing is held."""


class MemoryUpload:
    """An object that is being written."""

    def __init__(self, backend: MemoryBackend, staged: str) -> None:
        self._backend = backend
        self.staged = staged
        self._parts: list[bytes] = []

    def write(self, data: bytes | memoryview) -> None:
        self._parts.append(bytes(data))

    def publish(self, name: str, fraction_ns: int | None = None) -> bool:
        data = b"".join(self._parts)
        step = Step(Kind.LINK, self.staged, to=check_name(name), data=data, fraction_ns=fraction_ns)
        try:
            return bool(self._backend._do(step))
        except FileNotFoundError as error:
            raise StagingLost(error.errno, "gc took this writer for dead") from error


class Memory:
    """Contents that are changed at once, by any thread."""

    def __init__(self, contents: Contents | None = None) -> None:
        self.contents = contents or Contents(now_ns=time.time_ns())
        self.backend = MemoryBackend(self.perform)
        self._lock = threading.Lock()
        self._identities = itertools.count(1)

    def perform(self, step: Step) -> Any:
        """Do one step at once."""
        with self._lock:
            self.contents, answer = perform(self.contents, step._replace(identity=next(self._identities)))
        return answer
