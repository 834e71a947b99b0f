"""`kstore doctor`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from kstore.cli.columns import wrapped
from kstore.cli.options import Command, Invocation, on_committer, optional_key_argument
from kstore.cli.termination import terminable
from kstore.words import plural

if TYPE_CHECKING:
    from kstore.cli.output import Output
    from kstore.doctor import Check

_MARKS = {"ok": "ok  ", "warning": "warn", "bad": "BAD "}
_WIDTH = 13
_EXIT_CODES = {"0": "nothing prevents hits", "1": "something does", "2": "usage"}


@click.command("doctor", cls=Command, exit_codes=_EXIT_CODES)
@optional_key_argument
@on_committer
def command(invocation: Invocation, key: str) -> int:
    """Check everything that hits depend on, from the store to the compiler.

    With KEY, also check whether what is published for it was built for a worker like this one. Run it where the job
    runs, with the job's variables. Each line is a check: what was found and, if needed, what to do.
    """
    from kstore.doctor import Verdict, examine

    output, store = invocation.output, invocation.store()
    checks = []
    with terminable():  # The checks try things out in a temporary folder.
        for check in examine(store, key):
            checks.append(check)
            if not output.json:
                _tell(output, check)
    counts = Counter(check.verdict for check in checks)
    bad = counts[Verdict.BAD]
    if output.json:
        output.document(
            {"store": store.location, "key": key, "ok": not bad, "checks": [check._asdict() for check in checks]}
        )
    else:
        _sum_up(output, bad, counts[Verdict.WARNING])
    return 1 if bad else 0


def _tell(output: Output, check: Check) -> None:
    if check.verdict == "ok" and output.verbosity < 0:
        return
    indent = " " * (len(_MARKS["ok"]) + _WIDTH + 2)
    head = f"{_MARKS[check.verdict]} {check.name:<{_WIDTH}} "
    for line in (*wrapped(check.found, head, indent), *wrapped(check.advice, f"{indent}→ ", f"{indent}  ")):
        output.line(line)


def _sum_up(output: Output, bad: int, warnings: int) -> None:
    what = plural(bad, "finding prevents", "findings prevent") if bad else "nothing prevents"
    output.summary(f"{what} hits, {plural(warnings, 'warning')}")
