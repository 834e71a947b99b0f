"""Which of a generation's artifacts a restore places."""

from __future__ import annotations

from kstore.local.found import BEING_WRITTEN, Scan, Skipped
from kstore.merge import Merged
from kstore.published.manifest import GROUP, Files, compact, folders_of, groups_in, parents_of, unit_of


def choose_wanted(files: Files, found: Scan, merged: Merged) -> Files:
    """The artifacts to place: those that are missing, or that the store has since replaced.

    What the worker changed itself stays, and so does all of a group that is being written. A group is placed whole or
    not at all, and never in the place of a folder that holds something else.
    """
    if not (found.known or found.busy):
        return files
    keep, local = merged.declined.keys() - merged.outdated | {*merged.taken, *merged.to_merge}, found.files
    wanted = compact(
        (path, entry)
        for path, entry in files.items()
        if path not in keep and ((here := local.get(path)) is None or here.digest != entry.digest)
    )
    stays = {path: local[path] for path in keep if path in local}
    if groups := groups_in(wanted.items()):
        single = (path for path, entry in local.items() if not entry.flags & GROUP)
        groups -= {unit_of(*item) for item in stays.items()} | found.busy | folders_of(single)
    whole = compact((p, e) for p, e in files.items() if e.flags & GROUP and unit_of(p, e) in groups)
    # Nor is a file added to a group that stays, even if that is no group by the publisher's rules.
    closed = found.busy | groups_in(stays.items())
    whole.put((p, e) for p, e in wanted.items() if not e.flags & GROUP and closed.isdisjoint(parents_of(p)))
    return whole


def hindered(files: Files, found: Scan, wanted: Files) -> dict[str, Skipped]:
    """The artifacts that are neither present nor wanted, and why: something else is in the place of their group, or the
    folder that they belong to is being written.
    """
    missing = files.keys() - found.known.keys() - wanted.keys() if len(wanted) < len(files) else ()
    if not missing:
        return {}
    local, why = found.files, {}
    groups, single = groups_in(local.items()), {path for path, entry in local.items() if not entry.flags & GROUP}
    taken = single | folders_of(single)
    for path in missing:
        group = unit_of(path, files[path])
        if busy := next((folder for folder in parents_of(path) if folder in found.busy), None):
            why[path] = Skipped(busy, BEING_WRITTEN)
        elif files[path].flags & GROUP and group in taken:
            why[path] = Skipped(group, "something else is in its place")
        elif stays := next((folder for folder in parents_of(path) if folder in groups), None):
            why[path] = Skipped(stays, "something else is in its place")
    return why
