"""`kstore watch`."""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING

import click

from kstore.cli.child import ENDINGS
from kstore.cli.options import Command, Invocation, key_argument, live_options, on_committer, ready_option
from kstore.cli.ready import ready_as_json, start_ready_commit, stop_ready_commit
from kstore.errors import WaitTimeout, reason_of

if TYPE_CHECKING:
    from kstore.cli.output import Output
    from kstore.live.commits import LiveCommits
    from kstore.live.ready import ReadyCommit
    from kstore.report import CommitReport


log = logging.getLogger(__name__)


@click.command("watch", cls=Command, exit_codes={"0": "told to end, whatever became of the last commit", "2": "usage"})
@key_argument
@live_options
@ready_option
@on_committer
def command(
    invocation: Invocation, key: str, settle: int, every: int, grace_period: int, ready_url: str | None
) -> None:
    """Commit what other processes compile for KEY, until told to end.

    For a sidecar beside a program that `kstore exec` cannot start: both need the same cache root at the same
    path. It restores nothing. SIGTERM, SIGHUP and Ctrl-C make it commit once more and end. Trouble with the store is a
    warning, and it keeps trying.
    """
    from kstore.live.commits import LiveCommits
    from kstore.report import CommitReport, CommitStatus
    from kstore.settings import Mode

    output, store = invocation.output, invocation.store()
    store.scope(key)  # A bad key or setting stops here.
    # Blocked before any thread is started, and waited for; this way process 1 of a container gets them too.
    hangup = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else set()
    signal.pthread_sigmask(signal.SIG_BLOCK, endings := ENDINGS | hangup)
    if store.settings.mode is Mode.READ:
        output.warn("the mode is read: nothing is committed")
        signal.sigwait(endings)
        _report(output, key, CommitReport(CommitStatus.READ_ONLY, key))
        return
    live = LiveCommits(store, key, settle=settle, every=every, expects_release=bool(ready_url))
    live.start()
    output.say(f"watching the cache root of {key}")
    ready = start_ready_commit(output, live, ready_url, store.settings.timeout) if ready_url else None
    signal.sigwait(endings)
    if ready:
        stop_ready_commit(output, ready)
    _report(output, key, _finish(output, live, key, grace_period), ready, len(live.checkpoints))


def _report(
    output: Output, key: str, committed: CommitReport, ready: ReadyCommit | None = None, checkpoints: int = 0
) -> None:
    """Print the report, if JSON was requested."""
    if output.json:
        reports = {"commit": committed.as_json(), "ready": ready and ready_as_json(ready)}
        output.document({"key": key, **reports, "checkpoints": checkpoints})


def _finish(output: Output, live: LiveCommits, key: str, grace_period: int) -> CommitReport:
    """Commit once more, or say why not: an error would only make the sidecar start again."""
    from kstore.cli.sentences import committed, tell_trouble
    from kstore.report import CommitReport

    try:
        report = live.publish(grace_period, is_last=True)
    except Exception as error:
        log.debug("the last commit of %s failed", key, exc_info=error)
        why = reason_of(error)
        output.warn(f"the last commit of {key} failed: {why}")
        return CommitReport.of_failure(key, why, isinstance(error, WaitTimeout))
    tell_trouble(output, report)
    output.say(committed(live.store, report, live.checkpoints))
    return report
