from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from kstore.backends import Child, LocalPaths, NewObject, PosixBackend, posix, reading
from kstore.backends.base import is_staged
from kstore.calls import Status
from tests.backends.conformance import BackendConformance
from tests.faults.reading import cut_short

HOUR_NS = 3600 * 10**9

pytestmark = pytest.mark.usefixtures("plain_calls")


@pytest.fixture
def backend(tmp_path: Path) -> PosixBackend:
    return PosixBackend(tmp_path / "store")


class TestPosixBackend(BackendConformance):
    pass


def test_objects_are_files_of_their_name(backend: PosixBackend) -> None:
    backend.put("folder/name", b"content")
    assert isinstance(backend, LocalPaths)
    assert Path(backend.path("folder/name")).read_bytes() == b"content"


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o000])
def test_files_are_read_only_whatever_the_umask(backend: PosixBackend, umask: int) -> None:
    old = os.umask(umask)
    try:
        backend.put_if_absent("name", b"content")
    finally:
        os.umask(old)
    assert os.stat(backend.path("name")).st_mode & 0o777 == 0o444 & ~umask


def test_nothing_stays_in_tmp(backend: PosixBackend) -> None:
    backend.put("mark", b"")
    backend.put("mark", b"")
    backend.put_if_absent("name", b"content")
    backend.put_if_absent("name", b"content")
    assert os.listdir(backend.path("tmp")) == []
    assert os.stat(backend.path("name")).st_nlink == 1


def test_an_empty_object_is_whole_at_once(backend: PosixBackend) -> None:
    """Far away, each step on the way through `tmp/` takes milliseconds."""
    assert backend.put_if_absent("used/one", b"")
    assert not backend.put_if_absent("used/one", b"")
    assert os.stat(backend.path("used/one")).st_mode & 0o222 == 0
    assert not os.path.exists(backend.path("tmp"))


def test_a_store_without_a_folder_for_staging_has_a_clock(backend: PosixBackend) -> None:
    """A copy of a store has none if the tool that made it leaves out empty folders."""
    backend.put("before", b"")
    os.rmdir(backend.path("tmp"))
    assert backend.clock() >= backend.stat("before").mtime_ns


def test_a_folder_that_was_made_and_is_not_there_is_trouble(backend: PosixBackend) -> None:
    backend.put("made/name", b"")
    assert [child.name for child in backend.list_made("made")] == ["name"]
    for name in ("missing", "made/name"):
        with pytest.raises(OSError, match=name):
            list(backend.list_made(name))


@pytest.mark.parametrize("target", ["link", "0/inside", "x" * 300, "missing"])
def test_a_link_that_leads_nowhere_hides_nothing_else(backend: PosixBackend, target: str) -> None:
    """Else a restore would not find a generation that is there, and no gc would come to its end."""
    names = [str(number) for number in range(9)]
    for name in names:
        backend.put(f"refs/{name}", b"")
    os.symlink(target, backend.path("refs/link"))
    for listed in (backend.list, backend.list_made):
        assert sorted(listed("refs")) == [Child(name, False) for name in [*names, "link"]]


def test_what_cannot_be_looked_at_is_trouble_with_the_whole_folder() -> None:
    def fail() -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    entry: Any = SimpleNamespace(is_dir=fail)
    with pytest.raises(OSError, match="Input/output error"):
        posix._is_folder(entry)


def test_what_cannot_be_deleted_is_trouble(backend: PosixBackend) -> None:
    backend.put("folder/name", b"")
    for name in ("folder", "folder/name/inside"):
        with pytest.raises(OSError, match=name):
            backend.delete(name)


def test_staging_names_differ(backend: PosixBackend) -> None:
    assert len({backend.staging_path() for _ in range(100)}) == 100


@pytest.mark.parametrize("host", ["host", "a" * 64, "a host", "h\udcf6st", "höst"])
def test_gc_knows_what_is_staged_whatever_the_host_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """Otherwise gc would not fence off a commit that has begun, and that may rely on what gc deletes."""
    monkeypatch.setattr("socket.gethostname", lambda: host)
    path = PosixBackend(tmp_path).staging_path()
    assert is_staged(os.path.basename(path)) and is_staged(os.path.basename(f"{path}.127"))


def test_the_one_of_many_that_cannot_be_looked_at_is_named(backend: PosixBackend) -> None:
    backend.put("name", b"")
    os.symlink("loop", backend.path("loop"))
    with pytest.raises(OSError) as caught:
        backend.stat_many(["name", "loop"])
    assert (caught.value.errno, caught.value.filename) == (errno.ELOOP, backend.path("loop"))


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_trouble_with_one_of_many_is_not_taken_for_its_absence(
    backend: PosixBackend, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(posix, "stat_each", lambda paths, follows: [Status(code, 0, 0, 0, 0, 0) for _ in paths])
    with pytest.raises(OSError) as caught:
        backend.stat_many(["name"])
    assert (caught.value.errno, caught.value.filename) == (code, backend.path("name"))


@pytest.mark.parametrize("call", ["open", "fstat", "pread"])
def test_a_stale_handle_is_opened_again(backend: PosixBackend, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    backend.put("name", b"content")
    real, stale = getattr(os, call), [True, True]

    def sometimes_stale(*arguments: Any) -> Any:
        if stale:
            stale.pop()
            raise OSError(errno.ESTALE, "stale file handle")
        return real(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(os, call, sometimes_stale)
        assert backend.get("name") == b"content"
    assert not stale


def test_a_handle_that_stays_stale_is_an_error(backend: PosixBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    backend.put("name", b"content")

    def open_stale(path: str, *rest: int) -> int:
        raise OSError(errno.ESTALE, "stale file handle", path)

    with monkeypatch.context() as patched, pytest.raises(OSError) as caught:
        patched.setattr(os, "open", open_stale)
        backend.get("name")
    assert caught.value.errno == errno.ESTALE


def fail_once(monkeypatch: pytest.MonkeyPatch, call: str, code: int) -> list[int]:
    """The next such call of Python's own does what it should, and fails. Holds the error until then."""
    real, codes = getattr(os, call), [code]

    def fail(*arguments: Any) -> Any:
        done = real(*arguments)
        if codes:
            raise OSError(codes[0], os.strerror(codes.pop()))
        return done

    monkeypatch.setattr(os, call, fail)
    return codes


def test_other_trouble_is_not_asked_for_again(backend: PosixBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    backend.put("name", b"content")
    opened = backend.open("name")
    for read in (lambda: backend.get("name"), lambda: opened.read(0, 7)):
        with monkeypatch.context() as patched, pytest.raises(OSError, match="Input/output error"):
            fail_once(patched, "pread", errno.EIO)
            read()


def test_what_is_opened_and_stale_is_read_by_its_name(backend: PosixBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    backend.put("name", b"content")
    opened = backend.open("name")
    fail_once(monkeypatch, "pread", errno.ESTALE)
    assert opened.read(3, 2) == b"te"


@pytest.mark.parametrize("code", [errno.EIO, errno.EINTR])
def test_what_was_read_stays_read_though_it_cannot_be_closed_well(
    backend: PosixBackend, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """FUSE asks its server whenever a file is closed, and a signal may interrupt that."""
    backend.put("name", b"content")
    opened = backend.open("name")
    with monkeypatch.context() as patched:
        codes = fail_once(patched, "close", code)
        assert backend.get("name") == b"content"
        assert codes == []
        codes.append(code)
        opened.close()
        assert codes == []


def test_a_file_is_closed_once(backend: PosixBackend) -> None:
    """Its descriptor may be another file's by then."""
    backend.put("name", b"content")
    opened = backend.open("name")
    opened.close()
    other = os.open(backend.path("name"), os.O_RDONLY)
    opened.close()
    del opened
    os.close(other)
    with backend.upload() as upload:
        upload.publish("another")
        other = os.open(backend.path("name"), os.O_RDONLY)
    os.close(other)


def test_nobody_waits_for_the_writer_of_a_pipe(backend: PosixBackend) -> None:
    backend.put("name", b"content")
    os.mkfifo(backend.path("pipe"))
    with pytest.raises(OSError, match="Illegal seek"):
        backend.get("pipe")
    with pytest.raises(FileNotFoundError):
        backend.open("pipe")


def test_reading_leaves_no_trace(backend: PosixBackend) -> None:
    """Access times tell which files a compiler has read, and a hard link has those of the store's blob."""
    backend.put("name", b"content")
    os.utime(backend.path("name"), ns=(0, 0))
    assert backend.get("name") == backend.open("name").read(0, 7) == b"content"
    assert os.stat(backend.path("name")).st_atime_ns == 0


def test_nothing_stays_open(backend: PosixBackend) -> None:
    backend.put("folder/name", b"content")
    before = set(os.listdir("/proc/self/fd"))
    backend.put("other", b"content")
    assert backend.put_if_absent("empty", b"") and backend.put_if_absent("name", b"content")
    backend.write_out("name")
    assert backend.get("name") == b"content"
    with backend.upload() as upload:
        upload.write(b"never")
    with pytest.raises(FileNotFoundError) as kept:  # An error refers to the frames that raised it.
        backend.open("folder")
    assert set(os.listdir("/proc/self/fd")) == before, kept


def test_short_reads_and_writes_are_continued(backend: PosixBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    write, pread = os.write, os.pread
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, memoryview(data)[:7]))
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: pread(fd, min(length, 5), offset))
    data = bytes(range(256))
    backend.put("name", data)
    assert backend.get("name") == data
    assert backend.get("name", 10, 98) == data[10:108]


def test_what_ends_before_its_size_is_looked_up_again_and_then_trouble(
    backend: PosixBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.put("name", bytes(range(256)))
    with monkeypatch.context() as patch:
        cut_short(patch, "name")
        assert (backend.get("name", 0, 128), backend.open("name").read(0, 128)) == (bytes(range(128)),) * 2
        for read in (backend.get, lambda name: backend.open(name).read(0, 256)):
            with pytest.raises(OSError, match="ends in its middle, 128 bytes early"):
                read("name")
    opened, pread, left = backend.open("name"), os.pread, [b""]
    monkeypatch.setattr(os, "pread", lambda *where: left.pop() if left else pread(*where))
    assert opened.read(0, 300) == bytes(range(256))


@pytest.mark.parametrize("fraction_ns", [1, 999_999_999, 123_456_789])
def test_an_object_gets_the_fraction_of_a_second_it_asks_for(backend: PosixBackend, fraction_ns: int) -> None:
    assert backend.put_many([NewObject("one", b"data", fraction_ns)]) == [True]
    backend.put("two", b"data", fraction_ns)
    with backend.upload() as upload:
        assert upload.publish("three", fraction_ns)
    for moment in (backend.stat(name).mtime_ns for name in ("one", "two", "three")):
        assert moment % 1_000_000_000 == fraction_ns
        assert abs(moment - time.time_ns()) < HOUR_NS


def test_an_object_that_asks_for_no_time_gets_that_of_the_storage(
    backend: PosixBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns()
    monkeypatch.setattr(posix.time, "time_ns", lambda: 1_000_000_000_000_000_000)
    assert backend.put_many([NewObject("folder/one", b"data")]) == [True]
    assert backend.put_if_absent("folder/two", b"data")
    for name in ("folder/one", "folder/two"):
        assert abs(backend.stat(name).mtime_ns - now) < HOUR_NS


def test_a_relative_root_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    backend = PosixBackend("store")
    monkeypatch.chdir("/")
    backend.put("name", b"content")
    assert (tmp_path / "store/name").read_bytes() == b"content"


def test_an_upload_whose_end_fails_leaves_nothing(backend: PosixBackend) -> None:
    """NFS tells only then that there is no room."""
    with backend.upload() as upload:
        upload.write(b"data")
        os.close(upload._fd)
    assert os.listdir(backend.path("tmp")) == []


@pytest.mark.parametrize("name", ["new", "old"])
def test_what_fails_at_its_end_gets_no_name(backend: PosixBackend, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Otherwise half of it might have one."""
    backend.put("old", b"content")
    with backend.upload() as upload, monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
        upload.write(b"half of it")
        fail_once(patched, "close", errno.ENOSPC)
        upload.publish(name)
    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
        fail_once(patched, "close", errno.ENOSPC)
        backend.put(name, b"half of it")
    assert [child.name for child in backend.list("") if not child.is_folder] == ["old"]
    assert backend.get("old") == b"content"


def test_what_is_written_out_is_begun_to_be_written(backend: PosixBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[str, int]]()
    backend.put("name", b"content")
    monkeypatch.setattr(
        os, "posix_fadvise", lambda fd, *what: asked.append((os.readlink(f"/proc/self/fd/{fd}"), what[-1]))
    )
    backend.write_out("name")
    assert asked == [(backend.path("name"), os.POSIX_FADV_DONTNEED)]


def test_a_link_in_a_store_is_touched_and_not_what_it_leads_to(backend: PosixBackend, tmp_path: Path) -> None:
    (tmp_path / "anothers").touch()
    os.utime(tmp_path / "anothers", ns=(0, 0))
    backend.put("used/name", b"")
    os.symlink(tmp_path / "anothers", backend.path("used/link"))
    assert backend.touch("used/link")
    assert os.stat(tmp_path / "anothers").st_mtime_ns == 0


def test_nobody_waits_long_for_a_folder_that_is_made_ahead(
    backend: PosixBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, may_go_on = list[str](), threading.Event()

    def make(path: str) -> None:
        may_go_on.wait(60)
        made.append(path)

    monkeypatch.setattr(posix, "_PATIENCE", 0.0)
    monkeypatch.setattr(posix, "make_folder", make)
    backend.make_ahead("folder")()
    assert made == []
    may_go_on.set()


def test_a_folder_that_is_made_ahead_is_there_for_who_waits(backend: PosixBackend) -> None:
    backend.make_ahead("folder/inner")()
    assert os.path.isdir(backend.path("folder/inner"))
    backend.put("file", b"")
    backend.make_ahead("file/inner")()  # The error is for whoever puts something there.
    with pytest.raises(NotADirectoryError):
        backend.put("file/inner/name", b"")


def test_whoever_looks_ahead_takes_no_signal(backend: PosixBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that hangs would take the signal, though the job has blocked it for now."""
    blocked: SimpleQueue[set[int]] = SimpleQueue()
    monkeypatch.setattr(posix, "stat_each", lambda paths: blocked.put(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    backend.look_ahead(["folder"])
    assert {signal.SIGTERM, signal.SIGINT} <= blocked.get(timeout=60)


@pytest.fixture
def far(backend: PosixBackend, monkeypatch: pytest.MonkeyPatch) -> SimpleQueue[bool]:
    """Opening a file seems to take a second. Holds, for each file, whether this thread closed it."""
    monkeypatch.setattr(reading, "NEAR", 0.5)
    monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=count().__next__))
    closed: SimpleQueue[bool] = SimpleQueue()
    this = threading.get_ident()

    def close(fd: int, close: Callable[[int], None] = os.close) -> None:
        close(fd)
        closed.put(threading.get_ident() == this)

    backend.put("name", b"content")
    monkeypatch.setattr(os, "close", close)
    return closed


def test_nobody_waits_until_a_file_that_is_far_away_is_closed(backend: PosixBackend, far: SimpleQueue[bool]) -> None:
    fds = set(os.listdir("/proc/self/fd"))
    assert backend.get("name") == b"content"
    backend.open("name").close()
    assert [far.get(timeout=60), far.get(timeout=60)] == [False, False]
    assert set(os.listdir("/proc/self/fd")) == fds


def test_a_file_that_is_near_is_closed_by_whoever_has_read_it(
    backend: PosixBackend, far: SimpleQueue[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other thread is troubled."""
    monkeypatch.setattr(reading, "NEAR", 1)
    for _ in range(2):
        assert backend.get("name") == b"content"
        backend.open("name").close()
    assert [far.get(timeout=60) for _ in range(4)] == [True] * 4


def test_only_a_few_files_that_cannot_be_closed_stay_open(
    backend: PosixBackend, far: SimpleQueue[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a dead mount, closing may hang. Then the reader of the next file hangs there, as without any thread."""
    most, begun = reading._CLOSING._value, list[int]()
    monkeypatch.setattr(reading, "begin", lambda function, fd: begun.append(fd))
    for _ in range(most + 2):
        assert backend.get("name") == b"content"
    assert (len(begun), far.qsize()) == (most, 2)
    for fd in begun:
        reading._close_aside(fd)
    assert reading._CLOSING._value == most
