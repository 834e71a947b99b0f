"""`kstore pin`."""

from __future__ import annotations

import click

from kstore.cli.options import ERROR, MISSING, Command, Generation, Invocation, key_argument, on_scope


@click.command("pin", cls=Command, exit_codes=ERROR | MISSING)
@key_argument
@click.argument("generation", type=Generation())
@on_scope
def command(invocation: Invocation, key: str, generation: int) -> None:
    """Keep a generation of KEY whatever gc is told.

    `kstore show KEY` lists generations; `kstore unpin` undoes it.
    """
    output, store = invocation.output, invocation.store()
    scope = store.pin(key, generation)
    if output.json:
        described = {**scope.describe(), "generation": generation}
        output.document({"store": store.location, "pinned": described})
        return
    output.summary(f"pinned: generation {generation} of {scope}")
