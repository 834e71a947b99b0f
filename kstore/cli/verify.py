"""`kstore verify`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING

import click

from kstore.cli.options import (
    ERROR,
    INTEGRITY,
    MISSING,
    WORKERS,
    Command,
    Invocation,
    on_scope_and_root,
    optional_key_argument,
    refuse,
)
from kstore.errors import IntegrityError
from kstore.words import duration, plural, size

if TYPE_CHECKING:
    from kstore.cli.output import Output
    from kstore.operations.verified import Damage, VerifyReport

_SHOWN = 3


@click.command("verify", cls=Command, exit_codes=ERROR | MISSING | INTEGRITY)
@optional_key_argument
@click.option("--repair", is_flag=True, help="Move aside what is damaged, and save what can be saved.")
@on_scope_and_root
def command(invocation: Invocation, key: str, repair: bool) -> int:
    """Check every byte that KEY, or every key, needs.

    With KEY, also check the files of its local cache root. A restore checks what it copies; what it links is checked
    only here. Once --repair has moved a damaged file aside, the next commit of a worker that has it puts it back.
    """
    if not key:
        refuse("is for a KEY: without one all keys are checked, of every GPU", "cache_root", "gpu", "environment")
    output, store = invocation.output, invocation.store()
    with output.working("checking", store.progress):
        report = store.verify(key or None, repair=repair)
    if output.json:
        output.document(report.as_json())
    else:
        _tell(output, report)
        if report.is_damaged:
            output.say(_next(invocation, report, key))
    return 0 if report.ok else IntegrityError.exit_code


def _tell(output: Output, report: VerifyReport) -> None:
    for alike in _runs(report.damage):
        output.line(_lost(output, alike))
    for pack in report.packs:
        output.line(f"pack {pack} is damaged")
    shown, more = output.some(report.unreadable, _SHOWN)
    for trouble in shown:
        output.line(f"cannot be read just now: {trouble}")
    if more:
        output.line(f"cannot be read just now: {more} more; -v names them")
    for path in report.local:
        output.line(f"{path} in the local cache root was altered in place")
    for alike in _runs(report.elsewhere):
        output.say(_not_checked(alike))
    part = f"{report.read} of " if report.read < report.blobs else ""
    what = f"{part}{plural(report.blobs, 'blob')} of {plural(report.generations, 'generation')}"
    output.summary(f"{what}, {size(report.bytes)} read in {duration(report.seconds)}: {_verdict(report)}")
    if report.unreadable:
        advice = "if nothing else is said, check the mount and its permissions; then verify again"
        output.say(f"what cannot be read may be whole, and stays; {advice}")


def _next(invocation: Invocation, report: VerifyReport, key: str) -> str:
    repair = f"next: {invocation.again('verify', '--repair', key=key, names=WORKERS)}"
    if report.is_gc_stopped and not report.repaired:
        return repair
    soon = invocation.again("gc", "--keep", "1")
    gc = f"gc removes them in time, a pinned one once it is unpinned, or sooner: {soon}"
    if not (report.is_newest_damaged or report.local):
        again = invocation.again("verify", key=key, names=WORKERS)
        if report.is_gc_stopped:
            return f"what could not be read at all is removed, and gc deletes again; what else is damaged: {again}"
        if report.repaired and report.is_mendable:
            return f"what could be saved of earlier generations is; what else is damaged: {again}"
        return f"only earlier generations are damaged, which are not restored: {gc}"
    if not (report.is_mendable or report.local):
        return f"nothing is left to repair: commit from a worker that has the files; for earlier generations, {gc}"
    if report.repaired and not (report.packs or report.damage):
        return "what was altered in the cache root is removed; the next restore, or the compiler, makes it anew"
    if report.repaired:
        return "what could be saved is; the next commit of a worker that has the files puts back what is lost"
    return repair


def _verdict(report: VerifyReport) -> str:
    if report.ok:
        return "everything is intact"
    return "damage was found" if report.is_damaged else "not everything could be read"


def _runs(every: Iterable[Damage]) -> Iterator[list[Damage]]:
    """What is damaged, with generations that follow each other and have lost the same files taken together."""

    def what(numbered: tuple[int, Damage]) -> tuple[object, ...]:
        position, damage = numbered
        return damage._replace(generation=damage.generation - position)

    for _, alike in groupby(enumerate(every), key=what):
        yield [damage for _, damage in alike]


def _lost(output: Output, alike: list[Damage]) -> str:
    damage, has = alike[0], "have" if alike[1:] else "has"
    if damage.reason:
        return damage.reason
    shown, more = output.some(damage.paths, _SHOWN)
    named = ", ".join(shown) + (f" and {more} more" if more else "")
    return f"{_generations(alike)} {has} lost {named}"


def _not_checked(alike: list[Damage]) -> str:
    from kstore.published.leaning import COMPILE

    away = alike[0]
    named = f"{plural(len(away.paths), 'file')} of {_generations(alike)}"
    if away.is_here:
        return f"{named} not checked: {away.store} had them, and has them no more; {COMPILE}"
    return f"{named} not checked: only {away.store} had them; add it to --store after a colon"


def _generations(alike: list[Damage]) -> str:
    first, last = alike[0].generation, alike[-1].generation
    numbers = f"generations {first} to {last}" if alike[1:] else f"generation {first}"
    return f"{numbers} of {alike[0].scope}"
