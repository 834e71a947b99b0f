from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from kstore.calls import Status, read_each
from kstore.digest import digest_of
from kstore.local import reading
from kstore.local.finished import Unfinished
from kstore.local.reading import Content, read_finished, read_in_batches


def test_a_quiet_file_is_read_whole(tmp_path: Path) -> None:
    for data in (b"", b"short", os.urandom(3 << 20)):
        path = tmp_path / "file"
        path.write_bytes(data)
        found, status, digest = read_finished(str(path))
        assert (found, digest) == (data, digest_of(data))
        assert status.inode == path.stat().st_ino


def test_a_file_that_is_gone_is_not_finished(tmp_path: Path) -> None:
    with pytest.raises(Unfinished, match="gone"):
        read_finished(str(tmp_path / "nothing"))


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"data")
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(OSError):
        read_finished(str(tmp_path / "link"))


def test_nobody_waits_for_the_writer_of_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Unfinished, match="not a regular file"):
        read_finished(str(tmp_path / "pipe"))


@pytest.mark.parametrize("change", ["grown", "cut", "rewritten"])
def test_a_file_that_changes_while_it_is_read_is_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before" * 100)
    os.utime(path, ns=(1, 1))
    read = os.read
    changes = [{"grown": b"before" * 101, "cut": b"before", "rewritten": b"after!" * 100}[change]]

    def read_changed(fd: int, size: int) -> bytes:
        if changes:
            path.write_bytes(changes.pop())
        return read(fd, size)

    monkeypatch.setattr(os, "read", read_changed)
    with pytest.raises(Unfinished, match="changed"):
        read_finished(str(path))


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"0123456789" * 50)
    read = os.read
    monkeypatch.setattr(os, "read", lambda fd, size: read(fd, min(size, 7)))
    assert read_finished(str(tmp_path / "file"))[0] == b"0123456789" * 50


@pytest.mark.parametrize("large", [5, 1 << 22])
def test_many_files_are_read_in_order(tmp_path: Path, large: int) -> None:
    """A file of another size than announced, or one that fills a batch by itself, is left to be read alone."""
    contents = {"a": b"one", "empty": b"", "large": os.urandom(large), "b": b"two", "longer": b"more"}
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    sizes = {name: len(data) for name, data in contents.items()} | {"longer": 3, "gone": 4}
    batches = read_in_batches(sizes.items(), lambda names: [str(tmp_path / name) for name in names])
    read = {name: Content(*content) for batch in batches for name, *content in zip(*batch, strict=True)}
    assert list(read) == list(sizes)
    left = {name for name, content in read.items() if content.status.error}
    assert left == {"longer", "gone"} | ({"large"} if large > 1 << 20 else set())
    for name in read.keys() - left:
        assert read[name] == read_finished(str(tmp_path / name)) and read[name].data == contents[name]


def test_any_number_of_empty_files_is_read_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []

    def read(paths: Sequence[str], sizes: Sequence[int]) -> tuple[list[bytes], list[Status]]:
        counts.append(len(paths))
        return read_each(paths, sizes)

    (tmp_path / "empty").touch()
    monkeypatch.setattr(reading, "read_each", read)
    many = 2 * reading._COUNT + 1
    batches = read_in_batches([("empty", 0)] * many, lambda names: [str(tmp_path / name) for name in names])
    assert not any(status.error for batch in batches for status in batch.statuses)
    assert counts == [reading._COUNT, reading._COUNT, 1]
