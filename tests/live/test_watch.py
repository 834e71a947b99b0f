"""What a watch reports of changes below a folder, and when it can no longer be relied on."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest

from kstore.local import watch
from kstore.local.watch import Blind, FolderWatch

PATIENCE = 60


class Ears:
    """What a watch reports."""

    def __init__(self, *folders: Path) -> None:
        self.changes: SimpleQueue[str] = SimpleQueue()
        self.watch = FolderWatch(map(str, folders), lambda: self.changes.put("changed"))

    def hears_of(self, path: Path) -> bool:
        """Whether a file that is made at this path is noticed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("compiled")
        return self.changes.get(timeout=PATIENCE) == "changed"

    def forget(self) -> None:
        """Wait until nothing more is reported."""
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


def test_a_root_in_a_folder_with_a_name_like_kstores_own_is_watched(tmp_path: Path) -> None:
    (tmp_path / ".kstore/root").mkdir(parents=True)
    ears = Ears(tmp_path / ".kstore/root")
    ears.watch.start()
    try:
        assert ears.hears_of(tmp_path / ".kstore/root/inductor/ab/cone.py")
    finally:
        ears.watch.stop()


def test_a_root_that_is_renamed_into_place_is_watched(ears: Ears, tmp_path: Path) -> None:
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


def test_the_removal_of_a_watched_folder_is_noticed(ears: Ears, tmp_path: Path) -> None:
    ears.forget()
    (tmp_path / "root").rmdir()
    assert ears.changes.get(timeout=PATIENCE)


def test_what_kstore_writes_itself_and_what_is_only_read_is_no_change(ears: Ears, tmp_path: Path) -> None:
    assert ears.hears_of(tmp_path / "root/inductor/one")
    ears.forget()
    (tmp_path / "root/inductor/one").read_text()
    (tmp_path / "root/.kstore").mkdir()
    (tmp_path / "root/.kstore/index").write_text("index")
    os.close(os.open(tmp_path / "root/inductor", os.O_WRONLY | os.O_TMPFILE))  # as a scan asks what time it is there
    with pytest.raises(Empty):
        ears.changes.get(timeout=1)
    assert ears.hears_of(tmp_path / "root/inductor/#2")


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
    with pytest.raises(Blind, match=limit):
        ears.watch.start()
    ears.watch.stop()


def test_a_limit_that_keeps_only_some_folders_from_being_watched_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_limit_is_reached", lambda folder: True)
    ears = Ears(tmp_path)
    with pytest.raises(Blind, match="max_user_watches"):
        ears.watch.start()
    ears.watch.stop()


def test_the_limit_is_asked_of_the_kernel(tmp_path: Path) -> None:
    assert not watch._limit_is_reached(str(tmp_path))


FEW_WATCHES = """
import pathlib, sys
from kstore.local.watch import Blind, FolderWatch
pathlib.Path("/proc/sys/user/max_inotify_watches").write_text("5")
root = pathlib.Path(sys.argv[1])
for number in range(10): (root / str(number)).mkdir()
try: FolderWatch([str(root)], print).start()
except Exception as error: print(type(error).__name__, error)
"""


def test_the_kernels_limit_is_noticed(tmp_path: Path) -> None:
    """In a user namespace of its own, which may have a lower limit."""
    command = ["unshare", "--user", "--map-root-user", sys.executable, "-c", FEW_WATCHES, str(tmp_path)]
    if subprocess.run([*command[:3], "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespace can be made here")
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.stdout.startswith("Blind inotify's limit of watches is reached"), done.stderr


def test_lost_events_are_a_change_and_reported_once(ears: Ears, caplog: pytest.LogCaptureFixture) -> None:
    ears.forget()
    for _ in range(2):
        logging.getLogger("watchdog.observers.inotify_c").warning("Inotify queue overflowed; events were lost")
        assert ears.changes.get_nowait()
    assert [record.name for record in caplog.records] == ["kstore.local.watch"]


def test_afterwards_watchdogs_log_is_as_it_was(ears: Ears, caplog: pytest.LogCaptureFixture) -> None:
    ears.watch.stop()
    logging.getLogger("watchdog.observers.inotify_c").warning("Inotify queue overflowed")
    assert [record.name for record in caplog.records] == ["watchdog.observers.inotify_c"]
