"""`kstore watch`."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import click

from kstore.cli.options import (
    Command,
    Invocation,
    cache_root_option,
    key_argument,
    layout_option,
    live_options,
    output_options,
    pass_invocation,
    scope_options,
    store_option,
)

if TYPE_CHECKING:
    from kstore.cli.output import Output
    from kstore.live.commits import LiveCommits
    from kstore.report import CommitReport

_ENDINGS = {signal.SIGTERM, signal.SIGINT}


@click.command("watch", cls=Command, exit_codes={"0": "told to end, whatever became of the last commit", "2": "usage"})
@key_argument
@live_options
@store_option
@cache_root_option
@scope_options
@layout_option
@output_options
@pass_invocation
def command(invocation: Invocation, key: str, settle: int, every: int, grace_period: int) -> None:
    """Commit what other processes compile for KEY, until told to end.

    For a sidecar beside a program that cannot be started by `kstore exec`: both need the same cache root, at the same
    path. It restores nothing. SIGTERM and Ctrl-C make it commit once more, and end. Trouble with the store is a
    warning, and it goes on trying.
    """
    from kstore.live.commits import LiveCommits
    from kstore.settings import Mode

    output, store = invocation.output, invocation.store()
    store.scope(key)  # A bad key or setting stops here.
    # Blocked before any thread is started, and waited for, which process 1 of a container gets as well.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)
    if store.settings.mode is Mode.READ:
        output.warn("the mode is read: nothing is committed")
        signal.sigwait(_ENDINGS)
        return
    live = LiveCommits(store, key, settle=settle, every=every)
    live.start()
    output.say(f"watching the cache root of {key}")
    signal.sigwait(_ENDINGS)
    report = _finish(output, live, key, grace_period)
    if output.json:
        output.document({"key": key, "commit": report and report.as_json(), "checkpoints": len(live.checkpoints)})


def _finish(output: Output, live: LiveCommits, key: str, grace_period: int) -> CommitReport | None:
    """Commit once more, or say why not: an error would only have the sidecar started again."""
    from kstore.cli.sentences import committed, tell_trouble

    try:
        report = live.publish(grace_period, is_last=True)
    except Exception as error:
        output.warn(f"the last commit of {key} failed: {error}")
        return None
    tell_trouble(output, report)
    output.say(committed(report))
    return report
