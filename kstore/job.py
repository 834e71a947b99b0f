"""The block that a warm-up runs in: restore before it, commit after it, and tell whether the restore was of use."""

from __future__ import annotations

import inspect
import logging
import os
import sys
import weakref
from collections.abc import Callable, Coroutine, Iterator, MutableMapping
from contextlib import ContextDecorator, ExitStack, suppress
from functools import partial, wraps
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar, cast

from kstore.api import check_names, commit, degrade, make_store, restore, watch
from kstore.atend import AtEnd
from kstore.block import OnError, discarded, is_failure, parse_on_error, parse_seconds, raised, tell_forked
from kstore.deadline import is_ours, within
from kstore.errors import KstoreError, MissError, UsageError
from kstore.hits import UsageReport, unknowable, usage_of
from kstore.hits.counters import Counters
from kstore.live.endings import OnTermination
from kstore.origin import Origin, origin_of, resume
from kstore.polls import check_wait
from kstore.redirect import Redirect, enter, entering, leave
from kstore.report import CommitReport, CommitStatus, RestoreReport, RestoreStatus
from kstore.scope import check_generation, check_key
from kstore.store import Store
from kstore.words import command_line, files

log = logging.getLogger("kstore")

Function = TypeVar("Function", bound=Callable[..., Any])

_RUN_LATER = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
_WHERE = ("store", "cache_root", "gpu", "environment")
"""Settings that say which cache root is meant."""


def _called(function: object) -> Iterator[object]:
    """What a call of `function` runs. Another decorator around a coroutine may run it to its end: nobody can tell."""
    inner: object = function.__func__ if isinstance(function, staticmethod) else function
    yield inner
    yield getattr(type(inner), "__call__", None)  # noqa: B004


def _to_its_end(coroutine: Coroutine[Any, Any, Any], block: ExitStack) -> Coroutine[Any, Any, Any]:
    """A coroutine that runs what a decorated function has returned, in the block that it was called in. The block also
    ends if nobody ever runs it, as when a task is cancelled before its first step.
    """

    async def run() -> Any:
        with block:
            return await coroutine

    running = run()
    weakref.finalize(running, block.close)
    return running


class _Entered(NamedTuple):
    """One time that a block was entered; it may be entered within itself."""

    restored: RestoreReport
    origin: Origin
    redirect: Redirect
    counted: Counters
    watch: watch | None
    termination: OnTermination
    at_end: AtEnd | None
    """Commits if the block is still open at the end of the process, such as that of a generator that nobody has run to
    its end; a watch has its own.
    """
    process: int


class synchronized(ContextDecorator):
    """Restore on entry, commit on exit, also when the body raises: its kernels are good all the same.

    ```python
    with kstore.synchronized("my-model/v1") as cache:
        warmup(torch.compile(model))
    print(cache.restored.files, cache.committed.new_files)
    ```

    A block of another key may be inside it: what is compiled there belongs to that key, and what is compiled afterwards
    to this one, even if the inner block raised at its beginning.

    It also decorates a function: each call is then a block of its own. Arguments are those of `restore`, and with
    `live` those of `watch`: what is compiled is then published while the body runs. SIGTERM commits before it ends the
    process. What the body raises is passed on, even with `strict`: an error of the commit is then in the log.

    With `strict_hits`, it raises `MissError` if nothing can be restored. It also does so at the end, when everything is
    committed, if something was compiled anew or nothing of what was restored was used.
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
        live: bool = False,
        settle: float = 5.0,
        every: float = 60.0,
        on_error: str = OnError.COMMIT,
        grace_period: float = 10.0,
        strict: bool = False,
        strict_hits: bool = False,
        **settings: Any,
    ) -> None:
        arguments = {**locals(), **settings}
        self._arguments = {name: value for name, value in arguments.items() if name not in ("self", "settings")}
        self.key = check_key(key)
        check_names(settings)
        self.restored = RestoreReport(RestoreStatus.MISS, key)
        """What the restore did."""
        self.committed = CommitReport(CommitStatus.UNCHANGED, key)
        """What the last commit did."""
        self.usage = UsageReport(key)
        """What became of what was restored; known at the end."""
        check_generation(generation)
        self._choice: dict[str, Any] = {
            "generation": generation, "seed": seed, "wait": check_wait(wait), "group": group, "uniform": uniform
        }  # fmt: skip
        self._settings: dict[str, Any] = {"strict": strict, **settings}
        self._strict_hits = strict_hits
        self._is_live = live
        self._pace = {"settle": parse_seconds("settle", settle), "every": parse_seconds("every", every)}
        self._on_error = parse_on_error(on_error)
        self._grace_period = parse_seconds("grace_period", grace_period)
        self._entered: list[_Entered] = []
        self._ended: _Entered | None = None

    def __call__(self, function: Function) -> Function:
        """Decorate it. If it returns a coroutine, as another decorator around one may, the block ends with that.

        Raises:
            UsageError: it is a coroutine or a generator, which runs when its caller has returned; or a class or a class
                method.
        """
        name = getattr(function, "__qualname__", repr(function))
        if isinstance(function, type):
            raise UsageError(f"{name} is a class; decorate the method that compiles, or its `__init__`")
        if isinstance(function, classmethod):
            raise UsageError(f"{name} is already a class method; put `@classmethod` above `@kstore.synchronized(…)`")
        if any(is_late(one) for is_late in _RUN_LATER for one in _called(function)):
            raise UsageError(f"{name} does its work after it has returned; use `with kstore.synchronized(…)` in it")

        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            with ExitStack() as block:
                block.enter_context(self._recreate_cm())
                result = function(*arguments, **options)
                return _to_its_end(result, block.pop_all()) if inspect.iscoroutine(result) else result

        return cast("Function", call)

    def _recreate_cm(self) -> Self:
        """For ContextDecorator: the block of one call. The function may call itself, or run in several threads."""
        return type(self)(**self._arguments)

    @property
    def checkpoints(self) -> tuple[CommitReport, ...]:
        """With `live`, the commits that have published something so far, the oldest first."""
        last = self._entered[-1] if self._entered else self._ended
        return last.watch.checkpoints if last and last.watch else ()

    @property
    def _environ(self) -> MutableMapping[str, str]:
        environ: MutableMapping[str, str] = self._settings.get("environ", os.environ)
        return environ

    def __enter__(self) -> Self:
        with entering(self.key, self._environ) as before:
            self._restore()
            origin, counted, live = origin_of(self.key, self._environ), Counters.now(), self._start_live()
        termination = OnTermination(partial(self._commit_in_time, origin))
        if not live:
            termination.install()
        at_end = None if live else AtEnd(partial(self._commit_at_end, origin, os.getpid()))
        redirect = enter(self.key, before, self._environ)
        self._entered.append(_Entered(self.restored, origin, redirect, counted, live, termination, at_end, os.getpid()))
        return self

    def _restore(self) -> None:
        """Raises MissError: nothing could be restored, and that was to be an error."""
        self.restored = restore(self.key, **self._choice, **self._settings)
        if self._strict_hits and not self.restored.ok:
            self._give_up_lease()
            where = f" on {self.restored.gpu}, {self.restored.environment}" if self.restored.gpu else ""
            why = f"{_why_nothing(self.restored)}; leave out strict_hits to start without"
            raise MissError(f"nothing is restored for {self.key}{where}: {why}")

    def _start_live(self) -> watch | None:
        choice: dict[str, Any] = {"on_error": self._on_error, "grace_period": self._grace_period, **self._pace}
        return watch(self.key, **choice, **self._settings) if self._is_live else None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if sys.is_finalizing() or is_ours():
            return  # Nobody has left the block, but Python has removed it: `at_end` is for that.
        entered = self._entered[-1]
        if os.getpid() != entered.process:  # a child that was forked in the block; its parent commits what it compiled
            tell_forked(self.key, entered.process)
            return
        self._ended = self._entered.pop()
        self.restored = entered.restored
        error = raised(error)
        try:
            self._commit(entered, kind, error, trace)
        finally:
            leave(entered.redirect, self._environ)
        if not is_failure(error):
            self._look_back(entered)

    def _look_back(self, entered: _Entered) -> None:
        """Tell what became of what was restored.

        Raises:
            MissError: it was not used, or something was compiled anew, and that was to be an error.
        """
        self.usage = self._find_usage(entered.counted)
        with suppress(Exception):  # A log handler of the job that fails is not the block's trouble.
            self._tell_usage()
        if self._strict_hits and self.usage.doubt:
            log.warning("%s", self.usage.doubt)
        if self._strict_hits and self.usage.has_failed:
            raise MissError(
                f"{self.usage.failure} for {self.key} (commit: {self.committed.status}); `{self._why}` says why they "
                "did not hit"
            )

    def _commit(
        self,
        entered: _Entered,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        resume(self.key, entered.origin)  # A block inside this one may have begun with the key anew.
        if entered.watch:
            entered.watch.__exit__(kind, error, trace)
            self.committed = entered.watch.stop()
            return
        try:
            if is_failure(error) and self._on_error is OnError.DISCARD:
                self.committed = self._discard()
            elif isinstance(error, KeyboardInterrupt):
                self._commit_in_time(entered.origin)
            else:
                strict = self._settings["strict"] and error is None  # What the body raised must be passed on.
                self.committed = commit(self.key, **{**self._settings, "strict": strict})
        finally:
            entered.termination.remove()
            if entered.at_end:
                entered.at_end.cancel()

    def _find_usage(self, before: Counters) -> UsageReport:
        if why := unknowable(self.restored, self.committed):
            return UsageReport(self.key, why_unknown=why)
        counted = Counters.now().since(before)

        def run() -> UsageReport:
            store = self._store()
            work = partial(usage_of, store, self.key, counted)
            return store.waiting.within(f"reading the cache root of {self.key}", work)

        return degrade("report on the use", self.key, False, run, lambda why, _: UsageReport(self.key, why_unknown=why))

    def _store(self) -> Store:
        return make_store(self.key, {name: value for name, value in self._settings.items() if name != "strict"})

    def _discard(self) -> CommitReport:
        self._give_up_lease()
        return discarded(self.key)

    def _give_up_lease(self) -> None:
        store = self._store()
        with suppress(KstoreError):  # Otherwise the lease lapses.
            within(self._grace_period, store.waiting, "giving up the lease", partial(store.release, self.key))

    def _commit_in_time(self, origin: Origin) -> None:
        resume(self.key, origin)
        self.committed = commit(self.key, **{**self._settings, "strict": False, "timeout": self._grace_period})

    def _commit_at_end(self, origin: Origin, process: int) -> None:
        """Commit, but not in a child that was forked in the block: its parent commits what it compiled."""
        if os.getpid() == process:
            self._commit_in_time(origin)

    def _tell_usage(self) -> None:
        """A line for the log; a warning if something was restored for nothing."""
        for name, used in self.usage.components.items():
            hits = "unknown" if used.hits is None else used.hits
            log.info(
                "kstore: %s of %s: %d entries restored, %s hits, %d misses, %d artifacts compiled anew",
                name, self.key, used.restored, hits, used.misses, used.compiled,
            )  # fmt: skip
        if self.usage.unused:
            log.warning(
                "kstore: what was restored for %s was not used (%s); `%s` says what differs",
                self.key, ", ".join(self.usage.unused), self._why,
            )  # fmt: skip

    @property
    def _why(self) -> str:
        """The command that compares what was compiled with what was restored, with the settings that were given."""
        given = [(f"--{name.replace('_', '-')}", self._settings.get(name)) for name in _WHERE]
        return command_line("why", self.key, *(str(w) for option, value in given if value for w in (option, value)))


def _why_nothing(report: RestoreReport) -> str:
    """Why a restore has left nothing to start from."""
    if report.left_out:
        return f"none of the {files(report.files)} of generation {report.generation} could be"
    return report.error or (f"it was {report.withdrawn}" if report.withdrawn else "nothing is published")
