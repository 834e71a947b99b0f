"""The store: whether it can be reached, read and written."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import TypeVar

from kstore.backends.base import STAGING
from kstore.backends.publishing import CannotPublish, has_hard_links
from kstore.blobs import Layout
from kstore.deadline import Waiting, within
from kstore.doctor.check import Check, again, bad, not_told, ok, room, warning
from kstore.errors import KstoreError
from kstore.folders import nearest_existing
from kstore.mounts import mounts
from kstore.published.layers import attempt
from kstore.settings import Mode
from kstore.storage import ELSEWHERE, Storage
from kstore.store import Store

Found = TypeVar("Found")

_MIN_FREE = 1 << 30
"""Bytes: a commit of a large model takes as much."""
_SHOWN = 4
"""Folders that are named."""
_NOTES = ("stats", "leases", "used", "groups")
"""Folders of what workers note for others, without which a commit publishes all the same."""
_WITHOUT_NOTES = (
    "but they may not be counted, gc may take what they use for unused, --wait may wait in vain, --group may restore "
    "nothing, and imports may fail"
)
_PATIENCE = 30.0
"""Seconds: a user who examines a mount that hangs wants to be told."""


def check_shared(store: Store, key: str) -> Iterator[Check]:
    """Check what every key needs, and whether the folders of `key` can be written, if one is given."""
    yield from _check_first(store, key)
    for below in store.storage.below.named:
        yield _check_below(store, below)


def _check_below(store: Store, below: Storage) -> Check:
    """Check whether kernels can be restored from a store below, such as one in an image."""
    try:
        if _within(store, below.location, lambda: below.settings):
            return ok("store below", below.location)
    except (KstoreError, OSError) as error:
        return warning("store below", *_advised(str(error)))
    advice = "nothing is restored from there; if this image should bring kernels along, bake them"
    return warning("store below", f"there is none at {below.location}", advice)


def _check_first(store: Store, key: str) -> Iterator[Check]:
    try:
        is_made = _look(store)
    except (KstoreError, OSError) as error:
        yield bad("store", *_advised(str(error)))
        return
    if store.storage.trouble:
        found, advice = _advised(store.storage.trouble)
        yield warning("store", found, f"only the stores below are read, commits will fail: {advice}")
        return
    if not is_made:
        judge = warning if store.storage.below.there else bad
        found, above = f"there is none at {store.location} yet", nearest_existing(store.location)
        advice = f"the first commit makes it; or run `{again(store, 'init')}`"
        if _is_refused(above):
            found = f"{found}, and nobody here can make it"
            advice = f"check the mount and the permissions of {above}, or name another with KSTORE_ROOT or --store"
        elif store.settings.mode is not Mode.READ and (trouble := _publishing(above, ".kstore-doctor")):
            found, advice = f"{found}: {trouble.found}", trouble.advice
        yield judge("store", found, advice)
        return
    yield _check_refs(store)
    yield _check_writable(store, key)
    if store.settings.mode is not Mode.READ:
        yield _check_room(store)


def _check_refs(store: Store) -> Check:
    """Check whether it still says what is published: the next commit would begin that anew."""
    with suppress(OSError):  # One whose folders cannot be listed works all the same.
        if store.storage.refs.are_lost():
            judge = warning if store.storage.below.there else bad
            found = f"{store.location} has lost its folder `refs`, which says what is published"
            advice = "bring it back before the next commit: that begins a new one, and gc then deletes everything else"
            return judge("store", found, advice)
    return ok("store", store.location)


def _advised(trouble: str) -> tuple[str, str]:
    """What is wrong with a store, and what to do, which is what most errors end with."""
    found, _, advice = trouble.rpartition("; ")
    return (found, advice) if found else (trouble, "mount it, or name another with KSTORE_ROOT or --store")


def _look(store: Store) -> bool:
    """Whether the store has been made. If there is a store below, trouble is only noted, as in a restore."""
    look = partial(_is_made, store.storage)
    if store.storage.below:
        return attempt(store.storage, look, False)
    return _within(store, store.location, look)


def _within(store: Store, location: str, look: Callable[[], Found]) -> Found:
    """What `look` finds, unless the store there hangs."""
    seconds = min(store.settings.timeout or _PATIENCE, _PATIENCE)
    return within(seconds, Waiting(), f"looking at {location}", look)


def _is_made(storage: Storage) -> bool:
    storage.open()
    return bool(storage.settings) or storage.is_made()


def _check_writable(store: Store, key: str) -> Check:
    if store.settings.mode is Mode.READ:
        return ok("writing", "not needed: the mode is read")
    try:
        store.storage.clock()
        refused = [folder for folder in _written(store, key) if _is_refused(f"{store.location}/{folder}")]
    except (KstoreError, OSError) as error:
        return warning(
            "writing",
            f"{store.location} cannot be written: {getattr(error, 'strerror', None) or error}",
            "restores work, commits do not; check the mount and its permissions, or set KSTORE_MODE=read",
        )
    if refused:
        more = f" and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
        matters = any(folder.partition("/")[0] not in _NOTES for folder in refused)
        outlook = "restores work, commits may fail" if matters else f"restores and commits work, {_WITHOUT_NOTES}"
        return warning(
            "writing",
            f"folders of {store.location} cannot be written, perhaps because another user made them: "
            f"{', '.join(refused[:_SHOWN])}{more}",
            f"{outlook}: put all who write in one group, with the setgid bit on all folders and "
            "umask 002, or set KSTORE_MODE=read",
        )
    return _publishing(f"{store.location}/{STAGING}", "doctor") or ok("writing", "a file was made and removed")


def _written(store: Store, key: str) -> Iterator[str]:
    """The folders that commits write in, and what is noted beside them: uses, statistics, who compiles, what ranks and
    imports note.
    """
    layout = store.settings.layout
    if layout is not Layout.LOOSE:
        yield "packs"
    if layout is not Layout.PACKED:
        yield from ("blobs", *(f"blobs/{child.name}" for child in store.storage.backend.list("blobs")))
    for top in ("refs", "leases", *(["stats"] if store.settings.stats else [])):
        yield from accumulate((top, *(store.scope(key).path.split("/") if key else ())), "{}/{}".format)
    yield from ("used", "groups")


def _is_refused(folder: str) -> bool:
    """Whether the folder exists and no file can be made in it."""
    return os.path.isdir(folder) and not os.access(folder, os.W_OK | os.X_OK)


def _makes_files(storage: Storage) -> bool:
    """Whether files can be made although the filesystem reports no free inodes, as rclone's mounts do."""
    try:
        storage.clock()
    except (KstoreError, OSError):
        return False
    return True


def _publishing(folder: str, prefix: str) -> Check | None:
    """What keeps a store in this folder from publishing each name once, if anything does; tried out with a file.

    If this process is killed now, gc finds the file in `tmp/`. Elsewhere its name is hidden: a first commit, which
    makes the store, must not conclude that the folder holds something else.
    """
    try:
        if has_hard_links(f"{folder}/{prefix}-{secrets.token_hex(8)}") or not (kind := _fuse_kind(folder)):
            return None
    except CannotPublish as error:
        return warning("writing", str(error.strerror), f"no commit can publish anything: {ELSEWHERE}")
    except OSError:  # Whether files can be made is a check of its own.
        return None
    return warning(
        "writing",
        f"{folder} is on {kind}, which has no hard links: each mount checks for itself whether a name is free, "
        "so two hosts may find it free at once, and one replaces what the other has just published",
        "let the workers of one host commit and set KSTORE_MODE=read on all others, or put the store on a filesystem "
        "with hard links",
    )


def _fuse_kind(folder: str) -> str:
    """Which kind of FUSE the folder is on, such as `fuse.blobfuse2`; empty if it is on something else."""
    device = os.stat(folder).st_dev
    return next((m.kind for m in mounts() if m.device == device and m.kind.startswith("fuse")), "")


def _check_room(store: Store) -> Check:
    """Check the room that a commit needs; restores need none."""
    try:
        free, found = room(store.location)
        status = os.statvfs(store.location)
    except OSError as error:
        return not_told("store space", store.location, error)
    lacks_inodes = status.f_files and not status.f_favail and not _makes_files(store.storage)
    if free >= _MIN_FREE and not lacks_inodes:
        return ok("store space", found)
    outlook = "commits may fail" if free and not lacks_inodes else "commits will fail"
    advice = f"restores work, {outlook}: run `{again(store, 'gc')}`, or free some"
    return warning("store space", f"{found}, but no inodes" if lacks_inodes else found, advice)
