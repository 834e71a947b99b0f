"""Writes cache trees like those that real compilers leave, and provides workers that use them."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest

from kstore.components import load_table
from kstore.environment import Host
from kstore.local import unread
from kstore.local.cacheroot import CacheRoot
from kstore.local.found import Scan
from kstore.local.index import Index
from kstore.local.reading import Batch, Content, read_finished, read_in_batches
from kstore.local.scan import scan
from kstore.local.state import StateFolder
from kstore.local.unread import Offer, Unread
from kstore.published.byfolder import ByFolder
from kstore.published.manifest import Entry, Flag
from kstore.published.ref import FORMAT, Ref
from kstore.published.refs import Refs
from kstore.report import CommitReport, RestoreReport
from kstore.store import Store

KEY = "model/v1"
GPU = "nvidia-test-sm90"
ENVIRONMENT = "torch-test"
HOUR = 3600.0
WITHOUT_TORCH = ("jax", "warp", "cupy")
"""Packages that compile without torch."""


def hide_what_needs_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if none of them were installed."""
    for package in WITHOUT_TORCH:
        monkeypatch.setitem(sys.modules, package, None)


class Tree:
    """A cache root as compilers fill it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, path: str, data: bytes, *, age: float = HOUR, mode: int = 0o644) -> str:
        """Write a file under a temporary name and rename it, as the compilers do; `age` is in seconds."""
        target = f"{self.root}/{path}"
        folder = target.rpartition("/")[0]
        temporary = f"{folder}/.{os.getpid()}.tmp"
        os.makedirs(folder, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(data)
        os.chmod(temporary, mode)
        then = time.time_ns() - int(age * 1e9)
        os.utime(temporary, ns=(then, then))
        os.replace(temporary, target)
        return path

    def read(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def has(self, path: str) -> bool:
        return (self.root / path).exists()

    def wrapper(self, name: str = "one") -> str:
        """A generated module."""
        code = f"# {name}\ndef call(args):\n    return {name!r}\n".encode()
        digest = hashlib.sha256(code).hexdigest()
        return self.put(f"inductor/{digest[:2]}/c{digest}.py", code)

    def graph(self, key: str = "fone", content: str = "graph") -> str:
        """A compiled graph, one of the answers to `key`."""
        data = f"pickle {key} {content}".encode() * 10
        return self.put(f"inductor/fxgraph/{key[1:3]}/{key}/{_name(data)}", data)

    def autograd(self, key: str = "aone", content: str = "backward") -> str:
        data = f"pickle {key} {content}".encode() * 10
        return self.put(f"inductor/aotautograd/{key}/{_name(data)}", data)

    def kernel(self, name: str = "one", variant: str = "", *, below: str = "triton") -> str:
        """A Triton kernel: a folder of eight files, one of which lists the others by absolute path."""
        folder = f"{below}/{_name(name.encode())}"
        files = {f"k.{suffix}": f"{suffix} of {name} {variant}\n".encode() * 20 for suffix in SUFFIXES}
        for file, data in files.items():
            self.put(f"{folder}/{file}", data)
        children = {file: f"{self.root}/{folder}/{file}" for file in files}
        self.put(f"{folder}/__grp__k.json", json.dumps({"child_paths": children}).encode())
        return folder

    def timings(self, values: dict[str, Any], name: str = "system") -> str:
        """What max-autotune measured; replaced as a whole."""
        return self.put(f"inductor/cache/{name}", json.dumps(values).encode())

    def cacheroot(self, *components: str) -> CacheRoot:
        folders = {name: f"{self.root}/{name}" for name in components or ("inductor", "triton")}
        return CacheRoot(str(self.root), folders, {})

    def state(self, *components: str) -> StateFolder:
        root = self.cacheroot(*components)
        os.makedirs(root.state, exist_ok=True)
        return StateFolder(root, "rules")

    def scan(self, index: Index | None = None, *components: str, offer: Offer | None = None) -> Scan:
        return scan(self.cacheroot(*components), load_table(), index or Index(), dict, offer=offer)


SUFFIXES = ("source", "ttir", "ttgir", "llir", "ptx", "cubin", "json")


class Node:
    """One worker: its own cache root, and a store that it shares with the other nodes of `folder`."""

    def __init__(self, folder: Path, name: str = "node", *, layout: str | None = "loose", **settings: Any) -> None:
        self.tree = Tree(folder / name)
        self.environ: dict[str, str] = {}
        self.location = folder / "store"
        settings = {"gpu": GPU, "environment": ENVIRONMENT, "environ": self.environ, **settings}
        self.store = Store(self.location, cache_root=self.tree.root, layout=layout, **settings)

    def restore(self, key: str = KEY, **choice: Any) -> RestoreReport:
        return self.store.restore(key, **choice)

    def commit(self, key: str = KEY) -> CommitReport:
        return self.store.commit(key)

    def newest(self, key: str = KEY) -> Ref:
        ref = self.store.newest(self.store.scope(key))
        assert ref is not None
        return ref

    def published(self, key: str = KEY) -> dict[str, Entry]:
        return self.store.snapshot(self.newest(key)).manifest.files


def _name(data: bytes) -> str:
    return base64.b32encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def before_each_read(monkeypatch: pytest.MonkeyPatch, happens: Callable[[str], object]) -> None:
    """`happens` is called with a file's artifact path before a scan reads it; the files before it have been offered."""

    def read_one_by_one(
        files: Iterable[tuple[Unread, int]],
        paths_of: Callable[[Sequence[Unread]], Sequence[str]],
        then: Callable[[Batch[Unread]], Batch[Unread]] | None,
    ) -> Iterator[Batch[Unread]]:
        for file, size in files:
            happens(file.path)
            yield from read_in_batches([(file, size)], paths_of, then)

    monkeypatch.setattr(unread, "read_in_batches", read_one_by_one)


def failing_to_read(monkeypatch: pytest.MonkeyPatch, part: str, error: Exception) -> None:
    """A scan reads each file by itself, and fails with `error` for those whose path contains `part`."""

    def read(path: str) -> Content:
        if part in path:
            raise error
        return read_finished(path)

    monkeypatch.setattr("kstore.local.artifact.read_finished", read)
    monkeypatch.setattr("kstore.local.reading._BATCH", 0)


def count_folders_written_anew(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Folders of mappings that are written anew from now on, because files of theirs are taken out."""
    written: list[str | None] = []
    take_out = ByFolder._take_out

    def note(self: ByFolder[Any], folder: str | None, gone: Set[str]) -> None:
        written.append(folder)
        take_out(self, folder, gone)

    monkeypatch.setattr(ByFolder, "_take_out", note)
    return written


def without_nameless(folder: Path) -> str:
    """Why there are no files without a name (O_TMPFILE) in a folder; empty if there are."""
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY))
    except OSError as error:
        return f"the filesystem of {folder} has no files without a name: {error.strerror}"
    return ""


def contents(folder: Path) -> dict[str, bytes]:
    """Relative path → bytes of every regular file, without kstore's own files."""
    found, top = {}, str(folder)
    for where, folders, names in os.walk(top):
        if where == top and ".kstore" in folders:
            folders.remove(".kstore")
        for path in (f"{where}/{name}" for name in names):
            if os.path.isfile(path) and not os.path.islink(path):
                found[path[len(top) + 1 :]] = Path(path).read_bytes()
    return found


def without_relocated(files: dict[str, bytes]) -> dict[str, bytes]:
    """Without the files that hold paths, and so differ from one root to another."""
    return {path: data for path, data in files.items() if "__grp__" not in path}


def listing(folder: Path) -> dict[str, tuple[int, int, int, int]]:
    """Everything below a folder, with everything that changes when it is written to."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        found[str(path.relative_to(folder))] = (status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns)
    return found


def entry(content: str = "", flags: int = 0, unit: int = 0, *, mtime_ns: int = 0) -> Entry:
    """An entry of a manifest; `content` stands for the bytes."""
    return Entry(hashlib.sha256(content.encode()).digest(), len(content), mtime_ns, 0o644, int(flags), unit)


@contextmanager
def unmounted(location: Path) -> Iterator[None]:
    """A folder's filesystem is unmounted meanwhile: an empty folder stays, and must still be empty at the end."""
    away = location.with_name("away")
    location.rename(away)
    location.mkdir()
    yield
    assert list(location.iterdir()) == []
    location.rmdir()
    away.rename(location)


def grouped(content: str = "") -> Entry:
    """A file `<component>/<group>/<name>`."""
    return entry(content, Flag.GROUP, 2)


def on_host(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """From now on, this is a host of that name."""
    monkeypatch.setattr("kstore.environment.ownhost.detect_host", lambda _: Host(name * 16, {"cpu": name}))


def restored_on(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str) -> Node:
    """A fresh worker on a host of that name, which has restored."""
    on_host(monkeypatch, name)
    node = Node(folder, f"restored on {name}")
    node.restore()
    return node


@contextmanager
def held(lock: Path) -> Iterator[None]:
    """As long as a compiler holds this lock."""
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def shared_object() -> bytes:
    """A real shared object."""
    folder = Path(lmdb.__file__).parent
    return min(folder.glob("*.so"), key=lambda path: path.stat().st_size).read_bytes()


def as_if_newer(ref: Path) -> None:
    """Change a ref's file to one that a newer kstore has written."""
    ref.chmod(0o644)
    ref.write_text(json.dumps({**json.loads(ref.read_text()), "format": FORMAT + 1}))


def publish(refs: Refs, ref: Ref) -> bool:
    """Publish as a commit does, without the steps before it."""
    with refs.reserve() as reserved:
        return refs.publish(ref, reserved)


def in_processes(function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], timeout: float = 120) -> list[Any]:
    """Call `function` once for each tuple, all at the same moment, each in a process of its own."""
    context = multiprocessing.get_context("fork")
    ready = context.Barrier(len(arguments))
    results: Any = context.Queue()

    def run(number: int) -> None:
        ready.wait(timeout)
        try:
            results.put((number, function(*arguments[number]), None))
        except Exception as error:
            results.put((number, None, repr(error)))

    processes = [context.Process(target=run, args=(number,)) for number in range(len(arguments))]
    for process in processes:
        process.start()
    answers = {number: (value, error) for number, value, error in (results.get(timeout=timeout) for _ in processes)}
    for process in processes:
        process.join(timeout)
    assert [error for _, error in answers.values() if error] == []
    return [answers[number][0] for number in range(len(arguments))]
