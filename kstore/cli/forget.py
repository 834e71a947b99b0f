"""`kstore forget`."""

from __future__ import annotations

import click

from kstore.cli.options import ERROR, MISSING, Command, Invocation, key_argument, on_scope


@click.command("forget", cls=Command, exit_codes=ERROR | MISSING)
@key_argument
@on_scope
def command(invocation: Invocation, key: str) -> None:
    """Drop what is published for KEY; gc frees its bytes.

    For every GPU and environment, or those that --gpu and --environment name. Workers miss from now on.
    """
    output, store = invocation.output, invocation.store()
    refs = store.forget(key)
    if output.json:
        output.document({"store": store.location, "forgotten": [ref.describe() for ref in refs]})
        return
    for ref in refs:
        output.summary(f"forgotten: {ref.scope}")
    output.say(f"next, to free its bytes: {invocation.again('gc')}")
