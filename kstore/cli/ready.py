"""What `--ready-url` says and reports, for `kstore exec` and `kstore watch`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kstore.words import duration

if TYPE_CHECKING:
    from kstore.cli.output import Output
    from kstore.live.commits import LiveCommits
    from kstore.live.ready import ReadyCommit
    from kstore.report import CommitReport
    from kstore.store import Store


def start_ready_commit(output: Output, live: LiveCommits, url: str, seconds: float) -> ReadyCommit:
    """Begin to ask `url`; once it answers, `live` commits, for up to `seconds`."""
    from kstore.live.ready import ReadyCommit

    commit, tell = partial(live.publish, seconds, releases=True), partial(_tell, output, live.store)
    ready = ReadyCommit(url, commit, tell, output.warn)
    ready.start()
    return ready


def stop_ready_commit(output: Output, ready: ReadyCommit) -> None:
    """Stop asking: the job has ended."""
    ready.stop()
    if ready.seconds is None:
        output.say(f"{ready.url} never answered 200")


def ready_as_json(ready: ReadyCommit) -> dict[str, Any]:
    """Part of a command's report."""
    return {"url": ready.url, "seconds": ready.seconds, "commit": ready.report and ready.report.as_json()}


def _tell(output: Output, store: Store, report: CommitReport, seconds: float) -> None:
    from kstore.cli.sentences import committed, tell_trouble

    tell_trouble(output, report)
    output.say(f"ready after {duration(seconds)}: {committed(store, report)}")
