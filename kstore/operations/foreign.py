"""Which artifacts of a cache root are foreign: built on another host, so that they must not be loaded here, nor
published as built here.

A root on a node's disk outlives a change of image or processor, and a volume moves from node to node. The root
remembers the fingerprint of its host if anybody asked the compiler, and otherwise what the last restore saw of the host
without it. A folder outside the root says itself which machine its artifacts are of.
"""

from __future__ import annotations

from collections.abc import Iterable

from kstore.environment import machine_of
from kstore.local import outside
from kstore.local.found import Scan
from kstore.local.state import State
from kstore.published.manifest import HOST, with_flags
from kstore.worker import Worker


def comes_from_elsewhere(worker: Worker) -> bool:
    """Whether the root, or a component's folder outside it, may have been on another host or in another place. Nothing
    is remembered about a new root.
    """
    hint = worker.state.last_restore.host_hint()
    is_other = (hint or worker.state.host()) and hint != worker.host.hint
    return bool(is_other or worker.state.was_moved() or _moved_here(worker))


def foreign_at_restore(worker: Worker, state: State, found: Scan) -> dict[str, bytes]:
    """Foreign artifacts, with their digests. Nothing was built since the root is on this host, so if it was on another
    one, all that are bound to a host are foreign. Where the compiler was not asked, then or now, this goes by what is
    seen without it: the worst that may come of that is a compile.
    """
    bound = _bound(found)
    if not bound:
        return {}
    foreign = _known_foreign(worker, state, bound)
    if state.host and (host := worker.host.fingerprint):
        was_elsewhere = state.host != host
    else:
        was_elsewhere = worker.state.last_restore.host_hint() not in ("", worker.host.hint)
    return bound if was_elsewhere else foreign


def foreign_at_commit(worker: Worker, state: State, found: Scan) -> dict[str, bytes]:
    """Foreign artifacts, with their digests. What has come since the root is on this host was built here, but only a
    restore can tell since when that is.
    """
    bound = _bound(found)
    if not bound:
        return {}
    foreign = _known_foreign(worker, state, bound)
    if not state.host:
        return bound if _was_restored_elsewhere(worker) else foreign
    if state.host == worker.host.fingerprint:
        return foreign
    if _was_restored_elsewhere(worker):
        return bound
    base = worker.base(state)
    old = base.manifest.hosts.get(state.host, {}) if base else {}
    return foreign | {path: digest for path, digest in bound.items() if path in state.index.files or path in old}


def mark_machine(worker: Worker, components: Iterable[str] | None = None) -> None:
    """Note that what is in the folders outside the cache root, or in those of `components`, is this machine's."""
    if worker.root.outside:
        outside.mark_machine(worker.root, worker.host.machine, components)


def _bound(found: Scan) -> dict[str, bytes]:
    return {path: entry.digest for path, entry in with_flags(found.files, HOST).items()}


def _known_foreign(worker: Worker, state: State, bound: dict[str, bytes]) -> dict[str, bytes]:
    """What earlier operations could not take out, and what has come in a folder of its own."""
    foreign = {path: digest for path, digest in state.foreign.items() if bound.get(path) == digest}
    if moved := _moved_here(worker):
        foreign |= {path: digest for path, digest in bound.items() if path.partition("/")[0] in moved}
    return foreign


def _moved_here(worker: Worker) -> set[str]:
    """Components in folders of their own that have come from another machine, without the cache root."""
    return outside.moved_here(worker.root, worker.host.machine) if worker.root.outside else set()


def _was_restored_elsewhere(worker: Worker) -> bool:
    """Whether no restore has found the root on this machine: the last one's machine may have built what is new."""
    hint = worker.state.last_restore.host_hint()
    return bool(hint) and machine_of(hint) != worker.host.machine
