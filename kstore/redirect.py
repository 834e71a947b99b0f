"""Which cache root the compilers of this process are redirected to, by variables that are the same for all keys: they
follow the key that was restored last.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

from kstore.components.variables import read_managed, set_variables

log = logging.getLogger("kstore")

EXEC_KEY = "KSTORE_EXEC_KEY"
"""Names the key of the `kstore exec` that runs a process."""


class Use(NamedTuple):
    """A key whose commit is still to come."""

    key: str
    variables: Mapping[str, str]
    """What kstore had set when the key was restored."""


class Redirect(NamedTuple):
    """What the restore of a block has done: it has redirected compilers to the cache root of the block."""

    use: Use
    before: Mapping[str, str]
    outer: Use | None
    """Whose cache root they were redirected to before."""


_by_hand: dict[str, Use] = {}
_blocks: list[Use] = []


def in_force(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that kstore has set and nobody has changed since."""
    return {name: value for name, value in read_managed(environ).items() if environ.get(name) == value}


@contextmanager
def redirecting(key: str, environ: Mapping[str, str], *, commits: bool) -> Iterator[None]:
    """A restore of `key`, which redirects compilers to another cache root. With `commits`, its commit is to come."""
    before = in_force(environ)
    try:
        yield
    finally:
        after = in_force(environ)
        if other := _displaced(before, after):
            whose = f"that of {other.key}" if other.key != key else "the one that it had"
            log.warning(
                "kstore: from now on compilers write into the cache root of %s, not into %s, which is in use",
                key, whose,
            )  # fmt: skip
        if commits:
            _by_hand[key] = Use(key, after)


def key_in_use(variables: Mapping[str, str], besides: str) -> str:
    """A key other than `besides` whose commit is to come from the cache root that the variables name; else empty."""
    uses = (use.key for use in _uses() if use.key != besides and use.variables.items() & variables.items())
    return next(uses, "")


def end_use(key: str) -> None:
    """What is compiled from now on is not for `key`, unless it is for a block of it."""
    _by_hand.pop(key, None)


@contextmanager
def entering(key: str, environ: MutableMapping[str, str]) -> Iterator[Mapping[str, str]]:
    """A block is about to begin; yields the variables as they are before. If it cannot begin, all is as it was."""
    before, by_hand = in_force(environ), _by_hand.get(key)
    try:
        yield before
    except BaseException:
        end_use(key)
        if by_hand:
            _by_hand[key] = by_hand
        _undo(_redirect(key, before, environ), environ)
        raise


def enter(key: str, before: Mapping[str, str], environ: Mapping[str, str]) -> Redirect:
    """A block begins, whose restore has found the variables as they were `before`."""
    redirect = _redirect(key, before, environ)
    _blocks.append(redirect.use)
    return redirect


def leave(redirect: Redirect, environ: MutableMapping[str, str]) -> None:
    """The block ends. Compilers are sent back to where they were redirected before, if that is still in use."""
    with suppress(ValueError):  # A notebook may have reloaded this module meanwhile.
        _blocks.remove(redirect.use)
    end_use(redirect.use.key)
    _undo(redirect, environ)


def _redirect(key: str, before: Mapping[str, str], environ: Mapping[str, str]) -> Redirect:
    after = in_force(environ)
    return Redirect(Use(key, after), before, _displaced(before, after))


def _undo(redirect: Redirect, environ: MutableMapping[str, str]) -> None:
    if redirect.outer in _uses():
        ours = redirect.use.variables
        back = {name: value for name, value in redirect.before.items() if environ.get(name) == ours.get(name)}
        set_variables(back, environ)


def _displaced(before: Mapping[str, str], after: Mapping[str, str]) -> Use | None:
    """The newest use of a cache root that compilers were redirected to `before`, but not `after`."""
    left = {(name, value) for name, value in before.items() if after.get(name) != value}
    return next((use for use in reversed(_uses()) if left & use.variables.items()), None)


def _uses() -> list[Use]:
    return [*_OF_EXEC, *_by_hand.values(), *_blocks]


_OF_EXEC = [Use(os.environ[EXEC_KEY], in_force(os.environ))] if EXEC_KEY in os.environ else []
"""The use by the `kstore exec` that runs this process, and commits what compilers write there."""
