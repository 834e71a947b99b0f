"""`kstore rollback`."""

from __future__ import annotations

import click

from kstore.cli.options import ERROR, INTEGRITY, MISSING, Command, Generation, Invocation, key_argument, on_scope
from kstore.words import amount


@click.command("rollback", cls=Command, exit_codes=ERROR | MISSING | INTEGRITY)
@key_argument
@click.argument("generation", type=Generation(), required=False)
@on_scope
def command(invocation: Invocation, key: str, generation: int | None) -> None:
    """Publish an earlier generation of KEY as its newest.

    By default the last one that differs from the newest, if possible one of which nothing is lost.
    `kstore show KEY` lists them.
    """
    output, store = invocation.output, invocation.store()
    ref = store.rollback(key, generation)
    if output.json:
        output.document({"store": store.location, "published": ref.describe()})
        return
    output.summary(f"published {ref.scope} generation {ref.generation}: {amount(ref.files, ref.size)}")
