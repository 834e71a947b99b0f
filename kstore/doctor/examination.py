"""The checks from the store to the compiler, in the order in which a job meets what they look at."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from kstore.doctor.check import Check, Verdict, warning
from kstore.doctor.node import check_node
from kstore.doctor.published import check_published, newest_of
from kstore.doctor.shared import check_shared
from kstore.doctor.surroundings import check_surroundings
from kstore.environment.software import has_only_kstore
from kstore.store import Store


def examine(store: Store, key: str = "") -> Iterator[Check]:
    """All checks, each as soon as it is done; those of `key` too, if one is given.

    If run in the process that compiles, it also sees whether torch was imported too early.

    Raises:
        UsageError: the key or a setting is malformed.
    """
    if key:
        store.scope(key)
    shared = list(check_shared(store, key))
    yield from shared
    is_reachable = all(check.verdict is not Verdict.BAD for check in shared)
    newest = newest_of(store, key) if key and is_reachable else None
    if newest:
        yield from check_published(store, key, newest)
    elif has_only_kstore(store.environment.tag):
        yield _without_compilers()
    yield from check_node(store, key, newest, may_link=shared[0].verdict is Verdict.OK)
    yield from check_surroundings(store, key, newest)


def _without_compilers() -> Check:
    """What a kstore in an environment of its own is told: it commits for software that no job has."""
    found = f"neither torch nor Triton is installed for {sys.executable}"
    return warning("environment", found, "a job with torch needs a kstore that is installed beside it; gc does not")
