"""What a restore or a commit did, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from kstore.cli.output import Output
from kstore.errors import IntegrityError, KstoreError, MissError
from kstore.published.layers import unforgotten
from kstore.report import CommitReport, CommitStatus, Count, RestoreReport, RestoreStatus
from kstore.scope import choices
from kstore.words import amount, command_line, duration, files, plural, size

if TYPE_CHECKING:
    from kstore.hits import Usage, UsageReport
    from kstore.operations.bring import Brought
    from kstore.store import Store

_SHOWN = 3
"""How many items are named where there may be many, such as files that were left out, without --verbose."""


def restored(store: Store, report: RestoreReport, seed: str | None) -> str:
    """What a restore did, in one line; `seed` is the key to start from if there is nothing else."""
    return _restored(store, report, seed) + _waited(report)


def _waited(report: RestoreReport) -> str:
    whom = f" for {report.waited_for}" if report.waited_for else ""
    waited = f", after waiting {duration(report.waited)}{whom}" if report.waited else ""
    return f"{waited}; the others wait for what this worker compiles" if report.leads else waited


def _restored(store: Store, report: RestoreReport, seed: str | None) -> str:
    if report.status is RestoreStatus.MISS and report.error:
        return f"no rank restores {report.key}: {report.error}"
    if report.withdrawn:
        what = f"{report.key} was {report.withdrawn}: nothing is restored until something is committed"
        return f"{what}; {_way_back(store, report)}"
    if report.status is RestoreStatus.MISS:
        nor = f", nor for the seed {seed}" if seed else ""
        return f"nothing is published for {report.key} on {report.gpu}, {report.environment} yet{nor}"
    what = f"generation {report.generation}"
    held, took = amount(report.files, report.bytes), duration(report.seconds)
    if report.status is RestoreStatus.CURRENT:
        return f"{report.key} {what} is already in place: {held} ({took})"
    if report.status is RestoreStatus.SEEDED:
        what = f"from seed {seed} {what}"
    how = f" ({report.link_mode})" if report.link_mode else ""
    but = f", {report.left_out} of them left out" if report.left_out else ""
    return f"restored {report.key} {what}: {held}{but} in {took}{how}"


def _way_back(store: Store, report: RestoreReport | CommitReport) -> str:
    """The command that undoes the withdrawal of a key. All stores are named, because the first one knows no earlier
    generation of a key that only a store below has.
    """
    where = ("--store", ":".join(store.settings.store), "--gpu", report.gpu, "--environment", report.environment)
    return f"`{command_line('rollback', report.key, *where)}` undoes that until gc has removed what it had"


def check_required(store: Store, report: RestoreReport, seed: str | None, demand: str = "--require") -> None:
    """Check that something was restored, as the option `demand` says.

    Raises:
        MissError: there was nothing to restore.
        IntegrityError: nothing of what is published could be restored.
    """
    if report.left_out and not report.ok:
        raise IntegrityError(
            f"generation {report.generation} of {report.key} is damaged, none of its {files(report.files)} could be "
            f"restored; leave out {demand} to start without, and run `kstore verify --repair`"
        )
    if not report.ok:
        raise MissError(f"{restored(store, report, seed)}; leave out {demand} to start without")


def committed(store: Store, report: CommitReport, checkpoints: Sequence[CommitReport] = ()) -> str:
    """What a commit did, in one line. For a job's last commit, `checkpoints` are those that the report sums up."""
    if report.status is CommitStatus.READ_ONLY:
        return f"nothing is committed to {report.key}: the mode is read"
    if report.status is CommitStatus.UNCHANGED:
        return _unchanged(store, report)
    uploaded = f"{size(report.uploaded)} uploaded in {duration(report.seconds)} ({report.layout})"
    new = files(report.new_files, "new ")
    if checkpoints and report is not checkpoints[0]:
        return f"committed {report.key} {_generations(checkpoints)} while it ran: {new}, {uploaded}"
    return f"committed {report.key} generation {report.generation}: {new} of {report.files}, {uploaded}"


def _generations(checkpoints: Sequence[CommitReport]) -> str:
    first, last = checkpoints[0].generation, checkpoints[-1].generation
    if first == last:
        return f"generation {first}"
    others = "" if len(checkpoints) > last - first else ", between those of others,"
    return f"generations {first} to {last}{others}"


def _unchanged(store: Store, report: CommitReport) -> str:
    if report.found == 0:
        where = report.cache_root or "what was given"
        return f"nothing to commit to {report.key}: there are no finished files in {where}"
    if report.declined and not report.files:
        return (
            f"nothing is committed to {report.key}: it was forgotten or quarantined after what is here had been "
            f"published, {files(report.declined)}; {_way_back(store, report)}"
        )
    has = _has_all(report.generation, report.declined, report.waiting)
    return f"nothing new for {report.key}: {has} ({duration(report.seconds)})"


def _has_all(generation: int, declined: int, waiting: int = 0) -> str:
    other = f", except {files(declined)} published in another version, or taken out" if declined else ""
    late = f", except {files(waiting)} that will be published along with others" if waiting else ""
    return f"generation {generation} has everything{other}{late}"


def used(report: UsageReport) -> str:
    """How much of what was restored was used, in one line."""
    parts = [_used(name, usage) for name, usage in report.components.items()]
    why = f" ({report.why_unknown})" if report.why_unknown else ""
    return f"used of generation {report.generation}: {'; '.join(parts) or 'nothing'}{why}"


def _used(name: str, usage: Usage) -> str:
    found = f"{'?' if usage.hits is None else usage.hits} of {plural(usage.restored, 'entry', 'entries')}"
    return f"{name} {found}, {usage.misses} compiled anew" if usage.misses else f"{name} {found}"


def brought_in(verb: str, brought: Brought) -> str:
    """What came into one scope from a bundle or another store, in one line."""
    if brought.status is CommitStatus.UNCHANGED and not brought.files:
        return f"{brought.scope} holds no files: nothing is {verb}"
    if brought.status is CommitStatus.UNCHANGED:
        return f"nothing new for {brought.scope}: {_has_all(brought.generation, brought.declined)}"
    kept = f", {brought.declined} of them kept as they were published" if brought.declined else ""
    return (
        f"{verb} {brought.scope} generation {brought.generation}: {files(brought.new_files, 'new ')} of "
        f"{brought.files}{kept}, {size(brought.uploaded)} uploaded"
    )


def tell_components(output: Output, cache_root: str, components: Mapping[str, Count] | None) -> None:
    """Say where the cache root is, and how much of each component is in it."""
    rows = {"cache root": cache_root}
    rows |= {name: amount(count.files, count.bytes) for name, count in (components or {}).items()}
    width = max(map(len, rows))
    for name, value in rows.items():
        output.summary(f"  {name:<{width}}  {value}")


def tell_elsewhere(output: Output, store: Store, report: RestoreReport) -> None:
    """If a key is not published for the GPU or environment that was named, say where else it is: it may be a slip."""
    named = store.settings.gpu or store.settings.environment
    if named and report.status is RestoreStatus.MISS and not (report.withdrawn or report.error):
        with suppress(KstoreError):
            if found := sorted(unforgotten(store.storage, store.scopes(report.key))):
                output.say(f"{report.key} is published for: {choices(found, most=_SHOWN)}")


def tell_trouble(output: Output, report: RestoreReport | CommitReport) -> None:
    """Say what is worth knowing about the environment, what was left out, and why."""
    for note in getattr(report, "notes", ()):
        output.warn(note)
    most = _SHOWN + (len(report.skipped) == _SHOWN + 1)  # "1 more" takes a line as well
    tell_left_out(output, [f"{skip.path}: {skip.reason}" for skip in report.skipped], most)


def tell_left_out(output: Output, named: Sequence[str], most: int = _SHOWN) -> None:
    """Name what was left out: no more than that many, or all with --verbose."""
    shown, more = output.some(named, most)
    for name in shown:
        output.warn(f"left out {name}")
    if more:
        output.warn(f"left out {more} more; -v names them")
