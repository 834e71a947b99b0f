"""What a report shows, as plain data. All text in it comes from a store, and may be anything."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kstore import __version__
from kstore.gc import GcReport
from kstore.progress import Progress
from kstore.published.manifest import Manifest
from kstore.report import Count, count_components
from kstore.scope import Scope
from kstore.stats.accounts import OTHER, Accounts, Holding, holdings, readable_scopes
from kstore.stats.overview import Overview, Shelf, overview_with
from kstore.stats.totals import Sample
from kstore.storage import Storage

COMPARED = 40
"""Shelves in the table of what is shared: the largest ones."""
_MOST_FACTS = 24
_MOST_COMPONENTS = 64
"""More than there are, but a manifest may name any number: the largest are shown, the others together."""
_LONGEST = 200
"""Characters of a text."""

Table = dict[str, Any]


@dataclass(slots=True)
class _Kept:
    """What is shown about one scope."""

    generations: list[Table] = field(default_factory=list)
    """Oldest first."""
    facts: Mapping[str, str] = field(default_factory=dict)
    hosts: int = 0
    """For how many hosts the newest generation has files of their own."""

    def add(self, holding: Holding) -> None:
        ref, manifest = holding.ref, holding.manifest
        self.generations.append({
            "number": ref.generation, "created": ref.created,
            "creator": _short(ref.creator), "state": ref.state,
            "pinned": holding.is_pinned, "components": _components(manifest),
            "effort": ref.effort._asdict() if ref.effort else None,
        })  # fmt: skip
        self.facts, self.hosts = _facts(manifest.meta) or self.facts, len(manifest.hosts)


def collect_facts(storage: Storage, candidates: GcReport | None, progress: Progress | None = None) -> Table:
    """Read everything that a report shows. `candidates` is what gc would do; None if gc may not be asked.

    Raises:
        OSError: the store cannot be read.
    """
    kept: dict[Scope, _Kept] = {}
    with Accounts(storage, Shelf.of) as accounts:
        unreadable = accounts.space.unreadable
        for holding in holdings(storage, readable_scopes(storage, None, unreadable), unreadable, progress):
            kept.setdefault(holding.ref.scope, _Kept()).add(holding)
            accounts.add(holding)
        space = accounts.finish()
        largest = sorted(space.groups, key=lambda shelf: -space.groups[shelf].unique)[:COMPARED]
        sharing = _sharing(accounts, largest)
    found = overview_with(storage, space, kept)
    return {
        "store": found.store,
        "made": time.time(),
        "version": __version__,
        "total": {**found.whole.as_json(), "alone": space.whole.alone, "unneeded": space.unneeded.bytes},
        "keys": _keys(found),
        "scopes": [{**scope.describe(), **asdict(one)} for scope, one in kept.items()],
        "sharing": {"keys": [shelf._asdict() for shelf in largest], "pairs": sharing},
        "restores": _restores(found, kept),
        "gc": _candidates(candidates) if candidates else None,
        "unreadable": [_short(text) for text in space.unreadable],
    }


def _keys(found: Overview) -> list[Table]:
    return [
        {
            **shelf._asdict(), "hits": row.restores.hits, "misses": row.restores.misses,
            "seeded": row.restores.seeded, "stored": row.held.stored, "alone": row.held.alone,
            "published": row.held.published,
        }
        for shelf, row in found.rows.items()
    ]  # fmt: skip


def _sharing(accounts: Accounts[Shelf], shelves: Iterable[Shelf]) -> list[list[Any]]:
    """[row, column, component, bytes]: what two shelves both have, or, if row and column are the same, what one has."""
    numbers = {shelf: number for number, shelf in enumerate(shelves)}
    pairs = Counter[tuple[int, int, str]]()
    sizes = Counter[str]()
    for groups, component, size in accounts.blobs():
        sizes[component] += size
        having = sorted(numbers[shelf] for shelf in groups if shelf in numbers)
        for position, row in enumerate(having):
            for column in having[position:]:
                pairs[row, column, component] += size
    shown, told = _shown(sizes), Counter[tuple[int, int, str]]()
    for (row, column, component), size in pairs.items():
        told[row, column, shown[component]] += size
    return [[*place, size] for place, size in told.items()]


def _components(manifest: Manifest) -> Table:
    """Number and bytes of the artifacts of each component."""
    counts = count_components(*manifest.sets)
    shown = _shown({name: count.bytes for name, count in counts.items()})
    told = defaultdict[str, Count](Count)
    for name, count in counts.items():
        told[shown[name]] += count
    return {name: [count.files, count.bytes] for name, count in told.items()}


def _shown(sizes: Mapping[str, int]) -> dict[str, str]:
    """What the page calls each component: the largest by their names, all others alike."""
    largest = sorted(sizes, key=lambda name: -sizes[name])[:_MOST_COMPONENTS]
    return dict.fromkeys(sizes, OTHER) | {name: _short(name) for name in largest}


def _restores(overview: Overview, scopes: Iterable[Scope]) -> list[Table]:
    """The slowest known restores of each scope, the slowest of all first."""
    each = ((scope, overview.restores[scope]) for scope in scopes if scope in overview.restores)
    found = [(scope, sample) for scope, restores in each for sample in restores.slowest]
    found.sort(key=lambda item: -item[1].seconds)
    return [{**scope.describe(), **_sample(sample)} for scope, sample in found]


def _sample(sample: Sample) -> Table:
    return {name: _short(value) if isinstance(value, str) else value for name, value in asdict(sample).items()}


def _candidates(report: GcReport) -> Table:
    rows = [
        {**d.scope.describe(), "number": d.generation.number, "why": str(d.why)}
        for d in report.decisions
        if not d.stays
    ]
    return {"rows": rows, "deleted": report.deleted.bytes, "condemned": report.condemned.bytes,
            "waiting": report.waiting.bytes, "grace": report.grace}  # fmt: skip


def _facts(meta: Mapping[str, Any]) -> dict[str, str]:
    environment = meta.get("environment")
    if not isinstance(environment, dict):
        return {}
    return {_short(str(name)): _short(str(value)) for name, value in list(environment.items())[:_MOST_FACTS]}


def _short(text: str) -> str:
    """A text that is not too long, without halves of characters, which no file can hold."""
    return text[:_LONGEST].encode("utf-8", "replace").decode()
