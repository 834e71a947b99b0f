"""Count what a tree holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Census:
    """How many regular files a tree has, their bytes (apparent size), and how many folders are below its root."""

    files: int
    bytes: int
    folders: int

    def __add__(self, other: Census) -> Census:
        return Census(self.files + other.files, self.bytes + other.bytes, self.folders + other.folders)


def take_census(root: Path) -> Census:
    entries = list(walk(root))
    sizes = [entry.stat(follow_symlinks=False).st_size for entry in entries if is_file(entry)]
    return Census(len(sizes), sum(sizes), sum(entry.is_dir(follow_symlinks=False) for entry in entries))


def walk(root: str | os.PathLike[str]) -> Iterator[os.DirEntry[str]]:
    with os.scandir(root) as entries:
        for entry in entries:
            yield entry
            if entry.is_dir(follow_symlinks=False):
                yield from walk(entry)


def is_file(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False)
