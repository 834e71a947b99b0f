"""Runs one command line, and turns whatever happens into one line of text and an exit code."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, ClassVar

import click

from kstore import __version__
from kstore.cli import INTERRUPTED
from kstore.cli.group import CommandTable
from kstore.cli.options import Invocation
from kstore.cli.output import Output
from kstore.cli.streams import check_stdout, flush_streams, prepare_streams
from kstore.cli.termination import Terminated
from kstore.errors import KstoreError, UsageError

NAME = "kstore"
COMPLETE = "_KSTORE_COMPLETE"
"""The variable that a shell sets to ask what could come next."""

SECTIONS = {
    "Run a job": {
        "exec": "Run a command with the kernels of KEY, and commit what it compiled.",
        "restore": "Put what is published for KEY into the local cache root.",
        "commit": "Publish what was compiled under KEY and is missing from the store.",
        "watch": "Commit what other processes compile for KEY, until told to end.",
        "env": "Print the shell lines that point compilers at the cache root of KEY.",
    },
    "See what is there, and why": {
        "ls": "List what the store holds.",
        "show": "Show the generations of KEY and what they hold.",
        "files": "List the files that KEY holds.",
        "diff": "Show what differs between two keys or generations: kernels, choices, environment.",
        "cat": "Print one artifact of KEY.",
        "why": "Say why the last run compiled although KEY was restored.",
        "doctor": "Check everything that hits depend on, from the store to the compiler.",
        "stats": "Show hits, misses, bytes and times, by key.",
        "du": "Show whose bytes the store holds, and what each key alone would free.",
        "report": "Write everything known about the store's use as one HTML page.",
    },
    "Keep it in order": {
        "gc": "Remove old generations, and the files that nothing needs any more.",
        "verify": "Check every byte that KEY, or every key, needs.",
        "forget": "Drop what is published for KEY; gc frees its bytes.",
        "quarantine": "Make KEY miss until something new is committed.",
        "rollback": "Publish an earlier generation of KEY as its newest.",
        "pin": "Keep a generation of KEY whatever gc is told.",
        "unpin": "Let gc decide about a generation of KEY again.",
        "clean": "Remove local cache roots.",
    },
    "Between stores, and from other caches": {
        "export": "Write KEY to a file.",
        "import": "Bring in what another store or another cache holds.",
        "copy": "Copy the newest generations of all keys, or of each KEY, between two stores.",
    },
    "Set up, and try": {
        "init": "Make a store.",
        "completion": "Print the script that completes kstore's commands in a shell.",
        "demo": "Compile a small model, restore it, and compare the two.",
    },
}
"""Heading in the help → name → what the command does."""
COMMANDS = {name: text for section in SECTIONS.values() for name, text in section.items()}
"""Name → what the command does."""


class Commands(CommandTable):
    """What `kstore` can do."""

    commands_in = "kstore.cli"
    table = COMMANDS
    sections = SECTIONS
    elsewhere: ClassVar[dict[str, str]] = {"import": "imports"}


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
def program() -> None:
    """Compiled kernels stored once by content, put back before the next start.

    \b
    kstore init                                  once
    kstore exec my-model/v1 -- python train.py   on every worker
    kstore ls                                    what there is

    The store is --store, else KSTORE_ROOT, else /data/kstore.
    """


def run(arguments: Sequence[str]) -> int:
    """Run `kstore ARGUMENTS` and return its exit code."""
    prepare_streams()
    if COMPLETE in os.environ:
        program.main(prog_name=NAME)
    arguments = list(arguments) or ["--help"]
    output = _output_of(arguments)
    code = _run(arguments, output)
    return flush_streams(code)


def _output_of(arguments: list[str]) -> Output:
    """Where the output goes. This is known before parsing, so that a parsing error is printed in the right form."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return Output(command=arguments[0] if arguments[0] in COMMANDS else "", json="--json" in own)


def _run(arguments: list[str], output: Output) -> int:
    try:
        code = _invoke(arguments, output)
        if not output.stdout_is_lent:
            check_stdout()
        return code
    except KstoreError as error:
        output.error(error)
        return error.exit_code
    except click.ClickException as error:
        output.error(UsageError(_usage(error)))
        return error.exit_code
    except (KeyboardInterrupt, click.Abort) as error:
        return _interrupted(error, output)
    except Terminated as error:
        output.error(error)
        return error.exit_code
    except BrokenPipeError:
        return 1
    except Exception as error:
        output.unexpected(error)
        return 1


def _invoke(arguments: list[str], output: Output) -> int:
    """Do the work of click's own `main`, which would turn a broken pipe and an interrupt into something else."""
    try:
        with program.make_context(NAME, arguments, obj=Invocation(output)) as context:
            code: Any = program.invoke(context)
            return code or 0
    except click.exceptions.Exit as done:
        return done.exit_code


def _usage(error: click.ClickException) -> str:
    """The message of a usage error on one line: click lists choices below each other."""
    context = getattr(error, "ctx", None)
    hint = f" (see `{context.command_path} --help`)" if context else ""
    message = " ".join(error.format_message().split())
    return f"{message.rstrip('.')}{hint}"


def _interrupted(error: BaseException, output: Output) -> int:
    """Say that the command was interrupted; returns its exit code. click reports both Ctrl-C at a question and the end
    of the input as an abort.
    """
    if isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt):
        output.error(KeyboardInterrupt("interrupted"))
        return INTERRUPTED
    output.error(KeyboardInterrupt("stopped: there was no answer"))
    return 1
