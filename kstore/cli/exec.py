"""`kstore exec`."""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from kstore.cli.child import ENDINGS, exit_code_of, interruptible, run_child
from kstore.cli.launcher import NO_PROCESS, Launcher, become
from kstore.cli.options import (
    WORKERS,
    Command,
    Invocation,
    cache_root_option,
    group_option,
    key_argument,
    layout_option,
    lent_output_options,
    live_options,
    pass_invocation,
    ready_option,
    refuse,
    scope_options,
    seed_option,
    store_option,
    wait_options,
)
from kstore.cli.ready import ready_as_json, start_ready_commit, stop_ready_commit
from kstore.cli.streams import leave_stdin_and_stdout
from kstore.cli.termination import terminable
from kstore.errors import MissError, WaitTimeout, reason_of
from kstore.redirect import EXEC_KEY

if TYPE_CHECKING:
    from kstore.cli.output import Output
    from kstore.deadline import Result
    from kstore.hits import UsageReport
    from kstore.live.commits import LiveCommits
    from kstore.live.ready import ReadyCommit
    from kstore.report import CommitReport, RestoreReport
    from kstore.store import Store

log = logging.getLogger("kstore")

_PAUSES = 1.0, 2.0, 4.0, 8.0
"""Seconds between attempts at the last commit, if the store's trouble may be over by then."""
_PATIENCE = 16.0
"""Seconds after which no other attempt begins: each may take as long as the job waits for its store."""
_OUTLIVED = 60.0
"""Seconds after a Ctrl-C: a command that still runs then was not ended by it."""
_EXIT_CODES = {
    "N": "the command's own",
    "128+N": "signal N ended the command",
    "127, 126": "the command was not found, or cannot be run",
    "2": "usage",
    "3": "nothing is published, with --require; with --wait, not in that time either; something was compiled anew, "
    "or nothing used, with --require-hits",
    "1, 4, 5": "error, damaged store, store that hangs or cache root held for too long, with --require",
}


class _Exec(Command):
    """Takes the command after "--", so that none of its options is mistaken for one of ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what is before "--"."""
        if ctx.resilient_parsing:  # for a shell that completes the line
            return super().parse_args(ctx, args)
        ctx.ensure_object(Invocation).output.stdout_is_lent = True
        end = args.index("--") if "--" in args else len(args)
        program = args[end + 1 :]
        try:
            rest = super().parse_args(ctx, args[:end])
        except click.UsageError:
            if program:
                raise
        if not any(program[:1]):
            ctx.fail("there is no command: put it after '--', as in `kstore exec my-model/v1 -- python train.py`")
        ctx.params["program"] = program
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The arguments as the usage line shows them."""
        return [*super().collect_usage_pieces(ctx), "-- CMD..."]


@click.command("exec", cls=_Exec, exit_codes=_EXIT_CODES)
@key_argument
@seed_option
@click.option("--require", is_flag=True, help="Do not run the command without restored kernels.")
@click.option(
    "--require-hits", is_flag=True, help="Like --require, and fail if something is compiled anew or nothing is used."
)
@wait_options
@group_option
@click.option("--no-live", is_flag=True, help="Commit only when the command has ended, and for --ready-url.")
@live_options
@ready_option
@store_option
@cache_root_option
@scope_options
@layout_option
@lent_output_options
@pass_invocation
def command(
    invocation: Invocation,
    key: str,
    seed: str | None,
    require: bool,
    require_hits: bool,
    wait: int | None,
    group: bool,
    no_live: bool,
    settle: int,
    every: int,
    grace_period: int,
    ready_url: str | None,
    program: list[str],
) -> int:
    """Run a command with the kernels of KEY, and commit what it compiled.

    Kernels are committed while the command runs, once they are finished, and at its end; with --ready-url, also
    when the server that the command starts is ready.
    The command gets the variables that point compilers at the cache root, those of the options (KSTORE_ROOT and
    others), and every signal that kstore gets.
    Trouble with the store is a warning, and the command runs cold. All that kstore says goes to stderr, even the
    output of --json: stdout is the command's.
    """
    from kstore.scope import check_key

    output, environ = invocation.output, dict(os.environ)
    store = invocation.store(environ)
    environ |= invocation.variables(store) | {EXEC_KEY: key}
    if no_live:
        refuse("is for commits while the command runs, which --no-live switches off", "settle", "every")
    if seed:
        check_key(seed)
    store.scope(key)  # A bad key or setting stops here. Trouble after this does not stop the run.
    commits = _Commits(output, store, key, grace_period)
    demand = "--require-hits" if require_hits else "--require" if require else ""
    restore = partial(_restore, output, store, key, demand, seed=seed, group=group)
    try:
        launcher = Launcher()
    except OSError as error:
        if require_hits or error.errno not in NO_PROCESS:
            return _cannot_run(output, program, error)
        output.warn(f"no process can be made for the command ({error.strerror}): nothing that it compiles is committed")
        return _give_way(output, program, environ, partial(restore, wait=wait or 0))
    with launcher, terminable():
        restored = restore(wait=wait or 0)

        def begun() -> None:
            leave_stdin_and_stdout()
            commits.begin(settle, every, only_asked=no_live, ready_url=ready_url)

        started = time.perf_counter()
        try:
            code = run_child(launcher, program, environ, begun, commits.note_signal)
        except OSError as error:
            return _cannot_run(output, program, error)
    commits.command_has_ended()
    seconds = time.perf_counter() - started
    committed = commits.finish(store_was_there=not restored.error)
    usage = _find_usage(invocation, store, restored, committed, commits)
    verdict = _verdict(output, usage) if require_hits and not code else code
    if output.json:
        reports = {"restore": restored.as_json(), "commit": committed.as_json(), "usage": usage.as_json()}
        own = {"key": key, "exit_code": code, "kstore_exit_code": verdict, "seconds": seconds}
        output.document({**own, **reports, **commits.as_json()})
    return verdict


def _cannot_run(output: Output, program: list[str], error: OSError) -> int:
    output.error(error, f"cannot run {program[0]!r}: {error.strerror}")
    return exit_code_of(error)


def _give_way(output: Output, program: list[str], environ: dict[str, str], restore: Callable[[], object]) -> int:
    """Restore, and become the command in this very process; returns the exit code if that cannot be run."""
    from kstore.flight import end_all

    with terminable():
        restore()
        end_all()  # Others would wait for what nobody commits. What a process beside this one compiles, they get.
    number = become(program, environ)
    return _cannot_run(output, program, OSError(number, os.strerror(number)))


def _verdict(output: Output, usage: UsageReport) -> int:
    """The exit code for a command that succeeded and that was required to hit."""
    if usage.doubt:
        output.warn(usage.doubt)
    if not usage.has_failed:
        return 0
    output.warn(f"{usage.key} was expected to hit: the command succeeded, but {usage.failure}")
    return MissError.exit_code


def _restore(
    output: Output, store: Store, key: str, demand: str, *, seed: str | None, wait: float, group: bool
) -> RestoreReport:
    """Restore, or say why the command runs cold, unless the option `demand` forbids that."""
    from kstore.cli.sentences import check_required, restored, tell_elsewhere, tell_trouble
    from kstore.report import RestoreReport
    from kstore.stats.record import record

    try:
        with output.working(f"restoring {key}", store.progress):
            work = partial(store.restore, key, seed=seed, wait=wait, lead=not demand, group=group)
            report = store.waiting.within(f"restoring from {store.location}", work, beside=wait)
    except Exception as error:
        if demand:
            raise
        _warn(output, "nothing is restored, the command runs cold", error)
        return RestoreReport.of_failure(key, _text_of(error), isinstance(error, WaitTimeout))
    record(store, report)
    tell_elsewhere(output, store, report)
    if demand:
        check_required(store, report, seed, demand)
    tell_trouble(output, report)
    output.say(restored(store, report, seed))
    return report


def _find_usage(
    invocation: Invocation, store: Store, restored: RestoreReport, committed: CommitReport, commits: _Commits
) -> UsageReport:
    """Find out what became of what was restored, and say it in a line if anything was restored. A job that is told to
    end has no time for this.
    """
    from kstore.cli.sentences import used
    from kstore.hits import UsageReport, unknowable, usage_of

    output, key = invocation.output, restored.key
    why = "the command was told to end" if commits.is_told_to_end else unknowable(restored, committed)
    if why:
        return UsageReport(key, why_unknown=why)
    try:
        with interruptible():
            usage = store.waiting.within(f"reading the cache root of {key}", partial(usage_of, store, key))
    except (Exception, KeyboardInterrupt) as error:
        _warn(output, "it is not known whether what was restored was used", error)
        return UsageReport(key, why_unknown=_text_of(error))
    if usage.generation:
        output.say(used(usage))
    if usage.unused and not output.json:
        command = invocation.again("why", key=key, names=WORKERS)
        output.warn(f"{', '.join(usage.unused)}: restored but unused; `{command}` says what differs")
    return usage


class _Commits:
    """The commits while the command runs, and at its end."""

    def __init__(self, output: Output, store: Store, key: str, grace_period: int) -> None:
        self._output = output
        self._store = store
        self._key = key
        self._grace_period = grace_period
        self._live: LiveCommits | None = None
        self.is_told_to_end = False
        """Whether a signal that ends jobs has arrived."""
        self._interrupted_at = 0.0
        self.ready: ReadyCommit | None = None
        """What waits for the server to be ready, if that was requested."""

    def as_json(self) -> dict[str, Any]:
        """For machines: how many commits published something, and when the server was ready."""
        return {"checkpoints": len(self._checkpoints), "ready": self.ready and ready_as_json(self.ready)}

    @property
    def _checkpoints(self) -> list[CommitReport]:
        return self._live.checkpoints if self._live else []

    def begin(self, settle: int, every: int, *, only_asked: bool, ready_url: str | None) -> None:
        """Commit while the command runs, unless this worker only reads. The command runs already: it need not wait for
        what is imported for this and for its end.
        """
        try:
            import kstore.hits  # noqa: F401

            self._begin(settle, every, only_asked=only_asked, ready_url=ready_url)
        except Exception as error:
            _warn(self._output, "nothing is committed while the command runs", error)

    def _begin(self, settle: int, every: int, *, only_asked: bool, ready_url: str | None) -> None:
        from kstore.live.commits import LiveCommits
        from kstore.settings import Mode

        if self._store.settings.mode is Mode.READ or (only_asked and not ready_url):
            return
        self._live = LiveCommits(
            self._store, self._key, settle=settle, every=every, only_asked=only_asked, expects_release=bool(ready_url)
        )
        self._live.start()
        if ready_url:
            self.ready = start_ready_commit(self._output, self._live, ready_url, self._store.settings.timeout)

    def note_signal(self, number: int) -> None:
        """Take note of a signal. Its sender might not wait for the command's end, so everything so far is committed at
        once, and others that wait go on: the command may take long to end, or be killed.
        """
        if number in ENDINGS:
            self.is_told_to_end = True
            moment = time.monotonic() if number == signal.SIGINT else math.inf
            self._interrupted_at = max(self._interrupted_at, moment)
            if self._live and not self._live.only_asked:
                self._live.publish_soon()

    def command_has_ended(self) -> None:
        """Forget a Ctrl-C that the command has outlived, as at a prompt: it did not end the command. A server may take
        long to end after SIGTERM.
        """
        if time.monotonic() - self._interrupted_at > _OUTLIVED:
            self.is_told_to_end = False

    def finish(self, *, store_was_there: bool) -> CommitReport:
        """Commit, or say why not. If the store was there before, and has trouble now, that may be over in a moment."""
        from kstore.cli.sentences import committed, tell_trouble
        from kstore.flight import leave_all
        from kstore.report import CommitReport

        if self.ready:
            stop_ready_commit(self._output, self.ready)
        try:
            with self._output.working(f"committing {self._key}", self._store.progress), interruptible():
                report = self._keep_trying() if store_was_there or self._checkpoints else self._commit()
        except (Exception, KeyboardInterrupt) as error:
            _warn(self._output, "nothing is committed", error)
            if not (is_late := isinstance(error, WaitTimeout)):
                self._release()
            elif self.is_told_to_end:
                leave_all()  # The grace period is over: nobody waits for that store once more.
            return CommitReport.of_failure(self._key, _text_of(error), is_late)
        tell_trouble(self._output, report)
        self._output.say(committed(self._store, report, self._checkpoints))
        return report

    def _keep_trying(self) -> CommitReport:
        """Commit, if need be after some seconds of trouble: nobody else has what the command compiled. Others that wait
        for it wait on meanwhile.
        """
        from kstore.errors import StoreUnavailable
        from kstore.storage import may_pass

        until = time.monotonic() + min(self._store.settings.timeout or math.inf, _PATIENCE)
        for pause in _PAUSES:
            try:
                return self._commit(is_tried_again=True)
            except StoreUnavailable as error:
                if not may_pass(error) or self._has_been_told() or time.monotonic() + pause > until:
                    raise
                if pause == _PAUSES[0]:
                    _warn(self._output, "nothing is committed yet, kstore keeps trying for some seconds", error)
            self._has_been_told(pause)
        return self._commit()

    def _commit(self, *, is_tried_again: bool = False) -> CommitReport:
        store, live = self._store, self._live
        commit = partial(store.attempt if is_tried_again else store.commit, self._key)
        if live:
            commit = partial(live.publish, 0, is_last=True, is_tried_again=is_tried_again)
        return self._within(f"committing to {store.location}", commit)

    def _release(self) -> None:
        """Nobody commits any more what others may wait for. If that cannot be said, the lease lapses."""
        with suppress(Exception, KeyboardInterrupt), interruptible():
            self._within(f"releasing {self._key}", partial(self._store.release, self._key))

    def _within(self, what: str, work: Callable[[], Result]) -> Result:
        from kstore.deadline import Haste, Waiting, within

        # What the thread of live commits does is not given up: someone else may have requested it too.
        waiting = Waiting() if self._live else self._store.waiting
        haste = Haste(self._has_been_told, self._grace_period)
        return within(self._store.settings.timeout, waiting, what, work, haste)

    def _has_been_told(self, seconds: float = 0.0) -> bool:
        """Whether a signal that ends jobs is pending, or comes in that time: no command is left that would get it."""
        self.is_told_to_end |= signal.sigtimedwait(ENDINGS, seconds) is not None
        return self.is_told_to_end


def _warn(output: Output, what: str, error: BaseException) -> None:
    output.warn(f"{what}: {_text_of(error)}")
    log.debug("%s", what, exc_info=error)


def _text_of(error: BaseException) -> str:
    return "it was interrupted" if isinstance(error, KeyboardInterrupt) else reason_of(error)
