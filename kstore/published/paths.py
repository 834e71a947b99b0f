"""A set of paths in little memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableSet, Set
from itertools import repeat
from typing import Any, Self

from kstore.published.byfolder import ByFolder, Form


class Paths(MutableSet[str]):
    """A set of paths, kept folder by folder."""

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self._all: ByFolder[None] = ByFolder(_NO_VALUES)
        self.update(paths)

    def update(self, paths: Iterable[str]) -> None:
        """Add these. Whole folders at once are shared with another such set, or mapping."""
        known: ByFolder[Any] | Iterable[str] = paths._all if isinstance(paths, Paths) else paths
        if isinstance(known, ByFolder):
            for folder, names, _ in known.by_folder():
                self._all.put_folder(folder, tuple(names), b"")
        else:
            self._all.put(zip(known, repeat(None), strict=False))

    def add(self, path: str) -> None:
        """Add one."""
        self._all[path] = None

    def discard(self, path: str) -> None:
        """Remove one, if it is there."""
        if path in self._all:
            del self._all[path]

    def __isub__(self, paths: Set[Any]) -> Self:
        self._all.drop(paths)
        return self

    def __contains__(self, path: object) -> bool:
        return path in self._all

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


_NO_VALUES: Form[None] = Form(0, lambda values: (b"" for _ in values), lambda _: iter(()))
