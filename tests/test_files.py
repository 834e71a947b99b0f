from __future__ import annotations

import errno
import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kstore.calls import open_unnoticed
from kstore.files import NewFile, write_files, write_rows
from kstore.published.manifest import Entry, pack_entries

PATIENCE = 60

pytestmark = pytest.mark.usefixtures("plain_calls")


@contextmanager
def descriptors(free: int) -> Iterator[None]:
    """The process may have this many more files open, and no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.dup(0)
    os.close(probe)  # The lowest free number: all below it are taken.
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe + free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def files(folder: Path) -> list[NewFile]:
    folder.mkdir(exist_ok=True)
    return [NewFile(str(folder / str(number)), b"%d" % number, 0o644, 10**18 + number) for number in range(100)]


def assert_written(folder: Path) -> None:
    written = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    assert written == {str(number): (b"%d" % number, 10**18 + number) for number in range(100)}


def test_where_few_files_may_be_open_they_are_written_in_turn(tmp_path: Path) -> None:
    with descriptors(3):
        write_files(files(tmp_path))
    assert_written(tmp_path)


def test_where_none_may_be_that_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with descriptors(0), pytest.raises(OSError, match=r"may have \d+: raise that limit \(`ulimit -n`\)") as caught:
        write_files(files(tmp_path))
    assert (caught.value.errno, caught.value.filename) == (errno.EMFILE, str(tmp_path / "0"))


class Crowd:
    """One thread has all descriptors until another thread got none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = threading.Event()
        self.is_refused = threading.Event()
        self._open, self._write = os.open, os.write
        monkeypatch.setattr(os, "open", self.open)
        monkeypatch.setattr(os, "write", self.write)

    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        try:
            return self._open(path, flags, mode, dir_fd=dir_fd)
        except OSError:
            if self.is_full.is_set():
                self.is_refused.set()
            raise

    def write(self, fd: int, data: bytes) -> int:
        self.is_full.set()
        assert self.is_refused.wait(PATIENCE)
        return self._write(fd, data)


def test_a_thread_that_gets_none_waits_for_those_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(monkeypatch)
    one, two = files(tmp_path / "one"), files(tmp_path / "two")
    with descriptors(3):
        thread = threading.Thread(target=write_files, args=(one,))
        thread.start()
        assert crowd.is_full.wait(PATIENCE)
        write_files(two)
        thread.join(PATIENCE)
    assert_written(tmp_path / "one")
    assert_written(tmp_path / "two")


def test_a_thread_that_gets_none_waits_for_one_that_writes_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd, made = Crowd(monkeypatch), list[int]()
    (tmp_path / "one").mkdir()
    names, two = [str(number) for number in range(100)], files(tmp_path / "two")
    records = b"".join(pack_entries(Entry(bytes(32), 1, 0, 0o644, 1, 0) for _ in names))

    def write() -> None:
        made.append(write_rows(names, records, [b"1"] * 100, str(tmp_path / "one"), second_ns=0))

    with descriptors(1):
        thread = threading.Thread(target=write)
        thread.start()
        assert crowd.is_full.wait(PATIENCE)
        write_files(two)
        thread.join(PATIENCE)
    assert made == [100] == [len(os.listdir(tmp_path / "one"))]
    assert_written(tmp_path / "two")


def test_a_child_that_was_forked_waits_for_no_thread_of_its_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd = Crowd(monkeypatch)
    one, two = files(tmp_path / "one"), files(tmp_path / "two")
    thread = threading.Thread(target=write_files, args=(one,))
    thread.start()
    assert crowd.is_full.wait(PATIENCE)
    child = os.fork()
    if not child:
        signal.alarm(PATIENCE)
        with descriptors(0), suppress(OSError):
            write_files(two)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    crowd.is_refused.set()
    thread.join(PATIENCE)


@pytest.mark.parametrize("code", [errno.EPERM, errno.EACCES, errno.EINVAL])
def test_where_a_file_cannot_be_read_unnoticed_it_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real = os.open

    def refuse(path: str, flags: int, *, dir_fd: int | None = None) -> int:
        if flags & os.O_NOATIME:
            raise OSError(code, os.strerror(code), path)
        return real(path, flags, dir_fd=dir_fd)

    (tmp_path / "one").write_bytes(b"content")
    monkeypatch.setattr(os, "open", refuse)
    with open(open_unnoticed(str(tmp_path / "one"), os.O_RDONLY), "rb") as file:
        assert file.read() == b"content"
