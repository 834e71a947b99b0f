"""The functions for worker setup. A cache never breaks the job: trouble is one log line and a status.

A bad key or argument is the caller's mistake and always raises; `strict=True` raises everything.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from kstore.atend import AtEnd
from kstore.block import OnError, discarded, is_failure, parse_on_error, parse_seconds, raised, tell_forked
from kstore.deadline import is_interruption, is_ours
from kstore.errors import UsageError, WaitTimeout, described, reason_of
from kstore.live.endings import OnTermination
from kstore.origin import begin, origin_of
from kstore.polls import check_wait
from kstore.progress import Awaited
from kstore.redirect import end_use, redirecting
from kstore.report import CommitReport, CommitStatus, RestoreReport, RestoreStatus
from kstore.scope import check_key
from kstore.settings import Mode
from kstore.stats.record import record
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
        wait: if nothing is published, one of the workers that wait returns at once, to compile, and its report says
            that it `leads`. The others wait for what it commits, for up to this many seconds beside `timeout`.
        group: all ranks of the job restore the generation that rank 0 chooses. The ranks are those of
            torch.distributed if it is initialised, else those that torchrun, mpirun or srun has started. All ranks
            must call `restore`, equally often for each key.
        uniform: with `group`, no rank restores if one cannot.
        strict: raise instead of returning a `FAILED` or `TIMEOUT` status.
        settings: `gpu`, `environment`, `layout`, `mode`, `components`, `timeout`, `lease_ttl`, `stats`, `environ`, as
            `Store` takes them.

    Raises:
        UsageError: the key or a setting is malformed.
        KstoreError: anything else, if `strict`.
    """
    check_key(key)
    check_wait(wait)
    check_names(settings)

    def run() -> RestoreReport:
        given = {name: value for name, value in settings.items() if name != "environ"}
        origin = begin(key, _environ(settings), {"store": store, "cache_root": cache_root, **given})
        opened = Store(store, cache_root=cache_root, origin=origin, **settings)
        opened.progress.on_wait = partial(_tell_wait, key, wait)
        work = partial(opened.restore, key, generation=generation, seed=seed, wait=wait, group=group, uniform=uniform)
        with redirecting(key, opened.environ, commits=opened.settings.mode is not Mode.READ):
            report = opened.waiting.within(f"restoring from {opened.location}", work, beside=wait)
        record(opened, report)
        return report

    return _told(_tell_restored, degrade("restore", key, strict, run, partial(RestoreReport.of_failure, key)))


def _told(tell: Callable[[Report], None], report: Report) -> Report:
    """Log the report, and return it. If a log handler of the job fails, the restore or commit must not."""
    with suppress(Exception):
        tell(report)
    return report


def _tell_restored(report: RestoreReport) -> None:
    for note in report.notes:
        log.warning("kstore: %s", note)
    if report.waited:
        log.info("kstore: waited %.1f s for %s of %s", report.waited, report.waited_for or "a generation", report.key)
    if report.ok:
        log.info(
            "kstore: restored %s generation %d: %d files in %.2f s",
            report.key, report.generation, report.files, report.seconds,
        )  # fmt: skip
    elif report.status is RestoreStatus.MISS and report.error:
        log.warning("kstore: no rank restores %s: %s", report.key, report.error)
    elif report.withdrawn:
        log.info("kstore: %s was %s on %s, %s", report.key, report.withdrawn, report.gpu, report.environment)
    elif report.status is RestoreStatus.MISS:
        log.info("kstore: nothing is published for %s on %s, %s", report.key, report.gpu, report.environment)
    if report.left_out and report.skipped:
        log.warning(
            "kstore: %d of %d files of %s generation %d were left out, for example %s: %s",
            report.left_out, report.files, report.key, report.generation, *report.skipped[0],
        )  # fmt: skip


def commit(
    key: str,
    *,
    store: str | os.PathLike[str] | None = None,
    cache_root: str | os.PathLike[str] | None = None,
    strict: bool = False,
    **settings: Any,
) -> CommitReport:
    """Publish what was compiled under `key` and the store lacks.

    Arguments and errors are those of `restore`. An argument that is not given is as it was when this process last
    restored the key.
    """
    check_key(key)
    check_names(settings)

    def run() -> CommitReport:
        opened = Store(store, cache_root=cache_root, origin=origin_of(key, _environ(settings)), **settings)
        return opened.waiting.within(f"committing to {opened.location}", partial(_commit, opened, key))

    return _committed(key, strict, run)


def _commit(store: Store, key: str) -> CommitReport:
    report = store.commit(key)
    if _has_found_nothing(report):
        from kstore.live.places import watched_folders

        _tell_nothing(key, watched_folders(store, key))
    return report


def _has_found_nothing(report: CommitReport) -> bool:
    return report.status is CommitStatus.UNCHANGED and report.found == 0


def _tell_nothing(key: str, folders: Iterable[str]) -> None:
    """Most likely the compilers wrote somewhere else."""
    log.warning("kstore: nothing to commit to %s: there are no finished files in %s", key, ", ".join(folders))


def _committed(key: str, strict: bool, run: Callable[[], CommitReport]) -> CommitReport:
    end_use(key)
    return _told(_tell_committed, degrade("commit", key, strict, run, partial(CommitReport.of_failure, key)))


def _tell_committed(report: CommitReport) -> None:
    if report.status is CommitStatus.COMMITTED:
        log.info(
            "kstore: committed %s generation %d: %d new files, %d bytes uploaded in %.2f s",
            report.key, report.generation, report.new_files, report.uploaded, report.seconds,
        )  # fmt: skip
    if report.skipped:
        first = report.skipped[0]
        log.warning(
            "kstore: a commit of %s left out %d of the items in its cache root, for example %s: %s",
            report.key, len(report.skipped), first.path, first.reason,
        )  # fmt: skip


class watch:
    """Publish what is compiled under `key` from now on, while the job runs; for jobs that call `restore` themselves.

    ```python
    kstore.restore("my-model/v1")
    live = kstore.watch("my-model/v1")
    warmup(torch.compile(model))
    print(live.stop().files)
    ```

    It ends with `stop`, with the block if it is used in `with`, or with the process. It then publishes once more,
    also on SIGTERM if it was made in the main thread. It never raises for trouble with the store.

    Args:
        key: as for `restore`.
        settle: a checkpoint is published when nothing has changed for this many seconds.
        every: while files keep coming, one is published this many seconds after a change at the latest.
        on_error: `commit` or `discard`, if the block raises.
        grace_period: seconds for the last commit when the process is told to end.
        strict: `stop` raises instead of returning a `FAILED` or `TIMEOUT` status, and so does the end of the block,
            unless it raised itself.
        settings: as for `restore`, `store` and `cache_root` among them.

    Raises:
        UsageError: the key or a setting is malformed.
    """

    def __init__(
        self,
        key: str,
        *,
        settle: float = 5.0,
        every: float = 60.0,
        on_error: str = OnError.COMMIT,
        grace_period: float = 10.0,
        strict: bool = False,
        **settings: Any,
    ) -> None:
        from kstore.live.commits import LiveCommits

        self.key = check_key(key)
        self._on_error = parse_on_error(on_error)
        self._grace_period = parse_seconds("grace_period", grace_period)
        self._strict = strict
        self._committed: CommitReport | None = None
        self._at_end: AtEnd | None = None
        store = make_store(key, settings)
        self._timeout = store.settings.timeout
        self._live = LiveCommits(
            store, key, settle=parse_seconds("settle", settle), every=parse_seconds("every", every)
        )
        self._reads_only = store.settings.mode is Mode.READ
        self._termination = OnTermination(partial(self._publish, self._grace_period))
        if not self._reads_only:
            self._begin()

    def _begin(self) -> None:
        """Start; undone if a signal handler raises meanwhile, because nobody then has this watch to stop it."""
        try:
            self._live.start()
            self._termination.install()
            self._at_end = AtEnd(self._at_exit)
        except BaseException:
            self._live.discard()
            self._termination.remove()
            raise

    @property
    def checkpoints(self) -> tuple[CommitReport, ...]:
        """The commits that have published something so far, the oldest first."""
        return tuple(self._live.checkpoints)

    def stop(self) -> CommitReport:
        """Publish what is left, and end. Another call returns the same report.

        Raises:
            KstoreError: if `strict`.
        """
        return self._stop(self._timeout, self._strict)

    def _stop(self, seconds: float, strict: bool = False) -> CommitReport:
        if self._committed is None:
            try:
                self._committed = self._publish_last(seconds, strict)
            finally:
                self._release()
        return self._committed

    def _publish_last(self, seconds: float, strict: bool) -> CommitReport:
        if self._reads_only:
            return CommitReport(CommitStatus.READ_ONLY, self.key)
        report = self._publish(seconds, strict, is_last=True)
        if _has_found_nothing(report):
            _tell_nothing(self.key, self._live.folders)
        return report

    def _at_exit(self) -> None:
        if self._live.is_here:
            self._stop(self._grace_period)
        else:
            tell_forked(self.key, self._live.process)

    def _publish(self, seconds: float, strict: bool = False, is_last: bool = False) -> CommitReport:
        return _committed(self.key, strict, partial(self._live.publish, seconds, is_last=is_last, releases=True))

    def _release(self) -> None:
        end_use(self.key)
        if self._at_end:
            self._at_end.cancel()
        self._termination.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if is_ours():  # Nobody has left the block, but Python has removed it: `_at_end` is for that.
            return
        if not self._live.is_here:  # A child that was forked in the block; its parent commits what it compiled.
            tell_forked(self.key, self._live.process)
            return
        error = raised(error)
        if is_failure(error) and self._on_error is OnError.DISCARD:
            self._live.discard()
            self._committed = discarded(self.key)
            self._release()
        else:
            seconds = self._grace_period if isinstance(error, KeyboardInterrupt) else self._timeout
            self._stop(seconds, self._strict and error is None)  # What the block raised must be passed on.


def make_store(key: str, settings: dict[str, Any]) -> Store:
    """The store of a job's later steps for `key`. Raises UsageError for a name or a value that is no setting."""
    others = {name: value for name, value in settings.items() if name != "store"}
    check_names(others)
    return Store(settings.get("store"), origin=origin_of(key, _environ(settings)), **others)


def _environ(settings: Mapping[str, Any]) -> Mapping[str, str]:
    environ: Mapping[str, str] = settings.get("environ", os.environ)
    return environ


def _tell_wait(key: str, seconds: float, awaited: Awaited) -> None:
    log.info("kstore: %s is compiled by %s, waiting for it up to %g s", key, awaited.holder or "nobody yet", seconds)


def check_names(settings: Iterable[str]) -> None:
    """See that `restore` and its like take arguments of these names. Raises UsageError: one is no setting."""
    known = ["store", *(name for name in inspect.signature(Store).parameters if name not in ("root", "origin"))]
    if unknown := sorted(set(settings).difference(known)):
        raise UsageError(f"there is no setting {', '.join(unknown)}; there are {', '.join(known)}")


def degrade(
    verb: str, key: str, strict: bool, run: Callable[[], Report], failed: Callable[[str, bool], Report]
) -> Report:
    """What `run` returns; if it fails, one line in the log and what `failed` makes of it, unless `strict`."""
    try:
        return run()
    except UsageError:
        raise
    except Exception as error:
        if is_interruption(error) or strict:
            raise
        with suppress(Exception):
            log.warning("kstore: %s of %s failed, the job goes on without it: %s", verb, key, reason_of(error))
            log.debug("kstore: %s of %s", verb, key, exc_info=True)
        return failed(described(error), isinstance(error, WaitTimeout))
