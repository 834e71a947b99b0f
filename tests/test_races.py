"""Many workers that commit to one key at the same time: each loses races, and what it lost leaves no traces."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kstore.blobs import BlobStore
from kstore.deadline import Waiting
from kstore.local.line import Line
from kstore.operations.theirs import Newest
from kstore.polls import polls
from kstore.published import races as racing
from kstore.published.races import MAX_RACES, races
from kstore.published.ref import Ref
from kstore.published.refs import Refs
from kstore.report import CommitStatus, RestoreStatus
from tests.trees import KEY, Node, contents, without_relocated


@pytest.fixture
def rival(tmp_path: Path) -> Node:
    """Another worker, whose kernels are published."""
    rival = Node(tmp_path, "rival", layout="packed")
    rival.tree.kernel("first")
    rival.commit()
    return rival


@pytest.fixture
def node(rival: Node, tmp_path: Path) -> Node:
    """A worker that has restored them and compiled one more."""
    node = Node(tmp_path, "node", layout="packed")
    node.restore()
    node.tree.kernel("own")
    return node


def outrun(monkeypatch: pytest.MonkeyPatch, rival: Node, times: int, *, before: str) -> None:
    """The rival commits one more kernel each of the next `times` that somebody else calls this method of `Refs`."""
    method, left = getattr(Refs, before), iter(range(times))
    is_rival = False

    def outrunning(self: Refs, *arguments: Any) -> Any:
        nonlocal is_rival
        if not is_rival and (number := next(left, None)) is not None:
            is_rival = True
            rival.tree.kernel(f"rival {number}")
            assert rival.commit().status is CommitStatus.COMMITTED
            is_rival = False
        return method(self, *arguments)

    monkeypatch.setattr(Refs, before, outrunning)


def holds_nothing_needed(node: Node, packs: tuple[str, ...]) -> list[str]:
    """Those packs that hold no artifact of the newest generation."""
    blobs, needed = node.store.storage.blobs_anew(), {entry.digest for entry in node.published().values()}
    return [pack for pack in packs if needed.isdisjoint(blobs.digests_in([pack]))]


def test_a_ref_names_no_pack_for_a_race_that_was_lost(
    node: Node, rival: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outrun(monkeypatch, rival, 4, before="publish")
    assert node.commit().generation == 6
    packs = node.newest().packs
    assert holds_nothing_needed(node, packs) == [packs[0]]  # The manifest had to be stored anew.
    assert len(packs) == 7
    fresh = Node(tmp_path, "fresh")
    assert fresh.restore().status is RestoreStatus.RESTORED
    assert without_relocated(contents(fresh.tree.root)) == without_relocated(
        contents(node.tree.root) | contents(rival.tree.root)
    )


def test_a_pack_that_has_only_the_manifest_of_its_generation_is_not_named_by_the_next(
    node: Node, rival: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    outrun(monkeypatch, rival, 1, before="publish")
    node.commit()
    with_manifest, *others = node.newest().packs
    rival.tree.kernel("last")
    rival.commit()
    assert rival.newest().generation == 4
    assert set(rival.newest().packs[1:]) == set(others)
    assert with_manifest not in rival.newest().packs


def test_no_manifest_is_stored_for_a_race_that_is_known_to_be_lost(
    node: Node, rival: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    outrun(monkeypatch, rival, 4, before="reserve")
    report = node.commit()
    assert report.generation == 6
    storage, scope = node.store.storage, node.newest().scope
    named = {pack for number in range(1, 7) for pack in storage.refs.get(scope, number).packs}
    assert set(storage.blobs.packs()) == named  # At the first attempt there was a kernel to store.


def test_what_was_packed_for_a_keys_first_commit_is_kept_though_another_worker_is_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, rival = (Node(tmp_path, name, layout="packed") for name in ("node", "rival"))
    node.tree.kernel("own")
    outrun(monkeypatch, rival, 1, before="reserve")
    assert node.commit().generation == 2
    packs = node.newest().packs
    assert len(packs) == 3  # its manifest's, its own, and the rival's
    assert holds_nothing_needed(node, packs) == [packs[0]]


def test_a_pack_is_asked_for_once_in_all_attempts_of_a_commit(
    node: Node, rival: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    has_pack = BlobStore.has_pack
    monkeypatch.setattr(BlobStore, "has_pack", lambda self, pack: asked.append(pack) or has_pack(self, pack))
    newest, before = Newest(node.store.storage, node.newest().scope, None), node.newest()
    assert not newest.lacks_pack(before)
    rival.tree.kernel("more")
    rival.commit()
    asked.clear()
    after = node.newest()
    assert not newest.lacks_pack(after)
    assert asked == [pack for pack in after.packs if pack not in before.packs] != []


def test_what_the_root_grew_from_is_not_asked_for_what_it_does_not_have(
    node: Node, rival: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Ref] = []
    monkeypatch.setattr(Refs, "is_kept", lambda _, ref: asked.append(ref))
    outrun(monkeypatch, rival, 2, before="publish")
    assert node.commit().generation == 4
    assert asked == []


def test_what_only_the_generation_that_the_root_grew_from_has_is_relied_upon(node: Node, rival: Node) -> None:
    (pack,) = node.newest().packs
    copied = next(path for path in rival.published() if path.endswith(".ptx"))
    rival.store.forget(KEY)
    copy = node.tree.put("inductor/ab/copy.py", rival.tree.read(copied))
    report = node.commit()
    assert report.new_blobs == report.new_files  # The copy needs none, and the manifest is one.
    assert copy in node.published()
    assert pack in node.newest().packs


def test_a_pack_that_is_gone_is_asked_for_at_each_attempt(node: Node, rival: Node) -> None:
    newest, ref = Newest(node.store.storage, node.newest().scope, None), node.newest()
    pack = node.location / "packs" / ref.packs[0]
    away = pack.rename(node.location / "away")
    assert newest.lacks_pack(ref)
    assert newest.lacks_pack(ref)
    away.rename(pack)
    assert not newest.lacks_pack(ref)


class Waited:
    """A line in which it is one's turn at once, or never."""

    def __init__(self, *, moves: bool = True) -> None:
        self.said: list[str] = []
        self._moves = moves

    def wait(self, seconds: float) -> bool:
        self.said.append(f"waited, for {seconds:g} s at most")
        return self._moves

    def leave(self) -> None:
        self.said.append("left")


class TestLine:
    """Whoever has lost a race lets those of its host go first that have lost one before."""

    def test_nobody_stands_in_line_for_the_first_attempt(self) -> None:
        line = Waited()
        next(iter(races(line)))
        assert line.said == ["left"]

    def test_whoever_loses_stands_in_line_until_all_is_done(self) -> None:
        line = Waited()
        for _ in zip(range(3), races(line), strict=False):
            pass
        assert line.said == ["waited, for 2 s at most"] * 2 + ["left"]

    def test_whoever_has_waited_in_vain_twice_goes_on_without_a_line(self) -> None:
        line = Waited(moves=False)
        for _ in zip(range(9), races(line), strict=False):
            pass
        assert line.said == ["waited, for 2 s at most"] * 2 + ["left"]

    def test_an_error_leaves_the_line(self) -> None:
        line = Waited()

        def fail() -> None:
            for _ in races(line):
                raise OSError

        with pytest.raises(OSError):
            fail()
        assert line.said == ["left"]

    def test_all_that_commit_to_one_key_of_a_store_stand_in_one_line(
        self, node: Node, rival: Node, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        waited: list[Line] = []
        monkeypatch.setattr(Line, "wait", lambda line, _: bool(waited.append(line)))
        outrun(monkeypatch, rival, 1, before="publish")
        node.commit()
        node.tree.kernel("more")
        rival.tree.kernel("more of the rival's")
        outrun(monkeypatch, node, 1, before="publish")
        rival.commit()
        first, second = waited
        monkeypatch.undo()
        assert first.wait(0)
        assert not second.wait(0)
        first.leave()


class TestWaits:
    """Whoever has lost more than sixteen races waits before each further attempt, but not for long."""

    @pytest.fixture
    def longest(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """Collects the waits, each as long as it can be, and lets nobody wait."""
        waits: list[float] = []
        monkeypatch.setattr(racing.time, "sleep", waits.append)
        monkeypatch.setattr(racing, "RANDOM", Longest())
        return waits

    def attempts(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> Iterator[None]:
        """Attempts that take so long each."""
        clock = iter(float(number // 2 + number % 2) * seconds for number in range(2 * MAX_RACES))
        monkeypatch.setattr(racing.time, "monotonic", lambda: next(clock))
        return races()

    def test_it_waits_longer_the_more_it_has_lost(self, longest: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
        for _, _ in zip(range(27), self.attempts(monkeypatch, 0.125), strict=False):
            pass
        assert longest == [0.0] * 16 + [0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0, 1.0, 1.0]

    def test_it_never_waits_longer_than_two_seconds(
        self, longest: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for _, _ in zip(range(18), self.attempts(monkeypatch, 60.0), strict=False):
            pass
        assert longest == [0.0] * 16 + [2.0]

    def test_it_gives_up_in_the_end(self, longest: list[float]) -> None:
        assert sum(1 for _ in races()) == MAX_RACES


class Longest:
    """Draws the largest number."""

    def uniform(self, low: float, high: float) -> float:
        return high


def test_waiting_draws_none_of_the_jobs_random_numbers(
    node: Node, rival: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    outrun(monkeypatch, rival, 3, before="publish")
    before = random.getstate()
    node.commit()
    assert len([*polls(0.01, Waiting())]) == 2
    assert random.getstate() == before
