"""Component folders outside the cache root, which may go to another host without it. Each bears its own mark.

The mark names the machine that the C++ objects in it are of. A host's cache root cannot know where a volume has been.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress

from kstore.components.table import KSTORE_FOLDER
from kstore.files import read_whole
from kstore.local.cacheroot import CacheRoot

_MARK = "machine"


def moved_here(root: CacheRoot, machine: str) -> set[str]:
    """The components whose folder bears the mark of another machine."""
    return {name for name, folder in _marked_folders(root).items() if _marked(folder) not in ("", machine)}


def mark_machine(root: CacheRoot, machine: str, components: Iterable[str] | None = None) -> None:
    """Mark the folders, or those of `components`, as this machine's. A folder that cannot be written gets no mark."""
    marked = _marked_folders(root)
    chosen = marked.keys() if components is None else marked.keys() & set(components)
    for folder in {marked[name] for name in chosen}:
        with suppress(OSError):
            if _marked(folder) != machine:
                _mark(folder, machine)


def _marked_folders(root: CacheRoot) -> dict[str, str]:
    """Component → the folder that has its mark. If component folders are nested, that is the uppermost."""
    folders = root.outside
    return {
        name: min((above for above in folders.values() if f"{path}/".startswith(f"{above}/")), key=len)
        for name, path in folders.items()
    }


def _marked(folder: str) -> str:
    try:
        return read_whole(os.path.join(folder, KSTORE_FOLDER, _MARK)).decode()
    except (OSError, UnicodeDecodeError):
        return ""


def _mark(folder: str, machine: str) -> None:
    parent = os.path.join(folder, KSTORE_FOLDER)
    os.makedirs(parent, exist_ok=True)
    path = os.path.join(parent, _MARK)
    written = f"{path}-{secrets.token_hex(8)}"  # other roots and hosts may be writing it
    try:
        with open(written, "wb") as file:
            file.write(machine.encode())
        os.replace(written, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(written)
