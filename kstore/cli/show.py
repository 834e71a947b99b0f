"""`kstore show`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import click

from kstore.cli.columns import Column
from kstore.cli.options import ERROR, INTEGRITY, MISSING, Command, Invocation, key_argument, on_scope
from kstore.errors import IntegrityError, KstoreError, MissError, StoreFormatError, StoreUnavailable
from kstore.words import files, moment, shorten, size

if TYPE_CHECKING:
    from kstore.cli.output import Output
    from kstore.published.manifest import Manifest
    from kstore.published.ref import Ref
    from kstore.published.refs import Unlisted
    from kstore.report import Count
    from kstore.scope import Scope
    from kstore.storage import Storage
    from kstore.store import Store

_GENERATIONS = (
    Column("GENERATION", right=True),
    Column("CREATED"),
    Column("CREATOR", floor=8),
    Column("FILES", right=True),
    Column("SIZE", right=True),
    Column("PARENT", right=True),
    Column("NOTE"),
)
_COMPONENTS = (Column("COMPONENT"), Column("FILES", right=True), Column("SIZE", right=True))
_INDENT = 2


@dataclass(slots=True)
class _Shown:
    """What can be read of one scope."""

    scope: Scope
    store: str
    """The store that it is in."""
    refs: list[Ref] = field(default_factory=list)
    """Newest first."""
    pins: set[int] = field(default_factory=set)
    """Generations that gc keeps whatever it is told."""
    manifest: Manifest | None = None
    """The manifest of the newest generation that can be read."""
    troubles: list[KstoreError] = field(default_factory=list)
    """What of it is damaged, cannot be read just now, or was written by a newer kstore."""
    leans_on: list[str] = field(default_factory=list)
    """The stores below that had some of its files when it was committed."""

    @property
    def to_restore(self) -> Manifest | None:
        """That manifest, if workers restore what it holds: a generation that withdraws the others holds nothing."""
        from kstore.published.ref import RefState

        return self.manifest if self.refs and self.refs[0].state is RefState.LIVE else None


@click.command("show", cls=Command, exit_codes=ERROR | MISSING | INTEGRITY)
@key_argument
@on_scope
def command(invocation: Invocation, key: str) -> int:
    """Show the generations of KEY and what they hold.

    For each GPU and environment, or the one that is named. The components, packs and hosts are those of the
    newest generation; a host is a kind of machine that C++ objects were built for.
    """
    from kstore.published.layers import layers
    from kstore.published.scopes import error_of, missing

    output, store = invocation.output, invocation.store()
    unlisted: list[Unlisted] = []
    with output.working("reading the store"):
        scopes = _scopes(invocation, store, key, unlisted)
        read = [_read(layer, scope) for scope in scopes for layer in layers(store.storage)]
    shown = [one for one in read if one.refs or one.troubles]
    if not shown:
        raise missing(store.storage, key)
    troubles = [error for one in shown for error in one.troubles]
    troubles += [error_of(store.storage, folder) for folder in unlisted]
    for error in troubles:
        output.warn(str(error))
    if output.json:
        output.document({"store": store.location, "key": key, "scopes": [_describe(one) for one in shown]})
    else:
        for position, one in enumerate(shown):
            if position:
                output.line()
            _tell(output, one, has_several=bool(store.storage.below))
    return troubles[0].exit_code if troubles else 0


def _scopes(invocation: Invocation, store: Store, key: str, unlisted: list[Unlisted]) -> list[Scope]:
    from kstore.published.scopes import scopes_of
    from kstore.scope import check_key

    gpu, environment = invocation.text("gpu"), invocation.text("environment")
    return scopes_of(store.storage, check_key(key), gpu, environment, unlisted=unlisted)


def _read(storage: Storage, scope: Scope) -> _Shown:
    from kstore.published.leaning import leans_on
    from kstore.storage import reporting_trouble

    shown, refs, numbers = _Shown(scope, storage.location), storage.refs, list[int]()
    try:
        with reporting_trouble(storage.location, "read"):
            shown.pins, numbers = refs.pins(scope), refs.generations(scope)
    except StoreUnavailable as error:
        shown.troubles.append(error)
    for number in reversed(numbers):
        try:
            with reporting_trouble(storage.location, "read"):
                shown.refs.append(refs.get(scope, number))
        except (IntegrityError, StoreFormatError, StoreUnavailable) as error:
            shown.troubles.append(error)
        except MissError:
            continue  # removed since it was listed
    try:
        with reporting_trouble(storage.location, "read"):
            shown.manifest = storage.snapshot(shown.refs[0]).manifest if shown.refs else None
        shown.leans_on = leans_on(shown.manifest) if shown.manifest else []
    except (IntegrityError, StoreUnavailable) as error:
        shown.troubles.append(error)
    return shown


def _describe(shown: _Shown) -> dict[str, object]:
    manifest = shown.manifest
    generations = [
        ref.describe() | {"manifest": ref.manifest.hex(), "pinned": ref.generation in shown.pins} for ref in shown.refs
    ]
    content: dict[str, object] = {**shown.scope.describe(), "store": shown.store, "generations": generations}
    if manifest:
        content |= {
            "packs": list(shown.refs[0].packs),
            "components": {name: asdict(count) for name, count in _count(manifest).items()},
            "hosts": {host: len(bound) for host, bound in manifest.hosts.items()},
            "meta": dict(manifest.meta),
        }
    return content


def _tell(output: Output, shown: _Shown, *, has_several: bool) -> None:
    """Print one scope, with the store that it is in if there are several."""
    output.line(shown.scope.key)
    for name, value in _facts(shown, has_several=has_several):
        output.line(f"  {name:<11}  {value}")
    output.line()
    output.table(_GENERATIONS, [_generation_row(ref, ref.generation in shown.pins) for ref in shown.refs], _INDENT)
    if manifest := shown.to_restore:
        output.line()
        rows = [(name, str(c.files), size(c.bytes)) for name, c in _count(manifest).items()]
        output.table(_COMPONENTS, rows, _INDENT)


def _facts(shown: _Shown, *, has_several: bool) -> Iterator[tuple[str, str]]:
    if has_several:
        yield "store", shown.store
    yield "GPU", shown.scope.gpu
    yield "environment", shown.scope.environment
    if manifest := shown.to_restore:
        yield "cache root", str(manifest.meta.get("cache_root") or "?")
        packs = len(shown.refs[0].packs)
        yield "packs", str(packs) if packs else "none: every file in this store is stored by itself"
        hosts = (f"{shorten(host, 13)} ({files(len(bound))})" for host, bound in manifest.hosts.items())
        yield "hosts", ", ".join(hosts) or "any"
        if shown.leans_on:
            yield "leans on", ", ".join(shown.leans_on)


def _generation_row(ref: Ref, is_pinned: bool) -> tuple[str, ...]:
    from kstore.published.ref import RefState

    parent = str(ref.parent) if ref.parent else "-"
    notes = ("pinned" if is_pinned else "", "" if ref.state is RefState.LIVE else ref.state)
    numbers = (str(ref.files), size(ref.size), parent)
    return (str(ref.generation), moment(ref.created), ref.creator, *numbers, ", ".join(filter(None, notes)))


def _count(manifest: Manifest) -> dict[str, Count]:
    from kstore.report import count_components

    return count_components(*manifest.sets)
