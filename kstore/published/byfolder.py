"""Paths and what is known of each, in little memory. A hundred thousand artifacts are in a tenth as many folders, and
most of these have the same few names. So a folder's path is kept once, the names of a folder once for all folders that
have the same, and what is known of each file as a record, from which an object is made when it is asked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import (
    Callable,
    Collection,
    Container,
    ItemsView,
    Iterable,
    Iterator,
    MutableMapping,
    Sequence,
    Set,
    ValuesView,
)
from itertools import chain, compress, count, groupby, repeat
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar, overload

Value = TypeVar("Value")
Other = TypeVar("Other")

_FEW = 32
"""Names that are looked through one by one. A folder with more has a dict of them."""
_FOLDER, _NAME, _VALUE = itemgetter(0, 1), itemgetter(2), itemgetter(3)
_RECORDS = itemgetter(1)


class Form(NamedTuple, Generic[Value]):
    """How values are kept as records."""

    size: int
    """Bytes of each record."""
    pack: Callable[[Iterable[Value]], Iterator[bytes]]
    """Makes a record of each value."""
    unpack: Callable[[bytes | bytearray], Iterator[Value]]
    """The reverse, of records in a row."""


class Run(NamedTuple):
    """Some rows that are directly in one folder."""

    folder: str | None
    """None if they are in none."""
    names: Collection[str]
    records: bytes | bytearray
    """One after the other."""


class _Folder(NamedTuple):
    """What is directly in one folder."""

    names: tuple[str, ...] | dict[str, int]
    """In the order of their records; if there are many, each with the number of its record."""
    records: bytes | bytearray
    """One after the other. Only those of many names are ever changed in place."""


_NOTHING = _Folder((), b"")


class ByFolder(MutableMapping[str, Value]):
    """A mapping of paths to values, folder by folder."""

    def __init__(self, form: Form[Value], items: Iterable[tuple[str, Value]] = ()) -> None:
        """Begin with these `items`; see `put`."""
        self.form = form
        """How its values are kept."""
        self._count = 0
        self._folders: dict[str | None, _Folder] = {}
        """By the folder's path; None has the paths that are in none."""
        self._once: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.put(items)

    def copy(self) -> ByFolder[Value]:
        """The same paths and values, most of which are shared until one of the two is changed."""
        return self.seen_as(self.form)

    def seen_as(self, form: Form[Other]) -> ByFolder[Other]:
        """A copy whose records, which are of the same size, are other values."""
        other: ByFolder[Other] = ByFolder(form)
        other._count, other._once = self._count, self._once
        other._folders = {path: _apart(folder) for path, folder in self._folders.items()}
        return other

    def put(self, items: Iterable[tuple[str, Value]]) -> None:
        """Put these `items`, one folder after the other: they need not all be in memory."""
        parted = ((*path.rpartition("/"), value) for path, value in items)
        for folder, some in groupby(parted, _FOLDER):
            rows = [*some]
            self._put(_key(*folder), tuple(map(_NAME, rows)), b"".join(self.form.pack(map(_VALUE, rows))))

    def put_folder(self, path: str | None, names: tuple[str, ...], records: bytes | bytearray) -> None:
        """Put a record for each of these names in a folder, one after the other. They are not copied, or changed. None
        is for paths in no folder.
        """
        self._put(path, names, records)

    def put_records(self, paths: Sequence[str], records: bytes) -> list[Run]:
        """Put a record for each of these paths, one after the other. Returns the same in little memory."""
        size, end, runs = self.form.size, 0, list[Run]()
        for folder, some in groupby(map(str.rpartition, paths, repeat("/")), _FOLDER):
            names = tuple(map(_NAME, some))
            start, end = end, end + len(names) * size
            runs.append(Run(_key(*folder), self._once.get(names, names), records[start:end]))
            self._put(runs[-1].folder, names, runs[-1].records)
        return runs

    def _put(self, key: str | None, names: tuple[str, ...], records: bytes | bytearray) -> None:
        there = self._folders.get(key)
        if there is None and (names in self._once or len(names) == len({*names})):
            self._begin(key, names, records)
        else:
            self._join(key, there or _NOTHING, names, records)

    def _begin(self, key: str | None, names: tuple[str, ...], records: bytes | bytearray) -> None:
        """Put a folder that is not there, with names that are all different."""
        if len(names) > _FEW:
            self._folders[key] = _Folder(dict(zip(names, count())), bytearray(records))
        elif names:
            self._folders[key] = _Folder(self._once.setdefault(names, names), records)
        self._count += len(names)

    def _join(self, key: str | None, there: _Folder, names: tuple[str, ...], records: bytes | bytearray) -> None:
        size, (numbers, joined) = self.form.size, _growing(there)
        before = len(numbers)
        for start, name in zip(count(0, size), names):
            at = numbers.setdefault(name, len(numbers)) * size
            joined[at : at + size] = records[start : start + size]
        self._count += len(numbers) - before
        self._keep(key, numbers, joined)

    def _keep(self, key: str | None, numbers: dict[str, int], records: bytearray) -> None:
        if len(numbers) > _FEW:
            self._folders[key] = _Folder(numbers, records)
        elif numbers:
            names = tuple(numbers)
            self._folders[key] = _Folder(self._once.setdefault(names, names), bytes(records))
        else:
            del self._folders[key]

    @property
    def folders(self) -> set[str]:
        """The nearest folder of each path; "" for a path without one."""
        return {folder or "" for folder in self._folders}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ByFolder) or other.form != self.form:
            return super().__eq__(other)
        return len(self) == len(other) and all(
            path in other._folders and _is_same(folder, other._folders[path], self.form.size)
            for path, folder in self._folders.items()
        )

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(map(_paths, self._folders.items()))

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str) and self._find(path) is not None

    def __getitem__(self, path: str) -> Value:
        return next(self.form.unpack(self.record(path)))

    def record(self, path: str) -> bytes | bytearray:
        """The record of a path."""
        record = self._find(path)
        if record is None:
            raise KeyError(path)
        return record

    def __setitem__(self, path: str, value: Value) -> None:
        folder, slash, name = path.rpartition("/")
        self._put(_key(folder, slash), (name,), next(self.form.pack([value])))

    def __delitem__(self, path: str) -> None:
        if path not in self:
            raise KeyError(path)
        folder, slash, name = path.rpartition("/")
        self._take_out(_key(folder, slash), {name})

    def drop(self, paths: Iterable[str]) -> None:
        """Take out those of these paths that are there, all at once: each folder of theirs is written anew."""
        gone = defaultdict[str | None, set[str]](set)
        for folder, slash, name in map(str.rpartition, paths, repeat("/")):
            gone[_key(folder, slash)].add(name)
        for key in gone.keys() & self._folders.keys():
            self._take_out(key, gone[key])

    def without(self, paths: Iterable[str]) -> ByFolder[Value]:
        """A copy without these paths."""
        other = self.copy()
        other.drop(paths)
        return other

    def without_folders(self, folders: Container[str]) -> ByFolder[Value]:
        """A copy without what is directly in these folders; "" stands for paths in none, as in `folders`."""
        other = ByFolder(self.form)
        other._folders = {key: _apart(folder) for key, folder in self._folders.items() if (key or "") not in folders}
        other._count = sum(len(names) for names, _ in other._folders.values())
        return other

    def where(self, at: int, table: bytes) -> ByFolder[Value]:
        """A copy with those paths alone for whose record's byte `at` this table of all bytes has a 1, and not a 0. No
        value is made for it.
        """
        other = ByFolder(self.form)
        for key, folder in self._folders.items():
            chosen = folder.records[at :: self.form.size].translate(table)
            if 0 not in chosen:
                other._folders[key] = _apart(folder)
                other._count += len(chosen)
            elif 1 in chosen:
                other._begin(key, tuple(compress(folder.names, chosen)), self._some_of(folder, chosen))
        return other

    def unlike(self, other: ByFolder[Other], mark: Callable[[Value | Other], object]) -> Iterator[str]:
        """The paths that the other one lacks, or for which it has a value of which `mark` gives something else."""
        for key, folder in self._folders.items():
            there = other._folders.get(key, _NOTHING)
            ours = [*map(mark, self.form.unpack(folder.records))]
            theirs = [*map(mark, other.form.unpack(there.records))]
            if folder.names != there.names or ours != theirs:
                known = dict(zip(there.names, theirs, strict=True))
                differ = (name not in known or known[name] != one for name, one in zip(folder.names, ours, strict=True))
                yield from compress(_paths((key, folder)), differ)

    def missing_from(self, other: ByFolder[Other]) -> Iterator[str]:
        """The paths that the other one lacks."""
        for key, folder in self._folders.items():
            names = other._folders.get(key, _NOTHING).names
            if folder.names is not names:
                yield from compress(_paths((key, folder)), (name not in names for name in folder.names))

    def in_folder(self, path: str) -> dict[str, Value]:
        """What is directly in a folder, by name."""
        names, records = self._folders.get(path, _NOTHING)
        return dict(zip(names, self.form.unpack(records), strict=True))

    def in_order(self) -> Iterator[str]:
        """The paths, sorted. They are not all in memory: what is below a folder comes between some of its names."""
        starts = sorted(f"{folder}/" for folder in self._folders if folder is not None)
        above = [("", _last_first(self._folders.get(None)))]
        for start in starts:
            while not start.startswith(above[-1][0]):
                yield from _taken(*above.pop())
            yield from _taken(*above[-1], until=start)
            above.append((start, _last_first(self._folders[start[:-1]])))
        while above:
            yield from _taken(*above.pop())

    def by_folder(self) -> Iterator[Run]:
        """What is directly in each folder. It must not be changed."""
        return (Run(key, *folder) for key, folder in self._folders.items())

    def _some_of(self, folder: _Folder, chosen: Iterable[object]) -> bytes:
        """Those of its records."""
        records, size = folder.records, self.form.size
        return b"".join([records[n * size : n * size + size] for n, is_chosen in enumerate(chosen) if is_chosen])

    def _take_out(self, key: str | None, gone: Set[str]) -> None:
        folder = self._folders[key]
        stays = [name not in gone for name in folder.names]
        numbers = dict(zip(compress(folder.names, stays), count()))
        self._keep(key, numbers, bytearray(self._some_of(folder, stays)))
        self._count -= len(stays) - len(numbers)

    @overload
    def get(self, path: str) -> Value | None: ...
    @overload
    def get(self, path: str, default: Value | Other) -> Value | Other: ...
    def get(self, path: str, default: Value | Other | None = None) -> Value | Other | None:
        """As of any mapping; no exception is made for what is not there."""
        record = self._find(path)
        return default if record is None else next(self.form.unpack(record))

    def _find(self, path: str) -> bytes | bytearray | None:
        folder, slash, name = path.rpartition("/")
        names, records = self._folders.get(_key(folder, slash), _NOTHING)
        if name not in names:
            return None
        start = self.form.size * (names[name] if isinstance(names, dict) else names.index(name))
        return records[start : start + self.form.size]

    def values(self) -> ValuesView[Value]:
        """All values, each made when it is reached."""
        return _Values(self)

    def items(self) -> ItemsView[str, Value]:
        """All paths with their values, each made when it is reached."""
        return _Items(self)

    def records(self) -> Iterator[bytes | bytearray]:
        """The records of one folder after the other."""
        return map(_RECORDS, self._folders.values())

    def unpacked(self) -> Iterator[Value]:
        """The values, once."""
        return chain.from_iterable(map(self.form.unpack, self.records()))


class _Values(ValuesView[Value]):
    _mapping: ByFolder[Value]

    def __iter__(self) -> Iterator[Value]:
        return self._mapping.unpacked()


class _Items(ItemsView[str, Value]):
    _mapping: ByFolder[Value]

    def __iter__(self) -> Iterator[tuple[str, Value]]:
        return zip(self._mapping, self._mapping.unpacked(), strict=True)


def _key(folder: str, slash: str) -> str | None:
    return folder if slash else None


def _paths(item: tuple[str | None, _Folder]) -> Iterable[str]:
    folder, (names, _) = item
    return names if folder is None else [f"{folder}/{name}" for name in names]


def _last_first(folder: _Folder | None) -> list[str]:
    return sorted(folder.names, reverse=True) if folder else []


def _taken(start: str, names: list[str], until: str = "") -> Iterator[str]:
    """Paths that begin with `start`, taken from the end of these names: those before `until`, if given."""
    while names and (not until or f"{start}{names[-1]}" < until):
        yield f"{start}{names.pop()}"


def _growing(folder: _Folder) -> tuple[dict[str, int], bytearray]:
    """The number of each name, and the records, to be changed: in place if there are many."""
    names, records = folder
    if isinstance(names, dict):
        assert isinstance(records, bytearray)
        return names, records
    return dict(zip(names, count())), bytearray(records)


def _is_same(folder: _Folder, other: _Folder, size: int) -> bool:
    if folder.names is other.names or tuple(folder.names) == tuple(other.names):
        return folder.records == other.records
    return _by_name(folder, size) == _by_name(other, size)


def _by_name(folder: _Folder, size: int) -> dict[str, bytes | bytearray]:
    starts = range(0, len(folder.records), size)
    return dict(zip(folder.names, (folder.records[at : at + size] for at in starts), strict=True))


def _apart(folder: _Folder) -> _Folder:
    """What does not change if the folder does."""
    names, records = folder
    return _Folder({**names}, records[:]) if isinstance(names, dict) else folder
