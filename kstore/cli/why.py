"""`kstore why`."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial
from typing import TYPE_CHECKING

import click

from kstore.cli.columns import cut, screen_width, wrapped
from kstore.cli.options import ERROR, HELD, MISSING, WORKERS, Command, Invocation, key_argument, on_worker
from kstore.words import plural, shorten

if TYPE_CHECKING:
    from kstore.cli.output import Output
    from kstore.why.differences import Difference, Reason
    from kstore.why.find import WhyReport
    from kstore.why.kernels import KernelExplanation, KernelReason

_SHOWN = 12
"""Differences of one group of graphs that are shown without --verbose."""
_VALUE = 48
"""Characters of a value that are shown without --verbose."""
_BEFORE = 16
"""Characters that are shown before two long values begin to differ."""
_GROUPS = 12
"""Groups of graphs, and of kernels, that are shown without --verbose."""
_NAMES = 3
"""Kernels of a group that are named without --verbose."""
_NAME = 72
"""Characters of a name that are shown."""
_REASONS = {
    "differs": "as stored, except for",
    "new-code": "the code is new; the stored graph most like it differs in",
    "guards": "stored under the same key, but the guards did not hold, for example because of other shapes",
    "missing": "stored, but the entry was left out of the restore, or has been removed",
    "autograd": "stored, but AOTAutograd asked for it under another key",
    "nothing": "no graph was restored that it could be compared with",
    "unreadable": "its entry does not say what its key was made of",
}
_KERNEL_REASONS = {
    "options": "stored with another configuration",
    "code": "same configuration as stored; source, signature or constants differ",
    "place": "same configuration and code as stored; its line, ptxas or libdevice differs",
    "replaced": "stored under the same key, but damaged, removed or left out of the restore; or TRITON_ALWAYS_COMPILE",
    "nothing": "none of that name was restored",
    "unreadable": "the metadata cannot be read",
}


@click.command("why", cls=Command, exit_codes=ERROR | MISSING | HELD)
@key_argument
@on_worker
def command(invocation: Invocation, key: str) -> None:
    """Say why the last run compiled although KEY was restored.

    Compares the graphs that were compiled since the restore with those that were restored, by the attributes that
    torch makes their keys of. Stored entries are pickles, which run code when they are loaded: they are read as
    plain data here, and never loaded. Triton's kernels are compared with stored ones of the same name.
    """
    from kstore.why.find import find_reasons

    output, store = invocation.output, invocation.store()
    again = partial(invocation.again, key=key, names=WORKERS)
    report = find_reasons(store, key, again)
    if output.json:
        output.document({"store": store.location, **report.as_json()})
    else:
        _tell(output, report, again("doctor"))


def _tell(output: Output, report: WhyReport, doctor: str) -> None:
    graphs = Counter((graph.reason, graph.differences) for graph in report.graphs).most_common()
    shown, more = output.some(graphs, _GROUPS)
    for (reason, differences), count in shown:
        _tell_group(output, count, reason, differences)
    if more:
        output.line(f"and {plural(more, 'more group')} of graphs; -v shows them")
    _tell_kernels(output, report.kernels)
    _sum_up(output, report, doctor)


def _sum_up(output: Output, report: WhyReport, doctor: str) -> None:
    """`doctor` is the command that checks what is not compared here."""
    others = f", and {plural(report.others, 'other artifact')} with them" if report.others else ""
    kernels = f" and {plural(len(report.kernels), 'kernel')}" if report.kernels else ""
    entries = f" ({plural(report.entries, 'entry', 'entries')})" if report.entries else ""
    graphs = plural(len(report.graphs), "graph") + entries
    restored = f"generation {report.generation}" + (f" of {report.seed}" if report.seed else "")
    output.summary(f"{graphs}{kernels} compiled anew after {restored} was restored{others}")
    if advice := _advice(report, doctor):
        output.say(advice)


def _advice(report: WhyReport, doctor: str) -> str:
    """What to know besides; empty if the comparisons say it all."""
    if report.bypassed and not report.unused:
        return (
            "there is Inductor code without the entry of a graph: torch keeps none for what it cannot cache, as with "
            "TORCHINDUCTOR_FREEZING=1 or custom passes, and compiles it each time"
        )
    if report.graphs or report.kernels:
        return ""
    if report.others:
        return (
            "what was removed or left out of the restore is made again, and so are C++ objects that are for another "
            f"kind of host; `{doctor}` checks this one"
        )
    rest = f"`{doctor}` checks the rest"
    if report.gone:
        return (
            f"{', '.join(report.gone)}: nothing is left of what was restored; if a variable of the run named another "
            f"folder for it, set that here too; {rest}"
        )
    if report.unused:
        return f"{', '.join(report.unused)}: restored, but none of it was read: is that cache switched off? {rest}"
    return f"everything hit, or nothing has been compiled yet; {rest}"


def _tell_kernels(output: Output, kernels: tuple[KernelExplanation, ...]) -> None:
    groups: dict[tuple[KernelReason, tuple[Difference, ...]], list[str]] = defaultdict(list)
    for kernel in kernels:
        groups[kernel.reason, kernel.differences].append(_value(kernel.name, _NAME))
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    shown, more = output.some(ordered, _GROUPS)
    for (reason, differences), names in shown:
        output.line(f"{plural(len(names), 'kernel')}: {_KERNEL_REASONS[reason]}")
        named, unnamed = output.some(names, _NAMES)
        _wrap(output, ", ".join(named) + (f" and {unnamed} more" if unnamed else ""))
        _tell_differences(output, differences)
    if more:
        output.line(f"and {plural(more, 'more group')} of kernels; -v shows them")


def _tell_group(output: Output, count: int, reason: Reason, differences: tuple[Difference, ...]) -> None:
    from kstore.why.hints import AUTOGRAD

    output.line(f"{plural(count, 'graph')}: {_REASONS[reason]}")
    if reason == "autograd":
        _wrap(output, AUTOGRAD)
    _tell_differences(output, differences)


def _tell_differences(output: Output, differences: tuple[Difference, ...]) -> None:
    shown, more = output.some(differences, _SHOWN)
    for difference in shown:
        _tell_difference(output, difference)
    if more:
        output.line(f"  and {more} more; -v shows them")


def _tell_difference(output: Output, difference: Difference) -> None:
    from kstore.why.differences import code_difference
    from kstore.why.graphs import CODE
    from kstore.why.hints import hint

    where = f"({found})" if (found := hint(difference.name)) else ""
    if difference.name == CODE:
        output.line(f"  the code  {where}")
        for line in code_difference(difference):
            output.line(f"    {cut(line, 4)}")
        return
    old, new = _values(difference, 10_000 if output.verbosity > 0 else _VALUE)
    _wrap(output, f"{_value(difference.name, _NAME)}: {old} → {new}", where)


def _wrap(output: Output, text: str, where: str = "") -> None:
    """Print a text indented, on one line with where to look if there is room, and with no value cut in two."""
    line = f"  {text}  {where}".rstrip()
    if len(line) <= screen_width():
        output.line(line)
        return
    for part in (*wrapped(text, "  ", "      "), *wrapped(where, "      ", "      ")):
        output.line(part)


def _values(difference: Difference, width: int) -> tuple[str, str]:
    """Both values; for long ones, the part where they begin to differ."""
    old, new = (" ".join(text.split()) if text else "" for text in (difference.stored, difference.fresh))
    shared = next((at for at, (one, other) in enumerate(zip(old, new, strict=False)) if one != other), 0)
    skipped = max(0, shared - _BEFORE)
    if not skipped or max(len(old), len(new)) <= width:
        return _value(difference.stored, width), _value(difference.fresh, width)
    return _cut(old, skipped, width), _cut(new, skipped, width)


def _cut(text: str, skipped: int, width: int) -> str:
    end = skipped + width - 2
    return f"…{text[skipped:end]}{'…' if len(text) > end else ''}"


def _value(text: str | None, width: int) -> str:
    if text is None:
        return "(not there)"
    return shorten(" ".join(text.split()), width) or "(empty)"
