"""`kstore init`."""

from __future__ import annotations

import click

from kstore.cli.options import ERROR, Command, Invocation, as_seconds, on_store
from kstore.words import age, long_duration


@click.command("init", cls=Command, exit_codes=ERROR)
@click.option(
    "--grace", metavar="DURATION", default="1h", show_default=True, callback=as_seconds,
    help="How long what was superseded or condemned is kept, as 90s, 15m, 1h or 30d.",
)  # fmt: skip
@on_store
def command(invocation: Invocation, grace: int) -> None:
    """Make a store.

    Optional: the first commit makes one too. The folder above it must be there. A store that exists is left
    as it is.
    """
    output, store = invocation.output, invocation.store()
    made = store.create(grace)
    settings = store.storage.settings
    if output.json:
        output.document({"store": store.location, "made": made, **settings})
        return
    kept = f"what is superseded is kept for {long_duration(settings['grace'])}"
    if made:
        output.summary(f"made a store in {store.location}; {kept}")
        output.say(f"next, on every worker: {invocation.again('exec', 'my-model/v1')} -- python train.py")
    else:
        output.summary(f"{store.location} is a store already, made {age(settings['created'])} ago; {kept}")
