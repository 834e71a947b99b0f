"""What is told of changes below a folder, and when that can no longer be relied on."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest

from kstore.local import watch
from kstore.local.watch import FolderWatch

PATIENCE = 60


class Ears:
    """What a watch tells."""

    def __init__(self, *folders: Path) -> None:
        self.changes: SimpleQueue[str] = SimpleQueue()
        self.reasons: SimpleQueue[str] = SimpleQueue()
        self.watch = FolderWatch(map(str, folders), lambda: self.changes.put("changed"), self.reasons.put)

    def hears_of(self, path: Path) -> bool:
        """Whether a file that is made there is noticed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("compiled")
        return self.changes.get(timeout=PATIENCE) == "changed"

    def forget(self) -> None:
        """Until nothing more comes."""
        while True:
            try:
                self.changes.get(timeout=1)
            except Empty:
                return


@pytest.fixture
def ears(tmp_path: Path) -> Iterator[Ears]:
    made = Ears(tmp_path / "root", tmp_path / "root" / "triton")
    made.watch.start()
    yield made
    made.watch.stop()


def test_a_file_deep_in_new_folders_is_noticed(ears: Ears, tmp_path: Path) -> None:
    assert ears.hears_of(tmp_path / "root/inductor/ab/cone.py")


def test_so_is_one_that_is_renamed_into_place(ears: Ears, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/one").write_text("compiled")
    ears.forget()
    os.rename(tmp_path / "elsewhere", tmp_path / "root/inductor")
    assert ears.changes.get(timeout=PATIENCE)


def test_a_component_elsewhere_is_watched_although_it_is_not_there_yet(tmp_path: Path) -> None:
    ears = Ears(tmp_path / "root", tmp_path / "home/.cache/jit")
    ears.watch.start()
    assert ears.hears_of(tmp_path / "home/.cache/jit/one")
    ears.watch.stop()


def test_a_root_behind_a_link_is_watched(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")
    ears = Ears(tmp_path / "root")
    ears.watch.start()
    assert ears.hears_of(tmp_path / "real/ab/one")
    ears.watch.stop()


def test_what_kstore_writes_itself_and_what_is_only_read_is_no_change(ears: Ears, tmp_path: Path) -> None:
    assert ears.hears_of(tmp_path / "root/inductor/one")
    ears.forget()
    (tmp_path / "root/inductor/one").read_text()
    (tmp_path / "root/.kstore").mkdir()
    (tmp_path / "root/.kstore/index").write_text("index")
    ears.forget()
    assert ears.hears_of(tmp_path / "root/inductor/two")


def test_a_watch_that_is_whole_says_nothing(ears: Ears) -> None:
    ears.watch.check()
    assert ears.reasons.empty()


@pytest.mark.parametrize(
    ("number", "limit"), [(errno.EMFILE, "max_user_instances"), (errno.ENOSPC, "max_user_watches")]
)
def test_where_no_watch_can_be_had_it_says_which_limit_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, limit: str
) -> None:
    def refuse() -> None:
        raise OSError(number, "limit reached")

    monkeypatch.setattr("watchdog.observers.Observer", refuse)
    ears = Ears(tmp_path)
    ears.watch.start()
    ears.watch.check()
    ears.watch.stop()
    assert limit in ears.reasons.get_nowait()
    assert ears.reasons.empty()


def test_a_limit_that_is_reached_later_is_found(ears: Ears, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_limit_is_reached", lambda folder: True)
    ears.watch.check()
    assert "max_user_watches" in ears.reasons.get_nowait()


def test_the_limit_is_asked_of_the_kernel(tmp_path: Path) -> None:
    assert not watch._limit_is_reached(str(tmp_path))


def test_a_watch_whose_threads_have_ended_says_so(ears: Ears, tmp_path: Path) -> None:
    assert ears.hears_of(tmp_path / "root/one")
    ears.watch._observer.stop()
    ears.watch._observer.join(PATIENCE)
    ears.watch.check()
    assert ears.reasons.get_nowait() == "the watch has ended"


def test_lost_events_are_told_to_us_and_not_to_the_log(ears: Ears, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("watchdog.observers.inotify_c").warning("Inotify queue overflowed; filesystem events were lost")
    assert "max_queued_events" in ears.reasons.get_nowait()
    assert caplog.records == []


def test_afterwards_watchdogs_log_is_as_it_was(ears: Ears, caplog: pytest.LogCaptureFixture) -> None:
    ears.watch.stop()
    logging.getLogger("watchdog.observers.inotify_c").warning("Inotify queue overflowed")
    assert ears.reasons.empty()
    assert len(caplog.records) == 1
