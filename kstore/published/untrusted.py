"""Nothing that a manifest says is trusted: what no commit makes is refused before anything is done with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from itertools import islice, repeat
from operator import attrgetter

from kstore.components.table import KSTORE_FOLDER
from kstore.errors import IntegrityError
from kstore.published.manifest import (
    DEEPEST,
    GROUP,
    LINK,
    NEVER_LINKED,
    SLOT,
    Files,
    Manifest,
    nearest_folders,
    with_parents,
)

_PARTS = ("/./", "/../", f"/{KSTORE_FOLDER}/")
"""What no path may contain, with a "/" put before and after it. Nor may it contain an empty part, or NUL."""
_MOST_FOLDERS = 2 * DEEPEST
"""That a path may be in: all that a path is in are held in memory, each by its whole name."""
_FLAGS, _UNIT = attrgetter("flags"), attrgetter("unit")
_COUNT = 1024
"""Paths that are looked at in one go."""


def check_manifest(manifest: Manifest) -> None:
    """Look at everything that a manifest says.

    Raises:
        IntegrityError: it holds what no commit makes.
    """
    every = manifest.files, *manifest.hosts.values()
    for files in every:
        check_entries(files)
    check_paths(with_parents(set[str]().union(*map(nearest_folders, every))), *every)


def check_paths(folders: Set[str], *every: Collection[str]) -> None:
    """Look at every path of a manifest; several hosts may have the same one. `folders` are all that they are in.

    Raises:
        IntegrityError: one is absolute, climbs, holds a NUL, is kstore's own, or is both a file and a folder.
    """
    if "" in folders or not all(folders.isdisjoint(paths) and stay_below(paths) for paths in every):
        raise IntegrityError(
            "a manifest holds paths that leave the cache root or contradict each other; nothing is restored"
        )


def stay_below(paths: Iterable[str]) -> bool:
    """Whether all paths stay below the cache root, and out of what is kstore's own there."""
    paths = iter(paths)
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
    columns = map(str.count, files, repeat("/")), map(_FLAGS, files.values()), map(_UNIT, files.values())
    for folders, flags, unit in set(zip(*columns, strict=True)):
        if folders > _MOST_FOLDERS:
            raise IntegrityError(f"a manifest holds a path in {folders} folders; nothing is restored")
        wrong_unit = flags & (GROUP | SLOT) and not 2 <= unit <= folders
        if wrong_unit or (flags & GROUP and flags & SLOT) or (flags & LINK and flags & NEVER_LINKED):
            raise IntegrityError(f"a manifest holds an entry with flags {flags} and unit {unit}; nothing is restored")
