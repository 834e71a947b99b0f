"""Prints what differs between two caches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from kstore.cli.columns import Column, cut, screen_width, wrapped
from kstore.inspect.comparison import Change
from kstore.inspect.kinds import Kind
from kstore.words import amount, in_line, plural, shorten, size

if TYPE_CHECKING:
    from kstore.cli.output import Output
    from kstore.inspect.comparison import Comparison, Difference, Field, Tally
    from kstore.inspect.kernels import Value
    from kstore.inspect.sides import Side

_MARKS = {
    Change.CHANGED: ("~", "yellow"),
    Change.REMOVED: ("-", "red"),
    Change.ADDED: ("+", "green"),
    Change.MOVED: (">", "cyan"),
    Change.REBUILT: ("=", "cyan"),
}
_STAGES = ("source", "ttir", "ttgir", "llir", "ptx", "amdgcn", "cubin", "hsaco")
"""Forms of a Triton kernel, in order: each is made from the one before."""
_SHOWN = 20
"""Lines shown per section without --verbose."""
_LONG = 60
_LONGEST = 400


def describe(comparison: Comparison) -> dict[str, Any]:
    """For machines."""
    return {
        "left": comparison.left.describe(),
        "right": comparison.right.describe(),
        "differ": comparison.differ,
        "summary": [tally.describe() for tally in comparison.tallies],
        "bytes": {
            "shared": comparison.shared.bytes,
            "left": comparison.only_left.bytes,
            "right": comparison.only_right.bytes,
        },
        "environment": [field._asdict() for field in comparison.facts],
        "differences": [difference.describe() for difference in comparison.differences],
        "unread": comparison.unread,
        "skipped": [skipped._asdict() for skipped in comparison.right.skipped],
    }


def print_names(output: Output, comparison: Comparison) -> None:
    """Print the name of everything that differs, each once."""
    for name in dict.fromkeys(in_line(difference.name) for difference in comparison.differences):
        output.line(name)


def print_report(output: Output, comparison: Comparison, *, details: bool) -> None:
    """For people: the numbers, then, with `details`, each difference and its reason."""
    _side(output, "-", comparison.left)
    _side(output, "+", comparison.right)
    output.line()
    if comparison.tallies:
        columns, rows = _table(comparison.tallies)
        output.table(columns, rows)
        output.line()
    if details:
        for kind in Kind:
            _section(output, kind, [found for found in comparison.differences if found.kind is kind])
    if comparison.facts:
        output.line("environment")
        for fact in comparison.facts:
            for line in wrapped(f"{in_line(fact.name)}  {_change_of(fact)}", "  ", "  "):
                output.line(line)
        output.line()
    output.line(_bytes(comparison))


def _side(output: Output, mark: str, side: Side) -> None:
    total = sum(artifact.entry.size for artifact in side.artifacts)
    line = f"{mark} {in_line(side.label)}  {amount(len(side.artifacts), total)}"
    output.line(line, "red" if mark == "-" else "green")


def _table(tallies: Iterable[Tally]) -> tuple[list[Column], list[list[str]]]:
    """The columns and rows of the table, without columns that hold only zeros."""
    changes = [change for change in Change if any(tally.different[change] for tally in tallies)]
    columns = [Column("COMPONENT", floor=9), Column("KIND", floor=10), Column("SAME", right=True)]
    columns += [Column(change.upper(), right=True) for change in changes]
    rows = []
    for tally in tallies:
        numbers = (tally.same, *(tally.different[change] for change in changes))
        rows.append([in_line(tally.component), tally.kind.label, *map(str, numbers)])
    return columns, rows


def _section(output: Output, kind: Kind, differences: list[Difference]) -> None:
    if not differences:
        return
    output.line(kind.label)
    told = [found for found in differences if found.change is not Change.REBUILT or output.verbosity > 0]
    lines = Counter((found.change, in_line(found.name), describe_difference(found)) for found in told)
    shown, more = output.some(list(lines.items()), _SHOWN)
    for (change, name, what), count in shown:
        _entry(output, change, name if count == 1 else f"{name} (×{count})", what)  # noqa: RUF001
    if more:
        output.line(f"  and {more} more; -v lists all")
    if rebuilt := len(differences) - len(told):
        output.line(f"  = {rebuilt} with the same key, but other bytes; -v lists them", _MARKS[Change.REBUILT][1])
    output.line()


def _entry(output: Output, change: Change, name: str, what: str) -> None:
    mark, color = _MARKS[change]
    if what and len(name) + len(what) + 6 <= screen_width():
        output.line(f"  {mark} {name}  {what}", color)
        return
    output.line(f"  {mark} {cut(name, 4)}", color)
    for line in wrapped(what, "      ", "      "):
        output.line(line)


def describe_difference(found: Difference) -> str:
    """Why it differs, as far as that is known: "num_warps 4 → 8"."""
    if found.change in (Change.ADDED, Change.REMOVED):
        side = [f"{field.name} {_text(field.right if found.right else field.left)}" for field in found.fields]
        return ", ".join([*side, *_calls(found)])
    if found.change is Change.MOVED:
        assert found.left and found.right
        return f"{in_line(found.left.unit)} → {in_line(found.right.unit)}"
    fields = [f"{in_line(field.name)} {_change_of(field)}" for field in found.fields]
    return ", ".join([*fields, *_code(found), *_calls(found)])


def _calls(found: Difference) -> Iterator[str]:
    if found.calls:
        first, *others = map(in_line, found.calls)
        yield f"calls {shorten(first, _LONG)}" + (f" and {plural(len(others), 'other')}" if others else "")


def _code(found: Difference) -> Iterator[str]:
    """What to say about the files that differ."""
    if found.change is Change.REBUILT:
        yield "the same key, other bytes"
    elif found.kind is Kind.TRITON_KERNEL:
        yield from _triton_code(found)
    elif found.kind is Kind.CPP_KERNEL:
        yield _cpp_code(found)
    elif not found.fields:
        yield "other code" if found.kind is Kind.GENERATED_CODE else "other bytes"


def _cpp_code(found: Difference) -> str:
    if any(name.endswith(".cpp") for name in found.files):
        return "other source"
    # Only objects are bound to a host.
    lacking = [side for side, item in (("left", found.left), ("right", found.right)) if item and not item.hosts]
    return f"the same source, no object on the {lacking[0]}" if lacking else "the same source, built differently"


def _triton_code(found: Difference) -> Iterator[str]:
    suffixes = {name.rpartition(".")[2] for name in found.files}
    stages = [stage for stage in _STAGES if stage in suffixes]
    if found.other_code is not None:
        yield "other code" if found.other_code else "the same code at another line or path"
    elif not found.fields:
        yield f"other {stages[0]}" if stages else "the same code under another key"


def _change_of(field: Field) -> str:
    left, right = field.left, field.right
    if isinstance(left, str) and isinstance(right, str) and " " in left and max(len(left), len(right)) > _LONG:
        return _words_that_differ(left, right)
    return f"{_text(left)} → {_text(right)}"


def _words_that_differ(left: str, right: str) -> str:
    """The words that differ between two long lists, such as a CPU's features."""
    one, other = left.split(), right.split()
    words = [f"-({word})" for word in one if word not in set(other)] + [
        f"+({word})" for word in other if word not in set(one)
    ]
    return in_line(" ".join(words) or "the same words in another order")[:_LONGEST]


def _text(value: Value) -> str:
    if value is None:
        return "none"
    return shorten(in_line(str(value).lower() if isinstance(value, bool) else str(value)), _LONG) or '""'


def _bytes(comparison: Comparison) -> str:
    if not comparison.differ:
        return f"nothing differs: {size(comparison.shared.bytes)} in common"
    left, right = comparison.left, comparison.right
    return (
        f"bytes: {size(comparison.shared.bytes)} in common, "
        f"{size(comparison.only_left.bytes)} only in {in_line(left.label)}, "
        f"{size(comparison.only_right.bytes)} only in {in_line(right.label)}"
    )
