"""`kstore quarantine`."""

from __future__ import annotations

import click

from kstore.cli.options import ERROR, MISSING, Command, Invocation, key_argument, on_scope


@click.command("quarantine", cls=Command, exit_codes=ERROR | MISSING)
@key_argument
@on_scope
def command(invocation: Invocation, key: str) -> None:
    """Make KEY miss until something new is committed.

    For kernels that turn out to be wrong. Workers that have them do not bring them back; what was published
    can be rolled back to.
    """
    output, store = invocation.output, invocation.store()
    refs = store.quarantine(key)
    if output.json:
        output.document({"store": store.location, "quarantined": [ref.describe() for ref in refs]})
        return
    for ref in refs:
        output.summary(f"quarantined: {ref.scope}")
    is_one = len(list(store.scopes(key))) == 1
    for ref in refs:
        choice = () if is_one else ("--gpu", ref.scope.gpu, "--environment", ref.scope.environment)
        output.say(f"to undo it: {invocation.again('rollback', *choice, key=key)}")
