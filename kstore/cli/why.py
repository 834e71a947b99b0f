"""`kstore why`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from kstore.cli.options import (
    ERROR,
    MISSING,
    Command,
    Invocation,
    cache_root_option,
    key_argument,
    output_options,
    pass_invocation,
    scope_options,
    store_option,
)
from kstore.cli.words import plural, shorten

if TYPE_CHECKING:
    from kstore.cli.output import Output
    from kstore.why.differences import Difference, Reason
    from kstore.why.find import WhyReport

_SHOWN = 12
"""Differences of one group of graphs that are shown without --verbose."""
_VALUE = 48
"""Characters of a value that are shown without --verbose."""


@click.command("why", cls=Command, exit_codes=ERROR | MISSING)
@key_argument
@store_option
@cache_root_option
@scope_options
@output_options
@pass_invocation
def command(invocation: Invocation, key: str) -> int:
    """Say why the last run compiled although KEY was restored.

    Compares the graphs that were compiled since the restore with those that were restored, attribute by attribute of
    what torch makes their keys of. Stored entries are pickles, which run code when they are loaded: they are read as
    plain data here, and never loaded.
    """
    from kstore.why.find import find_reasons

    output, store = invocation.output, invocation.store()
    report = find_reasons(store, key)
    if output.json:
        output.document(report.as_json())
    else:
        _tell(output, report)
    return 0


def _tell(output: Output, report: WhyReport) -> None:
    groups = Counter((graph.reason, graph.differences) for graph in report.graphs)
    for (reason, differences), count in groups.most_common():
        _tell_group(output, count, reason, differences)
    others = f", and {plural(report.others, 'other artifact')} with them" if report.others else ""
    what = plural(len(report.graphs), "entry", "entries")
    output.summary(f"{what} compiled anew after generation {report.generation} was restored{others}")
    if not report.graphs and not report.others:
        output.say(f"everything hit, or nothing has been compiled yet; `kstore doctor {report.key}` checks the rest")


def _tell_group(output: Output, count: int, reason: Reason, differences: tuple[Difference, ...]) -> None:
    from kstore.why.hints import AUTOGRAD

    output.line(f"{plural(count, 'entry', 'entries')}: {_REASONS[reason]}")
    if reason == "autograd":
        output.line(f"  {AUTOGRAD}")
    shown = len(differences) if output.verbosity > 0 else _SHOWN
    for difference in differences[:shown]:
        _tell_difference(output, difference)
    if len(differences) > shown:
        output.line(f"  and {len(differences) - shown} more; -v shows them")


_REASONS = {
    "differs": "as stored, but for",
    "new-code": "the code is new; the stored graph most like it differs in",
    "guards": "stored under the same key, but the guards did not hold: other shapes, for one",
    "autograd": "the graphs are stored, but AOTAutograd asked for them under another key",
    "nothing": "no graph was restored that it could be compared with",
    "unreadable": "the entry does not say what its key was made of",
}


def _tell_difference(output: Output, difference: Difference) -> None:
    from kstore.why.differences import code_difference
    from kstore.why.graphs import CODE
    from kstore.why.hints import hint

    where = f"  ({found})" if (found := hint(difference.name)) else ""
    if difference.name == CODE:
        output.line(f"  the code{where}")
        for line in code_difference(difference):
            output.line(f"    {shorten(line, 100)}")
        return
    width = 10_000 if output.verbosity > 0 else _VALUE
    old, new = (_value(text, width) for text in (difference.stored, difference.fresh))
    output.line(f"  {difference.name}: {old} → {new}{where}")


def _value(text: str | None, width: int) -> str:
    if text is None:
        return "(not there)"
    return shorten(" ".join(text.split()), width) or "(empty)"
