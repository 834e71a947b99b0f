from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kstore.files import NewFile, open_unnoticed, write_files


@contextmanager
def descriptors(free: int) -> Iterator[None]:
    """The process may have so many more files open, and no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.dup(0)
    os.close(probe)  # The lowest number that is free: all below it are taken.
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe + free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def files(folder: Path) -> list[NewFile]:
    return [NewFile(str(folder / str(number)), b"%d" % number, 0o644, 10**18 + number) for number in range(100)]


def test_where_few_files_may_be_open_they_are_written_in_turn(tmp_path: Path) -> None:
    with descriptors(3):
        write_files(files(tmp_path))
    written = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}
    assert written == {str(number): (b"%d" % number, 10**18 + number) for number in range(100)}


def test_where_none_may_be_that_is_an_error(tmp_path: Path) -> None:
    with descriptors(0), pytest.raises(OSError) as caught:
        write_files(files(tmp_path))
    assert caught.value.errno == errno.EMFILE


@pytest.mark.parametrize("code", [errno.EPERM, errno.EACCES, errno.EINVAL])
def test_where_a_file_cannot_be_read_unnoticed_it_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real = os.open

    def refuse(path: str, flags: int) -> int:
        if flags & os.O_NOATIME:
            raise OSError(code, os.strerror(code), path)
        return real(path, flags)

    (tmp_path / "one").write_bytes(b"content")
    monkeypatch.setattr(os, "open", refuse)
    with open(open_unnoticed(str(tmp_path / "one"), os.O_RDONLY), "rb") as file:
        assert file.read() == b"content"
