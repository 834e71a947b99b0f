"""What a restore answers to workers that come for the same: they rely on that, and do not restore themselves.

When workers start together in one cache root, one restores, and the others wait for the root. They read nothing from
the store, parse no manifest and run no compiler: they report what the first one has noted. So does a worker that comes
later, as long as nothing has changed since, here or in the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kstore.calls import stat_each
from kstore.environment import surroundings
from kstore.errors import KstoreError
from kstore.local.record import UNREADABLE
from kstore.local.untouched import is_placed
from kstore.operations.request import Request, if_there, restore_report
from kstore.published.layers import attempt, base_of, newest_ref
from kstore.published.manifest import folders_of
from kstore.published.ref import Ref
from kstore.published.snapshot import Snapshot
from kstore.report import Count, RestoreReport, RestoreStatus

if TYPE_CHECKING:
    from kstore.worker import Worker


class AnotherRestore:
    """A restore by another process into this worker's root, which may serve both."""

    def __init__(self, worker: Worker, request: Request) -> None:
        """Only a restore that begins from now on counts: what an earlier one looked at may have changed since."""
        self._worker = worker
        self._request = request
        self._before = worker.state.last_restore.begun()
        self.report: RestoreReport | None = None

    def ask(self) -> None:
        """Whoever holds the root may have begun before this worker came: have it look once more."""
        self._worker.state.last_restore.ask()

    def has_restored(self) -> bool:
        """Whether there was such a restore, for the same request, and nobody has committed since."""
        with suppress(*UNREADABLE):  # what another version has noted is no answer
            self.report = self._read()
        return self.report is not None

    def _read(self) -> RestoreReport | None:
        found = self._worker.state.last_restore.since(self._before)
        return _report(self._worker, self._request, *found) if found else None


def _report(worker: Worker, request: Request, ref: Ref, answer: Mapping[str, Any]) -> RestoreReport | None:
    """The report of a worker that relies on the restore that `answer` describes. None if that was for another request,
    or if somebody has committed since.
    """
    is_same = answer["asked"] == _asked(worker, request)
    if not (is_same and worker.state.grew_from(answer["store"], ref) and _is_host(worker, answer)):
        return None
    return restore_report(
        worker,
        if_there(RestoreStatus(answer["status"])),
        replace(ref, depth=answer["depth"]),
        files=answer["files"],
        bytes=answer["bytes"],
        components={name: Count(**count) for name, count in answer["components"].items()},
    )


def _is_host(worker: Worker, answer: Mapping[str, Any]) -> bool:
    """Whether the answer comes from a host like this one. Two images on one node may share a cache root, and each takes
    out what was built on the other.
    """
    if not answer["host"]:
        return bool(answer["hint"] == worker.host.hint)
    if answer["around"] == surroundings(worker.environ) != "":
        return True
    return bool(answer["host"] == worker.host.fingerprint)


def still_stands(worker: Worker, request: Request, ref: Ref, answer: Mapping[str, Any]) -> RestoreReport | None:
    """The report of a restore that has nothing to do, because everything that the last one placed is in its place and
    nothing newer is published; else None. `ref` and `answer` are those of the last restore. No manifest is parsed, and
    no file is looked at.

    A folder of the user's may have been written on another machine since, which only its own mark tells. Twice a day
    everything is looked at, including the manifest in the store: if that is damaged, the next commit publishes it anew.
    """
    if worker.root.outside or worker.state.is_old():
        return None
    with suppress(*UNREADABLE, KstoreError):
        if answer["host"]:
            worker.host.ask()
        report = _report(worker, request, ref, answer)
        # The compiler may have been replaced since, and only asking it would tell.
        if report and _has_all(worker, ref) and (not answer["host"] or answer["host"] == worker.host.fingerprint):
            return report
    return None


def _has_all(worker: Worker, ref: Ref) -> bool:
    """Whether nothing is gone, and `ref` is the newest generation."""
    known = worker.state.still()
    if not (known and known.still.has_all(worker.root, worker.ignores) and worker.state.last_restore.has_base(ref)):
        return False

    def look() -> Ref | None:
        with suppress(KstoreError):  # Damage is no trouble with the store: a restore passes it over.
            return newest_ref(worker.storage, worker.scope)
        return None

    base = base_of(worker.storage, known.base)
    return base is not None and base.is_generation_of(attempt(worker.storage, look, None))


def look_again(worker: Worker, snapshot: Snapshot, request: Request) -> str:
    """Look whether everything is still as this worker, which holds the root, has restored it. If so, returns the name
    of a restore that began now and found it so; else an empty string.
    """
    if request.generation is not None or snapshot.ref.scope != worker.scope:
        return ""
    mark = worker.state.load().untouched
    if not mark.mtime_ns:
        return ""
    name = worker.state.last_restore.begin(worker.store_found)
    try:
        is_newest = snapshot.is_generation_of(newest_ref(worker.storage, worker.scope))
    except (KstoreError, OSError):
        return ""
    folders = map(worker.root.local_path, folders_of(worker.files_of(snapshot.manifest)))
    stand = all(map(partial(is_placed, mark), stat_each([*folders], follows=True)))
    return name if is_newest and stand and not worker.storage.trouble else ""


def answer_of(worker: Worker, request: Request, ref: Ref, report: RestoreReport, host: str) -> dict[str, Any]:
    """What workers that came for the same are told; `host` is the fingerprint of this host, if it matters."""
    return {
        "asked": _asked(worker, request),
        "store": worker.storage.holder(ref).identity,
        "depth": ref.depth,
        "host": host,
        "around": surroundings(worker.environ) if host else "",
        "hint": worker.host.hint,
        "status": report.status,
        "files": report.files,
        "bytes": report.bytes,
        "components": {name: asdict(count) for name, count in (report.components or {}).items()},
    }


def _asked(worker: Worker, request: Request) -> list[object]:
    storage = worker.storage
    return [storage.location, storage.below.locations, worker.scope.path, request.seed, request.generation]
