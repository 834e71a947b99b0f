"""What a process is like when it begins with a key, and which keys this process has begun with.

A job may set variables, change its folder and write files while it runs: it still means the same store, scope and
folders.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache

from kstore.components import load_table
from kstore.components.variables import MANAGED
from kstore.environment import Environment, detect_environment, gpu_slug
from kstore.lazy import cached_property
from kstore.redirect import in_force
from kstore.settings import Settings, choose_settings, current_folder, read_defaults


class Origin:
    """The variables, the folder and the settings of a process, as they are now, and what they say about GPU and
    software; and the settings that it was given with the key.

    What kstore has set itself is left out: it says nothing about these, and differs from key to key.
    This is nothing but plain data, so that a forked child goes on with it.
    """

    def __init__(self, environ: Mapping[str, str], given: Mapping[str, object] | None = None) -> None:
        """None in what is `given` stands for a setting that is not.

        Raises:
            UsageError: the file that has the settings has unknown ones, or cannot be read.
        """
        self.source = environ
        """Where the variables are: another mapping is another child's, even if it says the same."""
        of_the_key = {MANAGED: environ.get(MANAGED), **in_force(environ)}
        self._environ = _shared(frozenset(environ.items() - of_the_key.items()))
        self._folder = current_folder()
        self._defaults = read_defaults(self._environ, self._folder)
        self._given = dict(given or {})
        self._environments: dict[str, Environment] = {}

    def settings(self, **arguments: object) -> Settings:
        """What `arguments` that are not None say, else those that were given, else variables and files.

        Raises:
            UsageError: one is malformed.
        """
        said = {name: value for name, value in arguments.items() if value is not None}
        return choose_settings(self._defaults, self._folder, self._given | said)

    @cached_property
    def gpu(self) -> str:
        """Slug of the GPU."""
        return gpu_slug(self._environ)

    def environment(self, gpu: str) -> Environment:
        """The software that compiles for `gpu`."""
        if gpu not in self._environments:
            self._environments[gpu] = detect_environment(gpu, self._environ)
        return self._environments[gpu]

    def absolute(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """`environ`, with the folders that a user chose for components counted from where the process was."""
        names = {component.variable for component in load_table().values() if component.is_folder} & environ.keys()
        chosen = {name: environ[name] for name in names if environ[name] and not os.path.isabs(environ[name])}
        return {**environ, **{name: os.path.join(self._folder or "", folder) for name, folder in chosen.items()}}


@lru_cache(maxsize=1)
def _shared(variables: frozenset[tuple[str, str]]) -> Mapping[str, str]:
    """A process that restores many keys has the same variables for all of them, except those that kstore sets."""
    return dict(variables)


_MANY = 64
_begun: dict[str, tuple[Origin, ...]] = {}
"""By key, the newest last: a launcher restores one key for several children, each with variables of its own."""


def begin(key: str, environ: Mapping[str, str] = os.environ, given: Mapping[str, object] | None = None) -> Origin:
    """This process restores `key`, with the settings that are `given`. What it does with the key from now on is meant
    as of now.

    Raises:
        UsageError: as `Origin`.
    """
    resume(key, origin := Origin(environ, given))
    return origin


def resume(key: str, origin: Origin) -> None:
    """What is done with `key` from now on, with the same variables, is meant as of `origin`."""
    others = [other for other in _begun.get(key, ()) if other.source is not origin.source]
    _begun[key] = (*others[1 - _MANY :], origin)


def origin_of(key: str, environ: Mapping[str, str] = os.environ) -> Origin:
    """This process as it restored `key` with these variables; else with others, if these or those are its own; else as
    it is now. Raises UsageError, as `Origin`.
    """
    begun, is_own = _begun.get(key, ()), environ is os.environ
    same = [origin for origin in begun if origin.source is environ]
    found = same or [origin for origin in begun if is_own or origin.source is os.environ]
    return found[-1] if found else Origin(environ)
