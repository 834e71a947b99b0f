"""What one generation holds: artifact path → blob, and facts about who built it. Immutable, and itself a blob."""

from __future__ import annotations

import json
import secrets
import struct
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import IntFlag
from functools import cache, partial
from itertools import chain, islice, repeat, starmap
from operator import attrgetter, not_, truth
from typing import Any, NamedTuple, cast

from kstore import tables
from kstore.aside import Kept
from kstore.digest import DIGEST_SIZE, Bytes
from kstore.errors import IntegrityError, described
from kstore.pages import Row
from kstore.published.byfolder import ByFolder, Form, Run
from kstore.scope import Scope

_RECORD = struct.Struct(ENTRY_FORMAT := "<32sQqHBB")
ENTRY_SIZE = _RECORD.size
"""Bytes of an entry's record."""
FLAGS_AT, UNIT_AT = ENTRY_SIZE - 2, ENTRY_SIZE - 1
"""Where its flags and its unit are in it."""
DEEPEST = 100
"""The most folders inside each other, without a component's own: no compiler makes so many, and walking them takes some
of Python's stack for each.
"""
_HOSTS = "hosts/"
_ROWS = 2048
"""Rows that are read in one go."""
Seen = Callable[[Sequence[Run]], None]
"""Is told about rows that have been read."""


class Flag(IntFlag):
    """What the component table said about a file when it was committed."""

    LINK = 1
    """Never changed in place: it may share its inode with the blob."""
    RELOCATE = 2
    """Stored in another form than the one it has in a cache root: see `kstore.local.relocate`."""
    MTIME = 4
    """Its modification time matters."""
    GROUP = 8
    """One file of a folder that is kept whole."""
    SLOT = 16
    """One file of a folder whose files answer one key."""
    MERGE = 32
    """Merged by meaning."""
    HOST = 64
    """Runs only on a host like its builder's."""
    BELOW = 128
    """Its blob was not uploaded: a store below had it. A hint, since it may have been uploaded later."""


LINK, RELOCATE, MTIME, GROUP, SLOT, MERGE, HOST, BELOW = map(int, Flag)
"""The same as plain ints: an operation on an enum costs a microsecond."""


def is_list(flags: int) -> bool:
    """Whether a file with these flags says which files are beside it. Ninja's log, whose time matters, does not."""
    return flags & (RELOCATE | MTIME) == RELOCATE


NEVER_IN_PLACE = frozenset(flags for flags in range(1 << 8) if flags & LINK or is_list(flags))
"""The flags of files that are replaced when they change, so that their folder's times tell."""
NEVER_LINKED = MERGE | RELOCATE | MTIME
"""Flags of files that never share the blob's inode: they are merged, or hold other bytes, or need their own time."""


class Entry(NamedTuple):
    """One artifact."""

    digest: bytes
    size: int
    """Bytes of the blob; of the file too, unless it is relocated."""
    mtime_ns: int
    mode: int
    """Permission bits."""
    flags: int
    """A set of `Flag`s; a plain int, because ten thousand of them are made at a time."""
    unit: int
    """How many leading parts of its path name its group or slot; 0 if it is in neither."""


Files = Mapping[str, Entry]
_CODING = "utf-8", "surrogateescape"
_DIGEST = attrgetter("digest")


def unit_of(path: str, entry: Entry) -> str:
    """The folder of the group or slot that the artifact belongs to; its own path if it is in neither."""
    return "/".join(path.split("/", entry.unit)[: entry.unit]) if entry.unit else path


def group_of(path: str, entry: Entry) -> str:
    """The folder of the group that the artifact belongs to; its own path if it is in none."""
    return unit_of(path, entry) if entry.flags & GROUP else path


def groups_in(items: Iterable[tuple[str, Entry]]) -> set[str]:
    """The folders of the groups that these artifacts belong to."""
    return {unit_of(path, entry) for path, entry in items if entry.flags & GROUP}


def sizes_of(entries: Iterable[Entry]) -> dict[bytes, int]:
    """Digest → bytes of the blobs of these artifacts."""
    return {entry.digest: entry.size for entry in entries}


def parents_of(path: str) -> Iterator[str]:
    """The folders that an artifact or a folder is in, the nearest first."""
    while (cut := path.rfind("/")) > 0:
        path = path[:cut]
        yield path


def folders_of(*every: Iterable[str]) -> set[str]:
    """Every folder that one of all these artifacts is in, however deep; "" if one is in none."""
    return with_parents(set[str]().union(*map(nearest_folders, every)))


def nearest_folders(paths: Iterable[str]) -> set[str]:
    """The nearest folder of each path."""
    if isinstance(paths, ByFolder):
        return paths.folders
    return {folder for folder, _, _ in map(str.rpartition, paths, repeat("/"))}


def with_parents(folders: Set[str]) -> set[str]:
    """These folders and all folders that they are in."""
    found, level = set[str](), folders
    while level:
        found |= level
        level = {folder.rpartition("/")[0] for folder in level} - found - {""}
    return found


@dataclass(slots=True)
class Manifest:
    """The artifacts of one generation."""

    files: Files = field(default_factory=dict)
    """What runs on any host of the scope."""
    hosts: dict[str, Files] = field(default_factory=dict)
    """Host fingerprint → what runs only on such hosts."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Scope, environment, variables, host, cache root and its folders, parent: for people and `doctor`. And a nonce."""

    def for_host(self, fingerprint: str) -> Files:
        """All that a worker with this host fingerprint may restore.

        Where one writer's group is host-bound and another's is not, the host's is taken whole: never files of both.
        """
        bound = self.hosts.get(fingerprint, {})
        if not bound:
            return self.files
        groups, files = groups_in(bound.items()), copy_of(self.files)
        if groups and not groups.isdisjoint(folders_of(files)):
            files = files.without(path for path, entry in files.items() if unit_of(path, entry) in groups)
        files.put(bound.items())
        return files

    @property
    def sets(self) -> tuple[Files, ...]:
        """What runs on any host, and the set of each host: several may have the same path."""
        return self.files, *self.hosts.values()

    def items(self) -> Iterator[tuple[str, Entry]]:
        """Every path with its entry, of every set."""
        return chain.from_iterable(files.items() for files in self.sets)

    def entries(self) -> Iterator[Entry]:
        """Every entry, of every set."""
        return chain.from_iterable(files.values() for files in self.sets)

    def blobs(self) -> Iterator[tuple[bytes, int]]:
        """The digest and the size, in bytes, of the blob of every entry."""
        return chain.from_iterable(map(blobs_of, self.sets))

    def dump(self) -> bytes:
        """As the bytes of an LMDB file."""
        return tables.dump(*self._tables())

    def dump_aside(self, folder: str) -> Kept:
        """The same, put aside in `folder`, which is local, if they are many."""
        return tables.dump_aside(*self._tables(), folder)

    def _tables(self) -> tuple[dict[str, Iterable[Row]], int]:
        """The rows of each table, and the most bytes that all may have."""
        meta = sorted((key.encode(), json.dumps(value).encode()) for key, value in self.meta.items())
        files = {"files": self.files} | {_HOSTS + name: files for name, files in self.hosts.items()}
        size = sum(map(len, chain.from_iterable(meta))) + sum(map(_most_bytes, files.values()))
        rows: dict[str, Iterable[Row]] = {"meta": meta}
        return rows | {name: pack_files(each) for name, each in files.items()}, size

    @classmethod
    def load(cls, data: Bytes, see: Seen | None = None) -> Manifest:
        """Read what `dump` wrote. Rows of what runs on any host are shown to `see` before anything is made of them.

        Raises:
            IntegrityError: it is damaged, or a newer kstore wrote it.
        """
        try:
            found = tables.load(data, partial(_load_table, see=see))
            return cls(
                files=found.pop("files"),
                meta=found.pop("meta"),
                hosts={name.removeprefix(_HOSTS): files for name, files in found.items() if name.startswith(_HOSTS)},
            )
        except (KeyError, ValueError, RecursionError, struct.error) as error:
            raise IntegrityError(f"a manifest of {len(data)} bytes cannot be read: {described(error)}") from error


def meta_of(scope: Scope, parent: int) -> dict[str, Any]:
    """What every manifest says about its generation. The nonce makes its digest new, because gc may be about to delete
    a manifest with the same content.
    """
    return {"gpu": scope.gpu, "key": scope.key, "parent": parent, "nonce": secrets.token_hex(16)}


def _load_table(name: str, rows: Iterator[Row], see: Seen | None) -> Any:
    """One of the tables of a manifest; None if an older kstore would not know it."""
    if name == "meta":
        return {key.decode(): json.loads(value) for key, value in rows}
    if name == "files":
        return unpack_files(rows, see)
    return unpack_files(rows) if name.startswith(_HOSTS) else None


def pack_files(files: Files) -> Iterator[Row]:
    """Paths and entries as table rows, sorted."""
    files = compacted(files)
    is_ascii = all(map(str.isascii, files))
    # Text without surrogates for bytes has the same order by characters as by bytes.
    paths = files.in_order() if is_ascii else sorted(files, key=lambda path: path.encode(*_CODING))
    # What else a record of the index holds follows on that of the entry.
    return ((path.encode(*_CODING), bytes(files.record(path)[:ENTRY_SIZE])) for path in paths)


def unpack_files(rows: Iterator[Row], see: Seen | None = None) -> ByFolder[Entry]:
    """The reverse of `pack_files`. Only some of the rows are in memory at a time."""
    files = compact()
    while some := list(islice(rows, _ROWS)):
        keys, records = zip(*some, strict=True)
        if not {_RECORD.size}.issuperset(map(len, records)):
            raise ValueError("a record has the wrong size")
        paths, joined = [*map(bytes.decode, keys, *map(repeat, _CODING))], b"".join(records)
        before, runs = len(files), files.put_records(paths, joined)
        if len(files) < before + len(paths):
            raise ValueError("a path occurs twice")
        if see:
            see(runs)
    return files


def _most_bytes(files: Files) -> int:
    """The most that `pack_files` makes of them: a character takes up to four."""
    return 4 * sum(map(len, files)) + _RECORD.size * len(files)


def pack_entries(entries: Iterable[Entry]) -> Iterator[bytes]:
    """Each entry as a record of the same length."""
    return starmap(_RECORD.pack, entries)


def unpack_entries(records: bytes | bytearray | memoryview) -> Iterator[Entry]:
    """The reverse of `pack_entries`, of records in a row."""
    # Entry._make of each, without a step of the interpreter for each of ten thousand.
    return map(partial(tuple.__new__, Entry), _RECORD.iter_unpack(records))


def blobs_in(records: bytes | bytearray, form: Form[Entry]) -> Iterator[tuple[bytes, int]]:
    """The digest and the size, in bytes, that are in each of some records in a row. No entry is made for that."""
    return cast(Iterator[tuple[bytes, int]], _blob_of(form.size).iter_unpack(records))


@cache
def _blob_of(record_size: int) -> struct.Struct:
    return struct.Struct(f"<{DIGEST_SIZE}sQ{record_size - DIGEST_SIZE - 8}x")


def blobs_of(files: Files) -> Iterator[tuple[bytes, int]]:
    """The digest and the size, in bytes, of the blob of each artifact."""
    files = compacted(files)
    return chain.from_iterable(blobs_in(records, files.form) for records in files.records())


_FORM = Form(ENTRY_SIZE, pack_entries, unpack_entries)


def compact(items: Iterable[tuple[str, Entry]] = ()) -> ByFolder[Entry]:
    """Artifacts in little memory: there may be a hundred thousand."""
    return ByFolder(_FORM, items)


def compacted(files: Files) -> ByFolder[Entry]:
    """The same artifacts in little memory, not to be changed."""
    return files if isinstance(files, ByFolder) else compact(files.items())


def with_flags(files: Files, flags: int) -> ByFolder[Entry]:
    """Those of the artifacts that have any of these flags."""
    return compacted(files).where(FLAGS_AT, _having(flags))


def without_flags(files: Files, flags: int) -> ByFolder[Entry]:
    """Those of the artifacts that have none of these flags."""
    return compacted(files).where(FLAGS_AT, _having(flags, none=True))


def changed_in_place(files: Files) -> ByFolder[Entry]:
    """Those of the artifacts that may be changed in place."""
    return compacted(files).where(FLAGS_AT, _IN_PLACE)


@cache
def _having(flags: int, *, none: bool = False) -> bytes:
    """For each byte of flags whether it has any of these, or `none`."""
    return bytes(map(not_ if none else truth, map(flags.__and__, range(1 << 8))))


_IN_PLACE = bytes(byte not in NEVER_IN_PLACE for byte in range(1 << 8))


def in_components(files: Files, components: Container[str]) -> ByFolder[Entry]:
    """Those of the artifacts that are in these components."""
    files = compacted(files)
    return files.without_folders({folder for folder in files.folders if folder.partition("/")[0] not in components})


def unlike(files: Files, other: Files) -> Iterator[str]:
    """Those of the artifacts that the others lack, or have with another digest."""
    return compacted(files).unlike(compacted(other), _DIGEST)


def copy_of(files: Files) -> ByFolder[Entry]:
    """The same artifacts in little memory, to be changed."""
    return compacted(files).copy()
