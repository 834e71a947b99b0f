"""Warnings about what is most likely a mistake: one cache root for two keys, files that other users cannot read."""

from __future__ import annotations

import logging
import os
import stat
import sys
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from kstore.components import load_table
from kstore.components.variables import read_managed
from kstore.environment import has_only_kstore
from kstore.redirect import key_in_use
from kstore.told import warn_once

if TYPE_CHECKING:
    from kstore.local.state import Base
    from kstore.operations.request import Request
    from kstore.scope import Scope
    from kstore.worker import Worker

log = logging.getLogger(__name__)


def warn_of_another_key(worker: Worker, request: Request) -> None:
    """A commit takes a whole root: files of another key, GPU or environment in it would be published here as well."""
    scope, other = worker.scope, worker.state.scope()
    if in_use := key_in_use(_places(worker), besides=scope.key):
        log.warning(
            "the cache root %s is in use for %s, and is used for %s as well: each publishes the kernels of both; "
            "give each key a cache root of its own",
            worker.root.path, in_use, scope.key,
        )  # fmt: skip
        return
    if other is None or other == scope or other.key == request.seed:
        return
    _warn_of_kernels(worker, other, "is now used for {}: a commit publishes all of them under it")


def _places(worker: Worker) -> dict[str, str]:
    """The variables that point into the worker's root: what is set along with them is the same for every root."""
    table, variables = worker.table, worker.root.variables
    return {name: variables[name] for name in (component.variable for component in table.values()) if name in variables}


def warn_of_published(worker: Worker, base: Base | None) -> None:
    """Warn about what is wrong with what was just committed from a root that had grown from `base`."""
    _warn_of_grown(worker, base)
    if has_only_kstore(worker.scope.environment):
        warn_once(
            log,
            "neither torch nor Triton is installed for %s: %s is committed for the environment %s, which no worker "
            "with torch looks for; commit with the Python of the job, or name its environment (KSTORE_ENVIRONMENT)",
            sys.executable, worker.scope.key, worker.scope.environment,
        )  # fmt: skip
    _warn_of_umask(worker.storage.location)


def _warn_of_grown(worker: Worker, base: Base | None) -> None:
    """Warn that these were another key's kernels, unless a restore for this key has already said so."""
    scope, other = worker.scope, base.snapshot.ref.scope if base else None
    if other and other != scope and worker.state.last_restore.scope() != scope.path:
        _warn_of_kernels(worker, other, "all of them are now published under {}")


def _warn_of_kernels(worker: Worker, other: Scope, what: str) -> None:
    """Warn that the root has the kernels of another scope. `what` says what becomes of them; this worker's key, or
    scope, is filled in.
    """
    scope = worker.scope
    of_keys = other.key != scope.key
    theirs, ours, each = (other.key, scope.key, "key") if of_keys else (other, scope, "GPU and environment")
    log.warning(
        "the cache root %s has the kernels of %s, and %s; give each %s a cache root of its own",
        worker.root.path, theirs, what.format(ours), each,
    )  # fmt: skip


def warn_of_moved(worker: Worker | None) -> None:
    """Warn that a job has redirected a compiler elsewhere since kstore redirected it to the root: what it had written
    there is left out. To be called at the last commit, because torch redirects it for a while (`fresh_cache`).
    """
    if worker is None:
        return
    table, managed, root = load_table(), read_managed(worker.environ), worker.root
    for name, folder in root.folders.items():
        variable, before = table[name].variable, os.path.join(root.path, name)
        ours = table[name].part_of(before)
        if folder != ours and managed.get(variable) == table[name].value.format(folder=before) and _holds_files(ours):
            warn_once(
                log,
                "%s was changed to %s after kstore had set it: what compilers had written to %s, or kstore had "
                "restored there, is neither used nor committed; set it before the restore, or not at all",
                variable, folder, ours,
            )  # fmt: skip


def _holds_files(folder: str) -> bool:
    return any(files for _, _, files in os.walk(folder))


@cache
def _warn_of_umask(location: str) -> None:
    """Once per process. What the umask says about a user's files holds even if the store's folder lets others in."""
    with suppress(OSError):
        umask, mode = _umask(), os.stat(location).st_mode
        if umask & mode & (stat.S_IRGRP | stat.S_IROTH):
            log.warning(
                "the umask %03o hides what is committed from others who may read %s: they will find the key, and "
                "fail to restore it; set umask 022, or 002 where they commit too",
                umask, location,
            )  # fmt: skip


def _umask() -> int:
    """The umask of this process, as Linux tells it (proc_pid_status(5)): asking the process would set another one."""
    with open("/proc/self/status", encoding="utf-8", errors="replace") as status:
        return next((int(line.split()[1], 8) for line in status if line.startswith("Umask:")), 0)
