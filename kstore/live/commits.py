"""The thread that uploads and publishes while a compiler runs.

It is the only one that commits for its job: whoever wants a commit asks it, and waits as long as they like. So two
commits never wait for each other's lock, and a store that hangs holds up nobody but this thread.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple

from kstore.deadline import Answer, Waiting, answer_within, block_signals, is_apart, signals_blocked, start, within
from kstore.errors import KstoreError, reason_of
from kstore.live.endings import has_ended
from kstore.live.imports import import_commit
from kstore.live.lookout import Lookout
from kstore.live.schedule import Plan, Schedule, Step
from kstore.report import CommitReport, CommitStatus, summed
from kstore.store import Store

log = logging.getLogger(__name__)

_NICENESS = 10
_DONE_AFTER = 30.0
"""Seconds without a change after which a worker that others wait for counts as done: it may serve for weeks."""
_DONE_UNRELEASED_AFTER = 300.0
"""The same where somebody was to say when it is done: the server's URL may be wrong."""


class _Request(NamedTuple):
    """What somebody wants from the thread."""

    answer: Answer[CommitReport] | None = None
    """Where somebody waits for the report."""
    is_last: bool = False
    """Whether the thread is to end."""
    releases: bool = False
    """Whether the worker no longer compiles for others that wait."""
    publishes: bool = True
    is_tried_again: bool = False
    """Whether the worker is not released if this fails."""


_OWN_ACCORD = _Request()


def _import_now() -> None:
    """Import what commits need before there is a thread.

    A child forked while the thread imports would wait for ever for an import that nobody ends.
    Also, the code that dataclasses and named tuples run when they are defined would make Python forget, at the end of a
    job that Ctrl-C ends, which signal it dies of.
    """
    import_commit()
    with suppress(ImportError, OSError):
        import watchdog.events
        import watchdog.observers  # noqa: F401


class LiveCommits:
    """Commits what appears in the cache root of a key, for as long as its job runs.

    Trouble is logged, once when it begins and once when it is over, and never raised into the job.
    """

    def __init__(
        self, store: Store, key: str, *, settle: float, every: float, only_asked: bool = False,
        expects_release: bool = False,
    ) -> None:  # fmt: skip
        """`settle` and `every` are in seconds: see `Schedule`. From `start` on, only this object commits to `store`.

        With `only_asked`, it commits nothing of its own accord. With `expects_release`, somebody says by `publish` when
        others that wait for what the job compiles need no longer wait; else that is when nothing changes any more, and
        sooner.
        """
        self.checkpoints: list[CommitReport] = []
        """What has been published so far, the oldest first."""
        self.store = store
        """What it commits to."""
        self.only_asked = only_asked
        """Whether it commits nothing of its own accord."""
        self._key = key
        self._every = every
        self._schedule = Schedule(settle, every, time.monotonic())
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()
        wake = partial(self._requests.put, None)
        self._lookout = Lookout(store, key, settle=settle, every=every, wake=wake)
        self._expects_release = expects_release
        self._there_at = math.inf
        """When something that others may wait for more of was last published, or first found to be, by
        `time.monotonic`; infinite if they no longer wait.
        """
        self._is_held_up = False
        self._is_closed = False
        self._is_over = False
        """Whether the last commit has succeeded, or there is to be none."""
        self._last: CommitReport | None = None
        self._logged = 0
        """How many of the checkpoints have been logged."""
        self.process = os.getpid()
        """The process that commits; a child that is forked from it does not."""
        self._thread = threading.Thread(target=self._run, name="kstore live", daemon=True)

    def start(self) -> None:
        """Begin."""
        _import_now()
        try:
            with signals_blocked():
                start(self._thread)
        except RuntimeError as error:  # As at the end of the interpreter: then only `publish` commits.
            log.warning("nothing is committed while the job runs: %s", error)

    @property
    def folders(self) -> list[str]:
        """Where it looks; empty until that is found out."""
        return self._lookout.folders

    @property
    def is_here(self) -> bool:
        """Whether this is the process that commits, and not a child that was forked from it."""
        return os.getpid() == self.process

    def publish_soon(self) -> None:
        """`publish` with `releases`, as soon as possible. For signal handlers: it waits for nothing."""
        self._requests.put(_Request(releases=True))

    def publish(
        self, seconds: float, *, is_last: bool = False, releases: bool = False, is_tried_again: bool = False
    ) -> CommitReport:
        """Publish what there is, and with `is_last` end. Waits up to `seconds`; 0 means no limit.

        With `releases` or `is_last`, others that wait for what this worker compiles need no longer wait, whatever was
        published; with `is_tried_again`, only if this succeeds.
        The last report sums up what has been published since `start`.

        Raises:
            WaitTimeout: it has taken longer. It may still succeed.
            KstoreError, OSError: the store or the cache root cannot be used.
        """
        if not self.is_here:
            does = f"has ended; fork first, or run `kstore commit {self._key}`" if has_ended(self.process) else "does"
            raise KstoreError(f"a child commits nothing: the process that it was forked from {does}")
        if self._thread.ident is None:
            return self._commit(_Request(None, is_last, releases, is_tried_again=is_tried_again))
        answer = Answer[CommitReport]()
        if is_last:
            self._lend_priority()
        self._requests.put(_Request(answer, is_last, releases, is_tried_again=is_tried_again))
        what = f"committing to {self.store.location}"
        if self._is_closed or not self._thread.is_alive():
            within(seconds, Waiting(), what, self._answer_what_is_left)
        return answer_within(seconds, Waiting(), what, answer)

    def _lend_priority(self) -> None:
        """The job now waits for the thread, which need no longer stand back for it. Not every user may do that."""
        with suppress(OSError, AttributeError):
            if self._thread.is_alive():
                own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
                os.setpriority(os.PRIO_PROCESS, self._thread.native_id or 0, own)

    def discard(self) -> None:
        """End, and publish nothing more."""
        self._requests.put(_Request(is_last=True, publishes=False))

    # ---- The thread

    def _run(self) -> None:
        block_signals()
        with suppress(OSError, AttributeError):
            if is_apart():
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        try:
            self._begin()
            self._serve()
        finally:
            self._lookout.stop_watch()
            self._is_closed = True
            self._answer_what_is_left()

    def _begin(self) -> None:
        """Whatever fails here, the job's last commit is still to come."""
        try:
            self._lookout.find_folders()
        except Exception as error:
            self._tell_trouble(error)
        with suppress(Exception):
            self.store.storage.open()
        self._expect_store()

    def _serve(self) -> None:
        """Do what is due and what is requested, until told to end."""
        while True:
            plan, now = self._plan(), time.monotonic()
            if plan and plan.at <= now and self._requests.empty():
                self._round(plan.step)
                continue
            if (plan is None or self._is_held_up) and self._done_at <= now:
                self._there_at = math.inf
                self.store.release(self._key)
            request = self._next(self._patience(plan, now))
            if request and request.publishes:
                self._round(Step.CHECKPOINT, request)
            elif request:
                self.store.release(self._key)
                self._is_over = request.is_last
            elif not self.only_asked and self._schedule.is_overdue(time.monotonic(), self._is_uneasy):
                self._round(Step.CHECKPOINT)
            if request and request.is_last:
                return

    def _plan(self) -> Plan | None:
        """What comes next. If that cannot be found out, as when memory is short, it is tried again later."""
        if self.only_asked:
            return None
        try:
            return self._find_plan()
        except Exception as error:
            self._tell_trouble(error)
            with suppress(Exception):
                self._lookout.stop_watch()
            return None

    def _find_plan(self) -> Plan | None:
        """What comes next. If that is nothing, the watch is on from now on."""
        self._lookout.catch_up()
        plan = self._schedule.plan(*self._lookout.seen, time.monotonic())
        if plan is None and not (self._lookout.is_watching or self._lookout.is_blind):
            plan = self._watch()
        if plan:
            self._lookout.stop_watch()
        elif self._lookout.is_watching:
            return self._schedule.once_more(time.monotonic())
        return plan

    def _watch(self) -> Plan | None:
        """Turn the watch on, if there can be one. Returns what comes next if something changed before it was on."""
        spent = time.thread_time()
        self._lookout.start_watch()
        self._schedule.spent(time.monotonic(), time.thread_time() - spent)
        self._lookout.look()
        return self._schedule.plan(*self._lookout.seen, time.monotonic())

    def _patience(self, plan: Plan | None, now: float) -> float | None:
        """Seconds after which there is something to do even if nobody asks; None for never."""
        if plan:
            return max(min(plan.at - now, self._lookout.beat), 0.0)
        if self.only_asked:
            return None
        return max(min(self._every, self._schedule.rest(self._is_uneasy), self._done_at - now), 0.0)

    @property
    def _done_at(self) -> float:
        """When the others that wait for this worker are to go on, if nothing changes until then."""
        silence = _DONE_UNRELEASED_AFTER if self._expects_release else _DONE_AFTER
        return max(self._lookout.seen.last, self._there_at) + silence

    @property
    def _is_uneasy(self) -> bool:
        """Whether there may be something to commit though no change was seen: a file that is written in place moves no
        folder's time, and what was left out may be finished by now.
        """
        return self._lookout.is_blind or bool(self._last and self._last.skipped)

    def _next(self, patience: float | None) -> _Request | None:
        try:
            return self._requests.get(timeout=patience)
        except Empty:
            return None

    def _round(self, step: Step, request: _Request = _OWN_ACCORD) -> None:
        self._schedule.begun(time.monotonic())
        answer, is_watched = request.answer, self._lookout.is_watching
        changes, spent = self._lookout.seen.changes, time.thread_time()
        try:
            if step is Step.AHEAD:
                self.store.upload_ahead(self._key)
            else:
                self._last = self._commit(request)
        except Exception as error:
            self._schedule.failed(time.monotonic())
            if answer:
                answer.fail(error)
            else:
                self._tell_trouble(error)
        else:
            cost = time.thread_time() - spent
            self._schedule.done(step, changes, time.monotonic(), cost, is_watched=is_watched)
            # Before anything is logged: whoever asked may be a signal handler that has interrupted the log.
            if answer and self._last:
                answer.give(self._last)
            with suppress(Exception):  # If one of the job's log handlers fails, this thread must not end.
                self._worked()

    def _commit(self, request: _Request) -> CommitReport:
        report = self._way(request)(self._key)
        self._is_over = request.is_last
        is_news = report.status is CommitStatus.COMMITTED
        if is_news:
            self.checkpoints.append(report)
        # A worker that starts again may find all that it needs, and never publish.
        if is_news or (report.files and not self._last):
            self._there_at = time.monotonic()
        return summed(self.checkpoints, report) if request.is_last else report

    def _way(self, request: _Request) -> Callable[[str], CommitReport]:
        """How it is committed: the ways differ in when others need no longer wait for this worker."""
        if not (request.is_last or request.releases):
            return self.store.checkpoint
        return self.store.attempt if request.is_tried_again else self.store.commit

    def _worked(self) -> None:
        self._expect_store()
        news, self._logged = self.checkpoints[self._logged :], len(self.checkpoints)
        for report in news:
            log.info(
                "%s generation %d is published: %d new files, %d bytes uploaded in %.2f s",
                self._key, report.generation, report.new_files, report.uploaded, report.seconds,
            )  # fmt: skip
        if self._is_held_up:
            self._is_held_up = False
            log.warning("what is compiled is published to %s again", self.store.location)

    def _tell_trouble(self, error: Exception) -> None:
        was_told, self._is_held_up = self._is_held_up, True
        with suppress(Exception):  # as above
            if not was_told:
                log.warning("what is compiled is not published for now, kstore keeps trying: %s", reason_of(error))
            log.debug("live commit of %s", self._key, exc_info=error)

    def _expect_store(self) -> None:
        """A store that was there and is not now is gone: another one, in the folder it was mounted on, is no help."""
        storage = self.store.storage
        with suppress(KstoreError, OSError):
            storage.must_exist = storage.must_exist or bool(storage.settings)

    def _answer_what_is_left(self) -> None:
        """A signal handler may ask while the last commit is on its way, or after it."""
        while (request := self._next(0.0)) is not None or not self._requests.empty():
            if request and request.answer:
                self._answer_late(request, request.answer)

    def _answer_late(self, request: _Request, answer: Answer[CommitReport]) -> None:
        if not self._is_over:  # The last commit has failed, or the thread has died before it.
            self._round(Step.CHECKPOINT, request)
        elif self._last:
            answer.give(self._last)
        else:
            answer.fail(KstoreError("nothing is committed any more: the job has ended"))
