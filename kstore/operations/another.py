"""Of workers that start together in one cache root one restores; the others, who wait for the root, rely on it.

They read nothing of the store, parse no manifest and run no compiler: what they report is in what that one noted.
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
from kstore.operations.request import Request, restore_report
from kstore.published.layers import newest_ref
from kstore.published.manifest import folders_of
from kstore.published.ref import Ref
from kstore.published.snapshot import Snapshot
from kstore.report import Count, RestoreReport, RestoreStatus

if TYPE_CHECKING:
    from kstore.worker import Worker


class Another:
    """A restore by another process into this worker's root, that may do for both."""

    def __init__(self, worker: Worker, request: Request) -> None:
        """One that begins from now on counts: what an earlier one looked at may have changed since."""
        self._worker = worker
        self._request = request
        self._before = worker.state.last_restore.begun()
        self.report: RestoreReport | None = None

    def ask(self) -> None:
        """Whoever has the root may have begun before this worker came: let it look once more."""
        self._worker.state.last_restore.ask()

    def has_restored(self) -> bool:
        """Whether there was one, for the same request, and nobody has committed since."""
        if self.report is None:
            with suppress(*UNREADABLE):  # what another version has noted is no answer
                self.report = self._read()
        return self.report is not None

    def _read(self) -> RestoreReport | None:
        found = self._worker.state.last_restore.since(self._before)
        if found is None:
            return None
        ref, answer = found
        is_same = answer["asked"] == _asked(self._worker, self._request)
        if not (is_same and self._worker.state.grew_from(answer["store"], ref) and self._is_host(answer)):
            return None
        status = RestoreStatus(answer["status"])
        return restore_report(
            self._worker,
            RestoreStatus.CURRENT if status is RestoreStatus.RESTORED else status,
            replace(ref, depth=answer["depth"]),
            files=answer["files"],
            bytes=answer["bytes"],
            components={name: Count(**count) for name, count in answer["components"].items()},
        )

    def _is_host(self, answer: Mapping[str, Any]) -> bool:
        """Two images on one node may share a cache root: each takes out what was built on the other."""
        if not answer["host"]:
            return bool(answer["hint"] == self._worker.host_hint)
        if answer["around"] == surroundings(self._worker.environ) != "":
            return True
        return bool(answer["host"] == self._worker.host.fingerprint)


def look_again(worker: Worker, snapshot: Snapshot, request: Request) -> str:
    """Whether all is as this worker, who has the root, has restored it: the name of a restore that began now and found
    it so; else empty.
    """
    if request.generation is not None or snapshot.ref.scope != worker.scope:
        return ""
    mark = worker.state.load().untouched
    if not mark.mtime_ns:
        return ""
    name = worker.state.last_restore.begin()
    try:
        is_newest = snapshot.is_generation_of(newest_ref(worker.storage, worker.scope))
    except (KstoreError, OSError):
        return ""
    folders = map(worker.root.local_path, folders_of(worker.files_of(snapshot.manifest)))
    stand = all(map(partial(is_placed, mark), stat_each([*folders], follows=True)))
    return name if is_newest and stand and not worker.storage.trouble else ""


def answer_of(worker: Worker, request: Request, ref: Ref, report: RestoreReport, host: str) -> dict[str, Any]:
    """What those are told who came for the same; `host` is the fingerprint of this one, if it matters."""
    return {
        "asked": _asked(worker, request),
        "store": worker.storage.holder(ref).identity,
        "depth": ref.depth,
        "host": host,
        "around": surroundings(worker.environ) if host else "",
        "hint": worker.host_hint,
        "status": report.status,
        "files": report.files,
        "bytes": report.bytes,
        "components": {name: asdict(count) for name, count in (report.components or {}).items()},
    }


def _asked(worker: Worker, request: Request) -> list[object]:
    storage = worker.storage
    return [storage.location, storage.below.locations, worker.scope.path, request.seed, request.generation]
