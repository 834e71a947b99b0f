"""Nothing that a manifest says is trusted: what no commit makes is refused before anything is done with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain, islice, repeat

from kstore.components.table import KSTORE_FOLDER
from kstore.errors import IntegrityError
from kstore.published.byfolder import ByFolder, Run
from kstore.published.manifest import (
    DEEPEST,
    FLAGS_AT,
    GROUP,
    LINK,
    NEVER_LINKED,
    SLOT,
    UNIT_AT,
    Entry,
    Files,
    Manifest,
    compacted,
    folders_of,
)

_PARTS = ("/./", "/../", f"/{KSTORE_FOLDER}/")
"""What no path may contain, with a "/" put before and after it. Nor may it contain an empty part, or NUL."""
_MOST_FOLDERS = 2 * DEEPEST
"""That a path may be in: all that a path is in are held in memory, each by its whole name."""
_COUNT = 1024
"""Names or folders that are looked at in one go."""


def check_manifest(manifest: Manifest) -> None:
    """Look at everything that a manifest says.

    Raises:
        IntegrityError: it holds what no commit makes.
    """
    for files in manifest.sets:
        check_entries(files)
    check_paths(*manifest.sets)


def check_paths(*sets: Files) -> None:
    """Look at every path of a manifest; several hosts may have the same one.

    Raises:
        IntegrityError: one is absolute, climbs, holds a NUL, is kstore's own, or is both a file and a folder.
    """
    folders = folders_of(*sets)
    every = [*map(compacted, sets)]
    is_both = any(folder in files for files in every for folder in folders)
    if "" in folders or is_both or not all(stay_below(files.by_folder()) for files in every):
        raise IntegrityError(
            "a manifest holds paths that leave the cache root or contradict each other; nothing is restored"
        )


def stay_below(runs: Iterable[Run]) -> bool:
    """Whether all paths stay below the cache root, and out of what is kstore's own there.

    A path does if its folder and its name do. Folders have few different names.
    """
    names, folders = dict[int, Collection[str]](), list[str]()
    for run in runs:
        names[id(run.names)] = run.names
        folders += () if run.folder is None else (run.folder,)
    return _are_below(chain(folders, *names.values()))


def _are_below(paths: Iterator[str]) -> bool:
    while some := list(islice(paths, _COUNT)):
        text = "/\n/".join(["", *some, ""])
        if "//" in text or "\0" in text or ("/." in text and any(part in text for part in _PARTS)):
            return False
    return True


def are_shallow(folders: Iterable[str]) -> bool:
    """Whether none of these folders is in more folders than a path may be in."""
    return max(map(str.count, folders, repeat("/")), default=0) < _MOST_FOLDERS


def check_entries(files: Files) -> None:
    """Look at the entries: no commit makes a group of a component's own folder, whose swap would take away everything
    else in it, and none links a file that does not hold the blob's bytes.

    Raises:
        IntegrityError: the flags or the unit of an entry contradict each other or its path, or that is far too deep.
    """
    for folders, flags, unit in _kinds(compacted(files)):
        if folders > _MOST_FOLDERS:
            raise IntegrityError(f"a manifest holds a path in {folders} folders; nothing is restored")
        wrong_unit = flags & (GROUP | SLOT) and not 2 <= unit <= folders
        if wrong_unit or (flags & GROUP and flags & SLOT) or (flags & LINK and flags & NEVER_LINKED):
            raise IntegrityError(f"a manifest holds an entry with flags {flags} and unit {unit}; nothing is restored")


def _kinds(files: ByFolder[Entry]) -> set[tuple[int, int, int]]:
    """In how many folders each is, its flags and its unit."""
    found, size = set[tuple[int, int, int]](), files.form.size
    for folder, _, records in files.by_folder():
        depth = 0 if folder is None else folder.count("/") + 1
        found.update(zip(repeat(depth), records[FLAGS_AT::size], records[UNIT_AT::size], strict=False))
    return found
