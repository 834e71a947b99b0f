from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from kstore.local.finished import Unfinished, check_unlocked, check_whole_object
from tests.trees import shared_object


def test_a_lock_that_nobody_holds_or_that_is_missing_is_free(tmp_path: Path) -> None:
    check_unlocked(str(tmp_path / "missing"))
    (tmp_path / "lock").touch()
    check_unlocked(str(tmp_path / "lock"))
    os.mkfifo(tmp_path / "pipe")  # Nobody waits for its writer.
    check_unlocked(str(tmp_path / "pipe"))


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


def test_data_that_is_not_an_object_file_is_not_finished() -> None:
    check_whole_object(shared_object())
    for data in (b"", b"\x7fEL", b"\x7fELF", b"#!/bin/sh", bytes(1000), shared_object()[:64]):
        with pytest.raises(Unfinished):
            check_whole_object(data)
