"""`kstore stats`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from kstore.cli.columns import GPU, KEY, Column
from kstore.cli.options import ERROR, INTEGRITY, MISSING, Command, Invocation, on_store, optional_key_argument
from kstore.errors import IntegrityError, UsageError
from kstore.words import age, duration, plural, size

if TYPE_CHECKING:
    from kstore.cli.output import Output
    from kstore.stats.overview import Commits, Overview, Row, Shelf
    from kstore.stats.totals import Totals

_COLUMNS = (
    KEY,
    GPU,
    Column("HITS", right=True),
    Column("MISSES", right=True),
    Column("GENS", right=True),
    Column("FILES' SIZE", right=True),
    Column("STORED", right=True),
    Column("RESTORE", right=True),
    Column("COMMIT", right=True),
)


@click.command("stats", cls=Command, exit_codes=ERROR | MISSING | INTEGRITY)
@optional_key_argument
@click.option("--prometheus", is_flag=True, help="In the text format of Prometheus.")
@on_store
def command(invocation: Invocation, key: str, prometheus: bool) -> int:
    """Show hits, misses, bytes and times, by key.

    For KEY, or for every key, with each GPU in a row of its own. Restores are counted from workers' own reports, which
    workers with the mode `read` do not make; RESTORE and COMMIT are what one takes on average. To find out what is
    stored, every manifest is read.
    """
    from kstore.published.scopes import missing_above
    from kstore.scope import check_key
    from kstore.stats.overview import overview
    from kstore.stats.prometheus import as_prometheus
    from kstore.storage import reporting_trouble

    output, store = invocation.output, invocation.store()
    if key:
        check_key(key)
    if prometheus and output.json:
        raise UsageError("--prometheus and --json exclude each other")
    with output.working("reading the store", store.progress), reporting_trouble(store.location, "read"):
        store.storage.open_existing()
        found = overview(store.storage, key or None, store.progress)
    if key and not found.rows:
        raise missing_above(store.storage, key)  # Or it may be hidden, which is another error.
    for trouble in found.unreadable:
        output.warn(f"cannot be read, and is not counted: {trouble}")
    if output.json:
        output.document(found.as_json())
    elif prometheus:
        output.exact(as_prometheus(found).encode())
    else:
        _tell(output, found)
    return IntegrityError.exit_code if found.unreadable else 0


def _tell(output: Output, found: Overview) -> None:
    for name, value in _facts(found):
        output.line(f"{name:<13} {value}")
    if found.rows:
        output.line()
        output.table(_COLUMNS, [_row(shelf, row) for shelf, row in found.rows.items()])


def _facts(found: Overview) -> Iterator[tuple[str, str]]:
    restores, held = found.whole.restores, found.whole.held
    yield "store", found.store
    live = [shelf for shelf, row in found.rows.items() if row.held.published]
    yield "keys", f"{len({shelf.key for shelf in live})}, of {plural(len({shelf.gpu for shelf in live}), 'GPU')}"
    yield "restores", _restores(restores)
    if restores.left_out:
        yield "left out", plural(restores.left_out, "file")
    yield "restore time", _restore_time(restores)
    yield "commit time", _commit_time(found.whole.commits)
    yield "generations", str(held.generations)
    yield "files' size", f"{size(held.artifacts)} in all of these generations"
    yield "deduplicated", _saved(held.deduplicated)
    if held.elsewhere:
        yield "elsewhere", _saved(held.elsewhere)
    yield "manifests", _saved(-held.manifests)
    yield "compressed", _saved(held.compressed)
    yield "stored", size(held.stored)


def _saved(bytes: int) -> str:
    return f"{'-' if bytes > 0 else '+' if bytes < 0 else ''}{size(abs(bytes))}"


def _restores(restores: Totals) -> str:
    if not restores.restores:
        return "none counted"
    rate = f"{100 * restores.hits / restores.restores:.1f} % hits"
    misses = plural(restores.misses, "miss", "misses")
    counts = f"{plural(restores.hits, 'hit')}, {misses}, {restores.seeded} seeded"
    return f"{restores.restores} in {age(restores.since)}: {counts}; {rate}"


def _restore_time(restores: Totals) -> str:
    from kstore.report import RestoreStatus

    timing = restores.timing(RestoreStatus.RESTORED)
    if not timing.count:
        return "-"
    return f"{duration(timing.mean)} on average, {duration(timing.least)} to {duration(timing.most)}"


def _commit_time(commits: Commits) -> str:
    if not commits.timed:
        return "-"
    mean = duration(commits.seconds / commits.timed)
    return f"{mean} on average, {duration(commits.most)} at most; {size(commits.uploaded)} uploaded"


def _row(shelf: Shelf, row: Row) -> tuple[str, ...]:
    from kstore.report import RestoreStatus

    timing, commits = row.restores.timing(RestoreStatus.RESTORED), row.commits
    return (
        shelf.key,
        shelf.gpu,
        str(row.restores.hits),
        str(row.restores.misses),
        str(row.held.generations),
        size(row.held.artifacts),
        size(row.held.stored),
        duration(timing.mean) if timing.count else "-",
        duration(commits.seconds / commits.timed) if commits.timed else "-",
    )
