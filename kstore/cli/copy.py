"""`kstore copy`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kstore.cli.options import (
    ERROR,
    INTEGRITY,
    MISSING,
    Command,
    Invocation,
    choice_options,
    layout_option,
    output_options,
    pass_invocation,
)
from kstore.errors import IntegrityError, MissError, StoreBelowMissing, StoreUnavailable

if TYPE_CHECKING:
    from kstore.cli.output import Output
    from kstore.operations.copy import CopyReport


@click.command("copy", cls=Command, exit_codes=ERROR | MISSING | INTEGRITY)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@choice_options
@layout_option
@output_options
@pass_invocation
def command(invocation: Invocation, source: str, target: str, keys: tuple[str, ...]) -> int:
    """Copy the newest generations of all keys, or of each KEY, between two stores.

    Only files that DST lacks are copied. They are merged with what DST has published; none of that is lost. A key
    that was forgotten or quarantined in DST stays so unless it is named.
    """
    from kstore.operations.copy import copy_keys
    from kstore.store import Store

    output = invocation.output
    layout, gpu, environment = map(invocation.text, ("layout", "gpu", "environment"))
    origin, to = Store(source), Store(target, layout=layout)
    origin.storage.naming, to.storage.naming = "as SRC", "as DST"
    with output.working(f"copying {source} to {target}", to.progress):
        report = copy_keys(origin, to, keys, gpu=gpu, environment=environment)
    failures = (
        (report.damaged, IntegrityError), (report.leaning, StoreBelowMissing), (report.missing, MissError),
        (report.unreadable, StoreUnavailable),
    )  # fmt: skip
    for reason in (reason for reasons, _ in failures for reason in reasons):
        output.warn(reason)
    if output.json:
        output.document(report.as_json())
    else:
        _tell(output, report)
        if not (report.scopes or report.withdrawn or any(reasons for reasons, _ in failures)):
            output.say(f"{report.source} has nothing to copy")
    return next((error.exit_code for reasons, error in failures if reasons), 0)


def _tell(output: Output, report: CopyReport) -> None:
    from kstore.cli.sentences import brought_in

    for brought in report.scopes:
        output.summary(brought_in("copied", brought))
    for scope in report.withdrawn:
        output.summary(f"{scope} was forgotten or quarantined in {report.target}, and stays so unless it is named")
