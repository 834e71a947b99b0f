"""Settings: argument, then `KSTORE_*` environment variable, then kstore.toml or [tool.kstore], then the default."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from kstore.blobs import Layout
from kstore.components import load_table
from kstore.errors import StoreUnavailable, UsageError
from kstore.words import parse_duration


class Mode(StrEnum):
    """What a worker may do to the store."""

    READ_WRITE = "readwrite"
    READ = "read"
    """Restore only; never write."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to find the store and the local side."""

    store: tuple[str, ...] = ("/data/kstore",)
    """The store's root, and those of stores that are read for what it lacks."""
    cache_root: str | None = None
    """The local folder; None for a numbered root below /tmp/kstore."""
    layout: Layout | None = None
    """How new blobs are stored; None to choose by what links."""
    mode: Mode = Mode.READ_WRITE
    gpu: str | None = None
    """Overrides detection."""
    environment: str | None = None
    """Overrides detection."""
    components: tuple[str, ...] = tuple(load_table())
    """The components that are managed."""
    timeout: float = 600.0
    """Seconds after which a job goes on without its restore or commit; 0 to wait for ever."""
    lease_ttl: float = 60.0
    """Seconds after which a worker that compiles for others, and no longer says so, counts as gone."""
    stats: bool = True
    """Whether restores are counted in the store."""

    def check_writes(self, what: str) -> None:
        """See that the store may be written; `what` says what is to be done to it.

        Raises:
            StoreUnavailable: it may only be read.
        """
        if self.mode is Mode.READ:
            raise StoreUnavailable(f"cannot {what}: the mode is `read` (KSTORE_MODE)")


log = logging.getLogger(__name__)

Values = dict[str, tuple[Any, str, Path | None]]
"""For each setting that is given: its value, where that is from, and the folder from which relative paths count."""

_NAMES = tuple(field.name for field in fields(Settings))
_VARIABLES = {name: f"KSTORE_{'ROOT' if name == 'store' else name.upper()}" for name in _NAMES}
_CLOSE = 0.9
"""How similar a variable's name must be to a setting's, by `difflib`, to be taken for it: `KSTORE_PORT` is less so."""
_MOST_SECONDS = 3_153_600_000
_FILES = ("kstore.toml", "pyproject.toml")
_TABLE = b"tool.kstore"
_NAME = b"kstore"
_AS_KEY = rb"""\.[ \t]*["']?kstore["']?[ \t]*\]|kstore["']?[ \t]*[.=](?!=)"""
"""Every way to write that name as a key of TOML, and hardly any to write it as a dependency."""


def load_settings(environ: Mapping[str, str] | None = None, folder: Path | None = None, **arguments: Any) -> Settings:
    """Settings for a process in `folder`. Relative paths count from there, but those in a file from the file's folder.
    Arguments that are None are unset.

    Raises:
        UsageError: a setting is unknown or malformed.
    """
    folder = folder or current_folder()
    return choose_settings(read_defaults(os.environ if environ is None else environ, folder), folder, arguments)


def read_defaults(environ: Mapping[str, str], folder: Path | None) -> Values:
    """What variables, and files from `folder` upwards, say.

    Raises:
        UsageError: a file cannot be read, or has settings that are unknown.
    """
    values = _from_files(folder) if folder else {}
    return values | {n: (environ[v], v, folder) for n, v in _VARIABLES.items() if environ.get(v)}


def choose_settings(defaults: Values, folder: Path | None, arguments: Mapping[str, object]) -> Settings:
    """`arguments` that are not None, and else `defaults`. Raises UsageError: one is malformed."""
    given = {n: (value, f"argument {n}", folder) for n, value in arguments.items() if value is not None}
    return Settings(**{name: _parse(name, *value) for name, value in (defaults | given).items()})


def misspelt(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that are no settings but look like one, each with the one that it looks like. Others are left alone:
    Kubernetes sets `KSTORE_PORT` where a service is called kstore.
    """
    from difflib import get_close_matches

    likely = {"KSTORE_STORE": _VARIABLES["store"], "KSTORE_CACHE_DIR": _VARIABLES["cache_root"]}
    for name in environ.keys() - set(_VARIABLES.values()):
        if close := get_close_matches(name, _VARIABLES.values(), n=1, cutoff=_CLOSE):
            likely[name] = close[0]
    return {name: likely[name] for name in sorted(likely.keys() & environ.keys())}


def variables_of(settings: Settings, names: Iterable[str]) -> dict[str, str]:
    """The environment variables that tell another process these settings, wherever it is."""
    return {_VARIABLES[name]: _as_text(getattr(settings, name)) for name in names}


def _as_text(value: str | float | tuple[str, ...] | None) -> str:
    if value is None:
        return "auto"
    return ":".join(value) if isinstance(value, tuple) else str(value)


def current_folder() -> Path | None:
    """Where this process is; None if that folder has been removed, or cannot be reached."""
    try:
        return Path.cwd()
    except OSError as error:
        log.debug("the current folder is not known: %s", error)
        return None


def _from_files(folder: Path) -> Values:
    """The settings of the nearest file that has any, from `folder` upwards, with the file and its folder."""
    owners = _trusted(folder)
    for parent in (folder, *folder.parents):
        for name in _FILES:
            path = parent / name
            if _is_file(path) and (section := _section(path, owners)):
                _check_names(path, section)
                return {key: (value, str(path), parent) for key, value in section.items()}
    return {}


def _check_names(path: Path, section: Mapping[str, Any]) -> None:
    unknown = sorted(set(section) - set(_NAMES))
    if not unknown:
        return
    is_table = path.name == _FILES[0] and isinstance(section[unknown[0]], dict)
    hint = f"; {path.name} has no tables: the settings are its first lines" if is_table else ""
    raise UsageError(f"{path} has unknown settings: {', '.join(unknown)}; there are {', '.join(_NAMES)}{hint}")


def _trusted(folder: Path) -> set[int]:
    """Whose files count: in a container root often works in somebody's project, whose code it runs."""
    with suppress(OSError):
        return {0, os.geteuid(), folder.stat().st_uid}
    return {0, os.geteuid()}


def _is_file(path: Path) -> bool:
    """A folder that a user may not look into has no settings for that user."""
    try:
        return path.is_file()
    except OSError as error:
        log.debug("%s cannot be looked for: %s", path, error)
        return False


def _section(path: Path, owners: Container[int]) -> dict[str, Any]:
    """The settings in a file. A pyproject.toml that is not TOML is another tool's trouble, not a job's.

    What another user wrote is passed over: otherwise they could choose the store that this user loads code from.
    """
    import tomllib

    try:
        owner, text = _read(path)
        if owner not in owners:
            why = f"it belongs to user {owner}, and not to this user, root or the owner of the working directory"
            _pass_over(path, why, has_settings=_TABLE in text)
            return {}
        if path.name != _FILES[0] and not (_NAME in text and re.search(_AS_KEY, text)):
            return {}  # Parsing a large one takes a worker milliseconds.
        content = tomllib.loads(text.decode())
    except PermissionError as error:
        _pass_over(path, f"it cannot be read ({error.strerror})", has_settings=False)
        return {}
    except (OSError, ValueError) as error:
        if path.name != _FILES[0]:
            log.debug("%s cannot be read: %s", path, error)
            return {}
        raise UsageError(f"{path} cannot be read: {error}") from error
    try:
        return dict(content if path.name == _FILES[0] else content.get("tool", {}).get("kstore", {}))
    except (AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"{path} has no table [tool.kstore] of settings: {error}") from error


def _read(path: Path) -> tuple[int, bytes]:
    """Whose the file is, and what is in it."""
    with path.open("rb") as file:
        return os.fstat(file.fileno()).st_uid, file.read()


@cache
def _pass_over(path: Path, why: str, *, has_settings: bool) -> None:
    """Say so, once. A pyproject.toml without settings is passed over anyway."""
    level = logging.WARNING if has_settings or path.name == _FILES[0] else logging.DEBUG
    log.log(level, "the settings in %s are passed over: %s; take a file of your own, or KSTORE_* variables", path, why)


def _parse(name: str, value: Any, origin: str, folder: Path | None) -> Any:
    try:
        return _PATHS[name](value, folder) if name in _PATHS else _PARSERS[name](value)
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(f"{origin}: {value!r} is not a valid value for {name}: {error}") from error


def _layout(value: str) -> Layout | None:
    choice = _one_of(("auto", *Layout), value)
    return None if choice == "auto" else Layout(choice)


def _mode(value: str) -> Mode:
    return Mode(_one_of(tuple(Mode), value))


def _one_of(choices: tuple[str, ...], value: str) -> str:
    if value not in choices:
        raise ValueError(f"it must be one of {', '.join(choices)}")
    return value


def _text(value: str) -> str:
    if not isinstance(value, str):
        raise ValueError("it must be text")
    return value


def _path(value: str | os.PathLike[str], folder: Path | None) -> str:
    path = os.path.expanduser(_as_path(value))
    if not path:
        raise ValueError("a path cannot be empty")
    _check_no_url(path)
    if "\0" in path:
        raise ValueError("a path cannot contain a NUL")
    if path.startswith("~"):
        raise ValueError(f"there is no user {path[1:].partition('/')[0]}; a folder of that name is ./{path}")
    if folder is None and not os.path.isabs(path):
        raise ValueError("it is relative, and the current folder has been removed or cannot be reached")
    path = os.path.abspath(os.path.join(folder or "", path))
    if path == "/":
        raise ValueError("it is the root of all folders: name one in it")
    return path


def _stores(value: str | os.PathLike[str] | list[str] | tuple[str, ...], folder: Path | None) -> tuple[str, ...]:
    if isinstance(value, list | tuple):
        if any(":" in _as_path(path) for path in value):
            raise ValueError("a path cannot contain a colon, which separates stores")
    else:
        _check_no_url(value := _as_path(value))
        value = value.split(":")
    if not value or not all(value):
        raise ValueError("there must be a path before and after each colon, which separates stores")
    paths = tuple(_path(path, folder) for path in value)
    if len(set(paths)) < len(paths):
        raise ValueError("it names a store twice")
    return paths


def _as_path(value: object) -> str:
    if not isinstance(value, str | os.PathLike):
        raise ValueError("it must be a path")
    return os.fspath(value)


def _check_no_url(text: str) -> None:
    """A URL's colon would make two stores of it, of which the first is a folder `s3` here."""
    if "://" in text:
        raise ValueError("it is a URL: name a folder, such as the one that it is mounted on")


def _components(value: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    names = value.replace(",", " ").split() if isinstance(value, str) else value
    if not (isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)):
        raise ValueError(f"it must be a list of names, of {', '.join(load_table())}")
    unknown = set(names) - set(load_table())
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))} unknown; known are {', '.join(load_table())}")
    if not names:
        raise ValueError(f"it must name at least one of {', '.join(load_table())}")
    return tuple(names)


def _seconds(value: str | float) -> float:
    with suppress(ValueError, TypeError, OverflowError):
        if not isinstance(value, bool) and 0 <= (seconds := _as_seconds(value)) <= _MOST_SECONDS:
            return seconds
    number = f"a number of seconds from 0 to {_MOST_SECONDS}, a hundred years"
    raise ValueError(f"it must be a duration such as 90s, 15m or 1h, or {number}")


def _as_seconds(value: str | float) -> float:
    try:
        return float(value)
    except ValueError:
        return float(parse_duration(str(value)))


def _ttl(value: str | float) -> float:
    seconds = _seconds(value)
    if not seconds:
        raise ValueError("it must be more than 0 seconds")
    return seconds


def _switch(value: str | bool) -> bool:
    choices = {"true": True, "1": True, "false": False, "0": False}
    if str(value).lower() not in choices:
        raise ValueError("it must be true or false")
    return choices[str(value).lower()]


_PATHS: dict[str, Callable[[Any, Path | None], Any]] = {"store": _stores, "cache_root": _path}
_PARSERS: dict[str, Callable[[Any], Any]] = {
    "layout": _layout,
    "mode": _mode,
    "gpu": _text,
    "environment": _text,
    "components": _components,
    "timeout": _seconds,
    "lease_ttl": _ttl,
    "stats": _switch,
}
