"""Which cache root the compilers of this process are led into. The variables are the same for all keys, so they follow
the key that was restored last.
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


class Lead(NamedTuple):
    """A block that leads compilers into its cache root."""

    use: Use
    before: Mapping[str, str]
    outer: Use | None
    """Whose cache root they were led into before."""


_by_hand: dict[str, Use] = {}
_blocks: list[Use] = []


def led(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that kstore has set and nobody has changed since."""
    return {name: value for name, value in read_managed(environ).items() if environ.get(name) == value}


@contextmanager
def leading(key: str, environ: Mapping[str, str], *, commits: bool) -> Iterator[None]:
    """A restore of `key`, which leads compilers into another cache root. With `commits`, its commit is to come."""
    before = led(environ)
    try:
        yield
    finally:
        after = led(environ)
        if other := _displaced(before, after):
            whose = f"that of {other.key}" if other.key != key else "the one that it had"
            log.warning(
                "kstore: from now on compilers write into the cache root of %s, not into %s, which is in use",
                key, whose,
            )  # fmt: skip
        if commits:
            _by_hand[key] = Use(key, after)


def key_led_to(variables: Mapping[str, str], besides: str) -> str:
    """A key other than `besides` whose commit is to come from the cache root that the variables lead to; else empty."""
    uses = (use.key for use in _uses() if use.key != besides and use.variables.items() & variables.items())
    return next(uses, "")


def end_use(key: str) -> None:
    """What is compiled from now on is not for `key`, unless it is for a block of it."""
    _by_hand.pop(key, None)


@contextmanager
def entering(key: str, environ: MutableMapping[str, str]) -> Iterator[Mapping[str, str]]:
    """A block is about to begin; yields the variables as they are before. If it cannot begin, all is as it was."""
    before, by_hand = led(environ), _by_hand.get(key)
    try:
        yield before
    except BaseException:
        end_use(key)
        if by_hand:
            _by_hand[key] = by_hand
        _lead_back(_lead(key, before, environ), environ)
        raise


def enter(key: str, before: Mapping[str, str], environ: Mapping[str, str]) -> Lead:
    """A block begins, whose restore has found the variables as they were `before`."""
    lead = _lead(key, before, environ)
    _blocks.append(lead.use)
    return lead


def leave(lead: Lead, environ: MutableMapping[str, str]) -> None:
    """The block ends. Compilers are led back to where they were led before, if that is still in use."""
    with suppress(ValueError):  # A notebook may have reloaded this module meanwhile.
        _blocks.remove(lead.use)
    end_use(lead.use.key)
    _lead_back(lead, environ)


def _lead(key: str, before: Mapping[str, str], environ: Mapping[str, str]) -> Lead:
    after = led(environ)
    return Lead(Use(key, after), before, _displaced(before, after))


def _lead_back(lead: Lead, environ: MutableMapping[str, str]) -> None:
    if lead.outer in _uses():
        ours = lead.use.variables
        back = {name: value for name, value in lead.before.items() if environ.get(name) == ours.get(name)}
        set_variables(back, environ)


def _displaced(before: Mapping[str, str], after: Mapping[str, str]) -> Use | None:
    """The newest use of a cache root that compilers were led into `before`, but not `after`."""
    left = {(name, value) for name, value in before.items() if after.get(name) != value}
    return next((use for use in reversed(_uses()) if left & use.variables.items()), None)


def _uses() -> list[Use]:
    return [*_OF_EXEC, *_by_hand.values(), *_blocks]


_OF_EXEC = [Use(os.environ[EXEC_KEY], led(os.environ))] if EXEC_KEY in os.environ else []
"""The use by the `kstore exec` that runs this process, and commits what compilers write there."""
