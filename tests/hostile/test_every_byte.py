"""Each byte of each kind of file is wrong, one after the other: what is restored is right, or nothing is restored."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from kstore.blobs.packindex import FOOTER_SIZE
from kstore.errors import KstoreError
from kstore.report import CommitReport, CommitStatus
from tests.hostile.test_damaged_files import LOCAL, SHARED
from tests.hostile.victim import Victim, replaced

PAGE = 4096
SAMPLE = 20
"""How many places of each file are tried in a quick run."""


def flipped(data: bytes, position: int) -> bytes:
    """One bit of a byte is wrong; in neighbouring bytes it is another bit."""
    return data[:position] + bytes([data[position] ^ 1 << position % 8]) + data[position + 1 :]


def places(path: Path) -> list[int]:
    """The first and last bytes, both sides of the end of a page or an index, and others at random."""
    size = path.stat().st_size
    edges = [
        0,
        1,
        PAGE - 1,
        PAGE,
        PAGE + 1,
        size - PAGE,
        size - FOOTER_SIZE - 1,
        size - FOOTER_SIZE,
        size - 2,
        size - 1,
    ]
    some = random.Random(size).sample(range(size), min(SAMPLE, size))
    return sorted({place for place in [*edges, *some] if 0 <= place < size})


def damages(path: Path, where: Iterable[int]) -> Iterator[int]:
    """Damages one place after the other; afterwards the file is whole again."""
    whole = path.read_bytes()
    for place in where:
        with replaced(path, flipped(whole, place)):
            yield place


def check_shared(victim: Victim, path: Path, where: Iterable[int]) -> None:
    """Check both users of it: a worker that starts, and one that has news."""
    for _ in damages(path, where):
        victim.check_restore()
        with victim.undone():
            victim.check_commit()


def check_local(victim: Victim, path: Path, where: Iterable[int]) -> None:
    """A root with a damaged memory still commits its news, and nothing else."""
    for place in damages(path, where):
        with victim.undone():
            answer = victim.check_commit()
        assert isinstance(answer, CommitReport), (place, answer)
        assert (answer.status, answer.new_files) == (CommitStatus.COMMITTED, 1), place


@pytest.mark.parametrize("name", SHARED)
def test_a_wrong_bit_in_the_store(name: str, loose: Victim, packed: Victim) -> None:
    victim = loose if SHARED[name].layout == "loose" else packed
    path = SHARED[name].file(victim)
    check_shared(victim, path, places(path))


@pytest.mark.parametrize("name", LOCAL)
def test_a_wrong_bit_in_what_a_root_remembers(name: str, loose: Victim) -> None:
    path = LOCAL[name].file(loose)
    check_local(loose, path, places(path))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SHARED)
def test_every_byte_in_the_store(name: str, loose: Victim, packed: Victim) -> None:
    victim = loose if SHARED[name].layout == "loose" else packed
    path = SHARED[name].file(victim)
    for _ in damages(path, every(path)):
        victim.check_restore()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LOCAL)
def test_every_byte_of_what_a_root_remembers(name: str, loose: Victim) -> None:
    path = LOCAL[name].file(loose)
    check_local(loose, path, every(path))


def every(path: Path) -> Iterable[int]:
    """Every byte of a small file; of a large one every byte of its ends, and some of each page."""
    size = path.stat().st_size
    if size <= 2 * PAGE:
        return range(size)
    return sorted({*range(200), *range(size - 200, size), *range(0, size, 97)})


def test_a_wrong_bit_in_a_name_is_another_name(loose: Victim) -> None:
    """A file that is not where its name says is a missing file."""
    for path in (loose.ref(), loose.blob(loose.single), loose.manifest(), loose.store / "kstore.json"):
        for place in range(len(path.name)):
            name = bytes(flipped(path.name.encode(), place)).decode("latin-1")
            if name in (".", "..") or "/" in name or "\0" in name:
                continue
            wrong = path.with_name(name)
            path.rename(wrong)
            try:
                answer = loose.check_restore()
            finally:
                wrong.rename(path)
            assert isinstance(answer, KstoreError) or answer.generation in (0, 1, 2)
