"""Many things in batches that memory can hold."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

MAX_COUNT = 1024
"""The most files of one batch, however small they are: most may be empty."""


def batches(items: Iterable[tuple[Item, int]], size: int, count: int = sys.maxsize) -> Iterator[list[tuple[Item, int]]]:
    """Items, each with its size in bytes, in batches of up to `size` bytes and `count` items. A larger item is a batch
    of its own.
    """
    batch: list[tuple[Item, int]] = []
    total = 0
    for item in items:
        if batch and (len(batch) >= count or total + item[1] > size):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += item[1]
    if batch:
        yield batch
