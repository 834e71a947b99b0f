"""One line of an examination."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from kstore.freespace import free_bytes
from kstore.settings import Settings, variables_of
from kstore.words import command_line, size

if TYPE_CHECKING:
    from kstore.store import Store


class Verdict(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """It costs time, or may."""
    BAD = "bad"
    """It prevents hits."""


SCOPE = ("store", "gpu", "environment")
WORKER = (*SCOPE, "cache_root")
"""Settings that commands take as options."""


class Check(NamedTuple):
    """What was looked at, what was found, and what to do about it."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""


_LONGEST = 600
"""Characters: text that is shown may come from a store, where anybody may have written anything."""


def ok(name: str, found: str) -> Check:
    """Nothing to do."""
    return _check(name, Verdict.OK, found)


def warning(name: str, found: str, advice: str) -> Check:
    """It costs time, or may."""
    return _check(name, Verdict.WARNING, found, advice)


def bad(name: str, found: str, advice: str) -> Check:
    """It prevents hits."""
    return _check(name, Verdict.BAD, found, advice)


def again(store: Store, command: str, key: str = "", *words: str, names: Sequence[str] = ("store",)) -> str:
    """A kstore command line to copy, with those of the settings `names` that nothing else tells the command."""
    usual, options = variables_of(Settings(), names), list[str]()
    for name, (variable, value) in zip(names, variables_of(store.settings, names).items(), strict=True):
        if value != (store.environ.get(variable) or usual[variable]):
            options += f"--{name.replace('_', '-')}", value
    return command_line(command, key, *words, *options)


def room(path: str) -> tuple[float, str]:
    """Bytes that are free there, and in words.

    Raises:
        OSError: the filesystem does not say.
    """
    free = free_bytes(path)
    return free, f"not limited in {path}" if math.isinf(free) else f"{size(int(free))} free in {path}"


def not_told(name: str, path: str, error: OSError) -> Check:
    """How much there is of something is not known, as on mounts of FUSE that have no statfs."""
    advice = "make sure that there is enough; if other programs get no answer there either, check the mount"
    return warning(name, f"not known in {path}: {error.strerror or error}", advice)


def _check(name: str, verdict: Verdict, found: str, advice: str = "") -> Check:
    return Check(_bounded(name), verdict, _bounded(found), _bounded(advice))


def _bounded(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
