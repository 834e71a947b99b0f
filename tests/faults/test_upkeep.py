"""Errors at every call of gc, verify, rollback and forget: workers lose nothing by them, and the next try succeeds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from kstore.errors import KstoreError
from kstore.gc import Policy
from kstore.store import Store
from tests.faults.aftermath import everything, portable, store_is_whole
from tests.faults.injection import (
    Faults,
    Strike,
    every_fault,
    every_fault_at_length,
    every_usual_fault,
    of_backend,
    of_filesystem,
)
from tests.faults.operations import Scene, add_news, published
from tests.gc.stores import pass_time
from tests.trees import KEY, Node, Tree


def _twice_published(folder: Path, layout: str) -> Scene:
    """A generation that nobody needs any more, and the one that replaced it."""
    scene = published(folder, layout)
    assert scene.published
    add_news(scene.published)
    assert _node(scene).commit().ok
    pass_time(_node(scene))
    return scene


def _condemned(folder: Path, layout: str) -> Scene:
    scene = _twice_published(folder, layout)
    _store(scene).gc(Policy(keep=1))
    pass_time(_node(scene))
    return scene


def _damaged(folder: Path, layout: str) -> Scene:
    """One file of the store has other bytes than its name says."""
    scene = published(folder, layout)
    blobs = [path for path in scene.store.glob("blobs/*/*" if layout == "loose" else "packs/*") if path.stat().st_size]
    victim = min(blobs, key=lambda path: path.name)
    victim.chmod(0o644)
    data = bytearray(victim.read_bytes())
    data[0] ^= 1
    victim.write_bytes(data)
    return scene


def _node(scene: Scene) -> Node:
    return Node(scene.folder, "publisher", layout=scene.layout)


def _store(scene: Scene) -> Store:
    return Node(scene.folder, "upkeep", layout=scene.layout).store


@dataclass(frozen=True)
class Upkeep:
    """Something that is done to a store while workers use it."""

    name: str
    prepare: Callable[[Path, str], Scene]
    run: Callable[[Store], object]
    step: int = 1
    """Without --exhaustive, one call in so many is struck."""

    def __str__(self) -> str:
        return self.name


KEEPING = [
    Upkeep("gc that condemns", _twice_published, lambda store: store.gc(Policy(keep=1)), step=3),
    Upkeep("gc that deletes", _condemned, lambda store: store.gc(Policy(keep=1)), step=3),
    Upkeep("verify", _twice_published, lambda store: store.verify(KEY)),
    Upkeep("repair", _damaged, lambda store: store.verify(KEY, repair=True), step=5),
]
"""After these operations a worker gets what it got before."""
CHANGING = [
    Upkeep("rollback", _twice_published, lambda store: store.rollback(KEY)),
    Upkeep("forget", _twice_published, lambda store: store.forget(KEY)),
]
"""After these operations it gets what it got before, or what it was to get."""


def strike_each_call(
    upkeep: Upkeep, layout: str, folder: Path, strike: Strike, check: Callable[[Scene], None], step: int = 1
) -> None:
    scene = upkeep.prepare(folder / "scene", layout)
    prepared = scene.folder.rename(folder / "prepared")
    for number in count(step=step):
        shutil.copytree(prepared, scene.folder, symlinks=True)
        with strike(number, scene.folder) as striker, suppress(KstoreError):
            upkeep.run(_store(scene))
        check(scene)
        shutil.rmtree(folder / "scene")
        if not striker.struck:
            break
    assert number > 0


def nothing_is_lost(scene: Scene) -> None:
    """Upkeep goes on undisturbed, a worker that has everything commits, and a fresh worker gets everything."""
    _store(scene).verify(KEY, repair=True)
    assert _node(scene).commit().ok
    for _ in range(4):  # a fault may have left something in tmp/, which is removed with a list of its own
        pass_time(_node(scene))
        _store(scene).gc(Policy(keep=1))
    assert list(store_is_whole(scene)) == []
    assert restored(scene) == everything(scene)
    assert not any(scene.store.glob("gc/condemned/*"))


def is_before_or_after(upkeep: Upkeep, before: dict[str, bytes], after: dict[str, bytes]) -> Callable[[Scene], None]:
    def check(scene: Scene) -> None:
        assert restored(scene) in (before, after)
        assert list(store_is_whole(scene)) == []
        upkeep.run(_store(scene))

    return check


def restored(scene: Scene) -> dict[str, bytes]:
    """What a fresh worker gets now."""
    assert scene.restore("fresh").error == ""
    files = portable(Tree(scene.folder / "fresh"))
    shutil.rmtree(scene.folder / "fresh")
    return files


@every_usual_fault
@pytest.mark.parametrize("upkeep", KEEPING, ids=str)
def test_workers_lose_nothing(
    upkeep: Upkeep, faults: Faults, layout: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    step = 1 if pytestconfig.getoption("exhaustive") else upkeep.step
    strike_each_call(upkeep, layout, tmp_path, of_backend(faults), nothing_is_lost, step)


@pytest.mark.exhaustive
@every_fault_at_length
@pytest.mark.parametrize("upkeep", KEEPING, ids=str)
def test_workers_lose_nothing_by_the_filesystem(upkeep: Upkeep, faults: Faults, layout: str, tmp_path: Path) -> None:
    strike_each_call(upkeep, layout, tmp_path, of_filesystem(faults), nothing_is_lost)


@every_fault
@pytest.mark.parametrize("upkeep", CHANGING, ids=str)
def test_upkeep_is_done_or_not_done(upkeep: Upkeep, faults: Faults, layout: str, tmp_path: Path) -> None:
    scene = upkeep.prepare(tmp_path / "before", layout)
    before = restored(scene)
    upkeep.run(_store(scene))
    after = restored(scene)
    assert after != before
    check = is_before_or_after(upkeep, before, after)
    strike_each_call(upkeep, layout, tmp_path, of_backend(faults), check)
