"""Where each component of a worker is, and which environment variables a compiler finds it by.

The user's own setting is respected; see `variables` for what is not the user's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kstore.components.table import Table
from kstore.components.variables import is_pinned, is_read_already, names_folder, read_managed


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
    folders, variables, notes, chosen = dict[str, str](), dict[str, str](), list[str](), False
    for component in (table[name] for name in names):
        value = environ.get(component.variable) or ""
        is_free = not value or managed.get(component.variable) == value
        if not is_free and before_import and is_pinned(component, environ):
            is_free = True
            if is_read_already(component):
                notes.append(
                    f"{component.pinned_by} was imported before {component.variable} was set: "
                    "it keeps the folder that it read at import; restore before importing it"
                )
        if is_free and component.is_left_alone(environ):
            continue
        if is_free:
            folder = os.path.join(root, component.name)
            variables[component.variable] = component.value.format(folder=folder)
            along = component.along.items()
            variables |= {name: text for name, text in along if environ.get(name) == managed.get(name)}
        elif names_folder(component, value):
            folder, chosen = os.path.abspath(value), True
        else:
            notes.append(f"{component.variable} is set: {component.title} is left to it")
            continue
        folders[component.name] = component.part_of(folder)
    sharing: Mapping[str, str] = {}
    if chosen:  # Otherwise each is in a folder of its own, and every commit asks.
        folders |= {name: table[name].part_of(os.path.join(root, name)) for name in _moved(table, folders)}
        sharing = _sharing(folders)
    for name, other in sharing.items():
        folder = folders.pop(name)
        for variable in (table[name].variable, *table[name].along):
            variables.pop(variable, None)
        notes.append(
            f"{table[name].title} and {table[other].title} share the folder {folder}: everything in it is taken for "
            f"{table[other].title}'s; set {table[name].variable} to a folder of its own"
        )
    return Placement(folders, variables, tuple(notes), sharing)


def _sharing(folders: Mapping[str, str]) -> dict[str, str]:
    """Components whose folder is also that of an earlier component → that component: it would be stored twice."""
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
