"""`kstore restore`."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from kstore.cli.options import (
    ERROR,
    INTEGRITY,
    REQUIRED,
    TIMEOUT,
    WORKERS,
    Command,
    Generation,
    Invocation,
    group_option,
    key_argument,
    on_worker,
    refuse,
    seed_option,
    wait_options,
)
from kstore.cli.termination import terminable


@click.command("restore", cls=Command, exit_codes=ERROR | REQUIRED | INTEGRITY | TIMEOUT)
@key_argument
@click.option("--generation", type=Generation(), metavar="N", help="Exactly this one, not the newest.")
@seed_option
@click.option("--require", is_flag=True, help="Fail if nothing is published.")
@wait_options
@group_option
@on_worker
def command(
    invocation: Invocation,
    key: str,
    generation: int | None,
    seed: str | None,
    require: bool,
    wait: int | None,
    group: bool,
) -> None:
    """Put what is published for KEY into the local cache root.

    It sets no variables in the shell that calls it: `eval "$(kstore env KEY)"` does, or use `kstore exec`.

    With --wait it may be this worker that compiles for the others. They wait until `kstore commit KEY`, or until
    --lease-ttl is over, since this command ends and gives no more signs of life; `kstore exec` does.
    """
    from kstore import flight
    from kstore.cli.sentences import check_required, restored, tell_components, tell_elsewhere, tell_trouble
    from kstore.stats.record import record

    if generation:
        refuse("is for a KEY that has nothing yet, and --generation asks for what it has", "seed")
    if wait is None or generation or require:
        leads = "with --wait, and without --generation and --require"
        refuse(f"is for a worker that compiles while others wait, which it does {leads}", "lease_ttl")
    output = invocation.output
    store = invocation.store()
    choice: dict[str, Any] = {"generation": generation, "seed": seed, "wait": wait or 0, "group": group}
    work = partial(store.restore, key, lead=not require, **choice)
    with terminable():
        with output.working(f"restoring {key}", store.progress):
            # In a thread of its own, because nothing can interrupt a thread that a mount holds up.
            report = store.waiting.within(f"restoring from {store.location}", work, beside=wait or 0)
        record(store, report)
        if report.leads:
            flight.leave_all()
    tell_elsewhere(output, store, report)
    if require:
        check_required(store, report, seed)
    tell_trouble(output, report)
    if output.json:
        output.document(report.as_json())
        return
    output.summary(restored(store, report, seed))
    tell_components(output, report.cache_root, report.components)
    if report.link_why:
        output.detail(report.link_why)
    again = partial(invocation.again, names=WORKERS)
    if report.leads:
        output.say(f"others wait for `{again('commit', key=key)}`, for {store.settings.lease_ttl:g} s (--lease-ttl)")
    output.say(f'for the variables of this shell: eval "$({again("env", key=key)})"')
