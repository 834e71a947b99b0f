"""What is published for a key, and whether it was built for a worker like this one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from kstore.blobs.blobstore import MOST_SEARCHED
from kstore.damaged import damaged_blobs
from kstore.doctor.check import SCOPE, WORKER, Check, again, bad, ok, warning
from kstore.errors import KstoreError, StoreFormatError, StoreUnavailable, reason_of
from kstore.published.layers import newest_there, unforgotten
from kstore.published.leaning import COMPILE, absent, are_here, leaning, leans_on, unavailable
from kstore.published.manifest import sizes_of
from kstore.published.ref import Ref, RefState
from kstore.published.scopes import every_scope
from kstore.published.snapshot import Snapshot
from kstore.scope import Scope, choices
from kstore.settings import variables_of
from kstore.storage import reporting_trouble
from kstore.store import Store
from kstore.words import files, plural

_NAMES = {"torch": "torch", "cuda": "CUDA", "hip": "HIP", "triton": "Triton", "python": "Python ABI"}
_SHOWN = 4
_LONGEST = 60
"""Characters of what a manifest says about a builder."""


@dataclass(frozen=True, slots=True)
class Newest:
    """What is published for a key."""

    own: Ref | None
    """The newest generation of this worker's scope that can be read."""
    others: Mapping[Scope, Ref]
    """The newest generations of other scopes that are live; those with this worker's GPU come first."""
    snapshot: Snapshot | None
    """The snapshot of `own`, if that is live; else of the first of `others`."""
    trouble: str = ""
    """What is damaged or cannot be read in this worker's scope."""
    choices: Sequence[Scope] = ()
    """What a worker without torch may choose from: scopes that were not forgotten, of the GPU that is set, if any."""
    keeps_out: bool = False
    """Whether commits fail as well: a newer kstore wrote it, or nobody knows what is published."""

    @property
    def is_own(self) -> bool:
        """Whether `snapshot` is what this worker would restore."""
        return bool(self.snapshot and self.own and self.snapshot.ref.scope == self.own.scope)


def newest_of(store: Store, key: str) -> Newest:
    """Read the newest generations of `key`."""
    scope = store.scope(key)
    try:
        with reporting_trouble(store.location, "read"):
            every = _every(store, key)
            to_choose = [] if store.knows_software else _to_choose(store, every)
            if len(to_choose) == 1:  # A restore takes this one.
                (scope,) = to_choose
            others = {other: ref for other in every if other != scope and (ref := _live(store, other))}
            others = dict(sorted(others.items(), key=lambda item: item[0].gpu != scope.gpu))
            newest, whole = newest_there(store.storage, scope)
    except KstoreError as error:
        return Newest(None, {}, None, str(error), keeps_out=isinstance(error, StoreFormatError | StoreUnavailable))
    except MemoryError as error:
        what = f"what is published cannot be read: {reason_of(error)}; raise the limits of this process"
        return Newest(None, {}, None, what, keeps_out=True)
    trouble = "" if not newest or (whole and whole.ref.generation == newest) else f"generation {newest} is damaged"
    if whole and whole.ref.state is RefState.LIVE:
        return Newest(whole.ref, others, whole, trouble, to_choose)
    return Newest(whole.ref if whole else None, others, _snapshot(store, others), trouble, to_choose)


def _every(store: Store, key: str) -> list[Scope]:
    """The scopes of `key`; all of them, if this worker must choose one. Another's trouble is not that of one that knows
    its own.
    """
    return every_scope(store.storage, key)[0] if store.knows_software else list(store.scopes(key))


def _to_choose(store: Store, every: Iterable[Scope]) -> list[Scope]:
    return unforgotten(store.storage, (scope for scope in every if scope.is_of(store.settings.gpu or None, None)))


def _live(store: Store, scope: Scope) -> Ref | None:
    with suppress(KstoreError, OSError):  # Trouble in other scopes is not this worker's.
        ref = store.newest(scope)
        return ref if ref and ref.state is RefState.LIVE else None
    return None


def _snapshot(store: Store, refs: Mapping[Scope, Ref]) -> Snapshot | None:
    with suppress(KstoreError, OSError, MemoryError):
        for ref in refs.values():
            snapshot = store.snapshot(ref)
            _ = snapshot.manifest
            return snapshot
    return None


def check_published(store: Store, key: str, newest: Newest) -> Iterator[Check]:
    """Check whether there is something that could hit."""
    scope = store.scope(key)
    yield from _check_generation(store, key, newest)
    yield from _check_contents(store, key, newest)
    if not store.knows_software:
        yield _check_choice(newest)
        return
    yield _check_gpu(store, scope, newest)
    yield _check_environment(store, scope, newest)


def _check_generation(store: Store, key: str, newest: Newest) -> Iterator[Check]:
    ref = newest.own
    advice = f"`{again(store, 'verify', key, names=WORKER)}` says what can be saved"
    if newest.keeps_out:
        advice = "until then this worker runs cold and publishes nothing for the key; or take another key"
    if newest.trouble and ref:
        yield warning("generation", f"{newest.trouble}, and {ref.generation} is restored instead", advice)
    elif newest.trouble:
        yield bad("generation", newest.trouble, advice)
    if ref and ref.state is not RefState.LIVE:
        yield bad("generation", f"{key} was {ref.state}", _way_back(store, key))
    elif ref and not newest.trouble:
        yield ok("generation", f"{ref.generation} of {key}: {files(ref.files)} by {ref.creator}")
    elif not newest.others and not newest.trouble:
        compiling = again(store, "exec", key, names=WORKER)
        yield bad("generation", f"nothing is published for {key}", f"`{compiling} -- …` compiles and commits")


def _way_back(store: Store, key: str) -> str:
    """The way back for a key that was withdrawn: no commit publishes again what workers still have of it."""
    root = store.settings.cache_root
    clean = f"remove {root}" if root else f"`{again(store, 'clean', key)}`"
    back = again(store, "rollback", key, names=SCOPE)
    return (
        f"`{back}` undoes that until gc has run; to fill it again, {clean} on each worker that has the files, and "
        "remove the folders with them that variables name, then compile and commit; or take another key"
    )


def _check_contents(store: Store, key: str, newest: Newest) -> Iterator[Check]:
    """Check whether what it needs is there, as far as can be told without reading everything."""
    if newest.snapshot is None or not newest.is_own:
        return
    try:
        yield from _check_stored(store, key, newest.snapshot)
        yield from _check_leaning(store, newest.snapshot)
    except OSError as error:
        found = f"{store.location} cannot be read: {error.strerror or error}"
        yield bad("contents", found, "check the mount and its permissions")


def _check_stored(store: Store, key: str, snapshot: Snapshot) -> Iterator[Check]:
    """Check by the names and sizes of packs and loose blobs whether everything is stored."""
    ref, storage, is_noted = snapshot.ref, store.storage.holder(snapshot.ref), False
    broken = [pack for pack in ref.packs if not storage.blobs.can_read(pack)]
    if broken:
        unread = f"{plural(len(broken), 'pack')} of generation {ref.generation} cannot be read"
        found = f"{unread}: some of its files are missed"
    elif lost := _lost(store, snapshot):
        lacks = f"the store lacks {files(len(lost))} of generation {ref.generation}"
        found = f"{lacks}: they are missed, and so is what is grouped with them"
        is_noted = damaged_blobs(storage.backend).keys() >= set(lost)  # by a repair
    else:
        return
    repair, commit = again(store, "verify", key, "--repair", names=WORKER), "commit from a worker that has the files"
    yield bad("contents", found, commit if is_noted else f"`{repair}` saves the rest; then {commit}")


def _lost(store: Store, snapshot: Snapshot) -> list[bytes]:
    """The digests of all artifacts that no store here has a blob of, except those that the generation leans on."""
    leant, blobs = leaning(snapshot.manifest), store.storage.holder(snapshot.ref).blobs
    own = [entry for entry in snapshot.manifest.entries() if entry.digest not in leant]
    away = absent(store.storage, snapshot.ref, sizes_of(own))
    if away:  # A restore looks in other packs too, but not in thousands.
        away -= blobs.digests_in(islice(blobs.packs_listed(), MOST_SEARCHED))
    return [entry.digest for entry in own if entry.digest in away]


def _check_leaning(store: Store, snapshot: Snapshot) -> Iterator[Check]:
    if away := unavailable(store.storage, snapshot, dict(snapshot.manifest.items()), {}):
        where = ", ".join(leans_on(snapshot.manifest))
        what = f"{files(len(away))} of generation {snapshot.ref.generation} cannot be restored"
        if are_here(store.storage, snapshot.manifest):
            yield bad("contents", f"{what}: {where} had them, and has them no more", COMPILE)
        else:
            found = f"{what} without {where}, which is not one of the stores here"
            yield bad("contents", found, f"add {where} to the stores")


def _check_choice(newest: Newest) -> Check:
    """Check the choice: without torch the worker's environment is unknown, and a restore takes what there is."""
    found = "torch is not installed here"
    if len(newest.choices) > 1:
        return bad("environment", f"{found}, and the key has several", f"choose: {choices(newest.choices)}")
    return warning("environment", found, "restores take the only environment of the key, or --environment")


def _check_gpu(store: Store, scope: Scope, newest: Newest) -> Check:
    gpus = sorted({other.gpu for other in newest.others})
    if newest.own or not gpus or scope.gpu in gpus:
        return ok("GPU", scope.gpu)
    compiled = f"compiled on {', '.join(gpus[:_SHOWN])}"
    if store.settings.gpu:
        setting = _setting(store, "gpu")
        found = f"{compiled}; {setting} is {scope.gpu}: nothing can hit"
        return bad("GPU", found, f"correct {setting}, or unset it; if it is right, compile once on such a GPU")
    found = f"{compiled}; this worker has {scope.gpu}: nothing can hit"
    return bad("GPU", found, "compile once on such a GPU; if this is a wrong guess, set KSTORE_GPU")


def _check_environment(store: Store, scope: Scope, newest: Newest) -> Check:
    tags = [other.environment for other in newest.others if other.gpu == scope.gpu]
    if newest.own or not tags:
        return ok("environment", scope.environment)
    if store.settings.environment:
        setting = _setting(store, "environment")
        found = f"published for {', '.join(tags[:_SHOWN])}; {setting} is {scope.environment}: nothing can hit"
        return bad("environment", found, f"correct {setting}, or unset it; if it is right, compile once in this image")
    theirs = newest.snapshot.manifest.meta.get("environment") if newest.snapshot else None
    changed = _changes(theirs, store.environment.facts) if isinstance(theirs, Mapping) else {}
    there, here = (_told(changed, 0), _told(changed, 1)) if changed else (", ".join(tags[:_SHOWN]), scope.environment)
    return bad(
        "environment",
        f"compiled with {there}; this worker has {here}: nothing can hit",
        "use the image that compiled, or compile once in this one",
    )


def _setting(store: Store, name: str) -> str:
    """What to correct: the variable, if the value comes from there, else the option, argument or file."""
    ((variable, value),) = variables_of(store.settings, [name]).items()
    return variable if store.environ.get(variable) == value else f"the setting `{name}`"


def _changes(theirs: Mapping[str, object], ours: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    names = [*_NAMES, *(name for name in ours if name not in _NAMES)]
    pairs = {name: (str(theirs.get(name, "none")), str(ours.get(name, "none"))) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _told(changed: Mapping[str, tuple[str, str]], side: int) -> str:
    told = [f"{_NAMES.get(name, name)} {pair[side][:_LONGEST]}" for name, pair in changed.items()]
    return ", ".join(told[:_SHOWN])
