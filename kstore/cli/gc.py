"""`kstore gc`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kstore.cli.columns import ENVIRONMENT, GPU, KEY, Column
from kstore.cli.options import (
    ERROR,
    INTEGRITY,
    Command,
    Invocation,
    as_given_bytes,
    as_given_seconds,
    as_seconds_or_none,
    on_store,
    refuse,
)
from kstore.cli.termination import terminable
from kstore.errors import IntegrityError
from kstore.words import amount, duration, long_duration, plural, size

if TYPE_CHECKING:
    from kstore.cli.output import Output
    from kstore.gc import GcReport
    from kstore.gc.policy import Decision, Policy

_COLUMNS = (
    KEY,
    GPU,
    ENVIRONMENT,
    Column("GEN", right=True),
    Column(""),
    Column("WHY"),
)

_IF_KILLED = (
    "one that was killed keeps others from starting until an hour after it began; if no worker uses the store, "
    "--offline does not wait for that"
)


@click.command("gc", cls=Command, exit_codes=ERROR | INTEGRITY)
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    metavar="N",
    help="Generations to keep of each key, GPU and environment.",
)
@click.option(
    "--unused",
    metavar="DURATION",
    callback=as_given_seconds,
    help="Forget keys that nobody has restored or committed for this long, such as 30d.",
)
@click.option(
    "--max-size",
    metavar="SIZE",
    callback=as_given_bytes,
    help="Remove generations until the store fits, such as 50G: history first, least recently restored first.",
)
@click.option("--allow-live", is_flag=True, help="With --max-size, keys may be forgotten altogether.")
@click.option(
    "--grace",
    metavar="DURATION",
    callback=as_seconds_or_none,
    help="A grace longer than the store's own; a shorter one needs --offline.",
)
@click.option("--offline", is_flag=True, help="No worker uses the store now: delete at once what is condemned.")
@click.option("-n", "--dry-run", is_flag=True, help="Say what would be removed and why, and change nothing.")
@on_store
def command(
    invocation: Invocation, keep: int, unused: float | None, max_size: int | None, allow_live: bool,
    grace: float | None, offline: bool, dry_run: bool,
) -> int:  # fmt: skip
    """Remove old generations, and the files that nothing needs any more.

    In two phases: what is not needed is condemned, and a gc that runs at least the store's grace later deletes
    it if it is still not needed. Safe at any time, alongside any number of workers; run it every hour or so.
    """
    from kstore.gc import GcStatus, Policy

    if max_size is None:
        refuse("is for --max-size, which may forget whole keys with it", "allow_live")
    output, store = invocation.output, invocation.store()
    policy = Policy(keep, unused, max_size, allow_live, grace, offline)
    if offline and not dry_run:
        output.say("--offline: this assumes that no worker restores from or commits to the store until gc is done")
    with terminable(), output.working("collecting garbage", store.progress):
        report = store.gc(policy, dry_run=dry_run)
    for trouble in report.unreadable:
        repair = invocation.again("verify", "--repair")
        output.warn(f"cannot be read, so nothing that it may need is removed, unless `{repair}` helps: {trouble}")
    for trouble in report.lists:
        output.warn(f"not everything that was condemned is deleted now: {trouble}")
    if output.json:
        output.document(report.as_json())
    elif report.status is GcStatus.BUSY:
        output.summary(f"another gc is running{report.holder and f', of {report.holder}'}; nothing was done")
        output.say(_IF_KILLED)
    else:
        _tell(output, report, policy)
        _tell_excess(output, report, policy)
    return IntegrityError.exit_code if report.status is GcStatus.INCOMPLETE else 0


def _tell(output: Output, report: GcReport, policy: Policy) -> None:
    from kstore.gc.policy import stay_for_now

    shown = [d for d in report.decisions if not d.stays or output.verbosity > 0]
    if shown:
        output.table(_COLUMNS, map(_row, shown))
    would = "would be " if report.dry_run else ""
    for scope in report.forgotten:
        output.summary(f"{would}forgotten: {scope}")
    gone = sum(1 for decision in report.decisions if not decision.stays)
    output.summary(f"{plural(gone, 'generation')} of {len(report.decisions)} {would}removed")
    if recent := len(stay_for_now(report.decisions, policy.keep)):
        output.summary(f"superseded less than {_grace(report)} ago, and kept for now: {plural(recent, 'generation')}")
    if report.rewritten:
        output.summary(f"{plural(report.rewritten, 'pack')} {would}rewritten: small ones, or mostly not needed")
    output.summary(f"{would}deleted: {amount(report.deleted.files, report.deleted.bytes)}")
    if report.condemned.files:
        condemned = amount(report.condemned.files, report.condemned.bytes)
        after = f"a gc in {_grace(report)} or later deletes them"
        output.summary(f"{would}condemned: {condemned}; {after}")
    if report.waiting.files:
        output.summary(f"condemned before: {amount(report.waiting.files, report.waiting.bytes)}")
    needed = amount(report.live.files, report.live.bytes) if report.live else "unknown"
    output.summary(f"needed: {needed} ({duration(report.seconds)})")
    if report.no_room:
        output.warn(f"there was no room for everything that gc writes ({report.no_room}); run it again")


def _tell_excess(output: Output, report: GcReport, policy: Policy) -> None:
    if report.excess:
        why = "it is pinned, or was superseded a short time ago"
        if not policy.allow_live:
            why = f"{why}, or is the newest of its key: --allow-live lets keys be forgotten"
        output.warn(f"{size(report.excess)} over --max-size must stay; {why}")
    if report.forgotten and not report.dry_run:
        later = f"condemned by a gc in {_grace(report)} or later" if report.grace else "the next gc's"
        output.say(f"what forgotten keys took is {later}")


def _grace(report: GcReport) -> str:
    return long_duration(int(report.grace))


def _row(decision: Decision) -> tuple[str, ...]:
    scope = decision.scope
    verdict = "stays" if decision.stays else "goes"
    return (scope.key, scope.gpu, scope.environment, str(decision.generation.number), verdict, decision.why)
