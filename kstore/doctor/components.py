"""The components: whether this worker manages each, where its variable leads, and what that folder allows."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping

from kstore.components import Component, load_table
from kstore.components.placement import Placement, place_components
from kstore.components.variables import is_pinned, is_read_already, is_users, names_folder
from kstore.doctor.check import Check, bad, ok, warning
from kstore.doctor.node import path_of
from kstore.doctor.published import Newest
from kstore.errors import KstoreError
from kstore.folders import nearest_existing
from kstore.local.cacheroot import check_room, is_noexec
from kstore.store import Store
from kstore.words import files

_MOST = 20
"""Components that are named although this worker manages them not: a manifest may hold any number."""


def check_components(store: Store, key: str, newest: Newest | None) -> Iterator[Check]:
    """Check each component, and report those that are not as kstore would have them, or that have published files that
    this worker does not restore.
    """
    try:
        path = path_of(store, key)
    except (KstoreError, OSError):  # `check_node` has reported it.
        return
    table, managed = load_table(), store.settings.components
    placement = place_components(table, managed, path, store.environ, before_import=True)
    published = _published(newest)
    for name in sorted(published.keys() - set(managed))[:_MOST]:
        yield _unmanaged(name, published[name])
    found = [_check_component(table[name], placement, store.environ, published[name]) for name in managed]
    yield from filter(None, found)
    yield ok("variables", f"{found.count(None)} components are in the cache root")


def _published(newest: Newest | None) -> Counter[str]:
    """How many artifacts of each component this worker's generation has."""
    snapshot = newest.snapshot if newest and newest.is_own else None
    return Counter(path.partition("/")[0] for path, _ in snapshot.manifest.items()) if snapshot else Counter()


def _unmanaged(name: str, count: int) -> Check:
    missed = f"restores leave out {files(count)} of it"
    if name not in load_table():
        return bad(name, f"this version of kstore does not know the component: {missed}", "install the builder's")
    return bad(name, f"it is not among the components that are set: {missed}", "add it to KSTORE_COMPONENTS")


def _check_component(
    component: Component, placement: Placement, environ: Mapping[str, str], published: int
) -> Check | None:
    """Check one component; None if it is in the cache root, and compilers can work there."""
    name, variable = component.name, component.variable
    if other := placement.sharing.get(name):
        return _sharing(component, load_table()[other], published)
    if is_pinned(component, environ) and is_read_already(component):
        found = f"{component.pinned_by} was imported before {variable} was set, and has read its default"
        return bad(name, found, "restore before importing it")
    if not is_users(component, environ):
        if component.is_left_alone(environ):
            return ok(name, f"{component.title} is left alone in one process of several")
        return _check_in_root(component, placement.folders[name])
    return _check_chosen(component, environ[variable], published)


def _check_in_root(component: Component, folder: str) -> Check | None:
    """Check a folder in the cache root that is there already: somebody else may have made it, or mounted it."""
    if not os.path.lexists(folder) or not (trouble := _trouble_in(folder, component)):
        return None
    return bad(component.name, f"{folder}: {trouble}", "see who owns it and what is mounted there, or remove it")


def _sharing(component: Component, other: Component, published: int) -> Check:
    found = f"{component.title} and {other.title} share one folder: everything in it is taken for {other.title}'s"
    advice = f"set {component.variable} to a folder of its own"
    if not published:
        return warning(component.name, found, advice)
    return bad(component.name, f"{found}, and restores leave out {files(published)}", advice)


def _check_chosen(component: Component, value: str, published: int) -> Check:
    """Check a place that the user named."""
    name, variable = component.name, component.variable
    found = f"{variable}={value} is the user's own and stays"
    if names_folder(component, value):
        trouble = _trouble_in(os.path.abspath(value), component)
        if trouble:
            return bad(name, f"{variable}={value}: {trouble}", f"name another folder, or unset {variable}")
        return warning(name, found, "its contents are shared all the same; unset it to use the cache root")
    if published:
        return bad(name, f"{found}, and restores leave out {files(published)} of it", f"unset {variable}")
    return warning(name, found, "its contents are not shared; unset it to use the cache root")


def _trouble_in(folder: str, component: Component) -> str:
    """What keeps compilers from working in a folder, or will once they make it; empty if nothing does."""
    try:
        there = nearest_existing(folder)
        check_room(there)
    except OSError as error:
        return f"it cannot be written: {error.strerror or error}"
    is_useless = component.is_loaded and is_noexec(there)
    return "it is mounted noexec, and compilers load what they build there" if is_useless else ""
