"""The functions for worker setup. A cache never breaks the job: trouble is one log line and a status.

A bad key or argument is the caller's mistake and always raises; `strict=True` raises everything.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable
from contextlib import ContextDecorator
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from kstore.deadline import within
from kstore.errors import UsageError, WaitTimeout
from kstore.polls import check_wait
from kstore.progress import Awaited
from kstore.report import CommitReport, CommitStatus, RestoreReport, RestoreStatus
from kstore.scope import check_key
from kstore.store import Store

log = logging.getLogger("kstore")

Report = TypeVar("Report")


def restore(
    key: str,
    *,
    store: str | os.PathLike[str] | None = None,
    cache_root: str | os.PathLike[str] | None = None,
    generation: int | None = None,
    seed: str | None = None,
    wait: float = 0.0,
    group: bool = False,
    uniform: bool = True,
    strict: bool = False,
    **settings: Any,
) -> RestoreReport:
    """Put what is published for `key` into the local cache root and set the component variables.

    Call it before `torch._dynamo` is imported, which pins torch's own cache folder into the environment.

    Args:
        key: what to share kernels under, such as `my-model/v1`.
        store: the store's root; by default `KSTORE_ROOT`, else /data/kstore.
        cache_root: the local folder; by default a numbered one below /tmp/kstore.
        generation: exactly this generation, not the newest.
        seed: the key to start from if nothing is published for `key`.
        wait: if nothing is published, one of all workers that wait returns at once, to compile, and its report says
            that it `leads`. The others wait for what it commits: for up to so many seconds, beside `timeout`.
        group: all ranks of the job restore the generation that rank 0 chooses. The ranks are those of
            torch.distributed if it is initialised, else what RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say.
            All of them must call it, equally often for each key.
        uniform: with `group`, no rank restores if one cannot.
        strict: raise instead of returning a `FAILED` or `TIMEOUT` status.
        settings: `gpu`, `environment`, `layout`, `components`, `timeout`, `lease_ttl`, as `Store` takes them.

    Raises:
        UsageError: the key or a setting is malformed.
        KstoreError: anything else, if `strict`.
    """
    check_key(key)
    check_wait(wait)
    _check_names(settings)

    def run() -> RestoreReport:
        worker = Store(store, cache_root=cache_root, **settings)
        worker.progress.on_wait = partial(_tell_wait, key, wait)
        work = partial(worker.restore, key, generation=generation, seed=seed, wait=wait, group=group, uniform=uniform)
        limit = worker.settings.timeout and worker.settings.timeout + wait
        return within(limit, worker.waiting, f"restoring from {worker.location}", work)

    def failed(error: str, is_late: bool) -> RestoreReport:
        return RestoreReport(RestoreStatus.TIMEOUT if is_late else RestoreStatus.FAILED, key, error=error)

    report = _degrade("restore", key, strict, run, failed)
    if report.waited:
        log.info("kstore: waited %.1f s for %s of %s", report.waited, report.waited_for or "a generation", key)
    if report.ok:
        log.info(
            "kstore: restored %s generation %d: %d files in %.2f s",
            key, report.generation, report.files, report.seconds,
        )  # fmt: skip
    elif report.status is RestoreStatus.MISS and report.error:
        log.warning("kstore: no rank restores %s: %s", key, report.error)
    return report


def commit(
    key: str,
    *,
    store: str | os.PathLike[str] | None = None,
    cache_root: str | os.PathLike[str] | None = None,
    strict: bool = False,
    **settings: Any,
) -> CommitReport:
    """Publish what was compiled under `key` and the store lacks. Arguments and errors are those of `restore`."""
    check_key(key)
    _check_names(settings)

    def run() -> CommitReport:
        worker = Store(store, cache_root=cache_root, **settings)
        work = partial(worker.commit, key)
        return within(worker.settings.timeout, worker.waiting, f"committing to {worker.location}", work)

    def failed(error: str, is_late: bool) -> CommitReport:
        return CommitReport(CommitStatus.TIMEOUT if is_late else CommitStatus.FAILED, key, error=error)

    report = _degrade("commit", key, strict, run, failed)
    if report.status is CommitStatus.COMMITTED:
        log.info(
            "kstore: committed %s generation %d: %d new files, %d bytes uploaded in %.2f s",
            key, report.generation, report.new_files, report.uploaded, report.seconds,
        )  # fmt: skip
    return report


class synchronized(ContextDecorator):
    """Restore on entry, commit on exit, also when the body raises: its kernels are good all the same.

    ```python
    with kstore.synchronized("my-model/v1") as cache:
        warmup(torch.compile(model))
    print(cache.restored.files, cache.committed.new_files)
    ```

    It decorates a function as well. Arguments are those of `restore`.
    """

    def __init__(
        self,
        key: str,
        *,
        generation: int | None = None,
        seed: str | None = None,
        wait: float = 0.0,
        group: bool = False,
        uniform: bool = True,
        strict: bool = False,
        **settings: Any,
    ) -> None:
        self.key = check_key(key)
        self.restored = RestoreReport(RestoreStatus.MISS, key)
        """What the restore did."""
        self.committed = CommitReport(CommitStatus.UNCHANGED, key)
        """What the commit did."""
        self._choice: dict[str, Any] = {
            "generation": generation, "seed": seed, "wait": check_wait(wait), "group": group, "uniform": uniform
        }  # fmt: skip
        self._settings: dict[str, Any] = {"strict": strict, **settings}

    def __enter__(self) -> Self:
        self.restored = restore(self.key, **self._choice, **self._settings)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.committed = commit(self.key, **self._settings)


def _tell_wait(key: str, seconds: float, awaited: Awaited) -> None:
    log.info("kstore: %s is compiled by %s, waiting for it up to %g s", key, awaited.holder or "nobody yet", seconds)


def _check_names(settings: dict[str, Any]) -> None:
    unknown = settings.keys() - (inspect.signature(Store).parameters.keys() - {"root", "cache_root"})
    if unknown:
        raise UsageError(f"there is no setting {', '.join(sorted(unknown))}")


def _degrade(
    verb: str, key: str, strict: bool, run: Callable[[], Report], failed: Callable[[str, bool], Report]
) -> Report:
    try:
        return run()
    except UsageError:
        raise
    except Exception as error:
        if strict:
            raise
        log.warning("kstore: %s of %s failed, the job goes on without it: %s", verb, key, error or repr(error))
        log.debug("kstore: %s of %s", verb, key, exc_info=True)
        return failed(f"{type(error).__name__}: {error}", isinstance(error, WaitTimeout))
