"""`kstore du`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from kstore.cli.columns import KEY, Column
from kstore.cli.options import ERROR, INTEGRITY, MISSING, Command, Invocation, on_store, optional_key_argument
from kstore.errors import IntegrityError
from kstore.words import amount, size

if TYPE_CHECKING:
    from kstore.cli.output import Output
    from kstore.stats.space import Held, Space

_COLUMNS = (
    KEY,
    Column("GENS", right=True),
    Column("FILES' SIZE", right=True),
    Column("UNIQUE", right=True),
    Column("STORED", right=True),
    Column("ALONE", right=True),
    Column("SHARED", right=True),
    Column("FRAMES", right=True),
)


@click.command("du", cls=Command, exit_codes=ERROR | MISSING | INTEGRITY)
@optional_key_argument
@on_store
def command(invocation: Invocation, key: str) -> int:
    """Show whose bytes the store holds, and what each key alone would free.

    ALONE is what `kstore forget KEY` and then gc free in the end; SHARED stays, since other keys or a pinned
    generation need it. A pack is deleted as a whole: FRAMES are the parts of shared packs that only this key needs,
    freed if gc rewrites the pack. All of a key's GPUs, environments and generations are counted. Every manifest
    is read, even for one KEY.
    """
    from kstore.published.scopes import missing_above
    from kstore.scope import check_key
    from kstore.stats.accounts import space_of
    from kstore.storage import reporting_trouble

    output, store = invocation.output, invocation.store()
    if key:
        check_key(key)
    with output.working("reading the store", store.progress), reporting_trouble(store.location, "read"):
        store.storage.open_existing()
        space = space_of(store.storage, lambda scope: scope.key, progress=store.progress)
    if key and key not in space.groups:
        error = missing_above(store.storage, key)  # It may be hidden, which is another error.
        if not space.unreadable:  # or that is what cannot be read of it
            raise error
    rows = {name: held for name, held in space.groups.items() if key in ("", name)}
    for trouble in space.unreadable:
        output.warn(f"cannot be read, and is not counted: {trouble}")
    if output.json:
        output.document(_describe(store.location, space, rows))
    else:
        _tell(output, space, rows)
    return IntegrityError.exit_code if space.unreadable else 0


def _describe(location: str, space: Space[str], rows: dict[str, Held]) -> dict[str, object]:
    return {
        "store": location,
        "keys": [{"key": key, **asdict(held), "shared": held.shared} for key, held in rows.items()],
        "total": {**asdict(space.whole), "shared": space.whole.shared, "dead_frames": space.dead_frames},
        "objects": asdict(space.objects),
        "unneeded": asdict(space.unneeded),
        "unreadable": space.unreadable,
    }


def _tell(output: Output, space: Space[str], rows: dict[str, Held]) -> None:
    if rows:
        by_size = sorted(rows.items(), key=lambda item: -item[1].alone)
        output.table(_COLUMNS, [_row(key, held) for key, held in by_size])
        output.line()
    whole = space.whole
    output.summary(f"needed: {size(whole.stored)}, of which {size(whole.shared)} are shared between keys or pinned")
    if space.dead_frames:
        output.summary(f"not needed, in packs that are: {size(space.dead_frames)}")
    if space.unneeded.files:
        unneeded = amount(space.unneeded.files, space.unneeded.bytes)
        what = "what cannot be read may need them" if space.unreadable else "gc deletes them"
        output.summary(f"not needed: {unneeded}; {what}")
    output.summary(f"in the store: {amount(space.objects.files, space.objects.bytes)}")


def _row(key: str, held: Held) -> tuple[str, ...]:
    sizes = (held.artifacts, held.unique, held.stored, held.alone, held.shared, held.frames)
    return (key, str(held.generations), *map(size, sizes))
