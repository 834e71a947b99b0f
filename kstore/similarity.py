"""Which artifacts resemble each other: sorted by that, the same ones take a tenth of the bytes that they take in the
order of their paths.
"""

from __future__ import annotations

from collections.abc import Iterable
from sys import intern

from kstore.published.manifest import Entry, Files


def similarity(path: str, size: int) -> tuple[str, int, str]:
    """Sorts artifacts of `size` bytes so that neighbours resemble each other: by suffix, then by size, for names say
    less (Inductor's are hashes).
    """
    return _suffix(path), size, path


def suffix(name: str) -> str:
    """Of a file's name. A hundred thousand files have some ten."""
    return intern(name.rpartition(".")[2]) if "." in name else ""


def _suffix(path: str) -> str:
    return suffix(path.rpartition("/")[2])


def sorted_by_similarity(paths: Iterable[str], files: Files) -> list[str]:
    """The same for some of `files`, of which there may be a hundred thousand: nothing is made for each of them."""
    found = sorted(paths)
    found.sort(key=lambda path: files[path].size)
    found.sort(key=_suffix)
    return found


def by_similarity(item: tuple[str, Entry]) -> tuple[str, int, str]:
    """The same for an item of `Files`."""
    path, entry = item
    return similarity(path, entry.size)
