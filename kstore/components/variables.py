"""Which environment variables a worker needs, and where each component is as a result.

The user's own setting is respected. What kstore itself set, in this process or in a parent, is not the user's. Neither
is what torch wrote there: `import torch._dynamo` pins torch's default cache folder into the environment (`cache_dir` in
torch._inductor.runtime.cache_dir_utils), and its first kernel pins a folder below that for Triton.
"""

from __future__ import annotations

import getpass
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping, MutableMapping
from typing import NamedTuple

from kstore.components.table import Component, Table, load_table

MANAGED = "KSTORE_MANAGED"
"""Lists the variables that kstore set, one `NAME=value` per line: children must not take them for the user's. A line
that begins with a tab continues the value before it.
"""


class Placement(NamedTuple):
    """Where the components of one worker are."""

    folders: dict[str, str]
    """Component name → absolute folder of its artifacts."""
    variables: dict[str, str]
    """The variables to set."""
    notes: tuple[str, ...]
    sharing: Mapping[str, str]
    """Component that is left out because its folder is also another component's → that other component."""


def place_components(
    table: Table, names: Iterable[str], root: str, environ: Mapping[str, str], *, before_import: bool
) -> Placement:
    """Decide for each named component.

    `before_import` is True if the variables are about to be set: a default that an import pinned is then overridden. It
    is False if artifacts are collected: they are where that default says.
    """
    managed = read_managed(environ)
    folders, variables, notes = dict[str, str](), dict[str, str](), list[str]()
    for component in (table[name] for name in names):
        current = environ.get(component.variable) or None
        own = current is None or managed.get(component.variable) == current
        if not own and is_pinned(component, environ):
            own = before_import
            if before_import and is_read_already(component):
                notes.append(
                    f"{component.pinned_by} was imported before {component.variable} was set: "
                    "it keeps the folder that it read at import; restore before importing it"
                )
        folder = os.path.join(root, component.name)
        if own and component.is_left_alone(environ):
            continue
        if own:
            variables[component.variable] = component.value.format(folder=folder)
            along = component.along.items()
            variables |= {name: text for name, text in along if environ.get(name) == managed.get(name)}
        elif names_folder(component, current or ""):
            folder = os.path.abspath(current or "")
        else:
            notes.append(f"{component.variable} is set: {component.title} is left to it")
            continue
        folders[component.name] = component.part_of(folder)
    for name in _moved(table, folders):
        folders[name] = table[name].part_of(os.path.join(root, name))
    sharing = _sharing(table, folders, root)
    for name, other in sharing.items():
        folder = folders.pop(name)
        for variable in (table[name].variable, *table[name].along):
            variables.pop(variable, None)
        notes.append(
            f"{table[name].title} and {table[other].title} share the folder {folder}: everything in it is taken for "
            f"{table[other].title}'s; set {table[name].variable} to a folder of its own"
        )
    return Placement(folders, variables, tuple(notes), sharing)


def _sharing(table: Table, folders: Mapping[str, str], root: str) -> dict[str, str]:
    """Components whose folder is also that of an earlier component → that component: it would be stored twice."""
    if all(folder == table[name].part_of(os.path.join(root, name)) for name, folder in folders.items()):
        return {}  # Nobody chose any. A shortcut, because every commit asks.
    first: dict[str, str] = {}
    owners = {name: first.setdefault(os.path.realpath(folder), name) for name, folder in folders.items()}
    return {name: owner for name, owner in owners.items() if name != owner}


def _moved(table: Table, folders: Mapping[str, str]) -> list[str]:
    """Components whose variable an engine has set, in this process, to a folder of the engine's own.

    vLLM does so for Inductor when it compiles (`_support_torch_compile` sets TORCHINDUCTOR_CACHE_DIR), SGLang for
    Inductor, Triton and DeepGEMM. What is there is the engine's: the next engine looks for it there, and nowhere else.
    """
    return [
        name
        for name, folder in folders.items()
        for engine, above in folders.items()
        if folder.startswith(f"{above}/") and table[engine].held(f"{folder[len(above) + 1 :]}/") == name
    ]


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
