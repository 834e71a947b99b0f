from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from pathlib import Path

import pytest

from kstore.local.finished import (
    Unfinished,
    check_unlocked,
    check_whole_object,
    check_whole_text,
    is_at_work,
    is_recent,
)
from tests.trees import shared_object

NOW = 1_800_000_000 * 10**9
HOUR = 3600 * 10**9


def test_a_lock_that_nobody_holds_or_that_is_missing_is_free(tmp_path: Path) -> None:
    check_unlocked(str(tmp_path / "missing"))
    (tmp_path / "lock").touch()
    check_unlocked(str(tmp_path / "lock"))
    os.mkfifo(tmp_path / "pipe")  # Nobody waits for its writer.
    check_unlocked(str(tmp_path / "pipe"))


def test_looking_at_a_lock_costs_no_descriptor(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    before, times = len(os.listdir("/proc/self/fd")), 50
    for _ in range(times):
        check_unlocked(str(tmp_path / "lock"))
    assert len(os.listdir("/proc/self/fd")) < before + times  # Other threads may have opened some.


@pytest.mark.parametrize("kind", [fcntl.LOCK_EX, fcntl.LOCK_SH])
def test_a_lock_that_is_held(tmp_path: Path, kind: int) -> None:
    with (tmp_path / "lock").open("w") as held:
        fcntl.flock(held, kind)
        if kind == fcntl.LOCK_EX:
            with pytest.raises(Unfinished):
                check_unlocked(str(tmp_path / "lock"))
        else:
            check_unlocked(str(tmp_path / "lock"))
    check_unlocked(str(tmp_path / "lock"))


@pytest.mark.usefixtures("forked")
def test_looking_at_a_lock_does_not_keep_it_though_a_child_lives_on(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    check_unlocked(str(tmp_path / "lock"))
    with (tmp_path / "lock").open("w") as compiler:
        fcntl.flock(compiler.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_lock_that_cannot_be_looked_at_is_not_free(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to("lock")
    with pytest.raises(OSError, match="symbolic"):
        check_unlocked(str(tmp_path / "lock"))


def marker(folder: Path, name: str, *, mode: int, age: int) -> str:
    """A file that marks a group as being written and changed `age` nanoseconds before `NOW`."""
    path = folder / name
    path.touch()
    path.chmod(mode)
    os.utime(path, ns=(NOW, NOW - age))
    return str(path)


@pytest.mark.parametrize("mode", [0o755, 0o700])
@pytest.mark.parametrize(("age", "is_young"), [(-HOUR, True), (HOUR - 1, True), (HOUR, False)])
def test_a_lock_that_exists_only_during_a_build_is_believed_for_an_hour(
    tmp_path: Path, mode: int, age: int, is_young: bool
) -> None:
    assert is_at_work(marker(tmp_path, "lock", mode=mode, age=age), NOW) is is_young


@pytest.mark.parametrize(("age", "is_young"), [(HOUR - 1, True), (HOUR, False)])
def test_what_is_not_a_lock_is_believed_for_an_hour_whatever_its_mode(tmp_path: Path, age: int, is_young: bool) -> None:
    assert is_at_work(marker(tmp_path, ".ninja_lock", mode=0o644, age=age), NOW) is is_young


@pytest.mark.parametrize(("age", "is_young"), [(0, True), (HOUR, False)])
def test_a_lock_that_stays_is_believed_for_an_hour_where_none_can_be_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: int, is_young: bool
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert is_at_work(marker(tmp_path, "lock", mode=0o644, age=age), NOW) is is_young


def test_a_marker_that_is_gone_or_leads_nowhere(tmp_path: Path) -> None:
    assert not is_at_work(str(tmp_path / "lock"), NOW)
    assert not is_recent(str(tmp_path / ".ninja_lock"), NOW)
    (tmp_path / "link").symlink_to("nowhere")
    assert is_recent(str(tmp_path / "link"), time.time_ns())


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "empty"),
        (b"\0" * 9, "empty"),
        (b"{", "short"),
        (b'{"a": 1', "short"),
        (b"{\0\0", "short"),
        (b"\n {", "short"),
    ],
)
@pytest.mark.parametrize("merger", ["json_union", "literal_union"])
def test_text_that_a_killed_writer_left_is_not_finished(merger: str, data: bytes, problem: str) -> None:
    with pytest.raises(Unfinished, match=problem):
        check_whole_text(merger, data)


@pytest.mark.parametrize("merger", ["json_union", "literal_union"])
def test_text_of_another_form_is_finished(merger: str) -> None:
    for data in (b"{}", b'{"a": 1}\n', b"\n", b"another form"):
        check_whole_text(merger, data)


def test_text_that_is_nested_too_deeply_to_be_read_is_no_business_of_ours() -> None:
    check_whole_text("json_union", b'{"a":' * 100_000)


def test_a_time_that_begins_as_a_dictionary_does_is_no_dictionary() -> None:
    """Of the times that JAX writes beside its entries, one in 256 does."""
    check_whole_text("oldest", b"{" + bytes(range(1, 8)))


def test_data_that_is_not_an_object_file_is_not_finished() -> None:
    whole = shared_object()
    check_whole_object(whole)
    others = (bytes(4) + whole[4:], whole[:4] + b"\1" + whole[5:])  # without its mark, or said to be of 32 bits
    for data in (b"", b"\x7fEL", b"\x7fELF", b"#!/bin/sh", bytes(1000), whole[:64], *others):
        with pytest.raises(Unfinished):
            check_whole_object(data)


def test_an_object_file_is_whole_once_it_has_the_last_of_its_sections() -> None:
    data = shared_object()
    start, end, _ = sections_of(data)
    check_whole_object(data[:end])
    nowhere, far_away = bytes(8), struct.pack("<Q", start + (1 << 32))
    for unfinished in (data[: end - 1], *(data[:0x28] + table + data[0x30:] for table in (nowhere, far_away))):
        with pytest.raises(Unfinished, match="short"):
            check_whole_object(unfinished)


def test_so_is_one_with_more_sections_than_its_header_can_count() -> None:
    data = bytearray(shared_object())
    table, end, count = sections_of(data)
    struct.pack_into("<H", data, 0x3C, 0)
    struct.pack_into("<Q", data, table + 0x20, count)
    check_whole_object(bytes(data[:end]))
    for cut in (table, table + 63, table + 64, end - 1):
        with pytest.raises(Unfinished, match="short"):
            check_whole_object(bytes(data[:cut]))


def sections_of(data: bytes | bytearray) -> tuple[int, int, int]:
    """Where the table of an object file's sections begins and ends, and how many it has."""
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    return table, table + size * count, count
