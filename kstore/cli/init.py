"""`kstore init`."""

from __future__ import annotations

import click

from kstore.cli.options import ERROR, Command, Invocation, as_seconds_or_none, on_store
from kstore.errors import UsageError
from kstore.storage import DEFAULT_GRACE
from kstore.words import age, long_duration


@click.command("init", cls=Command, exit_codes=ERROR)
@click.option(
    "--grace", metavar="DURATION", show_default="1h", callback=as_seconds_or_none,
    help="How long to keep what was superseded or condemned, such as 90s, 15m, 1h or 30d.",
)  # fmt: skip
@on_store
def command(invocation: Invocation, grace: int | None) -> None:
    """Make a store.

    Optional: the first commit makes one too, with a grace of an hour. The folder above it must exist. A store that
    exists is left as it is; it is an error if its grace is not that of --grace.
    """
    output, store = invocation.output, invocation.store()
    made = store.create(DEFAULT_GRACE if grace is None else grace)
    settings = store.storage.settings
    if grace not in (None, store.storage.grace):
        raise UsageError(_refuse(invocation, store.location, store.storage.grace, grace))
    if output.json:
        output.document({"store": store.location, "made": made, **settings})
        return
    kept = f"what is superseded is kept for {long_duration(round(store.storage.grace))}"
    if made:
        output.summary(f"made a store in {store.location}; {kept}")
        output.say(f"next, on every worker: {invocation.again('exec', key='my-model/v1')} -- python train.py")
    else:
        made_before = f", made {age(settings['created'])} ago" if "created" in settings else ""
        output.summary(f"{store.location} is already a store{made_before}; {kept}")


def _refuse(invocation: Invocation, location: str, has: float, wanted: float) -> str:
    """Why a store's grace stays, and what can be done: a longer one is safe for any gc, a shorter one is not."""
    longer = f"for a longer one: `{invocation.again('gc', '--grace', f'{wanted:.0f}s')}`, each time"
    shorter = f"for a shorter one: end all workers and gcs, then change it in {location}/kstore.json"
    return (
        f"{location} is already a store and keeps its grace of {has:g} s, not {wanted:g} s, which running commits "
        f"count on; {longer if wanted > has else shorter}"
    )
