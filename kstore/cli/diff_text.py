"""Prints how one artifact differs between two caches."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kstore.errors import MissError
from kstore.inspect.artifact import MAX_COMPARED, MAX_LINES, find_artifact, read_artifact, text_of
from kstore.inspect.comparison import compare_sides
from kstore.inspect.items import Artifact
from kstore.inspect.lines import unified_diff
from kstore.inspect.sides import Side
from kstore.words import in_line, size

if TYPE_CHECKING:
    from kstore.cli.output import Output

_COLORS = {"+": "green", "-": "red", "@": "cyan"}


class _Found(NamedTuple):
    """The artifact of one side."""

    side: Side
    artifact: Artifact

    @property
    def name(self) -> str:
        return in_line(f"{self.side.label} {self.artifact.path}")

    def text(self) -> str | None:
        """Its text; None if it is binary."""
        return text_of(self.artifact.path, read_artifact(self.side, self.artifact))

    def describe(self) -> dict[str, object]:
        """For machines."""
        return {"label": self.side.label, **self.artifact.describe()}


def print_texts(output: Output, sides: tuple[Side, Side], path: str) -> bool:
    """Compare the artifact that `path` means on either side; returns whether it differs.

    Raises:
        MissError: a side has no such artifact.
        UsageError: several artifacts could be meant.
        IntegrityError: its bytes are lost.
    """
    left, right = _find_both(sides, path)
    differ = left.artifact.entry.digest != right.artifact.entry.digest
    lines = _lines(left, right) if differ else []
    if output.json:
        described = {"left": left.describe(), "right": right.describe()}
        output.document({**described, "differ": differ, "binary": lines is None, "lines": lines})
    elif not differ:
        output.say(f"{left.artifact.path} is the same in both")
    elif lines is None:
        for mark, found in (("-", left), ("+", right)):
            output.line(f"{mark} {found.name}", _COLORS[mark])
            output.line(f"  {size(found.artifact.entry.size)}, {found.artifact.entry.digest.hex()}")
        output.say("they are binary or too large to compare line by line; `kstore cat` prints one")
    else:
        if not lines:
            output.say(f"{left.artifact.path} differs only in its layout")
        for line in lines:
            output.line(line.expandtabs(), _COLORS.get(line[:1], ""))
    return differ


def _find_both(sides: tuple[Side, Side], path: str) -> tuple[_Found, _Found]:
    """The artifact that `path` means on either side. If one side has none of that name, it is the one that is compared
    with the other side's.
    """
    left, right = sides
    try:
        one = find_artifact(left, path)
    except MissError as error:
        other = find_artifact(right, path)
        one = find_artifact(left, _counterpart(sides, other, error))
    else:
        try:
            other = find_artifact(right, path)
        except MissError as error:
            other = find_artifact(right, _counterpart(sides, one, error))
    return _Found(left, one), _Found(right, other)


def _counterpart(sides: tuple[Side, Side], artifact: Artifact, error: MissError) -> str:
    """Where the other side has what the artifact is compared with. Raises `error` if it has none."""
    path = compare_sides(*sides).counterpart(artifact.path)
    if path is None:
        raise error
    return path


def _lines(left: _Found, right: _Found) -> list[str] | None:
    """The lines of a unified diff; None if none can be made."""
    if max(left.artifact.entry.size, right.artifact.entry.size) > MAX_COMPARED:
        return None
    one, other = left.text(), right.text()
    if one is None or other is None or max(one.count("\n"), other.count("\n")) > MAX_LINES:
        return None
    return list(unified_diff((left.name, one), (right.name, other)))
