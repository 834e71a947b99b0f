"""This node: the cache root, the way from the store to it, and what its filesystem allows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from tempfile import TemporaryDirectory

from kstore import tables
from kstore.calls import IS_COMPILED
from kstore.components import Component
from kstore.components.table import KSTORE_FOLDER
from kstore.doctor.check import Check, bad, not_told, ok, room, warning
from kstore.doctor.published import Newest
from kstore.errors import KstoreError
from kstore.folders import nearest_existing
from kstore.layout import probe_link
from kstore.local.cacheroot import CacheRoot
from kstore.local.link import LinkMode
from kstore.local.numbered import Owner, expected_root, is_numbered, numbered_folder
from kstore.published.snapshot import Snapshot
from kstore.scope import Scope
from kstore.settings import Mode
from kstore.store import Store
from kstore.words import files, size
from kstore.worker import Worker

_ANY_KEY = "doctor"
_LONG_AGO = 1_000_000_000
"""Seconds since 1970."""
_WITHOUT_PATHS = (2, 8)
"""From this version of torch on, no C++ kernel includes a header by its path in the cache root."""
_MIN_FREE = 1 << 30
"""Bytes: a compile that runs out of space leaves damage that torch might not survive."""
_WATCHES = "/proc/sys/fs/inotify/max_user_watches"
_INSTANCES = "/proc/sys/fs/inotify/max_user_instances"
_FEW_WATCHES = 8192
"""As many folders as the cache of a large model has."""


def check_node(store: Store, key: str, newest: Newest | None, *, may_link: bool) -> Iterator[Check]:
    """Check what restores and compilers need of the local disk. `may_link` says that there is a store to link from."""
    with ExitStack() as stack:
        try:
            path = path_of(store, key)
            worker = _worker_at(store, key, path, stack)
            is_empty = worker.state.load().base is None or not _holds_any(worker.root)
        except (KstoreError, OSError) as error:
            usable = "that this user can write, and from which programs may be loaded"
            yield bad("cache root", str(error), f"set KSTORE_CACHE_ROOT to a local folder {usable}")
        else:
            yield _check_key(path, key, worker.state.scope()) or _check_root(path, worker, newest)
            link, is_copy = _check_link(store, worker) if may_link else (None, False)
            if link:
                yield link
            left = None if not is_empty and _is_restored(store, worker, newest) else newest
            yield from _check_disk(nearest_existing(path), left, takes_all=is_copy and is_empty)
    yield _check_inotify()
    yield _check_calls()


def _is_restored(store: Store, worker: Worker, newest: Newest | None) -> bool:
    """Whether the cache root has all of the newest generation."""
    own = newest.own if newest else None
    return own is not None and worker.state.grew_from(store.storage.holder(own).identity, own)


def _holds_any(root: CacheRoot) -> bool:
    """Whether the cache root holds anything. A commit of an empty one leaves a base too."""
    return any(os.path.isdir(folder) and os.listdir(folder) for folder in root.folders.values())


def path_of(store: Store, key: str) -> str:
    """The cache root that a job would use."""
    if store.settings.cache_root:
        return store.settings.cache_root
    folder = numbered_folder(store.environment.tag)
    return expected_root(folder, Owner(store.location, store.gpu, key, os.geteuid())) if key else str(folder)


def _worker_at(store: Store, key: str, path: str, stack: ExitStack) -> Worker:
    """A worker for that cache root, with nothing claimed, made or left: where no job has been, a folder that exists
    only during the examination is as good.

    If the doctor claimed a root, for instance as the user root, the job would get another number, and its files another
    path.
    """
    if not os.path.isdir(os.path.join(path, KSTORE_FOLDER)):
        path = stack.enter_context(TemporaryDirectory(prefix=".kstore-doctor-", dir=nearest_existing(path)))
    gpu, tag, settings = store.gpu, store.environment.tag, store.settings
    other = Store(
        store.location, cache_root=path, gpu=gpu, environment=tag, components=settings.components,
        environ=store.environ,
    )  # fmt: skip
    return other.worker(key or _ANY_KEY, before_import=True)


def _check_disk(path: str, newest: Newest | None, *, takes_all: bool) -> Iterator[Check]:
    try:
        yield _check_space(path, newest, takes_all=takes_all)
        yield _check_inodes(path, newest)
    except OSError as error:
        yield not_told("space", path, error)
    if not _tells_news(path):
        found = f"a folder in {path} keeps its time when a file is added to it, as on mounts of object stores"
        yield bad("folder times", found, "commits overlook what is compiled: set KSTORE_CACHE_ROOT to a local disk")


def _tells_news(path: str) -> bool:
    """Whether a folder's time changes when a name is added, as scans rely on; True also if no folder can be made."""
    with suppress(OSError), TemporaryDirectory(prefix=".kstore-doctor-", dir=path) as folder:
        os.utime(folder, (_LONG_AGO, _LONG_AGO))
        os.mkdir(f"{folder}/name")
        return os.stat(folder).st_mtime != _LONG_AGO
    return True


def _check_key(path: str, key: str, other: Scope | None) -> Check | None:
    """Whether the root is another key's; until the first commit it may be a seed's."""
    if not key or other is None or other.key == key:
        return None
    found = f"{path} has the kernels of {other.key}, and a commit publishes all of them under {key}"
    advice = f"give each key a cache root of its own, unless {other.key} is the seed of {key}"
    return warning("cache root", found, advice)


def _check_root(path: str, worker: Worker, newest: Newest | None) -> Check:
    if any(map(str.isspace, path)):
        return warning("cache root", f"{path!r} has a space in it", "torch's C++ compiles fail there: choose another")
    snapshot = newest.snapshot if newest and newest.is_own else None
    built, folders = _built_in(snapshot) if snapshot else ("", {})
    own = f"{worker.root.path}/"
    here = {name: folder.replace(own, f"{path}/", 1) for name, folder in worker.root.folders.items()}
    moved = {name: there for name, there in folders.items() if here.get(name, there) != there}
    if not moved:
        return ok("cache root", path)
    apart = {name: there for name, there in moved.items() if not there.startswith(f"{built}/")}
    settings = [f"{worker.table[name].variable}={_named(worker.table[name], there)}" for name, there in apart.items()]
    places = {here[name]: there for name, there in apart.items()}
    if len(apart) < len(moved):  # the builder had the others in its cache root
        places = {path: built}
        fixed = "one fixed KSTORE_CACHE_ROOT on the builder and here"
        settings.insert(0, fixed if is_numbered(built) else f"KSTORE_CACHE_ROOT={built}")
    return warning(
        "cache root",
        "; ".join(f"{now}, and what is published was built in {there}" for now, there in places.items()),
        f"{_cost_elsewhere(worker.environment.facts.get('torch', ''))}: {' and '.join(settings)} avoids that",
    )


def _cost_elsewhere(torch: str) -> str:
    """What it costs, with that version of torch, that artifacts were built in another folder."""
    numbers = re.match(r"(\d+)\.(\d+)", torch)
    if numbers and (int(numbers[1]), int(numbers[2])) < _WITHOUT_PATHS:
        return (
            "programs with C++ kernels fail on hosts of another kind: up to 2.7 torch has the builder's folder in such "
            "a kernel's source, and builds it again there"
        )
    return (
        "graphs and kernels hit; Triton kernels with several configurations are tuned again, C++ extensions may be "
        "built again, and releases share fewer bytes"
    )


def _built_in(snapshot: Snapshot) -> tuple[str, dict[str, str]]:
    """The builder's cache root, and where it had the components that it has files of; empty if that is not known."""
    meta = snapshot.manifest.meta
    root, folders = meta.get("cache_root"), meta.get("folders")
    if not isinstance(root, str) or not root:
        return "", {}
    known = folders if isinstance(folders, dict) else {}
    used = sorted({path.partition("/")[0] for path, _ in snapshot.manifest.items()})
    return root, {name: str(known.get(name, f"{root}/{name}")) for name in used}


def _named(component: Component, folder: str) -> str:
    """What the component's variable names for a cache in `folder`."""
    return folder.removesuffix(f"/{component.within}") if component.within else folder


def _check_link(store: Store, worker: Worker) -> tuple[Check, bool]:
    """Check how files get from the store into the cache root. Also returns whether restores are known to copy."""
    if store.settings.mode is Mode.READ:
        return ok("link mode", "not tried: the mode is read"), False
    try:
        linker = probe_link(worker)
    except (KstoreError, OSError) as error:
        why = getattr(error, "strerror", None) or error
        return warning("link mode", f"not tried: {why}", "commits will fail too; see above"), False
    if linker.mode is LinkMode.COPY:
        return ok("link mode", f"copy, out of packs: {linker.why}"), True
    return ok("link mode", str(linker.mode)), False


def _check_space(path: str, newest: Newest | None, *, takes_all: bool) -> Check:
    """Check the free space. What a restore takes is known only at its end, unless it `takes_all`: what is there
    already, or is linked, takes nothing.
    """
    free, found = room(path)
    needed, advice = newest.own.size if newest and newest.own else 0, "free some, or set KSTORE_CACHE_ROOT"
    if not free:
        return bad("space", found, advice)
    if free < needed and takes_all:
        return bad("space", f"{found}, and a restore takes {size(needed)}", advice)
    if free < needed:
        return warning("space", f"{found}, and a restore may take {size(needed)}", advice)
    if free < _MIN_FREE:
        return warning("space", found, "compilers need some too: free some, or set KSTORE_CACHE_ROOT")
    return ok("space", found)


def _check_inodes(path: str, newest: Newest | None) -> Check:
    status, needed = os.statvfs(path), newest.own.files if newest and newest.own else 0
    if not status.f_files or status.f_favail < 0:  # CephFS says -1.
        return ok("inodes", "not limited")
    if not status.f_favail or status.f_favail < needed:
        found = f"{status.f_favail} left, and a restore may make {files(needed)}"
        judge = warning if status.f_favail else bad
        return judge("inodes", found, "remove files, or set KSTORE_CACHE_ROOT")
    return ok("inodes", f"{status.f_favail} left")


def _check_inotify() -> Check:
    watches, instances = _number(_WATCHES), _number(_INSTANCES)
    found = f"{watches} watches, {instances} instances a user"
    few = [*([_WATCHES] if watches < _FEW_WATCHES else []), *([_INSTANCES] if instances < 1 else [])]
    if few:
        limits = " and ".join(path.removeprefix("/proc/sys/") for path in few)
        return warning("inotify", found, f"live commits look through the whole cache root instead; raise {limits}")
    return ok("inotify", found)


def _check_calls() -> Check:
    try:
        tables.dump({}, 0)
    except KstoreError as error:
        found = f"no manifest can be made here: {error}"
        return bad("system calls", found, "nothing is committed: mount /proc, and allow memfd_create(2)")
    if IS_COMPILED:
        return ok("system calls", "made by the compiled module")
    found = "made by Python, one by one: kstore's module in C was not compiled when it was installed"
    return warning("system calls", found, "large restores take a sixth longer: install gcc, then kstore again")


def _number(path: str) -> int:
    try:
        with open(path, encoding="utf-8") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0
