"""Which artifacts resemble each other: sorted by that, the same ones take a tenth of the bytes that they take in the
order of their paths.
"""

from __future__ import annotations

from sys import intern

from kstore.published.manifest import Entry


def similarity(path: str, size: int) -> tuple[str, int, str]:
    """Sorts artifacts of `size` bytes so that neighbours resemble each other: by suffix, then by size, for names say
    less (Inductor's are hashes).
    """
    name = path.rpartition("/")[2]
    # A hundred thousand files have some ten suffixes.
    return intern(name.rpartition(".")[2]) if "." in name else "", size, path


def by_similarity(item: tuple[str, Entry]) -> tuple[str, int, str]:
    """The same for an item of `Files`."""
    path, entry = item
    return similarity(path, entry.size)
