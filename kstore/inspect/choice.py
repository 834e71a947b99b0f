"""Which generations `my-model/v1@3` and `my-model/v2` mean, if there are several GPUs and environments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

from kstore.errors import AmbiguousScopeError, MissError, UsageError
from kstore.published.layers import in_charge, ref_of, unforgotten
from kstore.published.ref import Ref
from kstore.published.scopes import missing, scopes_of
from kstore.scope import Scope, check_key, choices
from kstore.storage import reporting_trouble

if TYPE_CHECKING:
    from kstore.store import Store

Pair = tuple[Scope, Scope]
Likeness = Callable[[Scope], Hashable]
_LIKENESSES: tuple[Likeness, ...] = (
    attrgetter("gpu", "environment"), attrgetter("gpu"), attrgetter("environment"), lambda scope: None,
)  # fmt: skip
"""What two scopes may have in common, the most first; the last is nothing."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was requested."""

    key: str
    generation: int | None = None
    """None for the newest."""
    gpu: str | None = None
    environment: str | None = None
    suffix: str = ""
    """The ending of its options on the command line, if each side has its own."""

    @classmethod
    def parse(cls, text: str, gpu: str | None = None, environment: str | None = None, suffix: str = "") -> Wanted:
        """Read `KEY` or `KEY@GENERATION`.

        Raises:
            UsageError: it is neither.
        """
        key, at, number = text.partition("@")
        if at and not (number.isascii() and number.isdecimal() and len(number) < 10 and int(number)):
            raise UsageError(f"{text!r} is not a KEY@GENERATION such as my-model/v1@3")
        return cls(check_key(key), int(number) if at else None, gpu, environment, suffix)


def choose_one(store: Store, wanted: Wanted) -> Ref:
    """The generation that is meant.

    Raises:
        MissError: there is none.
        AmbiguousScopeError: there are several, and none of them is this worker's.
    """
    found = _candidates(store, wanted)
    own = [scope for scope in found if len(found) > 1 and _is_own(store, scope)]
    if len(own or found) > 1:
        raise AmbiguousScopeError(f"{wanted.key} has been committed under several scopes; {_choices(wanted, found)}")
    return _ref(store, wanted, (own or found)[0])


def choose_two(store: Store, left: Wanted, right: Wanted) -> tuple[Ref, Ref]:
    """The two generations that are meant: of one GPU and environment, if any has both.

    Raises:
        MissError: one side has none.
        AmbiguousScopeError: there are several pairs, and none, or more than one, is this worker's.
    """
    lefts, rights = _candidates(store, left), _candidates(store, right)
    likeness = _likeness(lefts, rights)
    pairs = list(islice(_pairs(lefts, rights, likeness), 2))
    if len(pairs) > 1:
        ours, theirs = ([scope for scope in side if _is_own(store, scope)] for side in (lefts, rights))
        own = {*_pairs(ours, rights, likeness), *_pairs(lefts, theirs, likeness)}
        pairs = list(own) if len(own) == 1 else pairs
    if len(pairs) > 1:
        raise AmbiguousScopeError(
            f"several GPUs or environments have both; {_choices(left, lefts)}; {_choices(right, rights)}"
        )
    return _ref(store, left, pairs[0][0]), _ref(store, right, pairs[0][1])


def _likeness(lefts: Sequence[Scope], rights: Sequence[Scope]) -> Likeness:
    """The most that a scope of one side has in common with one of the other."""
    shared = (likeness for likeness in _LIKENESSES if not {*map(likeness, lefts)}.isdisjoint(map(likeness, rights)))
    return next(shared)


def _pairs(lefts: Sequence[Scope], rights: Sequence[Scope], likeness: Likeness) -> Iterator[Pair]:
    """The pairs that are alike in that; one by one, because a key may have thousands of scopes."""
    alike: dict[Hashable, list[Scope]] = defaultdict(list)
    for other in rights:
        alike[likeness(other)].append(other)
    return ((one, other) for one in lefts for other in alike.get(likeness(one), ()))


def _candidates(store: Store, wanted: Wanted) -> list[Scope]:
    named = scopes_of(store.storage, wanted.key, wanted.gpu, wanted.environment, wanted.suffix)
    if not wanted.generation:
        return _unforgotten(store, wanted, named)
    with reporting_trouble(store.location, "read"):
        found = [scope for scope in named if wanted.generation in _numbers(store, scope)]
    if not found:
        where = " and ".join(filter(None, (wanted.gpu, wanted.environment)))
        lacking = f"{wanted.key} has no generation {wanted.generation}{where and f' for {where}'}"
        raise MissError(f"{lacking}; `kstore show {wanted.key}` lists those that it has")
    return found


def _unforgotten(store: Store, wanted: Wanted, named: list[Scope]) -> list[Scope]:
    with reporting_trouble(store.location, "read"):
        left = unforgotten(store.storage, named)
    if not left:
        raise MissError(f"{wanted.key} was forgotten; name a generation that `kstore show {wanted.key}` lists")
    return left


def _numbers(store: Store, scope: Scope) -> list[int]:
    return in_charge(store.storage, scope).refs.generations(scope)


def _is_own(store: Store, scope: Scope) -> bool:
    return (scope.gpu, scope.environment) == (store.gpu, store.environment.tag)


def _ref(store: Store, wanted: Wanted, scope: Scope) -> Ref:
    if wanted.generation is None:
        newest = store.newest(scope)
        if newest is None:
            raise missing(store.storage, wanted.key)
        return newest
    with reporting_trouble(store.location, "read"):
        return ref_of(store.storage, scope, wanted.generation)


def _choices(wanted: Wanted, scopes: Sequence[Scope]) -> str:
    return f"for {wanted.key} choose: {choices(scopes, wanted.suffix)}"
