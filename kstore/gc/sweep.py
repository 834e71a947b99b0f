"""Sweep: delete what was condemned long enough ago and is still dead, and condemn what is dead now.

A loose blob's name may be taken anew by a commit after another gc has deleted the blob. So the blob is looked at, moved
aside, and looked at again: if it is not what was condemned, it is put back. Meanwhile a reader finds it aside, and if
this process is killed, the next gc puts it back.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Any

from kstore.backends import Backend, NewObject
from kstore.backends.base import Stat
from kstore.blobs.loose import ASIDE, LooseBlobs, blob_name, stamp
from kstore.blobs.packindex import FOLDER, pack_name
from kstore.condemned import (
    Condemned,
    close_fence,
    damaged_names,
    delete_list,
    fenced_at,
    fences,
    give_up_list,
    has_leftovers,
    list_names,
    put_fence,
    read_list,
    take_down_fence,
    write_lists,
)
from kstore.damaged import set_aside_list
from kstore.digest import HEXADECIMAL, digest_of
from kstore.errors import IntegrityError
from kstore.files import NO_FILE
from kstore.gc.digests import DigestSet
from kstore.gc.mark import Marked
from kstore.gc.room import Room
from kstore.report import Count

_BATCH = 1 << 16


@dataclass(slots=True)
class Swept:
    """What became of the dead."""

    deleted: Count = field(default_factory=Count)
    condemned: Count = field(default_factory=Count)
    waiting: Count = field(default_factory=Count)
    unreadable: list[str] = field(default_factory=list)


class Sweeper:
    """One sweep of one store. With `dry_run` it only counts."""

    def __init__(self, backend: Backend, there: DigestSet, listed: DigestSet, room: Room, *, dry_run: bool) -> None:
        """`there` and `listed` are empty: they are to hold the loose blobs that are found, and what is on lists."""
        self._backend = backend
        self._there = there
        self._packs: list[bytes] = []
        self._listed = listed
        self._room = room
        self._dry_run = dry_run
        self._before = 0
        self._ripe: set[str] = set()
        self._damaged: list[str] = []
        """Lists that nobody could read any more when marking began. All that may have been on them is condemned."""
        self._left: dict[str, list[Condemned]] = {}
        """Ripe list → what on it is still live."""
        self._is_less = False
        """Whether any of them had more on it."""
        self.swept = Swept()

    def prepare(self, before: int) -> None:
        """Choose the lists to sweep, and keep commits that began before these were written from publishing. Also note
        what is there: only that may be condemned, because nobody knows whether what comes while gc marks is needed.

        To be called before marking. A list is ripe if its fence was put up no later than `before`, by the store's clock
        in nanoseconds.
        """
        self._before = before
        self._choose_lists(before)
        self._damaged = damaged_names(self._backend)
        self._packs = list(_packs(self._backend))
        for digests in LooseBlobs(self._backend).folders():
            self._there.add(digests)

    def _choose_lists(self, before: int) -> None:
        fenced_lists = fences(self._backend)  # before the lists, since a fence comes after its list
        lists = list_names(self._backend)
        for name in sorted(set(fenced_lists) - set(lists)):  # a killed gc left it
            self._write(delete_list, name)
        for name in lists:
            fenced = fenced_at(self._backend, name)
            if fenced is None:
                with self._room.needed():
                    self._write(put_fence, name)
            elif fenced <= before:
                try:
                    self._write(close_fence, name)
                    self._ripe.add(name)
                except IntegrityError as error:
                    self.swept.unreadable.append(str(error))

    def sweep(self, marked: Marked) -> None:
        """Delete what is dead on the ripe lists, and condemn what is dead and on no list."""
        for child in [] if self._dry_run else self._backend.list(ASIDE):
            # A killed gc left it, and it may be needed by now.
            with self._room.needed():
                _put_back(self._backend, f"{ASIDE}/{child.name}")
        for name in list_names(self._backend):
            self._in_room(name, partial(self._sweep_list, name, marked))
        if self._left:
            self._in_room(next(iter(self._left)), self._join)
        with self._room.needed():
            self._condemn_dead(marked)
            for name in self._damaged:
                self._write(set_aside_list, name)

    def _condemn_dead(self, marked: Marked) -> None:
        has_any = self._condemn(chain(self._dead_packs(marked), self._dead_blobs(marked)))
        if not has_any and has_leftovers(self._backend, self._before):
            self._write(write_lists, ())  # what killed writers left in `tmp/` is deleted with it

    def _write(self, function: Callable[[Backend, Any], None], what: object) -> None:
        if not self._dry_run:
            function(self._backend, what)

    def _in_room(self, name: str, function: Callable[[], None]) -> None:
        """Call `function`, and call it once more if there was no room for what it writes. Before the second call, the
        fence of the list `name` is taken down if it is closed: that leaves room for the folder `ASIDE` or for a list.
        """
        found = Room()
        with found.needed():
            function()
        if found.lacking and name in self._ripe:
            take_down_fence(self._backend, name)
            with self._room.needed():
                function()

    def _sweep_list(self, name: str, marked: Marked) -> None:
        try:
            entries = read_list(self._backend, name)
        except IntegrityError as error:
            self.swept.unreadable.append(str(error))
            self._write(give_up_list, name)
            return
        self._listed.update({_key(entry): _identity(entry) for entry in entries})
        rest = entries
        if name in self._ripe:
            rest = self._delete_dead(entries, marked)
            if not self._dry_run:
                self._keep(name, rest, is_less=len(rest) < len(entries))
        self.swept.waiting = _more(self.swept.waiting, rest)

    def _keep(self, name: str, rest: list[Condemned], *, is_less: bool) -> None:
        """Note what is left of a ripe list; a list with nothing left is deleted."""
        if not rest:
            delete_list(self._backend, name)
            return
        if sum(map(len, self._left.values())) + len(rest) > _BATCH:
            self._join()
        self._left[name] = rest
        self._is_less |= is_less

    def _join(self) -> None:
        """Write what is left of ripe lists as one list in their place: every commit reads all lists."""
        if self._is_less or len(self._left) > 1:
            write_lists(self._backend, [entry for rest in self._left.values() for entry in rest])
            for name in self._left:
                delete_list(self._backend, name)
        self._left, self._is_less = {}, False

    def _delete_dead(self, entries: list[Condemned], marked: Marked) -> list[Condemned]:
        """Delete what is dead. Returns what is live: it stays on the list until it is dead."""
        live = []
        for entry in entries:
            if marked.is_live(entry):
                live.append(entry)
            elif self._dry_run or _delete(self._backend, entry):
                self.swept.deleted = _more(self.swept.deleted, [entry])
        return live

    def _condemn(self, dead: Iterable[Condemned]) -> bool:
        """Condemn what is on no list yet. Returns whether there was anything."""
        fresh = (entry for entry in dead if self._listed.value(_key(entry)) != _identity(entry))
        has_any = False
        while batch := list(islice(fresh, _BATCH)):
            self._write(write_lists, batch)
            self.swept.condemned = _more(self.swept.condemned, batch)
            has_any = True
        return has_any

    def _dead_packs(self, marked: Marked) -> Iterator[Condemned]:
        for digest in self._packs:
            is_kept = digest.hex() in marked.packs if self._damaged else marked.keeps(digest.hex())
            if not is_kept and (found := _stat(self._backend, pack_name(digest.hex()))):
                yield Condemned(True, digest, found.inode, found.mtime_ns, found.size)

    def _dead_blobs(self, marked: Marked) -> Iterator[Condemned]:
        there = (digest for digest, _ in self._there.items())
        while batch := list(islice(there, _BATCH)):
            for digest in marked.loose.absent(batch) if self._damaged else marked.dead(batch):
                if found := _stat(self._backend, blob_name(digest)):
                    yield Condemned(False, digest, found.inode, found.mtime_ns, found.size)


def _delete(backend: Backend, entry: Condemned) -> bool:
    """Delete one condemned object; False if it is gone, or its name was taken anew."""
    found = _stat(backend, entry.name)
    if found is None or not _is_same(found, entry):
        return False
    if entry.is_pack:
        backend.delete(entry.name)
        return True
    aside = f"{ASIDE}/{entry.digest.hex()}.{secrets.token_hex(8)}"
    try:
        backend.move(entry.name, aside)
        if _is_same(backend.stat(aside), entry):
            backend.delete(aside)
            return True
    except FileNotFoundError:  # another gc was faster
        return False
    _put_back(backend, aside)
    return False


def _put_back(backend: Backend, aside: str) -> None:
    """Put a blob back as a new file, which no gc has condemned. If its name was taken meanwhile, that file is as good.
    An altered blob does not get the stamp, as before: what relies on blobs looks for the stamp, and what links them
    does not take an altered one.
    """
    try:
        digest = bytes.fromhex(aside.rpartition("/")[2].partition(".")[0])
        data = backend.get(aside)
    except ValueError:
        return
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        return
    fraction = stamp(digest) if digest_of(data) == digest else None
    backend.put_many([NewObject(blob_name(digest), data, fraction)])
    backend.delete(aside)


def _stat(backend: Backend, name: str) -> Stat | None:
    try:
        return backend.stat(name)
    except FileNotFoundError:
        return None


def _is_same(found: Stat, entry: Condemned) -> bool:
    return (found.inode, found.mtime_ns, found.size) == (entry.inode, entry.mtime_ns, entry.size)


def _packs(backend: Backend) -> Iterator[bytes]:
    """The ids of all packs."""
    for child in backend.list(FOLDER):
        if HEXADECIMAL.fullmatch(child.name) and not child.is_folder:
            yield bytes.fromhex(child.name)


def _key(entry: Condemned) -> bytes:
    return bytes([entry.is_pack]) + entry.digest


def _identity(entry: Condemned) -> bytes:
    return repr((entry.inode, entry.mtime_ns, entry.size)).encode()


def _more(count: Count, entries: Iterable[Condemned]) -> Count:
    sizes = [entry.size for entry in entries]
    return count + Count(len(sizes), sum(sizes))
