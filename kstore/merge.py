"""The three-way merge of a commit: base is what the worker started from, theirs the newest published generation,
ours the worker's cache root now. Pure: it reads and writes nothing.

Nothing that was published is lost, whoever commits when:

- a path that either side added is kept; one that ours lacks is kept;
- a path of base that theirs no longer has stays gone, unless ours changed it;
- what only ours changed is taken;
- of a group or slot that both sides added, the published one stays whole, even where the rules of another version of
  kstore made no group or slot of what is in its folder;
- a new file in a slot that base already had, or of which ours has a published file, is a new guard variant, and is kept
  (at most `MAX_VARIANTS` a slot), unless ours had nothing there when base was published (`never_had`);
- a file with a merger is merged by meaning, even where only ours changed it: a worker may have made it anew;
- where one side has a file and the other a folder, what is published stays, unless it is base's and ours replaced it:
  both at once could never be restored;
- any other conflict keeps the published file.

What ours offered and did not get in is *declined*. It is remembered with the cache root, because the next commit
would otherwise see it as a change against its new base and offer it again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from kstore.published.byfolder import ByFolder
from kstore.published.manifest import (
    GROUP,
    MERGE,
    SLOT,
    Entry,
    Files,
    compacted,
    copy_of,
    folders_of,
    parents_of,
    unit_of,
    unlike,
    with_flags,
    without_flags,
)
from kstore.published.paths import Paths

MAX_VARIANTS = 8
_FEW = 16
"""Units that a path is compared with one by one."""

Declined = Mapping[str, bytes]
"""Path → digest of what ours offered and did not get in, or `NOT_TAKEN`."""
NOT_TAKEN = b""
"""Ours never had what base has there: whatever ours has there is no change of it."""


@dataclass(slots=True)
class Merged:
    """The outcome."""

    files: ByFolder[Entry]
    """What the next generation holds."""
    taken: Paths = field(default_factory=Paths)
    """Paths whose entry is now ours."""
    to_merge: list[str] = field(default_factory=list)
    """Paths that a merger must join; `files` still has the published entry."""
    prevailing: set[str] = field(default_factory=set)
    """Those of `to_merge` that only ours changed: where the two say different things, ours holds."""
    declined: dict[str, bytes] = field(default_factory=dict)
    outdated: set[str] = field(default_factory=set)
    """Those of `declined` that ours never changed since they were published: theirs replaced them or took them out."""


def merge(
    base: Files,
    theirs: Files,
    ours: Files,
    declined: Declined,
    beside: Sequence[Files] = (),
    outdated: Set[str] = frozenset(),
) -> Merged:
    """Merge one set of files: the portable ones, or those of one host. `beside` are the other sets of the manifest.

    `outdated` are those of `declined` that were outdated when they were declined.
    """
    if NOT_TAKEN in declined.values():
        base = compacted(base).without(path for path, digest in declined.items() if digest == NOT_TAKEN)
    # What theirs has by now, such as after a rollback, got in.
    left = {p: d for p, d in declined.items() if _digest(ours, p) == d != _digest(theirs, p)}
    merged = Merged(copy_of(theirs), declined=left)
    merged.outdated.update(_outdated(base, theirs, ours))
    merged.declined.update((path, ours[path].digest) for path in merged.outdated)
    merged.outdated |= left.keys() & outdated
    if base or theirs or merged.declined:
        # What is base's and not theirs is declined by now.
        changed = [path for path in unlike(ours, theirs) if ours[path].digest != merged.declined.get(path)]
        if changed:
            _merge_changed(merged, base, theirs, ours, changed, declined)
    else:
        _take_new(merged, ours)
    if merged.taken and (theirs or any(beside)):  # else all of it is from one root, where nothing contradicts itself
        _drop_replaced(merged, base, theirs, ours)
        _decline_contradictions(merged, theirs, ours, beside)
    return merged


def never_had(published: Files, ours: Files, missed: Container[bytes] = ()) -> dict[str, bytes]:
    """What ours makes without the published version, if it makes it later: what is merged by meaning and ours lacks,
    and what is in a slot in which ours has nothing. Measurements must be joined then, and the first answer to a slot's
    key is no variant of the published one. It takes its place beside one that a restore could not read (`missed`).
    """
    some = with_flags(published, MERGE | SLOT)
    lacks = [(path, some[path]) for path in some.missing_from(compacted(ours))]
    if not lacks:
        return {}
    filled = {unit_of(path, entry) for path, entry in with_flags(ours, SLOT).items()}
    return {
        path: NOT_TAKEN
        for path, entry in lacks
        if entry.flags & MERGE or (unit_of(path, entry) not in filled and entry.digest not in missed)
    }


def still_declined(declined: Declined, base: Files, theirs: Files, ours: Files) -> dict[str, bytes]:
    """What stays declined although theirs did not grow from base, because base's generation is damaged or lost: that on
    which base and theirs agree. Elsewhere, what ours had lost against may be gone.
    """
    declined = {path: digest for path, digest in declined.items() if _digest(ours, path) == digest}
    if not declined:
        return {}
    sides = (base, theirs), (theirs, base)
    differing = [(path, one[path]) for one, other in sides for path in unlike(one, other)]
    units, folders = {unit_of(*item) for item in differing}, folders_of(path for path, _ in differing)
    return {
        path: digest
        for path, digest in declined.items()
        if unit_of(path, ours[path]) not in folders and units.isdisjoint((path, *parents_of(path)))
    }


def count_declined(declined: Declined) -> int:
    """How many files of ours did not get in."""
    return sum(digest != NOT_TAKEN for digest in declined.values())


def _outdated(base: Files, theirs: Files, ours: Files) -> list[str]:
    if base is theirs:
        return []
    return [path for path in unlike(base, theirs) if _digest(ours, path) == base[path].digest]


def _take_new(merged: Merged, ours: Files) -> None:
    """Where nothing was, nothing is published and nothing was declined, all is new, in a group or not."""
    slots: dict[str, list[str]] = defaultdict(list)
    for path, entry in with_flags(ours, SLOT).items():
        slots[unit_of(path, entry)].append(path)
    merged.files = without_flags(ours, SLOT)
    merged.taken.update(merged.files)
    _merge_slots(merged, {}, {}, ours, slots)


def _merge_changed(
    merged: Merged, base: Files, theirs: Files, ours: Files, changed: list[str], declined: Declined
) -> None:
    groups: dict[str, list[str]] = defaultdict(list)
    slots: dict[str, list[str]] = defaultdict(list)
    around = _groups_around(theirs, [path for path in changed if not ours[path].flags & GROUP])
    single: list[str] = []
    for path in changed:
        flags = ours[path].flags
        if flags & GROUP:
            groups[unit_of(path, ours[path])].append(path)
        elif path in around:
            groups[around[path]].append(path)
        elif flags & SLOT:
            slots[unit_of(path, ours[path])].append(path)
        else:
            single.append(path)
    _merge_single(merged, base, theirs, ours, single, declined)
    if groups:
        every = groups if len(changed) == len(ours) else _by_unit(ours, groups)
        _merge_groups(merged, base, theirs, ours, every)
    if slots:
        _merge_slots(merged, base, theirs, ours, slots)


def _groups_around(theirs: Files, paths: Sequence[str]) -> dict[str, str]:
    """Published groups that these files of ours are in, though ours has them in none."""
    folders = {folder for path in paths for folder in parents_of(path)}
    tops = tuple(f"{folder}/" for folder in folders if "/" not in folder)
    grouped = (path for path in with_flags(theirs, GROUP) if path.startswith(tops))
    groups = folders & {unit_of(path, theirs[path]) for path in grouped}
    both = ((path, next((folder for folder in parents_of(path) if folder in groups), "")) for path in paths)
    return {path: group for path, group in both if group}


def _merge_single(
    merged: Merged, base: Files, theirs: Files, ours: Files, paths: Sequence[str], declined: Declined
) -> None:
    """What was `declined` was never base's file in ours: what base has and ours lacks was not taken out by ours."""
    took: list[str] = []
    for path in paths:
        published = theirs.get(path)
        is_base = published is None or published.digest == _digest(base, path)
        if published and published.flags & ours[path].flags & MERGE:
            merged.to_merge.append(path)
            if is_base and path not in declined:
                merged.prevailing.add(path)
        elif is_base:
            took.append(path)
        else:
            merged.declined[path] = ours[path].digest
    _take(merged, ours, took)


def _merge_groups(merged: Merged, base: Files, theirs: Files, ours: Files, groups: Mapping[str, list[str]]) -> None:
    """`groups` has all files of ours in each."""
    of_theirs = _by_unit(theirs, groups)
    of_base = of_theirs if base is theirs else _by_unit(base, groups)
    for group, paths in sorted(groups.items()):
        published = of_theirs[group]
        if published and _content(theirs, published) != _content(base, of_base[group]):
            merged.declined.update((path, ours[path].digest) for path in paths)
            continue
        merged.files.drop(published)
        _take(merged, ours, paths)


def _merge_slots(merged: Merged, base: Files, theirs: Files, ours: Files, slots: Mapping[str, list[str]]) -> None:
    of_base, of_theirs = (_by_unit(files, slots) for files in (base, theirs))
    for slot, paths in sorted(slots.items()):
        published = of_theirs[slot]
        # If ours has one of these, it grew from the slot, even if base is another key's, or no longer known.
        grew = of_base[slot] or any(_digest(ours, path) == theirs[path].digest for path in published)
        room = max(0, MAX_VARIANTS - len(published)) if grew or not published else 0
        # Oldest first: the entry that was there when the slot was first answered, then its variants.
        by_age = sorted(paths, key=lambda path: (ours[path].mtime_ns, path))
        _take(merged, ours, by_age[:room])
        merged.declined.update((path, ours[path].digest) for path in by_age[room:])


def _drop_replaced(merged: Merged, base: Files, theirs: Files, ours: Files) -> None:
    """Leave out base's files that nobody else has changed and where ours has a folder, or a file above them."""
    lacks = compacted(base).missing_from(compacted(ours))
    gone = [path for path in lacks if path in merged.files and _digest(theirs, path) == base[path].digest]
    folders = folders_of(ours) if gone else set()
    merged.files.drop(path for path in gone if path in folders or any(parent in ours for parent in parents_of(path)))


def _decline_contradictions(merged: Merged, theirs: Files, ours: Files, beside: Sequence[Files]) -> None:
    """Leave out each taken file that is a folder elsewhere, or is below a file, with its group or slot."""
    every = (merged.files, *beside)
    folders = folders_of(*every)
    both = {path for files in every for path in folders & files.keys()}
    if not both:
        return
    units = {
        unit_of(path, ours[path])
        for path in merged.taken
        if path in both or any(parent in both for parent in parents_of(path))
    }
    left_out = {path for path in merged.taken if unit_of(path, ours[path]) in units}
    merged.taken -= left_out
    merged.declined.update((path, ours[path].digest) for path in left_out)
    merged.files = merged.files.without(left_out)
    merged.files.put(item for item in theirs.items() if unit_of(*item) in units)


def _take(merged: Merged, ours: Files, paths: Sequence[str]) -> None:
    merged.files.put((path, ours[path]) for path in paths)
    merged.taken.update(paths)


def _digest(files: Files, path: str) -> bytes | None:
    entry = files.get(path)
    return entry.digest if entry else None


def _content(files: Files, paths: Iterable[str]) -> set[tuple[str, bytes]]:
    return {(path, files[path].digest) for path in paths}


def _by_unit(files: Files, units: Iterable[str]) -> Mapping[str, list[str]]:
    """Everything in the folders of these units, including what by itself is in no unit, or in another one: that was
    committed by another version, which had other rules.
    """
    wanted = set(units)
    depths = sorted({unit.count("/") + 1 for unit in wanted})
    starts = tuple(f"{unit}/" for unit in wanted)
    found: dict[str, list[str]] = defaultdict(list)
    # Where little is new, most files can be told at once to be in none of them.
    for path in files if len(starts) > _FEW else (path for path in files if path.startswith(starts)):
        for depth in depths:
            *parts, inside = path.split("/", depth)
            if len(parts) == depth and (unit := path[: -len(inside) - 1]) in wanted:
                found[unit].append(path)
    return found
