"""What commands have in common: their options, and the exit codes in their help."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click
from click.core import ParameterSource

from kstore.cli.output import Output
from kstore.errors import UsageError
from kstore.words import command_line, parse_duration, parse_size

if TYPE_CHECKING:
    from kstore.inspect.choice import Wanted
    from kstore.store import Store

Function = TypeVar("Function", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")

OK = {"0": "ok"}
ERROR = OK | {"1": "error", "2": "usage"}
WORKERS = ("store", "cache_root", "gpu", "environment")
"""The settings that say which store, which local folder and whose kernels."""
MISSING = {"3": "nothing is published for what was requested"}
REQUIRED = {"3": "nothing is published, with --require or --generation; with --wait, not in that time either"}
INTEGRITY = {"4": "what the store holds is damaged"}
DIFFERENT = {"6": "they differ, with --exit-code"}
HELD = {"5": "another process held the cache root for too long"}
TIMEOUT = {"5": "it took too long: the store hangs, another process held the cache root, or other ranks did not answer"}


@dataclass(slots=True)
class Invocation:
    """What the common options of one command line say."""

    output: Output = field(default_factory=Output)
    settings: dict[str, str | int | None] = field(default_factory=dict)
    """`store`, `cache_root`, `gpu`, `environment`, `layout`, `lease_ttl`, as `Store` takes them; None if not given."""

    def text(self, name: str) -> str | None:
        """One of the settings that are text, if it was given."""
        value = self.settings.get(name)
        return None if value is None else str(value)

    def wanted(self, key: str) -> Wanted:
        """What `KEY` or `KEY@N` means, for the GPU and the environment that were given."""
        from kstore.inspect.choice import Wanted

        return Wanted.parse(key, self.text("gpu"), self.text("environment"))

    def again(self, command: str, *words: str, key: str = "", names: tuple[str, ...] = ("store",)) -> str:
        """Another command line, to be copied; it repeats those of the settings `names` that this one was given."""
        given = [(f"--{name.replace('_', '-')}", value) for name in names if (value := self.text(name))]
        return command_line(command, key, *words, *(word for pair in given for word in pair))

    def store(self, environ: MutableMapping[str, str] = os.environ) -> Store:
        """The store to work on. Its settings are checked now."""
        from kstore.store import Store

        settings: dict[str, Any] = dict(self.settings)
        return Store(settings.pop("store", None), environ=environ, **settings)

    def variables(self, store: Store) -> dict[str, str]:
        """The variables that pass the settings of this command line to a command that uses kstore itself."""
        from kstore.settings import variables_of

        return variables_of(store.settings, [name for name, value in self.settings.items() if value is not None])


class Command(click.Command):
    """A command whose help lists its exit codes."""

    def __init__(self, *args: Any, exit_codes: Mapping[str, str], **options: Any) -> None:
        super().__init__(*args, **options)
        self._exit_codes = exit_codes

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, logging as its options say."""
        invocation = ctx.ensure_object(Invocation)
        invocation.output.log()
        return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes below the options."""
        with formatter.section("Exit codes"):
            formatter.write_dl(list(self._exit_codes.items()))


class Generation(click.IntRange):
    """A generation's number."""

    def __init__(self) -> None:
        super().__init__(min=1)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number, or an error that says where to find one."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value} is not a whole number from 1 on; `kstore show KEY` lists generations", param, ctx)


def as_seconds(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """Callback of an option that takes a duration: 90s, 15m, 1h, 30d."""
    try:
        return parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def as_seconds_or_none(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """The same for an option that has no default."""
    return None if value is None else as_seconds(ctx, param, value)


def as_given_seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """The same, where a number without a unit is likely a mistake: 30 seconds where 30 days were meant."""
    _check_unit(ctx, param, value, "30d or 12h")
    return as_seconds_or_none(ctx, param, value)


def as_given_bytes(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Callback of an option that takes a size, with its unit: 500M, 50G, 2TiB."""
    _check_unit(ctx, param, value, "50G or 500M")
    try:
        return None if value is None else parse_size(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def _check_unit(ctx: click.Context, param: click.Parameter, value: str | None, examples: str) -> None:
    if value and value.strip().replace(".", "", 1).isdecimal() and float(value):
        raise click.BadParameter(f"{value} of what? Give the unit, as in {examples}", ctx, param)


def _set(ctx: click.Context, param: click.Parameter, value: str | int | None) -> None:
    assert param.name
    ctx.ensure_object(Invocation).settings[param.name] = value


def _set_seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    _set(ctx, param, as_seconds_or_none(ctx, param, value))


def _set_json(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.ensure_object(Invocation).output.json |= value


def _set_quiet(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    _set_verbosity(ctx, -1 if value else 0)


def _set_verbose(ctx: click.Context, param: click.Parameter, value: int) -> None:
    _set_verbosity(ctx, value)


def _set_verbosity(ctx: click.Context, value: int) -> None:
    output = ctx.ensure_object(Invocation).output
    if value and output.verbosity:
        raise click.UsageError("--quiet and --verbose exclude each other", ctx)
    output.verbosity = value or output.verbosity


def refuse(why: str, *names: str) -> None:
    """Refuse options that have no effect beside another one, or without one: `why` says so.

    Raises:
        UsageError: the command line has one of them.
    """
    ctx = click.get_current_context()
    for name in names:
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} {why}", ctx)


def _setting(name: str, metavar: str, text: str) -> Callable[[Function], Function]:
    return click.option(name, metavar=metavar, callback=_set, expose_value=False, help=text)


def _decorate(*decorators: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """One decorator that applies all of these, in the order of the help."""

    def decorate(function: Function) -> Function:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def _output_options(stream: str) -> Callable[[Function], Function]:
    """Options that say how much is printed, and for whom."""
    return _decorate(
        click.option("--json", is_flag=True, is_eager=True, callback=_set_json, expose_value=False,
                     help=f"One JSON object on {stream}."),
        click.option("-q", "--quiet", is_flag=True, is_eager=True, callback=_set_quiet, expose_value=False,
                     help="Errors only."),
        click.option("-v", "--verbose", count=True, is_eager=True, callback=_set_verbose, expose_value=False,
                     help="Say more; -vv for debugging."),
    )  # fmt: skip


output_options = _output_options("stdout")
lent_output_options = _output_options("stderr")
"""The same for a command that lends its stdout to a child."""
store_option = _setting(
    "--store",
    "DIR[:DIR]",
    "The store, and after a colon others to read what it lacks; else KSTORE_ROOT, else /data/kstore.",
)
cache_root_option = _setting(
    "--cache-root", "DIR", "The local folder; else KSTORE_CACHE_ROOT, else a numbered one below /tmp/kstore."
)
scope_options = _decorate(
    _setting("--gpu", "NAME", "Instead of the GPU that is detected; `kstore ls --json` has the names."),
    _setting("--environment", "TAG", "Instead of the installed software's."),
)
"""Whose kernels, if detection would say something else."""
choice_options = _decorate(
    _setting("--gpu", "NAME", "Only this GPU's; `kstore ls --json` has the names."),
    _setting("--environment", "TAG", "Only this software's; `kstore ls --json` has the tags."),
)
"""Whose kernels, for a command that takes all of them or finds out which are meant."""
layout_option = click.option(
    "--layout", type=click.Choice(["auto", "loose", "packed"]), callback=_set, expose_value=False,
    help="How new files are stored: one by one, as one pack, or (auto) what suits the store's filesystem.",
)  # fmt: skip
wait_options = _decorate(
    click.option("--wait", metavar="DURATION", callback=as_seconds_or_none,
                 help="If nothing is published: one worker compiles, the others wait this long for it (300, 5m)."),
    click.option("--lease-ttl", metavar="DURATION", callback=_set_seconds, expose_value=False,
                 help="How long after its last sign of life the one that compiles counts as gone; else 60 s."),
)  # fmt: skip
"""Who compiles, and who waits."""


def _as_url(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    from kstore.live.ready import check_url

    try:
        return check_url(value)
    except UsageError as error:
        raise click.BadParameter(str(error), ctx, param) from error


live_options = _decorate(
    click.option("--settle", metavar="DURATION", default="5s", show_default=True, callback=as_seconds,
                 help="Commit when nothing has changed for this long."),
    click.option("--every", metavar="DURATION", default="60s", show_default=True, callback=as_seconds,
                 help="And at least this often while files keep coming."),
    click.option("--grace-period", metavar="DURATION", default="10s", show_default=True, callback=as_seconds,
                 help="Time for the last commit after SIGTERM or Ctrl-C."),
)  # fmt: skip
"""When to commit what is still being compiled."""
ready_option = click.option(
    "--ready-url", metavar="URL", callback=_as_url,
    help="Commit once more when this first answers 200: the server is ready.",
)  # fmt: skip


def complete_key(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """What a shell offers where a KEY is expected."""
    from kstore.cli.keys import keys_beginning

    return keys_beginning(ctx.ensure_object(Invocation), incomplete)


def _alone(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Callback of a KEY that takes no generation as @N."""
    if "@" not in value:
        return value
    places = {type(other): other for other in ctx.command.params if other.name == "generation"}
    if click.Option in places:
        where = "name the generation by --generation N"
    elif click.Argument in places:
        where = "name the generation after KEY, as an argument of its own"
    else:
        where = "`kstore files`, `kstore cat`, `kstore diff`, `kstore export` and `restore --generation N` do"
    raise click.BadParameter(f"{value!r}: this command takes no KEY@N; {where}", ctx, param)


group_option = click.option("--group", is_flag=True, help="All ranks of a job restore the same, or none does.")
key_argument = click.argument("key", callback=_alone, shell_complete=complete_key)
key_or_generation_argument = click.argument("key", metavar="KEY[@N]", shell_complete=complete_key)
optional_key_argument = click.argument("key", default="", callback=_alone, shell_complete=complete_key)
seed_option = click.option(
    "--seed", metavar="KEY", shell_complete=complete_key, help="What to start from if KEY has nothing yet."
)
pass_invocation = click.make_pass_decorator(Invocation, ensure=True)


def _taking(
    *options: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> Callable[[Callable[Concatenate[Invocation, P], R]], Callable[P, R]]:
    """A decorator for a command: it gets the invocation, and these options as well as those of its output."""

    def decorate(function: Callable[Concatenate[Invocation, P], R]) -> Callable[P, R]:
        return _decorate(*options, output_options)(pass_invocation(function))

    return decorate


on_store = _taking(store_option)
on_scope = _taking(store_option, choice_options)
"""For a command that works on one key's kernels in a store."""
on_scope_and_root = _taking(store_option, cache_root_option, choice_options)
"""For a command that compares one key's kernels with a cache root."""
on_importer = _taking(store_option, scope_options, layout_option)
"""For a command that publishes what another cache has kept."""
on_worker = _taking(store_option, cache_root_option, scope_options)
"""For a command that works on a cache root as well."""
on_committer = _taking(store_option, cache_root_option, scope_options, layout_option)
"""For a command that works on a cache root and may write to the store."""
