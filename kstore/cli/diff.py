"""`kstore diff`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kstore.cli.options import (
    DIFFERENT,
    ERROR,
    INTEGRITY,
    MISSING,
    Command,
    Invocation,
    complete_key,
    on_scope_and_root,
    refuse,
)
from kstore.errors import UsageError
from kstore.words import plural

if TYPE_CHECKING:
    from kstore.cli.output import Output
    from kstore.inspect.comparison import Comparison
    from kstore.inspect.sides import Side


@click.command("diff", cls=Command, exit_codes=ERROR | MISSING | INTEGRITY | DIFFERENT)
@click.argument("left", metavar="KEY1[@N]", shell_complete=complete_key)
@click.argument("right", metavar="[KEY2[@N]]", default="", shell_complete=complete_key)
@click.option("--stat", is_flag=True, help="Only the numbers.")
@click.option("--name-only", is_flag=True, help="Only the names of what differs.")
@click.option("--path", metavar="PATH", help="Compare one artifact's text: a path, its end, or KERNEL.SUFFIX.")
@click.option("--exit-code", is_flag=True, help="Exit with 6 if any artifact differs.")
@click.option("--gpu1", metavar="NAME", help="The GPU of KEY1 only; --gpu is for both.")
@click.option("--gpu2", metavar="NAME", help="The GPU of KEY2.")
@click.option("--environment1", metavar="TAG", help="The environment of KEY1 only.")
@click.option("--environment2", metavar="TAG", help="The environment of KEY2.")
@on_scope_and_root
def command(
    invocation: Invocation, left: str, right: str, stat: bool, name_only: bool, path: str | None, exit_code: bool,
    gpu1: str | None, gpu2: str | None, environment1: str | None, environment2: str | None,
) -> int:  # fmt: skip
    """Show what differs between two keys or generations: kernels, choices, environment.

    \b
    kstore diff my-model/v1 my-model/v2
    kstore diff my-model/v1@3 my-model/v1@5
    kstore diff my-model/v1                    with the cache root here

    Kernels are compared by name. With several GPUs and environments, the two that have the most in common are
    compared.
    """
    from kstore.cli.diff_text import print_texts
    from kstore.inspect.choice import Wanted
    from kstore.inspect.comparison import compare_sides, find_sides

    if stat + name_only + (path is not None) > 1:
        raise UsageError("--stat, --name-only and --path exclude each other")
    if right:
        refuse("is for a single KEY, which is compared with that folder", "cache_root")
    else:
        refuse("is for a second KEY, and there is none", "gpu2", "environment2")
    if invocation.output.json:
        refuse("is for people: --json has everything", "stat", "name_only")
    gpu, environment = invocation.text("gpu"), invocation.text("environment")
    one = Wanted.parse(left, gpu1 or gpu, environment1 or environment, "1" if right else "")
    other = Wanted.parse(right, gpu2 or gpu, environment2 or environment, "2") if right else None
    output, store = invocation.output, invocation.store()
    with output.working("reading the store"):
        sides = find_sides(store, one, other)
    _warn_of_sides(output, *sides)
    if path is not None:
        differ = print_texts(output, sides, path)
    else:
        with output.working("comparing"):
            comparison = compare_sides(*sides)
        differ = comparison.differ
        _print(output, comparison, stat, name_only)
    return 6 if exit_code and differ else 0


def _print(output: Output, comparison: Comparison, stat: bool, name_only: bool) -> None:
    from kstore.cli.diff_report import describe, print_names, print_report

    if comparison.unread:
        output.warn(
            f"nothing more is known about {plural(comparison.unread, 'item')}: the file that would tell is "
            "missing, damaged or too large; `kstore verify` checks everything"
        )
    if output.json:
        output.document(describe(comparison))
    elif name_only:
        print_names(output, comparison)
    else:
        print_report(output, comparison, details=not stat)


def _warn_of_sides(output: Output, left: Side, right: Side) -> None:
    if (left.scope.gpu, left.scope.environment) != (right.scope.gpu, right.scope.environment):
        output.say("the two are for different GPUs or environments")
    if right.skipped:
        output.say(f"{plural(len(right.skipped), 'artifact')} of the cache root left out: unfinished or unreadable")
