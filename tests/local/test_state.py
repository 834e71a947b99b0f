from __future__ import annotations

import os
from pathlib import Path

import pytest

from kstore.digest import digest_of
from kstore.errors import CacheRootError, WaitTimeout
from kstore.local.cacheroot import CacheRoot
from kstore.local.index import Index, Known, compact_known
from kstore.local.state import Base, State, StateFolder
from kstore.published.manifest import Manifest
from kstore.published.ref import Ref
from kstore.published.snapshot import Snapshot
from kstore.scope import Scope
from tests.trees import entry

INDEX = Index(compact_known([("inductor/ab/c.py", Known(entry(), 1, 2))]))
DECLINED = {"triton/K/k.ptx": b"\1" * 32}


def base() -> Base:
    data = Manifest({"inductor/ab/c.py": entry()}).dump()
    ref = Ref(Scope("gpu", "model/v1", "env"), 3, digest_of(data), len(data), (), 1.0, "me", 1, 1)
    return Base("/store", Snapshot(ref, data))


@pytest.fixture
def root(tmp_path: Path) -> CacheRoot:
    return CacheRoot(str(tmp_path), {}, {})


@pytest.fixture
def state(root: CacheRoot) -> StateFolder:
    os.makedirs(root.state)
    return StateFolder(root, "rules")


def test_a_fresh_root_remembers_nothing(state: StateFolder) -> None:
    assert state.load() == State()


def test_what_was_saved_is_loaded(state: StateFolder) -> None:
    state.save_index(INDEX)
    state.save_base(base(), DECLINED, host="a", synced=True)
    assert state.load() == State(INDEX, base(), DECLINED, host="a", synced=True)


def test_under_other_rules_the_index_means_nothing(root: CacheRoot, state: StateFolder) -> None:
    state.save_index(INDEX)
    state.save_base(base(), {}, host="a", synced=True)
    other = StateFolder(root, "other rules").load()
    assert (other.index, other.base) == (Index(), base())


def damaged(root: CacheRoot, name: str, data: bytes) -> State:
    (path,) = Path(root.state).glob(name)
    path.write_bytes(data)
    return StateFolder(root, "rules").load()


@pytest.mark.parametrize("data", [b"", b"garbage", b"{}", b"null", b'{"ref": 5}'])
@pytest.mark.parametrize("name", ["index-*", "base", "sync.json"])
def test_damage_is_as_if_it_had_never_been_written(root: CacheRoot, state: StateFolder, name: str, data: bytes) -> None:
    state.save_index(INDEX)
    state.save_base(base(), DECLINED, host="a", synced=True)
    left = {
        "index-*": State(Index(), base(), DECLINED, host="a"),
        "base": State(INDEX, host="a"),
        "sync.json": State(INDEX),
    }
    assert damaged(root, name, data) == left[name]


def test_a_base_without_its_ref_is_none(root: CacheRoot, state: StateFolder) -> None:
    """The process was killed between the two writes."""
    state.save_base(base(), DECLINED, host="a", synced=True)
    assert damaged(root, "base", Manifest().dump()).base is None


def test_a_base_that_a_newer_kstore_saved_is_none_and_reported_in_words(
    root: CacheRoot, state: StateFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    state.save_base(base(), DECLINED, host="a", synced=True)
    monkeypatch.setattr("kstore.published.ref.FORMAT", 0)

    assert StateFolder(root, "rules").load().base is None
    assert "install the version that made it); it is merged as new" in caplog.text


def test_no_temporary_file_stays(root: CacheRoot, state: StateFolder) -> None:
    for _ in range(2):
        state.save_index(INDEX)
        state.save_base(base(), {}, host="a", synced=True)
    assert len(os.listdir(root.state)) == 3


def test_a_cache_root_is_locked_by_one_at_a_time(root: CacheRoot, state: StateFolder) -> None:
    with state.locked(), pytest.raises(WaitTimeout, match="lock"), StateFolder(root, "rules").locked(timeout=0.05):
        pass
    with StateFolder(root, "rules").locked(timeout=0.05):
        pass


def test_a_root_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    state = StateFolder(CacheRoot(str(tmp_path / "file/root"), {}, {}), "rules")
    with pytest.raises(CacheRootError), state.locked():
        pass


def test_a_staging_folder_is_gone_afterwards(root: CacheRoot, state: StateFolder, tmp_path: Path) -> None:
    elsewhere = str(tmp_path / "elsewhere")
    for folder in (None, elsewhere):
        with pytest.raises(KeyError), state.staging(folder) as stage:
            assert os.stat(stage).st_mode & 0o777 == 0o700
            Path(stage, "file").touch()
            raise KeyError
        assert not os.path.exists(stage)
    assert os.listdir(elsewhere) == []
    assert os.listdir(root.state) == []


def test_whoever_holds_the_root_sweeps_what_a_killed_restore_left(root: CacheRoot, state: StateFolder) -> None:
    left = Path(root.state) / "stage-dead"
    (left / "folder").mkdir(parents=True)
    other = Path(root.state) / "of another version"
    other.mkdir()
    with state.staging(None) as lent, state.locked():
        assert not left.exists()
        assert other.exists() and os.path.exists(lent)


def test_whoever_holds_the_root_sweeps_turns_for_which_nobody_waits_any_longer(
    root: CacheRoot, state: StateFolder
) -> None:
    with state.locked():
        left, waited_for = (Path(root.state, f"turn-{name}") for name in ("left", "waited for"))
        for path in (left, waited_for):
            path.touch()
        os.utime(left, (0, 0))
    with state.locked():
        assert (left.exists(), waited_for.exists()) == (False, True)


@pytest.mark.parametrize("is_alone", [True, False])
def test_what_a_killed_restore_left_in_a_component_elsewhere_is_swept_a_day_later(
    tmp_path: Path, is_alone: bool
) -> None:
    """Workers of other hosts may be restoring to it at this moment."""
    elsewhere = tmp_path / "elsewhere"
    state = StateFolder(CacheRoot(str(tmp_path / "root"), {"triton": str(elsewhere)}, {}), "rules")
    left, at_work = (elsewhere / ".kstore" / f"stage-{name}" for name in ("left", "at-work"))
    (left / "triton/K").mkdir(parents=True)
    other = tmp_path / "elsewhere/.kstore/of another version"
    if not is_alone:
        other.mkdir()
        os.utime(other, (0, 0))
    os.utime(left, (0, 0))
    if not is_alone:
        at_work.mkdir()
    with state.locked():
        assert not left.exists()
        assert at_work.exists() is other.exists() is not is_alone
        assert (elsewhere / ".kstore").exists() is not is_alone


def test_what_somebody_is_at_elsewhere_stays_however_old_it_is(tmp_path: Path) -> None:
    elsewhere = str(tmp_path / "elsewhere")
    state = StateFolder(CacheRoot(str(tmp_path / "root"), {"triton": elsewhere}, {}), "rules")
    with state.staging(elsewhere) as stage:
        os.utime(stage, (0, 0))
        with state.locked():
            assert os.path.exists(stage)


def test_a_write_that_fails_leaves_nothing(
    root: CacheRoot, state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: str, target: str) -> None:
        raise OSError(28, "No space left on device", target)

    for _ in range(3):
        with monkeypatch.context() as patch, pytest.raises(CacheRootError, match="space"):
            patch.setattr(os, "replace", full)
            state.save_index(INDEX)
    assert os.listdir(root.state) == [], "an NFS client tells whoever opens a file again of the write that failed"
    state.save_index(INDEX)
    assert state.load().index == INDEX
    assert len(os.listdir(root.state)) == 1
