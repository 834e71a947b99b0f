from __future__ import annotations

import os
from pathlib import Path

import pytest

from kstore.aside import Aside
from kstore.errors import IntegrityError


def test_bytes_come_back_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstore.aside._PIECE", 3)
    aside = Aside([b"ten", memoryview(b" bytes!")], str(tmp_path))
    assert [*aside.pieces()] == [*aside.pieces()] == [b"ten", b" by", b"tes", b"!"]
    assert [*Aside([], str(tmp_path)).pieces()] == []


def test_nobody_else_sees_the_file_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    aside = Aside([b"bytes"], str(tmp_path))
    assert not list(tmp_path.iterdir())
    del aside
    assert len(os.listdir("/proc/self/fd")) == before and not list(tmp_path.iterdir())


def test_a_file_that_became_shorter_is_an_error(tmp_path: Path) -> None:
    aside = Aside([b"ten bytes!"], str(tmp_path))
    os.truncate(next(fd for fd in Path("/proc/self/fd").iterdir() if str(tmp_path) in os.readlink(fd)), 4)
    with pytest.raises(IntegrityError, match="4 bytes at 0 of a file of 10"):
        list(aside.pieces())


def test_without_a_folder_nothing_is_put_aside(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="none"):
        Aside([b"bytes"], str(tmp_path / "none"))
