"""Entries as files in a cache root."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from kstore.components import load_table


def unchosen(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the folders that the user chose: all components are then in the cache root.

    A user's folder holds what any program left there, and a commit takes all of it. A mega-cache is what one process
    used.
    """
    variables = {component.variable for component in load_table().values()}
    return {name: text for name, text in environ.items() if name not in variables}


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make each file, unless one with the same bytes is there.

    A file is replaced, not written over, because it may share its inode with the store. Its temporary name begins with
    a dot, because Inductor unpickles every other file in the folder of a graph.

    Raises:
        OSError: one cannot be made.
    """
    for path, content in files.items():
        target = folder / path
        if _holds(target, content):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
        try:
            temporary.write_bytes(content)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


def _holds(path: Path, content: bytes) -> bool:
    try:
        return path.stat().st_size == len(content) and path.read_bytes() == content
    except FileNotFoundError:
        return False
