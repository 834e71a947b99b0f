"""A cache root belongs to one key, and to one software: who uses it otherwise is told what comes of that."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from kstore.environment import names_no_compiler
from kstore.led import key_led_to

if TYPE_CHECKING:
    from kstore.local.state import Base
    from kstore.operations.request import Request
    from kstore.worker import Worker

log = logging.getLogger(__name__)


def warn_of_another_key(worker: Worker, request: Request) -> None:
    """A commit takes a whole root: what is in it of another key, GPU or environment would be published here as well."""
    scope, other = worker.scope, worker.state.scope()
    if in_use := key_led_to(worker.root.variables, besides=scope.key):
        log.warning(
            "the cache root %s is in use for %s, and is used for %s as well: each publishes the kernels of both; "
            "give each key a cache root of its own",
            worker.root.path, in_use, scope.key,
        )  # fmt: skip
        return
    if other is None or other == scope or other.key == request.seed:
        return
    of_keys = other.key != scope.key
    log.warning(
        "the cache root %s has the kernels of %s, and is used for %s now: a commit publishes all of them under it; "
        "give each %s a cache root of its own",
        worker.root.path, *((other.key, scope.key, "key") if of_keys else (other, scope, "GPU and environment")),
    )  # fmt: skip


def warn_of_published(worker: Worker, base: Base | None) -> None:
    """The same for who committed without a restore, which would have told, from a root that had grown from `base`."""
    scope, other = worker.scope, base.snapshot.ref.scope if base else None
    if other and other != scope and worker.state.last_restore.scope() != scope.path:
        of_keys = other.key != scope.key
        log.warning(
            "the cache root %s has the kernels of %s, and all of them are published under %s now; "
            "give each %s a cache root of its own",
            worker.root.path, *((other.key, scope.key, "key") if of_keys else (other, scope, "GPU and environment")),
        )  # fmt: skip
    if names_no_compiler(scope.environment):
        log.warning(
            "neither torch nor Triton is installed for %s: %s is committed for the environment %s, which no worker "
            "with torch looks for; commit with the Python of the job, or name its environment (KSTORE_ENVIRONMENT)",
            sys.executable, scope.key, scope.environment,
        )  # fmt: skip
