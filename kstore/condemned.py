"""What gc is about to delete, and what a commit must therefore not rely on.

A list is an immutable file under `gc/condemned/`. What is on it is deleted by a gc that runs at least the store's
grace later, if nothing refers to it then, and leaves the list only after that. A commit reads all lists before it
decides what it need not upload.

A commit that read the lists before a new one was written must not publish once gc has found out what is needed. So
every commit begins with a file in `tmp/` that is to become its ref. A list comes with a fence: a file that names
everything that was in `tmp/` after the list could be read. gc deletes those files before it marks. A commit that
began before the list has either published by then, and is seen, or never will, and begins again.

Nobody knows what was on a damaged list, so nothing may be relied upon until that is condemned anew. Only a gc that
begins when nobody can read the list any more can do this, so the list gets another name first.
"""

from __future__ import annotations

import json
import logging
import secrets
import struct
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import NamedTuple

from kstore.backends import Backend
from kstore.backends.base import STAGING, is_staged
from kstore.blobs.loose import blob_name
from kstore.blobs.packindex import pack_name
from kstore.digest import DIGEST_SIZE, digest_of
from kstore.errors import IntegrityError, described
from kstore.files import NO_FILE

log = logging.getLogger(__name__)

FOLDER = "gc/condemned"
_FENCES = "gc/fences"
_DAMAGED = ".damaged"
_MAGIC = b"kstore condemned 1\n"
_RECORD = struct.Struct("<?32sQqQ")
MAX_ENTRIES = 1 << 16
"""In one list, so that no reader needs much memory."""


class Condemned(NamedTuple):
    """One object as it was when it was condemned. A new object under its name is not meant."""

    is_pack: bool
    digest: bytes
    """The pack's id, or the loose blob's digest."""
    inode: int
    mtime_ns: int
    size: int
    """Bytes."""

    @property
    def name(self) -> str:
        """Where it is stored."""
        return pack_name(self.digest.hex()) if self.is_pack else blob_name(self.digest)


def write_lists(backend: Backend, entries: Sequence[Condemned]) -> None:
    """Condemn `entries`, from now on. Without entries an empty list is written, for its fence."""
    for start in range(0, max(len(entries), 1), MAX_ENTRIES):
        body = b"".join(_RECORD.pack(*entry) for entry in entries[start : start + MAX_ENTRIES])
        name = f"{FOLDER}/{secrets.token_hex(16)}"
        backend.put_if_absent(name, _MAGIC + digest_of(body) + body)
        put_fence(backend, name)


def put_fence(backend: Backend, name: str) -> None:
    """Put up the fence of the list `name`: it names every commit that may have begun before it could read the list."""
    backend.put_if_absent(_fence_of(name), json.dumps(staged(backend)).encode())


def fenced_at(backend: Backend, name: str) -> int | None:
    """When the list `name` got its fence, by the store's clock in nanoseconds; None if it has none yet."""
    try:
        return backend.stat(_fence_of(name)).mtime_ns
    except FileNotFoundError:
        return None


def close_fence(backend: Backend, name: str) -> None:
    """Keep every commit that began before the list `name` could be read from publishing.

    Raises:
        IntegrityError: the fence is damaged; it is taken down, to be put up anew.
    """
    try:
        named = [f"{STAGING}/{child}" for child in json.loads(backend.get(_fence_of(name))) if is_staged(child)]
    except FileNotFoundError:  # another gc has finished with the list
        return
    except (ValueError, TypeError, RecursionError) as error:
        take_down_fence(backend, name)
        raise IntegrityError(f"the fence of {name} is damaged: {described(error)}; a new one is made") from error
    for path in named:
        backend.delete(path)


def take_down_fence(backend: Backend, name: str) -> None:
    """Remove the fence of the list `name`. What is on the list then waits until a new fence is old enough."""
    backend.delete(_fence_of(name))


def delete_list(backend: Backend, name: str) -> None:
    """Forget a list whose entries are gone, or the fence of one that is gone itself."""
    backend.delete(name)
    take_down_fence(backend, name)


def fences(backend: Backend) -> list[str]:
    """The lists that have a fence, whether or not they are still there."""
    return [f"{FOLDER}/{child.name}" for child in backend.list(_FENCES) if not child.is_folder]


def staged(backend: Backend) -> list[str]:
    """Names in `tmp/`: of what is being written, refs included, and of what killed writers left."""
    return sorted(child.name for child in backend.list_made(STAGING) if not child.is_folder and is_staged(child.name))


def has_leftovers(backend: Backend, before: int) -> bool:
    """Whether a list has to be written for what killed writers left in `tmp/`, even if nothing is to be condemned: a
    file goes when a fence that names it is closed. If there are lists, only files count that no fence names, and that
    nobody has written to since `before`, by the store's clock in nanoseconds.
    """
    names = staged(backend)
    if not (names and list_names(backend)):
        return bool(names)
    unfenced = set(names).difference(*map(partial(_fenced_by, backend), fences(backend)))
    found = backend.stat_many([f"{STAGING}/{name}" for name in sorted(unfenced)])
    return any(status and status.mtime_ns < before for status in found)


def _fenced_by(backend: Backend, name: str) -> list[str]:
    """Whom a fence names; a damaged one names nobody."""
    with suppress(FileNotFoundError, ValueError, TypeError, RecursionError):
        return [str(staged) for staged in json.loads(backend.get(_fence_of(name)))]
    return []


def _fence_of(name: str) -> str:
    return f"{_FENCES}/{name.rpartition('/')[2]}"


def has_lists(backend: Backend) -> bool:
    """Whether anything may be condemned."""
    return bool(_all_names(backend))


def list_names(backend: Backend) -> list[str]:
    """Every list, except those that were given up."""
    return [name for name in _all_names(backend) if not name.endswith(_DAMAGED)]


def damaged_names(backend: Backend) -> list[str]:
    """The lists that were given up."""
    return [name for name in _all_names(backend) if name.endswith(_DAMAGED)]


def give_up_list(backend: Backend, name: str) -> None:
    """Rename a damaged list: nobody reads it any more, and everybody sees that there is one."""
    with suppress(FileNotFoundError):
        backend.move(name, name + _DAMAGED)


def _all_names(backend: Backend) -> list[str]:
    try:
        return sorted(f"{FOLDER}/{child.name}" for child in backend.list_made(FOLDER) if not child.is_folder)
    except FileNotFoundError:
        if _is_made(backend):  # A server denies it, for a moment.
            raise
        return []


def _is_made(backend: Backend) -> bool:
    """Whether there is a folder for lists: most stores where gc has never run have no `gc/` either."""
    above, _, name = FOLDER.rpartition("/")
    made = any(child.name == above for child in backend.list_made(""))
    return made and any(child.name == name for child in backend.list_made(above))


def read_list(backend: Backend, name: str) -> list[Condemned]:
    """What is on one list; nothing if another gc has removed it since.

    Raises:
        IntegrityError: it is damaged.
    """
    try:
        return load_list(name, _get(backend, name))
    except FileNotFoundError:
        return []


def _get(backend: Backend, name: str) -> bytes:
    try:
        return backend.get(name)
    except OSError as error:
        if isinstance(error, FileNotFoundError) or error.errno not in NO_FILE:
            raise
        raise IntegrityError(f"{name} is damaged: it is not a file ({error.strerror})") from error


def load_list(name: str, data: bytes) -> list[Condemned]:
    """What is on the list `name`, whose bytes are `data`.

    Raises:
        IntegrityError: it is damaged.
    """
    start = len(_MAGIC) + DIGEST_SIZE
    if data[:start] != _MAGIC + digest_of(data[start:]) or (len(data) - start) % _RECORD.size:
        raise IntegrityError(f"{name} is damaged; the next gc condemns what was on it again")
    return [Condemned(*record) for record in _RECORD.iter_unpack(data[start:])]


@dataclass(frozen=True, slots=True)
class Doomed:
    """What a commit that begins now must not rely on."""

    packs: set[str] = field(default_factory=set)
    blobs: set[bytes] = field(default_factory=set)
    """Digests of loose blobs, but only of those that were asked about."""
    is_complete: bool = True
    """False if a list could not be read: then nothing may be relied upon."""

    def spared(self, packs: Iterable[str]) -> tuple[str, ...]:
        """Those of `packs` that are not condemned."""
        return tuple(pack for pack in packs if self.is_complete and pack not in self.packs)


def read_doomed(backend: Backend, among: Callable[[], Container[bytes]]) -> Doomed:
    """Read all lists. Of loose blobs, only those in what `among` returns are kept, because millions may be listed.
    `among` is called once, and only if any are listed.

    Raises:
        OSError: they cannot be read. If only their folder is not there, though it was made, or something else is in its
            place, all may be on them.
    """
    doomed, wanted = Doomed(), cache(among)
    try:
        for entry in _entries(backend):
            if entry.is_pack:
                doomed.packs.add(entry.digest.hex())
            elif entry.digest in wanted():
                doomed.blobs.add(entry.digest)
    except (IntegrityError, FileNotFoundError, NotADirectoryError) as error:
        log.warning("everything is uploaded again, because what gc is about to delete cannot be known: %s", error)
        return Doomed(is_complete=False)
    return doomed


def _entries(backend: Backend) -> Iterator[Condemned]:
    """What is on any list. If a list is gone since the listing, they are listed again: what was left on it is on a new
    list by then.
    """
    read, has_gone = set[str](), True
    while has_gone:
        has_gone = False
        for name in [name for name in _all_names(backend) if name not in read]:
            read.add(name)
            if name.endswith(_DAMAGED):
                raise IntegrityError(f"{name} is damaged")
            try:
                data = _get(backend, name)
            except FileNotFoundError:
                has_gone = True
            else:
                yield from load_list(name, data)
