"""`kstore unpin`."""

from __future__ import annotations

import click

from kstore.cli.options import ERROR, MISSING, Command, Generation, Invocation, key_argument, on_scope


@click.command("unpin", cls=Command, exit_codes=ERROR | MISSING)
@key_argument
@click.argument("generation", type=Generation())
@on_scope
def command(invocation: Invocation, key: str, generation: int) -> None:
    """Let gc decide about a generation of KEY again.

    It undoes `kstore pin`.
    """
    output, store = invocation.output, invocation.store()
    scope = store.unpin(key, generation)
    if output.json:
        described = {**scope.describe(), "generation": generation}
        output.document({"store": store.location, "unpinned": described})
        return
    output.summary(f"unpinned: generation {generation} of {scope}")
