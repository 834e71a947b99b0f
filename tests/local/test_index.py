from __future__ import annotations

import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kstore.calls import Status
from kstore.errors import IntegrityError
from kstore.local.index import Index, Known, KnownFolder, compact_known, is_settled
from tests import tablefiles
from tests.trees import Tree, entry


def test_what_was_dumped_is_loaded() -> None:
    index = Index(
        compact_known(
            {
                "inductor/ab/c.py": Known(entry("a"), 1, 42),
                "triton/" + "long/" * 200 + "k": Known(entry("b"), 2**40, 2**63),
                "triton/caf\udce9": Known(entry("c"), 0, 1),
            }.items()
        ),
        {
            "inductor": KnownFolder(5, 7, ("ab", "fxgraph"), ()),
            "inductor/ab": KnownFolder(-1, 2**62, (), ("c.py", "caf\udce9", "with space")),
            "triton": KnownFolder(2**62, -1, (), ()),
        },
    )
    assert Index.load(b"".join(index.dump())) == index
    assert Index.load(b"".join(Index().dump())) == Index()


INDEX = Index(
    compact_known([("inductor/ab/c.py", Known(entry("a"), 1, 42)), ("inductor/ab/d.py", Known(entry("b"), 2, 43))]),
    {"inductor": KnownFolder(5, 7, ("ab",), ()), "inductor/ab": KnownFolder(6, 8, (), ("c.py", "d.py"))},
)


@pytest.mark.parametrize("data", [b"", b"garbage", tablefiles.dump({})])
def test_a_file_that_is_not_an_index_raises_an_integrity_error(data: bytes) -> None:
    with pytest.raises(IntegrityError, match="another kstore"):
        Index.load(data)


def test_no_part_of_an_index_is_taken_for_a_whole_one() -> None:
    whole = b"".join(INDEX.dump())
    for cut in range(len(whole)):
        with pytest.raises(IntegrityError):
            Index.load(whole[:cut])


def test_an_index_whose_parts_contradict_each_other_is_an_integrity_error() -> None:
    whole = b"".join(INDEX.dump())
    other = b"".join(Index(INDEX.files).dump())
    start = len(b"kstore index 4\n")
    end = start + 16
    for files in range(4):
        for folders in range(4):
            if (files, folders) != (2, 2):
                with pytest.raises(IntegrityError):
                    Index.load(whole[:start] + struct.pack("<2Q", files, folders) + whole[end:])
    with pytest.raises(IntegrityError):
        Index.load(whole[:end] + other[end:])


def test_a_file_is_the_same_while_its_status_is(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"data")
    status = Status.of(path.stat())
    known = Known(entry(mtime_ns=status.mtime_ns), 4, status.inode)
    assert known.still_is(status)
    assert not known._replace(size=5).still_is(status)
    assert not known._replace(inode=1).still_is(status)
    assert not known._replace(entry=entry(mtime_ns=1)).still_is(status)


SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("age_ns", "fine", "settled"),
    [
        (-SECOND, True, False),
        (0, True, False),
        (SECOND // 100, True, False),
        (SECOND, True, True),
        (SECOND, False, False),
        (3 * SECOND, False, True),
    ],
)
def test_a_time_is_trusted_once_it_has_passed(age_ns: int, fine: bool, settled: bool) -> None:
    """Whole milliseconds look like a filesystem whose clock ticks every second or two."""
    mtime_ns = 1_700_000_000 * SECOND + (1 if fine else 0)
    assert is_settled(mtime_ns, mtime_ns + age_ns) is settled


def test_the_clock_is_asked_by_default() -> None:
    assert is_settled(1)
    assert not is_settled(time.time_ns() + 3600 * SECOND + 1)


DAMAGE = """
import sys
from pathlib import Path
from kstore.local.state import StateFolder
from kstore.local.cacheroot import CacheRoot
root = Path(sys.argv[1])
state = StateFolder(CacheRoot(str(root), {}, {}), "rules")
(path,) = (root / ".kstore").glob("index-*")
whole = path.read_bytes()
for at in range(0, len(whole), 4096):
    for damage in (bytes(4096), b"\\xff" * 4096, b"\\x01\\x00" * 2048):
        path.write_bytes(whole[:at] + damage[: len(whole) - at] + whole[at + 4096 :])
        state.load()
"""


def test_no_damage_to_an_index_ends_the_process(tmp_path: Path) -> None:
    """A power cut can leave pages of zeros."""
    tree = Tree(tmp_path)
    for number in range(100):
        tree.kernel(str(number))
    tree.state().save_index(tree.scan().index)
    done = subprocess.run([sys.executable, "-c", DAMAGE, tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
