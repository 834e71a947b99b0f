"""Sweep: delete what was condemned long enough ago and is still dead, and condemn what is dead now."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from kstore.backends import Backend
from kstore.blobs.loose import ASIDE
from kstore.condemned import (
    MAX_ENTRIES,
    Condemned,
    close_fence,
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
from kstore.errors import IntegrityError
from kstore.gc.delete import delete, put_back
from kstore.gc.digests import DigestSet
from kstore.gc.inventory import Inventory
from kstore.gc.mark import Marked
from kstore.gc.room import Room
from kstore.report import Count


@dataclass(slots=True)
class Swept:
    """What became of the dead."""

    deleted: Count = field(default_factory=Count)
    condemned: Count = field(default_factory=Count)
    waiting: Count = field(default_factory=Count)
    unreadable: list[str] = field(default_factory=list)


class Sweeper:
    """One sweep of one store. With `dry_run` it only counts."""

    def __init__(self, backend: Backend, listed: DigestSet, room: Room, before: int, *, dry_run: bool) -> None:
        """`listed` is empty: it is to hold what is on lists. A list is ripe if its fence was put up no later than
        `before`, by the store's clock in nanoseconds.
        """
        self._backend = backend
        self._listed = listed
        self._room = room
        self._before = before
        self._dry_run = dry_run
        self._ripe: set[str] = set()
        self._rest = _Rest(backend)
        self.swept = Swept()

    def choose_lists(self) -> None:
        """Choose the lists to sweep, and keep commits that began before these were written from publishing. This comes
        before the inventory and before marking.
        """
        fenced_lists = fences(self._backend)  # before the lists, since a fence comes after its list
        lists = list_names(self._backend)
        for name in sorted(set(fenced_lists) - set(lists)):  # a killed gc left it
            self._write(delete_list, name)
        for name in lists:
            fenced = fenced_at(self._backend, name)
            if fenced is None:
                with self._room.needed():
                    self._write(put_fence, name)
            elif fenced <= self._before:
                try:
                    self._write(close_fence, name)
                    self._ripe.add(name)
                except IntegrityError as error:
                    self.swept.unreadable.append(str(error))

    def sweep(self, marked: Marked, inventory: Inventory) -> None:
        """Delete what is dead on the ripe lists, and condemn what of the inventory is dead and on no list."""
        for child in [] if self._dry_run else self._backend.list(ASIDE):
            # A killed gc left it, and it may be needed by now.
            with self._room.needed():
                put_back(self._backend, f"{ASIDE}/{child.name}")
        for name in list_names(self._backend):
            self._in_room(name, partial(self._sweep_list, name, marked))
        if self._rest.lists:
            self._in_room(next(iter(self._rest.lists)), self._rest.join)
        with self._room.needed():
            if not self._condemn(inventory.dead(marked)) and has_leftovers(self._backend, self._before):
                self._write(write_lists, ())  # what killed writers left in `tmp/` is deleted with it
            for name in inventory.damaged:
                self._write(set_aside_list, name)

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
        self._listed.update({entry.digest: _identity(entry) for entry in entries})
        rest = entries
        if name in self._ripe:
            rest = self._delete_dead(entries, marked)
            if not self._dry_run:
                self._rest.keep(name, rest, is_less=len(rest) < len(entries))
        self.swept.waiting += Count.of([entry.size for entry in rest])

    def _delete_dead(self, entries: list[Condemned], marked: Marked) -> list[Condemned]:
        """Delete what is dead. Returns what is live: it stays on the list until it is dead."""
        live = []
        for entry in entries:
            if marked.is_live(entry):
                live.append(entry)
            elif self._dry_run or delete(self._backend, entry):
                self.swept.deleted += Count(1, entry.size)
        return live

    def _condemn(self, dead: Iterable[Condemned]) -> bool:
        """Condemn what is on no list yet. Returns whether there was anything."""
        fresh = (entry for entry in dead if self._listed.value(entry.digest) != _identity(entry))
        has_any = False
        while batch := list(islice(fresh, MAX_ENTRIES)):
            self._write(write_lists, batch)
            self.swept.condemned += Count.of([entry.size for entry in batch])
            has_any = True
        return has_any


class _Rest:
    """What is left of ripe lists: it is written as one list in their place, because every commit reads all lists."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.lists: dict[str, list[Condemned]] = {}
        """Ripe list → what on it is still live."""
        self._is_less = False
        """Whether any of them had more on it."""

    def keep(self, name: str, rest: list[Condemned], *, is_less: bool) -> None:
        """Note what is left of a ripe list; a list with nothing left is deleted."""
        if not rest:
            delete_list(self._backend, name)
            return
        if sum(map(len, self.lists.values())) + len(rest) > MAX_ENTRIES:
            self.join()
        self.lists[name] = rest
        self._is_less |= is_less

    def join(self) -> None:
        """Write it as one list."""
        if self._is_less or len(self.lists) > 1:
            write_lists(self._backend, [entry for rest in self.lists.values() for entry in rest])
            for name in self.lists:
                delete_list(self._backend, name)
        self.lists, self._is_less = {}, False


def _identity(entry: Condemned) -> bytes:
    return repr((entry.inode, entry.mtime_ns, entry.size)).encode()
