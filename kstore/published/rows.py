"""What a mapping of paths holds, by numbers: a number takes less memory than a path."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count
from typing import Generic, TypeVar

from kstore.published.byfolder import ByFolder

Value = TypeVar("Value")
_STEP = 1 << 32
"""The difference between the first rows of two folders."""


class Rows(Generic[Value]):
    """The rows of a mapping, which must not change meanwhile."""

    def __init__(self, of: ByFolder[Value]) -> None:
        self._form = of.form
        self._folders = [run.folder for run in of.by_folder()]
        self._names = [tuple(run.names) for run in of.by_folder()]
        self._records = [run.records for run in of.by_folder()]

    @property
    def numbers(self) -> Iterator[int]:
        """Of all rows, in the order of the mapping."""
        firsts = zip(count(0, _STEP), self._names, strict=False)
        return chain.from_iterable(range(first, first + len(names)) for first, names in firsts)

    def path(self, number: int) -> str:
        """The path of a row."""
        folder, name = self._folders[number // _STEP], self._names[number // _STEP][number % _STEP]
        return name if folder is None else f"{folder}/{name}"

    def value(self, number: int) -> Value:
        """The value of a row."""
        return next(self._form.unpack(self.record(number)))

    def record(self, number: int) -> bytes | bytearray:
        """The same as a record."""
        start = number % _STEP * self._form.size
        return self._records[number // _STEP][start : start + self._form.size]
