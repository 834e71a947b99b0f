"""`kstore commit`."""

from __future__ import annotations

import click

from kstore.cli.options import ERROR, HELD, INTEGRITY, WORKERS, Command, Invocation, key_argument, on_committer


@click.command("commit", cls=Command, exit_codes=ERROR | INTEGRITY | HELD)
@key_argument
@on_committer
def command(invocation: Invocation, key: str) -> None:
    """Publish what was compiled under KEY and is missing from the store.

    If there is nothing new, nothing is written. A file that a compiler is still writing waits for the next commit.
    """
    from kstore.cli.sentences import committed, tell_components, tell_trouble
    from kstore.report import CommitStatus

    output = invocation.output
    store = invocation.store()
    with output.working(f"committing {key}", store.progress):
        report = store.commit(key)
    tell_trouble(output, report)
    if output.json:
        output.document(report.as_json())
        return
    output.summary(committed(store, report))
    if report.status is CommitStatus.COMMITTED:
        tell_components(output, report.cache_root, report.components)
    elif report.status is CommitStatus.UNCHANGED and report.found == 0:
        variables = invocation.again("env", key=key, names=WORKERS)
        output.say(f'did the program run with the variables of `eval "$({variables})"`?')
