"""Prints how one artifact differs between two caches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kstore.errors import MissError
from kstore.inspect.artifact import MAX_COMPARED, find_artifact, read_artifact, text_of, unified_diff
from kstore.inspect.comparison import compare_sides
from kstore.words import in_line, size

if TYPE_CHECKING:
    from kstore.cli.output import Output
    from kstore.inspect.items import Artifact
    from kstore.inspect.sides import Side

    Sides = tuple[Side, Side]

_COLORS = {"+": "green", "-": "red", "@": "cyan"}


def print_texts(output: Output, sides: Sides, path: str) -> bool:
    """Compare the artifact that `path` means on either side; returns whether it differs.

    Raises:
        MissError: a side has no such artifact.
        UsageError: several artifacts could be meant.
        IntegrityError: its bytes are lost.
    """
    left, right = _find_both(sides, path)
    differ = left.entry.digest != right.entry.digest
    lines = _lines(sides, left, right) if differ else []
    if output.json:
        output.document({
            "left": _describe(sides[0], left), "right": _describe(sides[1], right),
            "differ": differ, "binary": lines is None, "lines": lines,
        })  # fmt: skip
    elif not differ:
        output.say(f"{left.path} is the same in both")
    elif lines is None:
        for mark, color, side, artifact in (
            ("-", "red", sides[0], left),
            ("+", "green", sides[1], right),
        ):
            output.line(f"{mark} {_name(side, artifact)}", color)
            output.line(f"  {_size_and_digest(artifact)}")
        output.say("they are binary or too large to compare line by line; `kstore cat` prints one")
    else:
        if not lines:
            output.say(f"{left.path} differs only in its layout")
        for line in lines:
            output.line(line.expandtabs(), _COLORS.get(line[:1], ""))
    return differ


def _find_both(sides: Sides, path: str) -> tuple[Artifact, Artifact]:
    """The artifact that `path` means on either side. If one side has none of that name, it is the one that is compared
    with the other side's.
    """
    try:
        left = find_artifact(sides[0], path)
    except MissError as error:
        right = find_artifact(sides[1], path)
        return _counterpart(sides, 0, right, error), right
    try:
        return left, find_artifact(sides[1], path)
    except MissError as error:
        return left, _counterpart(sides, 1, left, error)


def _counterpart(sides: Sides, position: int, other: Artifact, error: MissError) -> Artifact:
    path = compare_sides(*sides).counterpart(other.path)
    if path is None:
        raise error
    return find_artifact(sides[position], path)


def _lines(sides: Sides, left: Artifact, right: Artifact) -> list[str] | None:
    """The lines of a unified diff; None if none can be made."""
    if max(left.entry.size, right.entry.size) > MAX_COMPARED:
        return None
    one, other = (
        text_of(artifact.path, read_artifact(side, artifact))
        for side, artifact in ((sides[0], left), (sides[1], right))
    )
    if one is None or other is None:
        return None
    return list(unified_diff((_name(sides[0], left), one), (_name(sides[1], right), other)))


def _name(side: Side, artifact: Artifact) -> str:
    return in_line(f"{side.label} {artifact.path}")


def _size_and_digest(artifact: Artifact) -> str:
    return f"{size(artifact.entry.size)}, {artifact.entry.digest.hex()}"


def _describe(side: Side, artifact: Artifact) -> dict[str, object]:
    return {"label": side.label, **artifact.describe()}
