"""What a mapping of paths holds, by numbers: a number takes less memory than a path."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count
from typing import Generic, TypeVar

from kstore.published.byfolder import ByFolder

Value = TypeVar("Value")
Records = bytes | bytearray
_STEP = 1 << 32
"""The difference between the first rows of two folders."""


class Rows(Generic[Value]):
    """The rows of a mapping, which must not change meanwhile."""

    def __init__(self, of: ByFolder[Value]) -> None:
        self._form = of.form
        self._folders, self._names, self._records = list[str | None](), list[tuple[str, ...]](), list[Records]()
        for folder, names, records in of.by_folder():
            self._folders.append(folder)
            self._names.append(tuple(names))
            self._records.append(records)

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

    def record(self, number: int) -> Records:
        """The same as a record."""
        start = number % _STEP * self._form.size
        return self._records[number // _STEP][start : start + self._form.size]
