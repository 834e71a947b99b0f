"""Compares what two generations, or a generation and a cache root, hold. Nothing here prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from kstore.inspect.choice import Wanted, choose_one, choose_two
from kstore.inspect.contents import read_codes, read_contents
from kstore.inspect.items import Item, Items, items_of
from kstore.inspect.kernels import MAIN_OPTIONS, Value
from kstore.inspect.kinds import Kind
from kstore.inspect.pairing import Named, Pair, pair_items
from kstore.inspect.sides import HOSTS, Side, local_side, published_side
from kstore.report import Count

if TYPE_CHECKING:
    from kstore.store import Store

_KEYED = {Kind.FX_GRAPH, Kind.AOT_ENTRY, Kind.TRITON_KERNEL, Kind.TRITON_HELPER, Kind.CPP_KERNEL}
"""Kinds whose paths hold the compiler's own key, so that the same path is the same question."""
_SLOTS = {Kind.FX_GRAPH, Kind.AOT_ENTRY}
_KIND_ORDER = {kind: position for position, kind in enumerate(Kind)}


class Change(StrEnum):
    """How an item differs, in the order of a report."""

    CHANGED = "changed"
    """Both sides have one of this name or path, and they do not mean the same."""
    REMOVED = "removed"
    """Only the left side has it."""
    ADDED = "added"
    """Only the right side has it."""
    MOVED = "moved"
    """The same bytes are under another path."""
    REBUILT = "rebuilt"
    """The compiler's key is the same, so either is a hit, but the bytes differ: no two builds of a graph are alike."""


_CHANGE_ORDER = {change: position for position, change in enumerate(Change)}


class Field(NamedTuple):
    """One value that differs."""

    name: str
    left: Value
    """None if that side does not have it."""
    right: Value


@dataclass(frozen=True, slots=True)
class Difference:
    """One item that is not the same on both sides."""

    change: Change
    kind: Kind
    name: str
    """The kernel's; the graph's key; else the path."""
    left: Item | None
    right: Item | None
    fields: tuple[Field, ...] = ()
    """The parts of its configuration that differ; the main ones if only one side has the item."""
    files: tuple[str, ...] = ()
    """Names of its files that differ, if both sides have the item."""
    calls: tuple[str, ...] = ()
    """The kernels that it calls, if it is a generated module."""
    other_code: bool | None = None
    """For a changed Triton kernel, whether its code is different, or only comes from another line or path. None if the
    source is the same to the byte, or cannot be read.
    """

    @property
    def item(self) -> Item:
        """The right item if there is one, else the left one."""
        item = self.right or self.left
        assert item
        return item

    @property
    def component(self) -> str:
        """The JIT cache that it belongs to."""
        return self.item.component

    def describe(self) -> dict[str, Any]:
        """For machines."""
        return {
            "change": self.change,
            "component": self.component,
            "kind": self.kind,
            "name": self.name,
            "left": self.left.unit if self.left else None,
            "right": self.right.unit if self.right else None,
            "fields": [field._asdict() for field in self.fields],
            "files": list(self.files),
            "calls": list(self.calls),
            "other_code": self.other_code,
        }


@dataclass(slots=True)
class Tally:
    """How many items of a component and kind differ, and how."""

    component: str
    kind: Kind
    same: int = 0
    different: dict[Change, int] = field(default_factory=lambda: dict.fromkeys(Change, 0))

    def describe(self) -> dict[str, Any]:
        """For machines."""
        return {"component": self.component, "kind": self.kind, "same": self.same} | dict(self.different)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that two sides have in common, and everything in which they differ."""

    left: Side
    right: Side
    tallies: tuple[Tally, ...]
    differences: tuple[Difference, ...]
    facts: tuple[Field, ...]
    """What differs in the software, the hosts and the paths that they were built with."""
    shared: Count
    """Distinct blobs that both have, with their bytes."""
    only_left: Count
    only_right: Count
    unread: int = 0
    """Items that nothing more is known about, because the file that would tell is missing, too large, or broken."""

    @property
    def differ(self) -> bool:
        """Whether any artifact differs."""
        return bool(self.differences)

    def counterpart(self, path: str) -> str | None:
        """Where the other side has what one side has at `path`, if that belongs to an item that differs."""
        for difference in self.differences:
            if difference.left and difference.right:
                for one, other in ((difference.left, difference.right), (difference.right, difference.left)):
                    if found := _same_part(one, other, path):
                        return found
        return None


def compare(store: Store, left: str | Wanted, right: str | Wanted | None = None) -> Comparison:
    """Compare two generations, given as `KEY` or `KEY@GENERATION`; or one with this node's cache root of its key.

    If a key has several GPUs and environments, the two that have the most in common are compared; if there are several
    such pairs, this worker's own. A `Wanted` chooses.

    Raises:
        MissError: nothing is published there, or there is no cache root.
        AmbiguousScopeError: several are meant.
        IntegrityError: a manifest is lost.
        StoreUnavailable: the store cannot be read.
    """
    return compare_sides(*find_sides(store, left, right))


def find_sides(store: Store, left: str | Wanted, right: str | Wanted | None) -> tuple[Side, Side]:
    """The two sides that `compare` compares; raises the same errors."""
    one = Wanted.parse(left) if isinstance(left, str) else left
    other = Wanted.parse(right) if isinstance(right, str) else right
    if other is not None:
        ours, theirs = choose_two(store, one, other)
        return published_side(store, ours), published_side(store, theirs)
    published = published_side(store, choose_one(store, one))
    local = local_side(store, published.scope, ask_host=any(artifact.host for artifact in published.artifacts))
    return published.for_host(local.facts.get(HOSTS, "")), local


def compare_sides(left: Side, right: Side) -> Comparison:
    """Compare two sides, reading only the small files of what differs."""
    lefts, rights = items_of(left.artifacts), items_of(right.artifacts)
    same = {key for key, item in lefts.items() if key in rights and rights[key].parts == item.parts}
    ours = _read(lefts, same, left)
    theirs = _read(rights, same, right)
    found = [_difference(pair) for pair in pair_items(ours, theirs)]
    differences = tuple(sorted(_with_codes(found, left, right), key=_order))
    one, other = left.blobs, right.blobs
    return Comparison(
        left=left,
        right=right,
        tallies=_tally(same, differences),
        differences=differences,
        facts=tuple(_differing(left.facts, right.facts, only_common=True)),
        shared=Count.of([size for digest, size in one.items() if digest in other]),
        only_left=Count.of([size for digest, size in one.items() if digest not in other]),
        only_right=Count.of([size for digest, size in other.items() if digest not in one]),
        unread=sum(not named.content.is_readable for named in (*ours, *theirs)),
    )


def _read(items: Items, same: set[tuple[Kind, str]], side: Side) -> list[Named]:
    rest = [item for key, item in items.items() if key not in same]
    contents = read_contents(items, rest, side.fetch)
    return [Named(item, contents[item]) for item in rest]


def _with_codes(differences: list[Difference], left: Side, right: Side) -> list[Difference]:
    """Look into the code of the kernels that changed, if its bytes changed."""
    pairs = [(found.left, found.right) for found in differences if _may_have_other_code(found)]
    ours = read_codes([one for one, _ in pairs if one], left.fetch)
    theirs = read_codes([other for _, other in pairs if other], right.fetch)
    return [
        replace(found, other_code=ours[found.left] != theirs[found.right])
        if found.left in ours and found.right in theirs
        else found
        for found in differences
    ]


def _may_have_other_code(found: Difference) -> bool:
    if found.kind is not Kind.TRITON_KERNEL or found.change is not Change.CHANGED:
        return False
    assert found.left and found.right
    one, other = found.left.code(), found.right.code()
    return bool(one and other and one.digest != other.digest)


def _difference(pair: Pair) -> Difference:
    left, right = pair
    named = right or left
    assert named
    if left and right:
        fields = tuple(_fields(left, right))
        files = tuple(_files(left.item, right.item))
        change = _change(left, right, bool(fields))
    else:
        change = Change.ADDED if right else Change.REMOVED
        fields, files = tuple(_main_options(named.item.kind, left, right)), ()
    items = (left.item if left else None, right.item if right else None)
    return Difference(change, named.item.kind, named.name, *items, fields, files, named.content.calls)


def _change(left: Named, right: Named, is_configured_otherwise: bool) -> Change:
    if left.item.unit != right.item.unit and left.item.substance == right.item.substance:
        return Change.MOVED
    is_same_key = left.item.kind in _KEYED and (left.item.unit == right.item.unit or left.item.kind in _SLOTS)
    return Change.REBUILT if is_same_key and not is_configured_otherwise else Change.CHANGED


def _fields(left: Named, right: Named) -> Iterator[Field]:
    if left.content.is_readable and right.content.is_readable:
        yield from _differing(left.content.configuration, right.content.configuration)
    if left.item.kind in _SLOTS and len(left.item.parts) != len(right.item.parts):
        yield Field("entries", len(left.item.parts), len(right.item.parts))
    if left.item.hosts != right.item.hosts:
        yield Field("host", " ".join(sorted(left.item.hosts)), " ".join(sorted(right.item.hosts)))


def _differing(left: Mapping[str, Value], right: Mapping[str, Value], *, only_common: bool = False) -> Iterator[Field]:
    for name in dict.fromkeys((*left, *right)):
        is_common = name in left and name in right
        if (is_common or not only_common) and left.get(name) != right.get(name):
            yield Field(name, left.get(name), right.get(name))


def _main_options(kind: Kind, left: Named | None, right: Named | None) -> Iterator[Field]:
    one, other = (named.content.configuration if named else {} for named in (left, right))
    for name in dict.fromkeys((*one, *other)):
        if kind is not Kind.TRITON_KERNEL or name in MAIN_OPTIONS:
            yield Field(name, one.get(name), other.get(name))


def _files(left: Item, right: Item) -> Iterator[str]:
    """Names of the files that differ; none for slots, whose files are named by content."""
    if left.kind in _SLOTS:
        return
    digests: dict[str, list[set[bytes]]] = {}
    for position, item in enumerate((left, right)):
        for part in item.parts:
            digests.setdefault(part.name, [set(), set()])[position].add(part.digest)
    yield from sorted(name for name, (one, other) in digests.items() if name and one != other)


def _same_part(one: Item, other: Item, path: str) -> str | None:
    name = next((part.name for part in one.parts if one.path(part) == path), None)
    return next((other.path(part) for part in other.parts if part.name == name), None)


def _order(difference: Difference) -> tuple[object, ...]:
    return (_KIND_ORDER[difference.kind], _CHANGE_ORDER[difference.change], difference.name, difference.item.unit)


def _tally(same: set[tuple[Kind, str]], differences: Iterable[Difference]) -> tuple[Tally, ...]:
    tallies: dict[tuple[str, Kind], Tally] = {}
    for kind, unit in same:
        component = unit.partition("/")[0]
        tallies.setdefault((component, kind), Tally(component, kind)).same += 1
    for difference in differences:
        key = (difference.component, difference.kind)
        tallies.setdefault(key, Tally(*key)).different[difference.change] += 1
    return tuple(sorted(tallies.values(), key=lambda tally: (tally.component, _KIND_ORDER[tally.kind])))
