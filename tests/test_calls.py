from __future__ import annotations

import os
from pathlib import Path

import pytest

from kstore.calls import call_each
from kstore.folders import make_folders


def test_each_row_has_its_answer_or_its_error(tmp_path: Path) -> None:
    names = ["a", "gone", "also gone", "b", "gone too"]
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    answers = call_each(os.path.getsize, [str(tmp_path / name) for name in names])
    assert [isinstance(answer, FileNotFoundError) for answer in answers] == [False, True, True, False, True]
    assert [answers[0], answers[3]] == [1, 1]


def test_an_error_that_is_not_of_the_system_ends_it() -> None:
    with pytest.raises(ZeroDivisionError):
        call_each(lambda number: 1 // number, [1, 0, 1])


def test_folders_are_made_where_some_are_there_already(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").touch()
    make_folders([str(tmp_path / name) for name in ("a", "a/b", "a/b/c", "a/d/e", "f")])
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_dir()} == {
        "a", "a/b", "a/b/c", "a/d", "a/d/e", "f",
    }  # fmt: skip
    assert (tmp_path / "a/b/file").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) as caught:
        make_folders([str(tmp_path / "a"), str(tmp_path / "file/b"), str(tmp_path / "c")])
    assert caught.value.filename == str(tmp_path / "file/b")
