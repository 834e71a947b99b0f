"""Whose choice an environment variable of a component is: kstore's, torch's, or the user's.

What kstore itself set, in this process or in a parent, is not the user's. Neither is what torch wrote there:
`import torch._dynamo` pins torch's default cache folder into the environment (`cache_dir` in
torch._inductor.runtime.cache_dir_utils), and its first kernel pins a folder below that for Triton.
"""

from __future__ import annotations

import getpass
import os
import re
import sys
import tempfile
from collections.abc import Mapping, MutableMapping

from kstore.components.table import Component, load_table

MANAGED = "KSTORE_MANAGED"
"""Lists the variables that kstore set, one `NAME=value` per line: children must not take them for the user's. A line
that begins with a tab continues the value before it.
"""


def set_variables(variables: Mapping[str, str], environ: MutableMapping[str, str]) -> None:
    """Set the variables, and note that kstore did."""
    environ.update(variables)
    managed = read_managed(environ) | dict(variables)
    environ[MANAGED] = "\n".join(f"{name}={value}".replace("\n", "\n\t") for name, value in sorted(managed.items()))


def read_managed(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that kstore set, with their values."""
    lines = environ.get(MANAGED, "").replace("\n\t", "\0").split("\n")  # No variable has a NUL.
    rows = (line.replace("\0", "\n").partition("=") for line in lines)
    return {name: value for name, equals, value in rows if equals}


def is_pinned(component: Component, environ: Mapping[str, str]) -> bool:
    """Whether the variable holds what torch writes there by itself, in this process or in a parent: nobody's choice."""
    value = environ.get(component.variable) or ""
    device = os.path.basename(value)
    number = device if device.isdecimal() else ""
    inductor = load_table()["inductor"]
    default = default_folder(inductor)
    above = {default, os.path.abspath(environ.get(inductor.variable) or default)}
    return value != "" and value in {_filled_in(component.pinned, folder, number) for folder in above}


def is_users(component: Component, environ: Mapping[str, str]) -> bool:
    """Whether the variable holds a choice of the user's, and not what kstore or an import of torch has set."""
    value = environ.get(component.variable)
    return bool(value) and read_managed(environ).get(component.variable) != value and not is_pinned(component, environ)


def names_folder(component: Component, value: str) -> bool:
    """Whether a value of the variable names a folder. A bucket's address, which JAX takes, could be turned into one."""
    return component.is_folder and "://" not in value


def is_read_already(component: Component) -> bool:
    """Whether the module that pins the variable was imported in this process: it does not look again."""
    return component.pinned_by in sys.modules


def default_folder(component: Component) -> str:
    """Where the component is if nobody sets its variable."""
    return _filled_in(component.default)


def _filled_in(text: str, inductor: str = "", device: str = "") -> str:
    home = os.path.expanduser("~")
    return text.format(
        tmp=_tmp(),
        home=home,
        cache_home=os.environ.get("XDG_CACHE_HOME") or f"{home}/.cache",
        triton_home=os.environ.get("TRITON_HOME") or home,
        user=_user(),
        inductor=inductor,
        device=device,
    )


def _tmp() -> str:
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:  # None can be written. Then nothing is there, whatever its name.
        return "/tmp"


def _user() -> str:
    """The user's name as torch writes it: a uid without a name is `uid_<n>` (pytorch#140765), a domain user's name has
    no backslash.
    """
    try:
        return re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError, ModuleNotFoundError):
        return f"uid_{os.getuid()}"
