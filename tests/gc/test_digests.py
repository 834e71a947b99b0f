"""Sets of digests on local disk."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from contextlib import suppress
from itertools import count, islice
from pathlib import Path

import pytest

from kstore.errors import FileError
from kstore.gc import digests
from kstore.gc.digests import DigestSet

MANY = [number.to_bytes(32, "big") for number in range(20_000)]
PROGRAM = """
import resource
from kstore.gc.digests import DigestSet
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
with DigestSet() as one, DigestSet() as other:
    print(len(one.add([b"1"])), len(other.add([b"2"])))
"""


def test_a_set_grows_with_what_is_added() -> None:
    with DigestSet() as found:
        assert found.add(MANY[:10]) == MANY[:10]
        assert found.add(MANY) == MANY[10:]
        found.update(dict.fromkeys(MANY, b"value" * 20))
        assert (len(found), found.value(MANY[-1])) == (len(MANY), b"value" * 20)
        found.remove(MANY[1:])
        assert list(found.items()) == [(MANY[0], b"value" * 20)]


def test_a_killed_gc_leaves_nothing_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with DigestSet() as found:
        found.add(MANY)
        assert list(tmp_path.iterdir()) == []


def test_where_few_descriptors_are_free_nothing_is_left_on_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """However many descriptors it takes."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    limits, open_now = resource.getrlimit(resource.RLIMIT_NOFILE), set(map(int, os.listdir("/proc/self/fd")))
    made = []
    free = (number for number in count() if number not in open_now)
    for first_beyond in islice(free, 8):
        resource.setrlimit(resource.RLIMIT_NOFILE, (first_beyond, limits[1]))
        try:
            with DigestSet() as found, suppress(FileError):
                made.append(found.add(MANY[:1]))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert list(tmp_path.iterdir()) == []
    assert 0 < len(made) < 8


def test_the_folder_for_temporary_files_need_not_be_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"not-text-\xff")
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with DigestSet() as found:
        assert found.add(MANY[:1]) == MANY[:1]
    assert list(folder.iterdir()) == []


def test_a_process_that_may_map_little_has_sets() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, cwd=Path(__file__).parents[2]
    )
    assert done.stdout.split() == [b"1", b"1"]


def test_where_a_set_has_no_room_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "_MAP_SIZE", 1 << 60)
    with DigestSet() as found, pytest.raises(FileError, match=r"set TMPDIR .* or allow this process more memory"):
        found.add(MANY)


@pytest.mark.parametrize("known", [True, False], ids=["its folder is known", "no folder can be written"])
def test_where_no_set_can_be_made_it_says_what_to_do(
    known: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """For example, where no inodes are left."""

    def full(*arguments: object, **options: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path) if known else None)
    monkeypatch.setattr("tempfile.mkstemp" if known else "tempfile.gettempdir", full)
    where = str(tmp_path) if known else "temporary storage"
    with DigestSet() as found, pytest.raises(FileError, match=f"in {where}: .*No space left.*; make room there"):
        found.add(MANY)
