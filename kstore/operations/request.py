"""What is requested of a restore, and what it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kstore.published.ref import Ref
from kstore.report import RestoreReport, RestoreStatus

if TYPE_CHECKING:
    from kstore.worker import Worker


class Request(NamedTuple):
    """What is requested of a restore."""

    generation: int | None = None
    """Exactly this one; None for the newest."""
    seed: str | None = None
    """The key to start from if nothing is published for the worker's own."""
    patience: float = 0.0
    """Seconds to wait, on a miss, for the worker that compiles."""
    lead: bool = True
    """Whether this worker may become that one, if it has patience."""


def if_there(status: RestoreStatus) -> RestoreStatus:
    """What a restore that would end with `status` is called if everything was in its place already."""
    return RestoreStatus.CURRENT if status is RestoreStatus.RESTORED else status


def restore_report(worker: Worker, status: RestoreStatus, ref: Ref | None = None, **fields: object) -> RestoreReport:
    """What became of the restore, with what is known about the worker."""
    first = worker.storage
    storage = first.holder(ref) if ref else first
    # What is wrong with the first one was told when it was found out.
    instead = f"the store at {first.location} cannot be used; what is in {storage.location} is restored instead"
    return RestoreReport(
        status=status,
        key=worker.scope.key,
        gpu=worker.scope.gpu,
        environment=worker.scope.environment,
        store=storage.location,
        cache_root=worker.root.path,
        generation=ref.generation if ref else 0,
        notes=(*worker.root.notes, *([instead] if first.trouble else [])),
        **fields,  # type: ignore[arg-type]
    )
