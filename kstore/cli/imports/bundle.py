"""`kstore import FILE`: a bundle."""

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
    store_option,
)

if TYPE_CHECKING:
    from kstore.bundles.importing import ImportReport
    from kstore.cli.output import Output


@click.command("bundle", cls=Command, exit_codes=ERROR | MISSING | INTEGRITY)
@click.argument("path", metavar="FILE")
@click.argument("key", required=False)
@store_option
@choice_options
@layout_option
@output_options
@pass_invocation
def command(invocation: Invocation, path: str, key: str | None) -> None:
    """Publish what a bundle holds, under its own key or as KEY.

    Every byte of FILE is checked first. It is merged with what is published already, of which nothing is lost, and only
    what the store lacks is uploaded: an import that was killed goes on where it was. --gpu and --environment choose one
    of several. FILE is `-` for standard input.
    """
    from kstore.bundles.importing import import_bundle

    output, store = invocation.output, invocation.store()
    gpu, environment = invocation.settings["gpu"], invocation.settings["environment"]
    with output.working(f"importing {path}", store.progress):
        report = import_bundle(store, path, key, gpu=gpu, environment=environment)  # type: ignore[arg-type]
    if output.json:
        output.document(report.as_json())
    else:
        _tell(output, report)


def _tell(output: Output, report: ImportReport) -> None:
    from kstore.cli.sentences import brought_in

    for brought in report.scopes:
        output.summary(brought_in("imported", brought))
