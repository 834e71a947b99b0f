"""Many objects are made at once without a name, where the filesystem supports such files."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kstore import calls
from kstore.backends import NewObject, PosixBackend, StagingLost, posix
from kstore.calls import NewFile, native
from kstore.threads import Pool
from tests.backends.conformance import BackendConformance
from tests.trees import without_nameless

PublishFiles = Callable[[str, Sequence[NewFile]], tuple[memoryview, int]]


@pytest.fixture(autouse=True)
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := without_nameless(tmp_path):
        pytest.skip(reason)
    monkeypatch.setattr(calls, "_calls", native)


@pytest.fixture
def backend(tmp_path: Path) -> PosixBackend:
    return PosixBackend(tmp_path / "store")


class TestNamelessObjects(BackendConformance):
    pass


def some(*names: str) -> list[NewObject]:
    return [NewObject(name, name.encode(), 7) for name in names]


def stored(backend: PosixBackend, *names: str) -> bool:
    """Whether each object is as it was given, and nothing else is left of it."""
    found = [os.stat(backend.path(name)) for name in names]
    return (
        all(backend.get(name) == name.encode() for name in names)
        and {(f.st_nlink, f.st_mode & 0o777, f.st_mtime_ns % 1_000_000_000) for f in found} == {(1, 0o444, 7)}
        and not any(backend.list("tmp"))
    )


def refuse(*_: object) -> None:
    raise AssertionError("it is given a name")


def answering(code: int, after: int = 0) -> tuple[list[int], PublishFiles]:
    """Fails with that error number after some files; records how many files it was given each time."""
    asked = list[int]()

    def publish_files(folder: str, files: Sequence[NewFile]) -> tuple[memoryview, int]:
        asked.append(len(files))
        answers, _ = calls.publish_first(folder, files[:after])
        return answers, code

    return asked, publish_files


def test_nothing_in_tmp_has_a_name_be_the_store_new_or_not(
    backend: PosixBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posix, "write_files", refuse)
    names = [f"blobs/{number % 10}/{number}" for number in range(100)]
    assert backend.put_many(some(*names)) == [True] * 100
    assert stored(backend, *names)


def test_threads_that_have_few_descriptors_wait_for_each_other(backend: PosixBackend) -> None:
    backend.put_many(some("blobs/first"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)

    def put(thread: int) -> None:
        for number in range(50):
            assert backend.put_many(some(*(f"blobs/{thread}-{number}-{each}" for each in range(8)))) == [True] * 8

    with Pool(4) as pool:
        for started in [pool.submit(os.getpid) for _ in range(4)]:
            started.result()
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, hard))
        try:
            for done in [pool.submit(put, thread) for thread in range(4)]:
                done.result()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len([*backend.list("blobs")]) == 1 + 4 * 50 * 8


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL])
def test_a_filesystem_without_such_files_is_asked_once(
    backend: PosixBackend, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    asked, publish_files = answering(code)
    monkeypatch.setattr(posix, "publish_files", publish_files)
    for folder in ("a", "b"):
        assert backend.put_many(some(f"{folder}/one", f"{folder}/two")) == [True, True]
    assert backend.put_many(some("a/three", "a/one", "a/four")) == [True, False, True]
    assert stored(backend, "a/one", "a/two", "b/one", "b/two", "a/three", "a/four")
    assert asked == [2]


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EPERM, errno.EMFILE, errno.ENOSPC])
def test_what_cannot_be_made_so_is_staged_under_a_name(
    backend: PosixBackend, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    asked, publish_files = answering(code, after=1)
    backend.put_many(some("two"))
    monkeypatch.setattr(posix, "publish_files", publish_files)
    assert backend.put_many(some("one", "two", "three")) == [True, False, True]
    assert backend.put_many(some("four", "five")) == [True, True]
    assert stored(backend, "one", "two", "three", "four", "five")
    assert asked == ([3, 2, 2, 1] if code == errno.ENOENT else [3, 2])


def test_trouble_with_both_is_an_error(backend: PosixBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    _, publish_files = answering(errno.ENOSPC, after=1)
    backend.put_if_absent("other", b"other")
    monkeypatch.setattr(posix, "publish_files", publish_files)
    monkeypatch.setattr(posix, "write_files", full)
    with pytest.raises(OSError, match="No space left"):
        backend.put_many(some("one", "two"))
    assert stored(backend, "one")


def test_gc_that_takes_a_writer_for_dead_leaves_what_it_writes(backend: PosixBackend) -> None:
    """A commit notices, because the ref that it has reserved in tmp/ is gone."""
    backend.put_if_absent("other", b"other")
    with backend.upload() as reserved:
        for child in backend.list("tmp"):
            backend.delete(f"tmp/{child.name}")
        assert backend.put_many(some("one")) == [True]
        with pytest.raises(StagingLost):
            reserved.publish("ref")
    assert stored(backend, "one")
