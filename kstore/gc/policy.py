"""Which generations stay, and why. Pure: history and policy in, decisions out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from operator import attrgetter

from kstore.errors import UsageError
from kstore.published.ref import RefState
from kstore.scope import Scope

_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Policy:
    """What the user wants kept. All times are in seconds."""

    keep: int = 2
    """The newest generations of each scope."""
    unused: float | None = None
    """A key that was neither restored nor committed for this long is forgotten."""
    max_size: int | None = None
    """Bytes. Least recently used keys give up their older generations first."""
    allow_live: bool = False
    """With `max_size`: keys may be forgotten altogether."""
    grace: float | None = None
    """Seconds between condemning and deleting: at least the store's, unless `offline`. None means the store's own; with
    `offline`, none at all.
    """
    offline: bool = False
    """No worker uses the store now: one phase follows the other, and a shorter grace is safe."""

    def grace_of(self, store: float) -> float:
        """The grace to use in a store with the setting `store`.

        Raises:
            UsageError: a shorter one was requested, and workers may be at work.
        """
        if self.grace is None:
            return 0.0 if self.offline else store
        if self.grace < store and not self.offline:
            raise UsageError(
                f"--grace {self.grace:.0f}s is shorter than the store's {store:.0f}s, which running commits count on; "
                "add --offline if no worker uses the store now"
            )
        return self.grace


class Why(StrEnum):
    """Why a generation stays or goes."""

    NEWEST = "newest"
    KEPT = "among the newest"
    PINNED = "pinned"
    RECENT = "superseded a short time ago"
    NEEDED = "the newest cannot be read"
    UNREADABLE = "cannot be read"
    OLD = "older than what is kept"
    REPEATED = "the next generation holds the same"
    FORGOTTEN = "forgotten"
    SIZE = "over the size limit"


_GOING = {Why.OLD, Why.REPEATED, Why.FORGOTTEN, Why.SIZE}
_TIERS = {Why.PINNED: 0, Why.NEEDED: 0, Why.RECENT: 2}


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation as gc sees it. Times are the store's, in nanoseconds."""

    number: int
    published_at: int
    is_pinned: bool = False
    manifest: bytes | None = None
    """None if the ref cannot be read."""
    state: RefState = RefState.LIVE
    since: int = 0
    """When what it holds was published, if gc or a repair has only published that again; else 0."""


@dataclass(frozen=True, slots=True)
class History:
    """One scope."""

    scope: Scope
    generations: tuple[Generation, ...]
    """Oldest first; never empty."""
    used_at: int
    """When it was last restored or committed."""

    @property
    def newest(self) -> Generation:
        """The generation that is restored."""
        return self.generations[-1]


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of one generation."""

    scope: Scope
    generation: Generation
    why: Why
    stays: bool


def decide(
    history: History, keep: int, grace: float, now: int, can_read: Callable[[Generation], bool] = lambda _: True
) -> list[Decision]:
    """What becomes of each generation of one scope, oldest first.

    The newest stays, whatever it is: generation numbers never go back. If it cannot be read, everything that may be
    restored in its place stays too. What was superseded less than `grace` ago stays: somebody may be restoring it. Of
    the others, `keep` that can be read stay, counting the newest if it is not empty.
    """
    decisions = [Decision(history.scope, history.newest, Why.NEWEST, True)]
    left = keep - 1 if history.newest.state is RefState.LIVE else keep
    for older, newer in _pairs(history.generations):
        is_recent = now - newer.published_at < grace * _SECOND
        why = (
            _must_stay(older, is_recent, can_read(history.newest))
            or _replaced(older, newer, history.newest, can_read)
            or _placed(older, left > 0, can_read)
        )
        left -= why is Why.KEPT and older.state is RefState.LIVE
        decisions.append(Decision(history.scope, older, why, why not in _GOING))
    return decisions[::-1]


def stay_for_now(decisions: Iterable[Decision], keep: int) -> list[Decision]:
    """Those that stay only because they were superseded a short time ago. The decisions about one scope are together,
    oldest first.
    """
    found: list[Decision] = []
    for scope, some in groupby(decisions, key=attrgetter("scope")):
        now = list(some)
        history = History(scope, tuple(decision.generation for decision in now), 0)
        later = decide(history, keep, -math.inf, 0)  # as if none of them was superseded a short time ago
        found += (one for one, then in zip(now, later, strict=True) if one.why is Why.RECENT and not then.stays)
    return found


def _must_stay(older: Generation, is_recent: bool, is_newest_whole: bool) -> Why | None:
    if older.is_pinned:
        return Why.PINNED
    if is_recent:
        return Why.RECENT
    return None if is_newest_whole else Why.NEEDED


def _replaced(
    older: Generation, newer: Generation, newest: Generation, can_read: Callable[[Generation], bool]
) -> Why | None:
    if newest.state is RefState.FORGOTTEN:
        return Why.FORGOTTEN
    is_same = older.manifest is not None and older.manifest == newer.manifest
    return Why.REPEATED if is_same and can_read(newer) else None


def _placed(older: Generation, has_room: bool, can_read: Callable[[Generation], bool]) -> Why:
    if not has_room:
        return Why.OLD
    return Why.KEPT if can_read(older) else Why.UNREADABLE


def _pairs(generations: tuple[Generation, ...]) -> Iterator[tuple[Generation, Generation]]:
    """(older, newer), newest pair first."""
    return zip(generations[-2::-1], generations[:0:-1], strict=True)


def unused(histories: Iterable[History], policy: Policy, now: int) -> list[History]:
    """The keys to forget because nobody uses them. A key with a pinned generation is in use; one that has lost
    everything here may be in use in a store below.
    """
    if policy.unused is None:
        return []
    since = now - policy.unused * _SECOND
    return [h for h in histories if h.used_at < since and _may_forget(h)]


def _may_forget(history: History) -> bool:
    is_empty = history.newest.state in (RefState.FORGOTTEN, RefState.LOST)
    return not is_empty and not any(generation.is_pinned for generation in history.generations)


def by_worth(histories: Mapping[Scope, History], decisions: Iterable[Decision]) -> list[Decision]:
    """The generations that stay: first those that must, then the newest ones, then what was superseded a short time
    ago, then older ones. In each of these parts, those whose key was used last come first, and within one key the later
    ones.
    """

    def rank(decision: Decision) -> tuple[int, int, int]:
        history = histories[decision.scope]
        return _tier(decision, history), -history.used_at, -decision.generation.number

    return sorted((decision for decision in decisions if decision.stays), key=rank)


def is_passing(decision: Decision, history: History) -> bool:
    """Whether a generation stays only for a grace, and is not counted: another one holds the same, or its key was
    forgotten. If it were counted, the next gc would forget another key because of it.
    """
    number, manifest = decision.generation.number, decision.generation.manifest
    newer = next((g for g in history.generations if g.number > number), None)
    is_forgotten = history.newest.state is RefState.FORGOTTEN
    return decision.why is Why.RECENT and newer is not None and (is_forgotten or manifest == newer.manifest is not None)


def over_budget(
    costs: Iterable[tuple[Decision, int]],
    histories: Mapping[Scope, History],
    limit: int,
    allow_live: bool,
    keep: Callable[[], None] = lambda: None,
) -> tuple[list[Decision], int]:
    """The generations that a size limit takes, and how many bytes over the limit must stay all the same.

    What is pinned stays, with its key. What was superseded a short time ago stays too, but no key goes for it: it is
    gone sooner than what a key leaves that is forgotten now. After a generation that does not fit, a smaller one may: a
    key that is larger than the limit does not take all others along.

    `costs` says, in the order of `by_worth`, how many bytes each generation takes beyond those before it that stay.
    `keep` is called for each one that stays before the next one is asked for.
    """
    taken, size = [], 0
    for decision, cost in costs:
        tier = _tier(decision, histories[decision.scope])
        if size + cost > limit and (tier == 3 or (tier == 1 and allow_live)):
            taken.append(decision)
        else:
            size += cost
            keep()
    return taken, max(size - limit, 0)


def _tier(decision: Decision, history: History) -> int:
    """0 for what must stay, 1 for a key that may be forgotten, 2 for what must stay for the grace only, 3 for a key's
    past.
    """
    if decision.why is Why.NEWEST:
        return 1 if _may_forget(history) else 0
    return _TIERS.get(decision.why, 3)
