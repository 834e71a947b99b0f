"""Names that a cache root refuses: the builder's root had a shorter path or another locale, or a name is too deep."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping

from kstore.published.manifest import DEEPEST, Files, compacted, group_of


def refused_names(wanted: Files, stages: Mapping[str, str]) -> dict[str, str]:
    """The artifacts that cannot have their names here, each with all of its group, and why; `stages` by component."""
    why, limits = {}, {component: _limits(stage) for component, stage in stages.items()}
    for path in _unusual(wanted, min([2 * DEEPEST, *map(min, limits.values())])):
        if reason := _refusal(path, *limits[path.partition("/")[0]]):
            why[group_of(path, wanted[path])] = reason
    groups = ((path, group_of(path, entry)) for path, entry in wanted.items()) if why else ()
    return {path: why[group] for path, group in groups if group in why}


def _limits(stage: str) -> tuple[int, int]:
    """The longest path below a folder, and the longest name in it."""
    longest = os.pathconf(stage, "PC_PATH_MAX") - len(os.fsencode(f"{stage}/\0"))
    return longest, os.pathconf(stage, "PC_NAME_MAX")


def _unusual(wanted: Files, longest: int) -> Iterator[str]:
    """The artifacts beside, or with, a path that is longer or not ASCII."""
    for folder, names, _ in compacted(wanted).by_folder():
        start = "" if folder is None else f"{folder}/"
        is_long = len(start) + max(map(len, names)) > longest
        if is_long or not start.isascii() or not all(map(str.isascii, names)):
            yield from (f"{start}{name}" for name in names)


def _refusal(path: str, longest: int, longest_name: int) -> str:
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        return f"its name cannot be written in this locale's encoding, {sys.getfilesystemencoding()}"
    is_long = len(encoded) > longest or max(map(len, encoded.split(b"/"))) > longest_name
    if is_long:
        return "its path is too long for this cache root"
    return "its path is too deep" if path.count("/") > DEEPEST + 1 else ""
