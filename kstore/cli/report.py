"""`kstore report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kstore.cli.options import ERROR, INTEGRITY, Command, Invocation, on_store
from kstore.cli.streams import STDOUT, is_stdout, open_target
from kstore.cli.termination import terminable
from kstore.errors import IntegrityError, StoreFormatError, StoreUnavailable, UsageError
from kstore.words import plural, size

if TYPE_CHECKING:
    from kstore.gc import GcReport
    from kstore.store import Store


@click.command("report", cls=Command, exit_codes=ERROR | INTEGRITY)
@click.option(
    "-o", "--output", "path", metavar="FILE", default="report.html", show_default=True,
    help="Where to write it; - is stdout.",
)  # fmt: skip
@on_store
def command(invocation: Invocation, path: str) -> int:
    """Write everything known about the store's use as one HTML page.

    Bytes by GPU, key and component, what keys share, growth, the slowest restores, environments, and what gc would
    remove. The page needs no network, and can be sent to others: it holds the names of keys, users and hosts. Every
    manifest is read. Needs plotly: pip install plotly.
    """
    from kstore.htmlreport.facts import collect_facts
    from kstore.htmlreport.page import check_plotly, make_page
    from kstore.storage import reporting_trouble

    output, store = invocation.output, invocation.store()
    output.stdout_is_lent = is_stdout(path)
    if path != STDOUT:
        _check_target(Path(path))
    check_plotly()
    with output.working("reading the store", store.progress):
        with reporting_trouble(store.location, "read"):
            store.storage.open_existing()
            facts = collect_facts(store.storage, _candidates(store), store.progress)
        page = make_page(facts).encode(errors="replace")  # A path need not be valid text.
    with terminable(), open_target(path) as file:
        file.write(page)
    for trouble in facts["unreadable"]:
        output.warn(f"cannot be read, and is not counted: {trouble}")
    keys = len({row["key"] for row in facts["keys"] if row["published"]})
    if output.json:
        output.document({"store": store.location, "file": path, "bytes": len(page), "keys": keys})
    else:
        output.summary(f"{path}: {plural(keys, 'key')}, {size(len(page))}")
    return IntegrityError.exit_code if facts["unreadable"] else 0


def _check_target(path: Path) -> None:
    """Check that the page can be written, before the whole store is read for it."""
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder; name a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {path.parent}")


def _candidates(store: Store) -> GcReport | None:
    """What gc would do; None if it cannot say: it makes a file to learn the store's own time, and reads every key."""
    from kstore.settings import Mode

    if store.settings.mode is Mode.READ:
        return None
    try:
        store.storage.clock()
        return store.gc(dry_run=True)
    except (OSError, StoreUnavailable, StoreFormatError):
        return None
