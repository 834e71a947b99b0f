"""Where the totals of restores are kept: in pages, `stats/<gpu>/<key>/@<environment>/<slot>.<n>`.

A page is never replaced. A worker that adds to it reads number n and creates n + 1, which fails for all workers but
one, and deletes what came before. So the name n + 1 may be free again for a worker that read n long ago: if it finds a
newer page beside its own, it looks there for the mark that it made, to see whether the newer page has grown from its
own. A worker that fails tries again in another slot, a few times. As long as nobody else is adding, one slot is used,
and a scope has one file, however many workers it has.

Misses are counted in slots that all scopes share: what is not published must leave no folder of its own, or the store
would grow with every key that somebody requests.

Best effort, and read only by people: nothing that is restored, committed or deleted depends on it.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from kstore.backends import Backend
from kstore.published.refs import walk_scopes
from kstore.scope import Scope
from kstore.stats.totals import HITS, Sample, Totals, load_totals

log = logging.getLogger(__name__)

FOLDER = "stats"
MISSES = f"{FOLDER}/@misses"
"""Where restores are counted that found nothing published for a key, or restored from another key instead."""
FORMAT = 1
SLOTS = 16
"""The most files in one folder, apart from those that are about to be deleted."""
MOST_SCOPES = 256
"""The most scopes on a page of misses; those that nobody has requested for the longest time go first."""
_TRIES = 4
_MARKS = 32
"""Marks on a page: this many others may add to it before a worker has checked whether its own addition was lost."""
_LARGEST_PAGE = 1 << 20
"""Bytes."""
_LONGEST_MARK = 16
_NAME = re.compile(r"([0-9]{1,2})\.([0-9]{1,18})", re.ASCII)


class _Newer(Exception):
    """A newer kstore wrote the page."""


@dataclass(slots=True)
class Page:
    """Totals by scope."""

    scopes: dict[Scope, Totals] = field(default_factory=dict)
    marks: list[str] = field(default_factory=list)
    """One for each worker that added to it, the latest last."""

    def add(self, other: Page) -> None:
        """Count what others have counted."""
        for scope, totals in other.scopes.items():
            self.scopes.setdefault(scope, Totals()).add(totals)

    def add_sample(self, scope: Scope, sample: Sample) -> None:
        """Count one restore."""
        self.scopes.setdefault(scope, Totals()).add_sample(sample)

    def dump(self) -> bytes:
        """As JSON, with as many scopes as others will read."""
        latest = sorted(self.scopes, key=lambda scope: -self.scopes[scope].last)[:MOST_SCOPES]
        while len(data := self._dump(latest)) > _LARGEST_PAGE:
            del latest[-len(latest) // 2 :]
        return data

    def _dump(self, scopes: list[Scope]) -> bytes:
        rows = [[scope.gpu, scope.key, scope.environment, self.scopes[scope].as_json()] for scope in scopes]
        return json.dumps({"format": FORMAT, "marks": self.marks[-_MARKS:], "scopes": rows}).encode() + b"\n"


def load_page(data: bytes) -> Page | None:
    """Read what `Page.dump` wrote; None if it is damaged."""
    page = Page()
    try:
        content: dict[str, Any] = json.loads(data)
        if content["format"] > FORMAT:
            raise _Newer
        page.marks = [str(mark)[:_LONGEST_MARK] for mark in content["marks"][-_MARKS:]]
        for gpu, key, environment, totals in content["scopes"][:MOST_SCOPES]:
            page.scopes[Scope(gpu, key, environment)] = load_totals(totals)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, RecursionError) as error:
        log.debug("statistics cannot be read: %r", error)
        return None
    return page


def folder_of(scope: Scope) -> str:
    """The folder where the restores of a scope are counted."""
    return f"{FOLDER}/{scope.path}"


def add(backend: Backend, scope: Scope, sample: Sample) -> bool:
    """Count one restore. False if others were adding each time that it was tried.

    Raises:
        OSError: the store cannot be written.
    """
    is_hit = sample.status in HITS
    folder = folder_of(scope) if is_hit else MISSES
    # Not from `random`: its sequence belongs to the job.
    return any(_add(backend, folder, secrets.randbelow(SLOTS) if number else 0, scope, sample)
               for number in range(_TRIES))  # fmt: skip


def _add(backend: Backend, folder: str, slot: int, scope: Scope, sample: Sample) -> bool:
    numbers = _numbers(backend, folder).get(slot, [])
    newest = max(numbers, default=0)
    try:
        page = _read(backend, f"{folder}/{slot}.{newest}") if newest else Page()
    except (FileNotFoundError, _Newer):
        return False
    page.add_sample(scope, sample)
    page.marks.append(mark := secrets.token_hex(4))
    if not backend.put_if_absent(f"{folder}/{slot}.{newest + 1}", page.dump()):
        return False
    is_there = _is_kept(backend, folder, slot, newest + 1, mark)
    for number in numbers if is_there else [newest + 1]:
        backend.delete(f"{folder}/{slot}.{number}")
    return is_there


def _is_kept(backend: Backend, folder: str, slot: int, number: int, mark: str) -> bool:
    """Whether the page that was just made is the newest one, or the newest one has grown from it."""
    numbers = _numbers(backend, folder).get(slot, [])
    with suppress(_Newer):
        return max(numbers, default=0) <= number or mark in _read_newest(backend, folder, slot, numbers).marks
    return True


def read_hits(backend: Backend, scope: Scope) -> Totals:
    """What the restores of a scope add up to, without its misses."""
    return _read_folder(backend, folder_of(scope)).scopes.get(scope, Totals())


def read_misses(backend: Backend) -> dict[Scope, Totals]:
    """What was requested and not published, by scope."""
    return _read_folder(backend, MISSES).scopes


def _read_folder(backend: Backend, folder: str) -> Page:
    found = Page()
    for slot, numbers in _numbers(backend, folder).items():
        with suppress(_Newer):
            found.add(_read_newest(backend, folder, slot, numbers))
    return found


def _read_newest(backend: Backend, folder: str, slot: int, numbers: list[int]) -> Page:
    for _ in range(_TRIES):
        if not numbers:
            break
        try:
            return _read(backend, f"{folder}/{slot}.{max(numbers)}")
        except FileNotFoundError:  # somebody has added to it since
            numbers = _numbers(backend, folder).get(slot, [])
    return Page()


def _read(backend: Backend, name: str) -> Page:
    """Read a page. If it is damaged, and was not merely read badly, it counts as empty."""
    for _ in range(2):
        if page := load_page(backend.get(name, 0, _LARGEST_PAGE)):
            return page
    return Page()


def _numbers(backend: Backend, folder: str) -> dict[int, list[int]]:
    """Slot → the numbers that exist, usually one."""
    found: dict[int, list[int]] = {}
    for child in backend.list(folder):
        match = _NAME.fullmatch(child.name)
        if match and not child.is_folder and int(match[1]) < SLOTS:
            found.setdefault(int(match[1]), []).append(int(match[2]))
    return found


def sweep_stats(backend: Backend, is_there: Callable[[Scope], bool]) -> None:
    """Remove what was counted for scopes that no longer exist; what cannot be removed stays."""
    with _passing_over_trouble():
        for scope in _scopes(backend):
            if not is_there(scope):
                _remove(backend, folder_of(scope))


def _remove(backend: Backend, folder: str) -> None:
    with _passing_over_trouble():
        for child in list(backend.list(folder)):
            backend.delete(f"{folder}/{child.name}")


@contextmanager
def _passing_over_trouble() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        log.debug("statistics cannot be removed: %s", error)


def _scopes(backend: Backend) -> Iterator[Scope]:
    for child in backend.list(FOLDER):
        if child.is_folder and not child.name.startswith("@"):
            yield from walk_scopes(backend.list, FOLDER, child.name)
