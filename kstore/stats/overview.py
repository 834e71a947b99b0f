"""Everything that is known about a store's use, by GPU and key: restores, commits, bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, NamedTuple

from kstore.errors import IntegrityError, MissError, StoreFormatError, reason_of
from kstore.far import ask_each
from kstore.progress import Progress
from kstore.published.layers import scopes_below
from kstore.published.ref import Ref
from kstore.scope import Scope
from kstore.stats.accounts import readable_scopes, space_of
from kstore.stats.pages import read_hits, read_misses
from kstore.stats.space import Held, Space, some_of
from kstore.stats.totals import Totals, sum_of
from kstore.storage import Storage


class Shelf(NamedTuple):
    """One GPU and one key; its environments are taken together."""

    gpu: str
    key: str

    @classmethod
    def of(cls, scope: Scope) -> Shelf:
        """Where a scope belongs."""
        return cls(scope.gpu, scope.key)


@dataclass(slots=True)
class Commits:
    """What is known about the commits of one shelf, from the refs that are kept."""

    published: int = 0
    """Generations that were ever published, including empty ones and those that gc has removed."""
    timed: int = 0
    """Generations that say what it took to commit them."""
    seconds: float = 0.0
    """What they took altogether."""
    most: float = 0.0
    """The slowest of them, in seconds."""
    uploaded: int = 0
    """Bytes that they wrote to the store."""
    last: float = 0.0
    """When the newest was published, by the committer's clock; 0 if there is none."""

    def add(self, other: Commits) -> None:
        """Count others as well."""
        self.published += other.published
        self.timed += other.timed
        self.seconds += other.seconds
        self.most = max(self.most, other.most)
        self.uploaded += other.uploaded
        self.last = max(self.last, other.last)


@dataclass(slots=True)
class Row:
    """One shelf, or all of them."""

    restores: Totals = field(default_factory=Totals)
    commits: Commits = field(default_factory=Commits)
    held: Held = field(default_factory=Held)
    environments: int = 0

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        restores = self.restores
        return {
            "hits": restores.hits,
            "misses": restores.misses,
            "seeded": restores.seeded,
            "environments": self.environments,
            "restores": restores.as_json(),
            "commits": asdict(self.commits),
            "generations": self.held.generations,
            **{name: getattr(self.held, name) for name in ("artifacts", "unique", "manifests", "elsewhere", "stored")},
            "deduplicated": self.held.deduplicated,
            "compressed": self.held.compressed,
        }


@dataclass(slots=True)
class Overview:
    """What is known about the use of a store, or of one key."""

    store: str
    key: str | None
    rows: dict[Shelf, Row]
    whole: Row
    unreadable: list[str]
    restores: Mapping[Scope, Totals] = field(default_factory=dict)
    """Of each scope, hits and misses."""

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        rows = [{**shelf._asdict(), **row.as_json()} for shelf, row in self.rows.items()]
        return {"store": self.store, "key": self.key, "total": self.whole.as_json(), "keys": rows,
                "unreadable": self.unreadable}  # fmt: skip


def overview(storage: Storage, key: str | None = None, progress: Progress | None = None) -> Overview:
    """Read what a store says about its use; about one key alone, if given. Nothing is written.

    Raises:
        OSError: the store cannot be read.
    """
    space = space_of(storage, Shelf.of, key, progress)
    return overview_with(storage, space, readable_scopes(storage, key, []), key)


def overview_with(storage: Storage, space: Space[Shelf], scopes: Iterable[Scope], key: str | None = None) -> Overview:
    """The same as `overview`, if the bytes of these scopes have been counted already."""
    misses = {s: totals for s, totals in _misses(storage, space.unreadable).items() if key in (None, s.key)}
    # A restore of what only an image has is counted in the first store.
    elsewhere = dict.fromkeys((*misses, *scopes_below(storage, key)))
    commits = _commits(storage, dict.fromkeys(scopes), elsewhere, space.unreadable)
    restores = _restores(storage, commits, misses, space.unreadable)
    rows: dict[Shelf, Row] = {}
    for scope, one in commits.items():
        if not (one.published or restores[scope].restores):
            continue  # A commit that failed has left an empty folder, or it is below and nobody has restored it.
        row = rows.setdefault(Shelf.of(scope), Row(held=space.groups.get(Shelf.of(scope), Held())))
        row.environments += 1
        row.restores.add(restores[scope])
        row.commits.add(one)
    whole = Row(sum_of(row.restores for row in rows.values()), held=space.whole)
    for row in rows.values():
        whole.environments += row.environments
        whole.commits.add(row.commits)
    return Overview(storage.location, key, dict(sorted(rows.items(), key=lambda item: item[0][::-1])), whole,
                    space.unreadable, restores)  # fmt: skip


def _misses(storage: Storage, unreadable: list[str]) -> dict[Scope, Totals]:
    try:
        return read_misses(storage.backend)
    except OSError as error:
        unreadable.append(f"the misses: {reason_of(error)}")
        return {}


def _commits(
    storage: Storage, listed: Mapping[Scope, None], elsewhere: Iterable[Scope], unreadable: list[str]
) -> dict[Scope, Commits]:
    """The commits of all scopes whose refs can be listed; most often it is known already why others cannot be.

    What is `elsewhere` was missed, or is in a store below, and need not be in this one.
    """
    commits: dict[Scope, Commits] = {}
    every = (*listed, *(scope for scope in elsewhere if scope not in listed))
    for scope, answer in ask_each(partial(_commits_of, storage), every):
        try:
            commits[scope] = answer()
        except OSError as error:
            trouble = f"{scope}: {reason_of(error)}"
            # What is elsewhere may be in a folder that hides many scopes.
            if (scope in listed or not unreadable) and trouble not in unreadable:
                unreadable.append(trouble)
    return commits


def _restores(
    storage: Storage, scopes: Iterable[Scope], misses: Mapping[Scope, Totals], unreadable: list[str]
) -> dict[Scope, Totals]:
    """The restores of each scope, hits and misses."""
    restores: dict[Scope, Totals] = {}
    hidden: list[str] = []
    for scope, hits in ask_each(partial(read_hits, storage.backend), scopes):
        restores[scope] = sum_of([misses.get(scope, Totals())])
        try:
            restores[scope].add(hits())
        except OSError as error:
            hidden.append(f"the hits of {scope}: {reason_of(error)}")
    unreadable += some_of(hidden, "other scope")
    return restores


def _commits_of(storage: Storage, scope: Scope) -> Commits:
    commits = Commits()
    for number in storage.refs.generations(scope):
        commits.published = max(commits.published, number)
        with suppress(MissError, IntegrityError, StoreFormatError, OSError):  # `holdings` says of which one
            commits.add(_commit_of(storage.refs.get(scope, number)))
    return commits


def _commit_of(ref: Ref) -> Commits:
    """What one ref says."""
    if not (effort := ref.effort):
        return Commits(last=ref.created)
    return Commits(timed=1, seconds=effort.seconds, most=effort.seconds, uploaded=effort.uploaded, last=ref.created)
