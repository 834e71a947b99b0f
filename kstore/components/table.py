"""Reads the component table and answers what its rules say about a path."""

from __future__ import annotations

import os
import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from kstore.digest import digest_of
from kstore.errors import UsageError
from kstore.lazy import cached_property
from kstore.packaged import read_packaged
from kstore.published.manifest import GROUP, HOST, LINK, MERGE, MTIME, NEVER_LINKED, RELOCATE, SLOT, is_list

KSTORE_FOLDER = ".kstore"
"""kstore's own folder in a cache root or a component: never an artifact."""

_RULES = (
    "ignore", "busy", "group", "complete", "slot", "immutable", "mutable", "host_bound", "mtime", "lists",
    "stream",
)  # fmt: skip
_NAMED_RULES = ("merge", "relocate", "lock", "waits")
_UNSAID = {"complete": ("*",)}
_MUTABLE, _LOCK, _UNUSUAL, _STREAM = 1 << 16, 1 << 17, 1 << 18, 1 << 19
"""Flags beside those of manifests."""
_OWN = _MUTABLE | _LOCK | _UNUSUAL | _STREAM
_FLAGS = (
    ("immutable", LINK), ("host_bound", HOST), ("mtime", MTIME), ("merge", MERGE), ("relocate", RELOCATE),
    ("mutable", _MUTABLE), ("lock", _LOCK), ("ignore", _UNUSUAL), ("busy", _UNUSUAL), ("stream", _STREAM),
)  # fmt: skip
_ANY_FOLDERS = r"(?>(?:.*/(?=[^/]+/?\Z))?)"
"""Everything but the last part of a path. There is only one way to match that, so nothing is tried twice."""
_WILDCARDS = {
    "/**/": "/(?:.*/)?", "**/": "(?:.*/)?", "/**": "/.*", "*": "[^/]*", "?": "[^/]", "[0-9]": "[0-9]",
    "[0-9a-f]": "[0-9a-f]",
}  # fmt: skip
_WILDCARD = re.compile(f"({'|'.join(map(re.escape, _WILDCARDS))})")
_TEXTS = {
    "title": "", "variable": "", "value": "{folder}", "default": "", "pinned": "", "pinned_by": "", "within": "",
}  # fmt: skip


class Kind(NamedTuple):
    """What the table says about one file."""

    flags: int
    unit: int
    """How many leading parts of its path, including the component's name, name its group or slot; 0 for none."""
    has_lock: bool
    """Whether its writer holds a lock."""
    is_unusual: bool
    """Whether it is ignored, or shows that a group is being written."""
    is_stream: bool
    """Whether its end shows that it is whole."""
    is_list: bool
    """Whether it says which files are beside it."""


class Patterns:
    """Matches a path that any of some `.gitignore`-like patterns matches; without patterns, matches nothing.

    A worker uses few of the table's patterns: they become an expression when needed.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = tuple(patterns)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._patterns)

    def by_start(self) -> Mapping[str, str]:
        """Expressions that together match what the patterns match: for each start that some share, one
        expression for everything that may follow it.
        """
        ends = defaultdict[str, list[str]](list)
        for pattern in self._patterns:
            start, end = _parts(pattern)
            ends[start].append(end)
        return {start: f"(?:{'|'.join(ends[start])})" for start in ends}

    @property
    def text(self) -> str:
        """A regular expression for all of them."""
        return "|".join(f"{start}{end}" for start, end in self.by_start().items()) or r"(?!)"

    @cached_property
    def fullmatch(self) -> Callable[[str], object]:
        """Match a path below the component's folder, with a final "/" for a folder; false if no pattern matches."""
        return re.compile(self.text).fullmatch if self._patterns else _no_match

    def matches(self, path: str) -> bool:
        """Whether such a path matches."""
        return bool(self.fullmatch(path))


def _no_match(path: str) -> None:
    pass


class Kinds:
    """What the rules on single files say about one: all in one match, because a tree has ten thousand files."""

    def __init__(self, rules: Iterable[tuple[Patterns, int]]) -> None:
        self._rules = tuple(rules)
        self._known: dict[tuple[tuple[str | None, ...], int, int], Kind] = {}

    @cached_property
    def _parts(self) -> Mapping[str, list[tuple[str, int]]]:
        """Start → expressions for what may follow it, and what each one means."""
        parts = defaultdict[str, list[tuple[str, int]]](list)
        for patterns, flag in self._rules:
            for start, end in patterns.by_start().items():
                parts[start].append((end, flag))
        return parts

    @cached_property
    def _match(self) -> Callable[[str], re.Match[str] | None]:
        """Match a path. There is a group for each of the parts: empty if that part matches the whole path, else None. A
        start that several parts share is matched once: however it matches, it leaves the last part of the path.
        """
        ends = {start: "".join(rf"(?=(?:{end}\Z())?)" for end, _ in parts) for start, parts in self._parts.items()}
        return re.compile("".join(f"(?=(?:{start}{end})?)" for start, end in ends.items())).match

    def of(self, path: str, unit: int, depth: int) -> Kind:
        """See `Component.kind`."""
        match = self._match(path)
        assert match  # Every rule may fail.
        found = match.groups(), unit, depth
        return self._known.get(found) or self._known.setdefault(found, self._judge(*found))

    def _judge(self, groups: tuple[str | None, ...], unit: int, depth: int) -> Kind:
        flags = unit
        for (_, flag), group in zip(chain.from_iterable(self._parts.values()), groups, strict=True):
            flags |= flag if group is not None else 0
        if flags & (NEVER_LINKED | _MUTABLE):
            flags &= ~LINK
        has_lock, is_unusual, is_stream = bool(flags & _LOCK), bool(flags & _UNUSUAL), bool(flags & _STREAM)
        flags &= ~_OWN
        return Kind(flags, depth + 1 if unit else 0, has_lock, is_unusual, is_stream, is_list(flags))


@dataclass(frozen=True, slots=True)
class Component:
    """One JIT cache: where it lives and the rules for its files. See `components.toml` for their meaning."""

    name: str
    title: str
    variable: str
    value: str
    default: str
    pinned: str
    pinned_by: str
    within: str
    along: Mapping[str, str]
    """Other variables, and what they are set to along with it, if nobody has set them."""
    several: tuple[str, ...]
    rules: Mapping[str, Patterns] = field(repr=False)
    named: Mapping[str, tuple[tuple[Patterns, str], ...]] = field(repr=False)
    holds: tuple[tuple[Patterns, str], ...] = field(repr=False)
    """Folders that are another component's cache, and that component."""
    kinds: Kinds = field(repr=False)

    def is_left_alone(self, environ: Mapping[str, str]) -> bool:
        """Whether kstore does not choose its place, because a process with these variables is one of several."""
        return any(environ.get(name) not in (None, "", "1") for name in self.several)

    @property
    def is_folder(self) -> bool:
        """Whether the variable names a folder, not a file."""
        return self.value == "{folder}"

    @property
    def is_loaded(self) -> bool:
        """Whether programs load code from its folder as the linker does, which a filesystem may forbid (noexec)."""
        return bool(self.rules["host_bound"])

    def part_of(self, folder: str) -> str:
        """Where the cache is within the folder that the variable names."""
        return os.path.join(folder, self.within).rstrip("/")

    def ignores(self, path: str) -> bool:
        """Whether a path below the component's folder is never stored; folders are given with a final "/"."""
        return self.rules["ignore"].matches(path)

    def unit(self, folder: str) -> int:
        """Whether a folder, given with a final "/", is a group (`Flag.GROUP`), a slot (`Flag.SLOT`) or neither (0)."""
        if self.rules["group"].matches(folder):
            return GROUP
        return SLOT if self.rules["slot"].matches(folder) else 0

    def is_busy(self, path: str) -> bool:
        """Whether something in a group shows that the group is being written; folders are given with a final "/"."""
        return self.rules["busy"].matches(path)

    def completes(self, path: str) -> bool:
        """Whether a file finishes its group."""
        return self.rules["complete"].matches(path)

    def kind(self, path: str, unit: int, depth: int) -> Kind:
        """What the rules say about a file in a unit (`Flag.GROUP`, `Flag.SLOT` or 0) that is `depth` folders deep."""
        return self.kinds.of(path, unit, depth)

    def lists(self, path: str) -> bool:
        """Whether a file is a list of files beside it, none of which may be missing."""
        return self.rules["lists"].matches(path)

    def held(self, folder: str) -> str | None:
        """The component whose cache a folder is; None if it is none's. The folder is given with a final "/"."""
        return next((name for pattern, name in self.holds if pattern.matches(folder)), None)

    def method(self, rule: str, path: str) -> str | None:
        """What a named rule (`merge`, `relocate`, `lock`, `waits`) says about a path."""
        for pattern, method in self.named[rule]:
            if pattern.fullmatch(path):
                return method
        return None


Table = Mapping[str, Component]


def method_of(table: Table, rule: str, path: str) -> str | None:
    """What a named rule says about an artifact path, which begins with a component's name; None if that is unknown."""
    name, _, inside = path.partition("/")
    component = table.get(name)
    return component.method(rule, inside) if component else None


@cache
def load_table() -> Table:
    """The components that this version knows, in the table's order."""
    return parse_table(_table_text())


@cache
def table_version() -> str:
    """Names the table's content: what was learnt under other rules means nothing."""
    return digest_of(_table_text().encode()).hex()[:16]


def _table_text() -> str:
    return read_packaged(__package__, "components.toml").decode()


def parse_table(text: str) -> Table:
    """Components from TOML.

    Raises:
        UsageError: a rule is unknown or malformed.
    """
    entries = tomllib.loads(text)
    for name, entry in entries.items():
        unknown = set(entry) - set(_RULES) - set(_NAMED_RULES) - set(_TEXTS) - {"holds", "along", "several"}
        if unknown:
            raise UsageError(f"component {name!r} has unknown rules: {', '.join(sorted(unknown))}")
    return {name: _component(name, _with_held(entry, entries)) for name, entry in entries.items()}


def _with_held(entry: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """An entry with the rules of the components that it holds, each for its own folder.

    Raises:
        UsageError: it holds a component that does not exist.
    """
    merged = dict(entry)
    for folder, name in entry.get("holds", {}).items():
        held = entries.get(name)
        if held is None:
            raise UsageError(f"{folder} holds a component that does not exist: {name!r}")
        for rule in (r for r in _RULES if r in held):
            merged[rule] = [*merged.get(rule, ()), *(_below(folder, pattern) for pattern in held[rule])]
        for rule in (r for r in _NAMED_RULES if r in held):
            merged[rule] = merged.get(rule, {}) | {_below(folder, p): method for p, method in held[rule].items()}
    return merged


def _below(folder: str, pattern: str) -> str:
    """A component's pattern, for its cache in `folder` of another component."""
    is_anchored = "/" in pattern.rstrip("/")
    return folder + ("" if is_anchored else "**/") + pattern.lstrip("/")


def _component(name: str, entry: Mapping[str, Any]) -> Component:
    texts = {key: str(entry.get(key, fallback)) for key, fallback in _TEXTS.items()}
    return Component(
        name=name,
        along=dict(entry.get("along", {})),
        several=tuple(entry.get("several", ())),
        rules={rule: Patterns(entry.get(rule, _UNSAID.get(rule, ()))) for rule in _RULES},
        named={
            rule: tuple((Patterns([p]), method) for p, method in entry.get(rule, {}).items()) for rule in _NAMED_RULES
        },
        holds=tuple((Patterns([folder]), held) for folder, held in entry.get("holds", {}).items()),
        kinds=Kinds((Patterns(entry[rule]), flag) for rule, flag in _FLAGS if entry.get(rule)),
        **texts,
    )


def _parts(pattern: str) -> tuple[str, str]:
    """The start of a pattern, which many have in common and which is matched once for all of them, and the rest."""
    body = pattern.strip("/")
    start, deep, name = body.rpartition("**/") if "/" in pattern.rstrip("/") else ("", "**/", body)
    end = "/" if pattern.endswith("/") else ""
    above = _expression(start)
    if not deep or "/" in name or (above and not above.endswith("/")):
        return "", _expression(body) + end
    return above + _ANY_FOLDERS, _expression(name) + end


def _expression(text: str) -> str:
    return "".join(_WILDCARDS.get(piece) or re.escape(piece) for piece in _WILDCARD.split(text))
