"""KSTORE_MODE=read: nothing is ever written to the store, whatever a worker does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.backends import Backend, LocalPaths, PosixBackend
from kstore.errors import StoreUnavailable
from kstore.gc import Policy
from kstore.operations.wait import lease_of
from kstore.report import CommitStatus, RestoreStatus
from tests.trees import ENVIRONMENT, GPU, KEY, Node, Tree, listing

SHORT = 0.3
REPOSITORY = Path(__file__).parents[2]
READING = ("get", "get_many", "list", "list_made", "look_ahead", "open", "stat", "stat_many", "path", "rely_on")
pytestmark = pytest.mark.usefixtures("host")


class ReadOnlyBackend:
    """A backend that knows only the calls that read."""

    def __init__(self, root: Any) -> None:
        self._real = PosixBackend(root)

    def __getattr__(self, method: str) -> Any:
        if method not in READING:
            raise AssertionError(f"{method} was called")
        return getattr(self._real, method)


def test_every_call_of_a_backend_reads_or_is_refused() -> None:
    calls = {name for protocol in (Backend, LocalPaths) for name in vars(protocol) if not name.startswith("_")}
    assert calls - set(READING) == {
        "put", "put_if_absent", "put_many", "touch", "upload", "write_out", "make_ahead", "delete", "move", "clock",
    }  # fmt: skip


@pytest.fixture(params=["loose", "packed"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """With one generation of KEY."""
    builder = Node(tmp_path, "builder", layout=request.param)
    builder.tree.kernel("one")
    builder.tree.wrapper("one")
    builder.commit()
    return builder.location


@pytest.fixture
def untouched(store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The store, in which nothing may change."""
    before = listing(store), store.stat().st_mtime_ns
    with monkeypatch.context() as patch:
        patch.setattr("kstore.storage.PosixBackend", ReadOnlyBackend)
        yield store
    assert (listing(store), store.stat().st_mtime_ns) == before


@contextmanager
def worker(folder: Path, store: Path, name: str = "reader") -> Iterator[dict[str, Any]]:
    yield {
        "store": store, "cache_root": folder / name, "environ": {"KSTORE_MODE": "read"}, "strict": True,
        "gpu": GPU, "environment": ENVIRONMENT, "layout": "auto",
    }  # fmt: skip


def test_a_hit(tmp_path: Path, untouched: Path) -> None:
    with worker(tmp_path, untouched) as settings:
        assert kstore.restore(KEY, wait=SHORT, **settings).status is RestoreStatus.RESTORED
        assert kstore.restore(KEY, **settings).status is RestoreStatus.CURRENT


def test_a_miss(tmp_path: Path, untouched: Path) -> None:
    with worker(tmp_path, untouched) as settings:
        assert kstore.restore("other", **settings).status is RestoreStatus.MISS
        assert kstore.restore("other", seed=KEY, **settings).status is RestoreStatus.SEEDED


def test_a_wait_that_nobody_ends(tmp_path: Path, untouched: Path) -> None:
    with worker(tmp_path, untouched) as settings:
        report = kstore.restore("other", wait=SHORT, **settings)
    assert (report.status, report.leads) == (RestoreStatus.MISS, False)
    assert report.waited > 0


def test_a_wait_for_a_holder_that_is_gone(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the lease nor the store's clock is touched."""
    builder = Node(tmp_path, "builder")
    assert lease_of(builder.store.storage, builder.store.scope("other"), SHORT / 3).take(None)
    before = listing(store)
    monkeypatch.setattr("kstore.storage.PosixBackend", ReadOnlyBackend)
    with worker(tmp_path, store) as settings:
        report = kstore.restore("other", wait=SHORT, **settings)
    assert (report.status, report.leads, bool(report.waited_for)) == (RestoreStatus.MISS, False, True)
    assert listing(store) == before


def test_a_commit(tmp_path: Path, untouched: Path) -> None:
    Tree(tmp_path / "reader").kernel("two")
    with worker(tmp_path, untouched) as settings:
        assert kstore.commit(KEY, **settings).status is CommitStatus.READ_ONLY


def test_synchronized(tmp_path: Path, untouched: Path) -> None:
    for key in (KEY, "other"):
        with (
            worker(tmp_path, untouched, key) as settings,
            kstore.synchronized(key, wait=SHORT, **settings) as cache,
        ):
            Tree(tmp_path / key).kernel("two")
        assert cache.committed.status is CommitStatus.READ_ONLY
        assert cache.restored.ok is (key == KEY)


EXEC = """
import sys
import kstore.storage
from kstore.cli.program import run
from tests.flight.test_read_only import ReadOnlyBackend

kstore.storage.PosixBackend = ReadOnlyBackend
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.parametrize("key", [KEY, "other"])
def test_exec(tmp_path: Path, untouched: Path, key: str) -> None:
    scope = ("--store", untouched, "--cache-root", tmp_path / "reader", "--gpu", GPU, "--environment", ENVIRONMENT)
    command = [sys.executable, "-c", EXEC, "exec", key, *scope, "--wait", "1", "--", "echo", "ran"]
    environ = os.environ | {"KSTORE_MODE": "read"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert f"nothing is committed to {key}: the mode is read" in done.stderr
    assert "failed" not in done.stderr


WRITERS: dict[str, Callable[[kstore.Store], object]] = {
    "gc": lambda store: store.gc(Policy()),
    "a dry run of gc": lambda store: store.gc(Policy(), dry_run=True),
    "repair": lambda store: store.verify(KEY, repair=True),
    "forget": lambda store: store.forget(KEY),
    "quarantine": lambda store: store.quarantine(KEY),
    "rollback": lambda store: store.rollback(KEY),
    "pin": lambda store: store.pin(KEY, 1),
    "unpin": lambda store: store.unpin(KEY, 1),
}


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS.keys())
def test_calls_that_would_write_are_refused(
    tmp_path: Path, untouched: Path, writer: Callable[[kstore.Store], object]
) -> None:
    with worker(tmp_path, untouched) as settings:
        del settings["strict"]
        store = kstore.Store(settings.pop("store"), **settings)
    with pytest.raises(StoreUnavailable, match="mode is `read`"):
        writer(store)


def test_a_store_is_not_made_and_an_existing_one_is_left(tmp_path: Path, untouched: Path) -> None:
    with worker(tmp_path, untouched) as settings:
        del settings["strict"], settings["store"]
        assert not kstore.Store(untouched, **settings).create()
        with pytest.raises(StoreUnavailable, match="mode is `read`"):
            kstore.Store(tmp_path / "another", **settings).create()
    assert not (tmp_path / "another").exists()


def test_what_only_reads_does_so(tmp_path: Path, untouched: Path) -> None:
    with worker(tmp_path, untouched) as settings:
        del settings["strict"]
        store = kstore.Store(settings.pop("store"), **settings)
    assert store.verify(KEY).ok
    assert [scope.key for scope in store.scopes()] == [KEY]
    assert len(store.generations(store.scope(KEY))) == 1
    store.release(KEY)


def test_where_there_is_no_store_none_is_made(tmp_path: Path) -> None:
    with worker(tmp_path, tmp_path / "store") as settings:
        assert kstore.restore(KEY, wait=SHORT, **settings).status is RestoreStatus.MISS
        assert kstore.commit(KEY, **settings).status is CommitStatus.READ_ONLY
    assert not (tmp_path / "store").exists()
