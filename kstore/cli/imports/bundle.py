"""`kstore import FILE`: a bundle."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from kstore.cli.imports import SOURCES
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
from kstore.errors import IntegrityError, UsageError

if TYPE_CHECKING:
    from kstore.bundles.importing import ImportReport
    from kstore.cli.output import Output

_MEGACACHE = ".megacache"


def _no_source(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Callback of FILE: another source's name is here if options stand before it."""
    if value in SOURCES and not os.path.lexists(value):
        ctx.fail(f"there is no file {value}; to import from {value}, put its name first, as in `kstore import {value}`")
    return value


@click.command("bundle", cls=Command, exit_codes=ERROR | MISSING | INTEGRITY)
@click.argument("path", metavar="FILE", callback=_no_source)
@click.argument("key", required=False)
@store_option
@choice_options
@layout_option
@output_options
@pass_invocation
def command(invocation: Invocation, path: str, key: str | None) -> None:
    """Publish what a bundle holds, under its own key or as KEY.

    Every byte of FILE is checked first. It is merged with what is already published; none of that is lost, and only
    what the store lacks is uploaded: an import that was killed goes on where it stopped. --gpu and --environment choose
    one of several. FILE is `-` for standard input.
    """
    from kstore.bundles.importing import import_bundle

    output, store = invocation.output, invocation.store()
    gpu, environment = invocation.text("gpu"), invocation.text("environment")
    with output.working(f"importing {path}", store.progress), _recognising(path, key):
        report = import_bundle(store, path, key, gpu=gpu, environment=environment)
    if output.json:
        output.document(report.as_json())
    else:
        _tell(output, report)


@contextmanager
def _recognising(path: str, key: str | None) -> Iterator[None]:
    """If the file is not a bundle but is named like a mega-cache, say which command takes it."""
    try:
        yield
    except IntegrityError as error:
        if not path.endswith(_MEGACACHE):
            raise
        command = f"kstore import megacache {shlex.quote(path)} {key or 'KEY'}"
        raise UsageError(f"{path} is not a bundle; it has the name of a mega-cache, which `{command}` takes") from error


def _tell(output: Output, report: ImportReport) -> None:
    from kstore.cli.sentences import brought_in

    for brought in report.scopes:
        output.summary(brought_in("imported", brought))
