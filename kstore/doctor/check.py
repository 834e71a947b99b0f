"""One line of an examination."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Verdict(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """It costs time, or may."""
    BAD = "bad"
    """It prevents hits."""


class Check(NamedTuple):
    """What was looked at, what was found, and what to do about it."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""


_LONGEST = 600
"""Characters: what is named may come from a store, where anybody may have written anything."""


def ok(name: str, found: str) -> Check:
    """Nothing to do."""
    return Check(name, Verdict.OK, _bounded(found))


def warning(name: str, found: str, advice: str) -> Check:
    """It costs time, or may."""
    return Check(name, Verdict.WARNING, _bounded(found), _bounded(advice))


def bad(name: str, found: str, advice: str) -> Check:
    """It prevents hits."""
    return Check(name, Verdict.BAD, _bounded(found), _bounded(advice))


def _bounded(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
