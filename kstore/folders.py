"""Many folders at once. They are made when they turn out to be missing: asking first costs a system call for each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain

from kstore.calls import Listing, list_each, mkdir_each
from kstore.threads import map_ahead

_COUNT = 64
"""Folders that are listed in one go: nothing can be done before the first of these are."""


def make_folders(paths: Sequence[str]) -> None:
    """Make all of them, each after those above it. Any that exist already stay."""
    for path, error in zip(paths, mkdir_each(paths), strict=True):
        if error:
            make_folder(path)


def make_folder(path: str) -> int:
    """Make `path` and what is missing above it; any number of threads may do so at once. Returns how many it made."""
    try:
        os.mkdir(path)
    except FileExistsError:
        return 0
    except FileNotFoundError:
        return make_folder(os.path.dirname(path)) + make_folder(path)
    return 1


def list_folders(paths: Sequence[str]) -> Iterator[Listing]:
    """What is in each. While some are looked through, a thread lists the next ones."""
    some = [paths[at : at + _COUNT] for at in range(0, len(paths), _COUNT)]
    return chain.from_iterable(map_ahead(list_each, some) if len(some) > 1 else map(list_each, some))


def nearest_existing(path: str) -> str:
    """`path`, or the nearest folder above it that exists: where it is, or would be made."""
    while not os.path.lexists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path or "."


def nearest_writable(path: str) -> str:
    """`path`, or the nearest folder above it that exists and can be written; "" if there is none."""
    while not (os.path.isdir(path) and os.access(path, os.W_OK)):
        if path == os.path.dirname(path):
            return ""
        path = os.path.dirname(path)
    return path
