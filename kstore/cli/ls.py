"""`kstore ls`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kstore.cli.columns import ENVIRONMENT, GPU, KEY, Column
from kstore.cli.options import ERROR, INTEGRITY, Command, Invocation, complete_key, on_store
from kstore.errors import IntegrityError, KstoreError, StoreFormatError, StoreUnavailable
from kstore.words import age, size

if TYPE_CHECKING:
    from kstore.cli.output import Output
    from kstore.published.ref import Ref
    from kstore.store import Store

_COLUMNS = (
    KEY,
    GPU,
    ENVIRONMENT,
    Column("GEN", right=True),
    Column("FILES", right=True),
    Column("SIZE", right=True),
    Column("AGE", right=True),
)
_STATE = Column("STATE")
"""Shown if a key was quarantined."""
_STORE = Column("STORE", floor=8)
"""Shown if there are several stores."""


@click.command("ls", cls=Command, exit_codes=ERROR | INTEGRITY)
@click.argument("prefix", default="", shell_complete=complete_key)
@on_store
def command(invocation: Invocation, prefix: str) -> int:
    """List what the store holds, or the part whose keys begin with PREFIX.

    One row for each key, GPU and environment: kernels are shared within a row. What does not fit on a terminal is
    complete in a pipe and in --json.
    """
    from kstore.published.ref import RefState

    output, store = invocation.output, invocation.store()
    with output.working("reading the store"):
        found, untold = _newest(store, prefix)
        refs = [ref for ref in found if ref.state is not RefState.FORGOTTEN]
        if not (found or untold or store.storage.below or store.storage.settings):
            store.storage.is_made()  # Raises if the folder holds something else: advice to make a store would not help.
    for error in untold:
        output.warn(str(error))
    if output.json:
        scopes = [ref.describe() | {"store": _store_of(store, ref)} for ref in refs]
        output.document({"store": store.location, "scopes": scopes})
    elif refs:
        _tell(output, store, refs)
    elif found:
        _say_forgotten(invocation, found)
    elif not untold:
        _say_empty(invocation, store, prefix)
    return untold[0].exit_code if untold else 0


def _newest(store: Store, prefix: str) -> tuple[list[Ref], list[KstoreError]]:
    """The newest generation of each scope, and why some cannot be determined."""
    from kstore.far import ask_each
    from kstore.published.scopes import error_of, every_scope

    every, unlisted = every_scope(store.storage)
    refs, untold = [], list[KstoreError](error_of(store.storage, f) for f in unlisted if f.may_have(prefix))
    scopes = (scope for scope in every if scope.key.startswith(prefix))
    in_order = sorted(scopes, key=lambda scope: (scope.key, scope.gpu, scope.environment))
    for _, newest in ask_each(store.newest, in_order):
        try:
            ref = newest()
        except (IntegrityError, StoreFormatError, StoreUnavailable) as error:
            untold.append(error)  # A store that is gone cannot be listed either.
        else:
            refs += [ref] if ref else []
    return refs, untold


def _store_of(store: Store, ref: Ref) -> str:
    return store.storage.holder(ref).location


def _row(ref: Ref) -> tuple[str, ...]:
    scope, numbers = ref.scope, (str(ref.generation), str(ref.files))
    return (scope.key, scope.gpu, scope.environment, *numbers, size(ref.size), age(ref.created))


def _tell(output: Output, store: Store, refs: list[Ref]) -> None:
    """Print a table. The columns for states and stores are present only if they tell something."""
    from kstore.published.ref import RefState

    columns, rows = [*_COLUMNS], list(map(_row, refs))
    if any(ref.state is not RefState.LIVE for ref in refs):
        columns, rows = [*columns, _STATE], [(*row, ref.state) for row, ref in zip(rows, refs, strict=True)]
    if store.storage.below:
        columns, rows = [*columns, _STORE], [(*row, _store_of(store, ref)) for row, ref in zip(rows, refs, strict=True)]
    output.table(columns, rows)


def _say_forgotten(invocation: Invocation, forgotten: list[Ref]) -> None:
    keys = sorted({ref.scope.key for ref in forgotten})
    what = f"{keys[0]} and {len(keys) - 1} more were" if keys[1:] else f"{keys[0]} was"
    back = f"`{invocation.again('rollback', key=keys[0])}` undoes that until gc has removed what it had"
    invocation.output.say(f"nothing is published, {what} forgotten; {back}")


def _say_empty(invocation: Invocation, store: Store, prefix: str) -> None:
    output, again = invocation.output, invocation.again
    if prefix:
        output.say(f"no key in {store.location} begins with {prefix!r}; `{again('ls')}` lists them all")
    elif store.storage.settings:
        output.say(f"{store.location} is empty; to fill it: {again('exec', key='my-model/v1')} -- python train.py")
    else:
        makes = f"`{again('init')}` makes it, and so does the first commit"
        output.say(f"there is no store in {store.location} yet; {makes}")
