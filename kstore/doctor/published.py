"""What is published for a key, and whether it was built for a worker like this one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kstore.doctor.check import Check, bad, ok, warning
from kstore.errors import KstoreError
from kstore.refs import Ref, RefState
from kstore.scope import Scope
from kstore.snapshot import Snapshot
from kstore.store import Store

_NAMES = {"torch": "torch", "cuda": "CUDA", "hip": "HIP", "triton": "Triton", "python": "Python ABI"}
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest generation of each scope of a key."""

    own: Ref | None
    """Of this worker's scope."""
    others: Mapping[Scope, Ref]
    snapshot: Snapshot | None
    """Of `own`, if that is live and can be read; else of one of the others."""
    trouble: str = ""

    @property
    def is_own(self) -> bool:
        """Whether `snapshot` is what this worker would restore."""
        return bool(self.snapshot and self.own and self.snapshot.ref.scope == self.own.scope)


def newest_of(store: Store, key: str) -> Newest:
    """Read the newest generations of `key`."""
    try:
        refs = {scope: ref for scope in store.scopes(key) if (ref := store.newest(scope))}
        own = refs.pop(store.scope(key), None)
        live = [ref for ref in (own, *refs.values()) if ref and ref.state is RefState.LIVE]
        return Newest(own, refs, _snapshot(store, live))
    except (KstoreError, OSError) as error:
        return Newest(None, {}, None, str(error))


def _snapshot(store: Store, live: list[Ref]) -> Snapshot | None:
    if not live:
        return None
    snapshot = store.snapshot(live[0])
    _ = snapshot.manifest
    return snapshot


def check_published(store: Store, key: str, newest: Newest) -> Iterator[Check]:
    """Whether there is something that could hit."""
    scope = store.scope(key)
    if newest.trouble:
        yield bad("generation", newest.trouble, f"`kstore verify {key}` says what can be saved")
    elif newest.own and newest.own.state is not RefState.LIVE:
        yield bad("generation", f"{key} was {newest.own.state}", f"compile and commit, or `kstore rollback {key}`")
    elif newest.own:
        ref = newest.own
        yield ok("generation", f"{ref.generation} of {key}: {ref.files} files by {ref.creator}")
    elif not newest.others:
        yield bad("generation", f"nothing is published for {key}", f"`kstore exec {key} -- …` compiles and commits")
    yield _check_gpu(scope, newest)
    yield _check_environment(store, scope, newest)


def _check_gpu(scope: Scope, newest: Newest) -> Check:
    gpus = sorted({other.gpu for other in newest.others})
    if newest.own or not gpus or scope.gpu in gpus:
        return ok("GPU", scope.gpu)
    return bad(
        "GPU",
        f"compiled on {', '.join(gpus[:_SHOWN])}; this worker has {scope.gpu}: nothing can hit",
        "compile once on such a GPU; if this is a wrong guess, set KSTORE_GPU",
    )


def _check_environment(store: Store, scope: Scope, newest: Newest) -> Check:
    same_gpu = [other for other in newest.others if other.gpu == scope.gpu]
    if store.environment.facts.get("torch", "none") == "none" and not store.settings.environment:
        return warning(
            "environment",
            "torch is not installed here",
            "restores take the only environment of the key, or --environment",
        )
    if newest.own or not same_gpu or not newest.snapshot:
        return ok("environment", scope.environment)
    theirs = newest.snapshot.manifest.meta.get("environment")
    changed = _changes(theirs if isinstance(theirs, Mapping) else {}, store.environment.facts)
    return bad(
        "environment",
        f"compiled with {_told(changed, 0)}; this worker has {_told(changed, 1)}: nothing can hit",
        "use the image that compiled, or compile once in this one",
    )


def _changes(theirs: Mapping[str, object], ours: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    names = [*_NAMES, *(name for name in ours if name not in _NAMES)]
    pairs = {name: (str(theirs.get(name, "none")), str(ours.get(name, "none"))) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _told(changed: Mapping[str, tuple[str, str]], side: int) -> str:
    told = [f"{_NAMES.get(name, name)} {pair[side]}" for name, pair in changed.items()]
    return ", ".join(told[:_SHOWN]) or "other software"
