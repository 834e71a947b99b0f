"""A store whose mount hangs: the job goes on, and calls that wake up later do it no harm."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.backends import PosixBackend
from kstore.deadline import Answer
from kstore.environment import Environment
from kstore.report import CommitStatus, RestoreStatus
from tests.faults.aftermath import nothing_is_lost, portable, root_is_sound, store_is_whole
from tests.faults.injection import OpenedThrough
from tests.faults.operations import OPERATIONS, Operation, Scene
from tests.trees import KEY


class HangingBackend:
    """A backend that hangs in one call, and in all calls after it, until it is released."""

    def __init__(self, real: PosixBackend, number: int) -> None:
        self._real = real
        self._calls = count()
        self._number = number
        self._released = threading.Event()
        self._others = set(threading.enumerate())
        self.hung = threading.Event()

    def path(self, name: str) -> str:
        return self._real.path(name)

    def staging_path(self) -> str:
        return self._real.staging_path()

    def rely_on(self, name: str) -> None:
        """No call to the storage."""
        self._real.rely_on(name)

    def look_ahead(self, names: Sequence[str]) -> None:
        """Nobody waits for it."""

    def make_ahead(self, folder: str) -> Callable[[], None]:
        """Nobody waits for it."""
        return lambda: None

    def __getattr__(self, method: str) -> Callable[..., Any]:
        real = getattr(self._real, method)
        if method == "open":
            return lambda name: OpenedThrough(self._make(real, (name,)), self._make)
        return lambda *arguments: self._make(real, arguments)

    def _make(self, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Make the call; it hangs if it is its turn."""
        if next(self._calls) >= self._number:
            self.hung.set()
            assert self._released.wait(60)
        return real(*arguments)

    def release(self) -> None:
        """Let all calls go on, and wait until the threads left behind have ended."""
        self._released.set()
        while left := set(threading.enumerate()) - self._others:
            for thread in left:
                if thread.ident:  # Otherwise it is being started.
                    thread.join(60)
                    assert not thread.is_alive()


@contextmanager
def hanging(scene: Scene, number: int) -> Iterator[HangingBackend]:
    """A deadline passes as soon as a call hangs."""
    backend, wait = HangingBackend(PosixBackend(scene.store), number), Answer.wait

    def wait_until_hung(answer: Answer[Any], seconds: float) -> bool:
        while not backend.hung.is_set() and not answer.is_there:
            wait(answer, 0.001)
        return wait(answer, 0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kstore.storage.PosixBackend", lambda root: backend)
        patch.setattr(Answer, "wait", wait_until_hung)
        try:
            yield backend
        finally:
            backend.release()


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_a_call_that_hangs_costs_the_job_its_cache_and_not_its_life(
    operation: Operation, layout: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in count():
        scene = operation.prepare(tmp_path / str(number), layout)
        scene.before = portable(scene.tree)
        caplog.clear()
        with hanging(scene, number) as backend:
            report = operation.run(scene)
            if not backend.hung.is_set():
                assert report.ok
                break
            assert report.status in (RestoreStatus.TIMEOUT, CommitStatus.TIMEOUT)
            assert [record.levelno for record in caplog.records if record.name == "kstore"] == [logging.WARNING]
        assert portable(scene.tree) == scene.before, "something appeared after the job had gone on"
        checks = (store_is_whole(scene), root_is_sound(scene), nothing_is_lost(scene, may_leave_staged=False))
        assert [what for check in checks for what in check] == []
    assert number > 3


def test_a_restore_that_nobody_waits_for_sets_no_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = OPERATIONS[2].prepare(tmp_path, "loose")
    environ: dict[str, str] = {}
    settings = scene.settings(scene.tree.root) | {"environ": environ, "environment": None}
    # Without torch, the store is asked for the environment before any variable is set.
    monkeypatch.setattr("kstore.origin.detect_environment", lambda *given: Environment("none", {"torch": "none"}))
    with hanging(scene, 0):
        assert kstore.restore(KEY, **settings).status is RestoreStatus.TIMEOUT
    assert environ == {}


def test_strict_raises_what_took_too_long(tmp_path: Path) -> None:
    scene = OPERATIONS[2].prepare(tmp_path, "loose")
    with hanging(scene, 0), pytest.raises(kstore.WaitTimeout, match=r"has taken more than 60 s"):
        kstore.restore(KEY, strict=True, timeout=60, **scene.settings(scene.tree.root))


def test_a_mark_that_hangs_costs_a_restore_little(tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scene, released = OPERATIONS[2].prepare(tmp_path, layout), threading.Event()
    monkeypatch.setattr(PosixBackend, "touch", lambda *arguments: released.wait(60))
    monkeypatch.setattr("kstore.used._PATIENCE", 0.01)
    assert kstore.restore(KEY, **scene.settings(scene.tree.root)).status is RestoreStatus.RESTORED
    released.set()


@pytest.mark.parametrize("verb", ["restore", "commit"])
def test_a_job_ends_although_its_store_still_hangs(tmp_path: Path, verb: str, layout: str) -> None:
    """In a thread of a pool or of its own, and with the cache root's lock held."""
    scene = OPERATIONS[2 if verb == "restore" else 1].prepare(tmp_path, layout)
    settings = {name: str(value) for name, value in scene.settings(scene.tree.root).items() if name != "environ"}
    code = (
        "import threading, kstore\n"
        "from kstore.backends import PosixBackend\n"
        "from kstore.backends.posix import PosixUpload\n"
        "def hang(*arguments): threading.Event().wait()\n"
        "PosixBackend.put_many = PosixUpload.write = hang\n"
        "PosixBackend.open = PosixBackend.get_many = hang\n"
        f"print(kstore.{verb}({KEY!r}, timeout=1, **{settings!r}).status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "timeout"
