"""Which artifacts resemble each other: sorted by that, they take a tenth of the bytes that they take in the order of
their paths.
"""

from __future__ import annotations

from collections.abc import Iterable
from sys import intern

from kstore.published.manifest import Entry, Files


def by_similarity(item: tuple[str, Entry]) -> tuple[str, int, str]:
    """Sort key for items of `Files`, so that neighbours resemble each other: by suffix, then by size, because names
    say less (Inductor's are hashes).
    """
    path, entry = item
    return _suffix(path), entry.size, path


def suffix(name: str) -> str:
    """What follows the last dot of a file's name: some ten for a hundred thousand files, each in memory once."""
    return intern(name.rpartition(".")[2]) if "." in name else ""


def _suffix(path: str) -> str:
    return suffix(path.rpartition("/")[2])


def sorted_by_similarity(paths: Iterable[str], files: Files) -> list[str]:
    """Some of `files` in the order of `by_similarity`, with nothing made for each: there may be a hundred thousand."""
    found = sorted(paths)
    found.sort(key=lambda path: files[path].size)
    found.sort(key=_suffix)
    return found
