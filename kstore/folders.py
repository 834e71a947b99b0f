"""Folders, made when they turn out to be missing: asking first costs a system call for each."""

from __future__ import annotations

import os
from collections.abc import Sequence

from kstore.calls import mkdir_each


def make_folders(paths: Sequence[str]) -> None:
    """Make all of them, each after those above it. Any that are there already stay."""
    for path, error in zip(paths, mkdir_each(paths), strict=True):
        if error:
            make_folder(path)


def make_folder(path: str) -> None:
    """Make `path` and what is missing above it; any number of threads may do so at once."""
    try:
        os.mkdir(path)
    except FileExistsError:
        pass
    except FileNotFoundError:
        make_folder(os.path.dirname(path))
        make_folder(path)


def nearest_writable(path: str) -> str:
    """`path`, or the nearest folder above it that exists and can be written; "" if there is none."""
    while not (os.path.isdir(path) and os.access(path, os.W_OK)):
        if path == os.path.dirname(path):
            return ""
        path = os.path.dirname(path)
    return path
