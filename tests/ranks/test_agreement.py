"""The ranks of a job agree: on what the first rank offers, or on nothing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kstore.errors import StoreUnavailable, WaitTimeout
from kstore.ranks import Agreement, Board, StoreBoard, Superseded, Verdict, agreement
from kstore.storage import Storage
from tests.faults.reading import AWAY, raising
from tests.ranks.fleet import at_once, outcome

CHOICE = {"generation": 3}
GO = Verdict(True)
SHORT = 0.5


class DictBoard:
    """Notes in memory."""

    def __init__(self) -> None:
        self.notes: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def put(self, name: str, note: bytes) -> None:
        self.notes[name] = note

    def put_if_absent(self, name: str, note: bytes) -> bytes:
        with self._lock:
            return self.notes.setdefault(name, note)

    def get(self, name: str) -> bytes | None:
        return self.notes.get(name)


@pytest.fixture(params=["memory", "store"])
def board(request: pytest.FixtureRequest, tmp_path: Path) -> Board:
    return DictBoard() if request.param == "memory" else StoreBoard(Storage(tmp_path / "store"))


def rank_of(
    board: Board, rank: int, size: int = 3, call: str = "call", *, seconds: float = 60, uniform: bool = True
) -> Agreement:
    return Agreement(board, rank, size, call, seconds=seconds, uniform=uniform)


def take_part(agreement: Agreement, trouble: str = "") -> tuple[Mapping[str, Any], Verdict]:
    """As a rank does: begin again if the offer was an old one."""
    while True:
        offer = agreement.offer(CHOICE) if agreement.rank == 0 else agreement.read_offer()
        try:
            return offer.choice, agreement.vote(trouble)
        except Superseded:
            continue


def run(board: Board, troubles: Mapping[int, str] | None = None, **options: Any) -> list[Any]:
    """All three ranks, some of which have trouble."""
    agreements = [rank_of(board, rank, **options) for rank in range(3)]
    return at_once([lambda a=a: outcome(lambda: take_part(a, (troubles or {}).get(a.rank, ""))) for a in agreements])


def test_all_hear_what_rank_0_offers_and_that_all_are_ready(board: Board) -> None:
    assert run(board) == [(CHOICE, GO)] * 3


@pytest.mark.parametrize("rank", range(3))
def test_what_rank_0_waits_for_others_is_not_counted(board: Board, rank: int) -> None:
    """Rank 0 may wait for another job's kernels for much longer than a restore may take."""
    (agreement,) = [Agreement(board, rank, 3, "call", seconds=0.1, patience=60, uniform=True)]
    if rank:
        timer = threading.Timer(0.5, lambda: rank_of(board, 0).offer(CHOICE))
        timer.start()
        assert agreement.read_offer().choice == CHOICE
        timer.join()
    else:
        agreement.offer(CHOICE)
        timers = [threading.Timer(0.5, lambda r=r: take_part(rank_of(board, r))) for r in (1, 2)]
        for timer in timers:
            timer.start()
        assert agreement.vote() == GO
        for timer in timers:
            timer.join()


@pytest.mark.parametrize("rank", range(3))
def test_if_one_rank_cannot_restore_none_does_and_all_hear_why(board: Board, rank: int) -> None:
    verdict = Verdict(False, f"rank {rank}: no space")
    assert run(board, {rank: "no space"}) == [(CHOICE, verdict)] * 3


def test_where_it_need_not_be_uniform_the_others_go_on(board: Board) -> None:
    verdict = Verdict(True, "rank 1: no space; rank 2: no store")
    assert run(board, {1: "no space", 2: "no store"}, uniform=False) == [(CHOICE, verdict)] * 3


def test_notes_of_an_earlier_run_of_the_job_mean_nothing(board: Board) -> None:
    assert run(board, {1: "no space"})[0][1].go is False
    assert run(board) == [(CHOICE, GO)] * 3
    assert run(board, {2: "no store"})[0][1].why == "rank 2: no store"


def test_an_offer_of_a_run_that_died_before_its_verdict_is_given_up_for_the_new_one(board: Board) -> None:
    rank_of(board, 0).offer({"generation": 1})
    other = rank_of(board, 1, size=2)
    old = other.read_offer()
    assert old.choice == {"generation": 1}
    rank_0 = rank_of(board, 0, size=2)
    assert at_once([lambda: take_part(rank_0), lambda: take_part_after(other)]) == [(CHOICE, GO)] * 2


def take_part_after(other: Agreement) -> tuple[Mapping[str, Any], Verdict]:
    """Vote for an old offer, and then take part."""
    with pytest.raises(Superseded):
        other.vote()
    return take_part(other)


def test_a_rank_that_never_comes_costs_the_others_their_deadline(board: Board) -> None:
    agreements = [rank_of(board, 0, seconds=6 * SHORT), rank_of(board, 1)]
    rank_0, other = at_once([lambda a=a: outcome(lambda: take_part(a)) for a in agreements])
    assert not isinstance(rank_0, Exception)
    assert rank_0[1] == Verdict(False, "rank 2 has not been heard of for 2.4 s")
    assert other == rank_0


def test_where_it_need_not_be_uniform_those_that_came_go_on(board: Board) -> None:
    rank_0 = rank_of(board, 0, seconds=6 * SHORT, uniform=False)
    other = rank_of(board, 1)
    for _, verdict in at_once([lambda: take_part(rank_0), lambda: take_part(other)]):
        assert verdict == Verdict(True, "rank 2 has not been heard of for 2.4 s")


def test_rank_0_that_never_comes_costs_the_others_their_deadline(board: Board) -> None:
    with pytest.raises(WaitTimeout, match=r"rank 1 has waited 0\.45 s for rank 0 to say what to restore"):
        take_part(rank_of(board, 1, seconds=SHORT))


def test_whoever_leaves_before_the_verdict_decides_that_nobody_restores(board: Board) -> None:
    rank_0, other = rank_of(board, 0, size=2), rank_of(board, 1, size=2, seconds=SHORT)
    rank_0.offer(CHOICE)
    with pytest.raises(WaitTimeout, match="for the decision of rank 0"):
        take_part(other)
    assert rank_0.vote() == Verdict(False, "rank 1 had to leave")


def test_rank_0_waits_for_nobody_once_another_rank_has_left(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    rank_0, other = rank_of(board, 0), rank_of(board, 1, seconds=SHORT)
    rank_0.offer(CHOICE)
    with pytest.raises(WaitTimeout):
        take_part(other)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: pytest.fail("it waits for rank 2"))
    monkeypatch.setattr(agreement, "time", clock)
    assert rank_0.vote() == Verdict(False, "rank 1 had to leave")


def test_a_verdict_stands_though_there_is_a_newer_offer_by_then(board: Board) -> None:
    rank_0, other = rank_of(board, 0, size=2), rank_of(board, 1, size=2)
    nonce = rank_0.offer(CHOICE).nonce
    other.read_offer()
    verdict = {"go": False, "why": "rank 0: no space", "votes": {}}
    board.put_if_absent(f"call.{nonce}.verdict", json.dumps(verdict).encode())
    rank_of(board, 0, size=2).offer(CHOICE)
    assert other.vote() == Verdict(False, "rank 0: no space")


def test_a_rank_whose_offer_is_swept_while_it_waits_leaves_when_its_time_is_over() -> None:
    board = DictBoard()
    rank_of(board, 0).offer(CHOICE)
    other = rank_of(board, 1, seconds=SHORT)
    other.read_offer()
    board.notes.clear()
    with pytest.raises(WaitTimeout, match="for the decision of rank 0"):
        other.vote()


def test_whoever_is_about_to_leave_and_finds_a_verdict_goes_by_it(board: Board) -> None:
    """Rank 0 writes the verdict between the last look and the attempt to leave."""
    rank_0, other = rank_of(board, 0, size=2), rank_of(board, 1, size=2, seconds=SHORT)

    class Late:
        """A board on which the verdict is seen late."""

        put = staticmethod(board.put)

        def get(self, name: str) -> bytes | None:
            return None if name.endswith("verdict") else board.get(name)

        def put_if_absent(self, name: str, note: bytes) -> bytes:
            assert rank_0.vote() == GO
            return board.put_if_absent(name, note)

    rank_0.offer(CHOICE)
    other._board = Late()
    assert take_part(other) == (CHOICE, GO)


@pytest.mark.parametrize("note", [b"", b"{}", b'[["nonce", []]]', b'{"nonce": 1, "uniform": true, "choice": {}}'])
def test_an_offer_that_cannot_be_read_is_trouble_with_the_store(board: Board, note: bytes) -> None:
    board.put("call", note)
    with pytest.raises(StoreUnavailable, match="what another rank wrote"):
        rank_of(board, 1).read_offer()


@pytest.mark.parametrize("nonce", ["", "x/../y", "a//b", "a/b", "x\0y", "../../../../etc", "n" * 100])
def test_an_offer_whose_nonce_would_lead_elsewhere_is_trouble_with_the_store(board: Board, nonce: str) -> None:
    board.put("call", json.dumps({"nonce": nonce, "uniform": True, "choice": {}}).encode())
    with pytest.raises(StoreUnavailable, match="a nonce that no rank makes"):
        rank_of(board, 1).read_offer()


@pytest.mark.parametrize("note", [b"{}", b'{"vote": "x"}', b'{"vote": 1, "trouble": ""}'])
def test_a_vote_that_cannot_be_read_is_trouble_with_the_store(board: Board, note: bytes) -> None:
    agreement = rank_of(board, 0, 2)
    nonce = agreement.offer(CHOICE).nonce
    board.put(f"call.{nonce}.1", note)
    with pytest.raises(StoreUnavailable, match="what another rank wrote"):
        agreement.vote()


def test_two_processes_that_claim_to_be_one_rank_do_not_both_restore(board: Board) -> None:
    twins = [rank_of(board, 1, size=2, seconds=2) for _ in range(2)]
    rank_0 = rank_of(board, 0, size=2)
    works: list[Callable[[], Any]] = [lambda: take_part(rank_0)]
    works += [lambda twin=twin: outcome(lambda: take_part(twin)) for twin in twins]
    answers = [a for a in at_once(works)[1:] if not isinstance(a, WaitTimeout)]
    assert [verdict.go for _, verdict in answers].count(True) <= 1


def test_one_of_two_processes_that_claim_to_be_rank_0_gives_way_and_the_others_restore_with_the_other(
    board: Board,
) -> None:
    """Otherwise it would wait in vain for all its time."""
    first, second, other = rank_of(board, 0, size=2), rank_of(board, 0, size=2), rank_of(board, 1, size=2)
    first.offer(CHOICE)
    second.offer(CHOICE)
    assert first.vote() == Verdict(False, "another process is also rank 0")
    answers = at_once([second.vote, lambda: take_part(other)[1]])
    assert answers == [GO, GO]


@pytest.mark.parametrize(("missing", "waits"), [(0, 1), (1, 0)])
def test_a_rank_that_waits_for_long_says_once_for_whom(
    board: Board, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, missing: int, waits: int
) -> None:
    monkeypatch.setattr(agreement, "_SILENCE", 0.0)
    rank = rank_of(board, waits, size=2, seconds=1)
    with suppress(WaitTimeout):
        take_part(rank)
    (line,) = caplog.messages
    assert line.startswith(f"rank {waits} of 2 is waiting for rank {missing}, for ")


@pytest.mark.parametrize(("silence", "patience"), [(60.0, 0.0), (0.0, 60.0)])
def test_a_rank_that_waits_for_a_moment_or_for_another_job_says_nothing(
    board: Board, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, silence: float, patience: float
) -> None:
    monkeypatch.setattr(agreement, "_SILENCE", silence)
    rank = Agreement(board, 1, 2, "call", seconds=60, patience=patience, uniform=True)
    timer = threading.Timer(0.1, lambda: rank_of(board, 0).offer(CHOICE))
    timer.start()
    assert rank.read_offer().choice == CHOICE
    timer.join()
    assert caplog.messages == []


def test_a_rank_looks_at_the_board_less_and_less_often_until_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pauses = 0.0, list[float]()

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        pauses.append(seconds)

    monkeypatch.setattr(agreement, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    with pytest.raises(WaitTimeout):
        rank_of(DictBoard(), 1, seconds=2).read_offer()
    assert pauses == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5, 0.17])


def test_a_rank_whose_time_is_over_as_it_is_about_to_pause_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    times, pauses = chain([0.0] * 4, repeat(5.0)), list[float]()
    monkeypatch.setattr(agreement, "time", SimpleNamespace(monotonic=lambda: next(times), sleep=pauses.append))
    with pytest.raises(WaitTimeout):
        rank_of(DictBoard(), 1, seconds=2).read_offer()
    assert pauses == [0.0]


def test_agreements_of_different_names_do_not_meet(board: Board) -> None:
    first, second = run(board, {0: "no space"}, call="first"), run(board, call="second")
    assert [verdict.go for _, verdict in first + second] == [False] * 3 + [True] * 3


def test_waiting_on_the_store_makes_its_client_look_afresh_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = StoreBoard(Storage(tmp_path / "store"))
    board.put("note", b"there")
    seen = tmp_path / "store/groups/seen"
    assert (board.get("other"), seen.exists()) == (None, False)
    monkeypatch.setattr("kstore.ranks.board._STALE_FOR", 0.0)
    assert (board.get("other"), seen.exists()) == (None, True)


def test_the_first_note_of_all_makes_the_store_whoever_leaves_it(tmp_path: Path) -> None:
    assert StoreBoard(Storage(tmp_path / "store")).put_if_absent("note", b"there") == b"there"
    assert (tmp_path / "store/kstore.json").exists()


def test_a_note_that_cannot_be_read_is_no_note_to_wait_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(tmp_path / "store")
    monkeypatch.setattr(storage.backend, "get", raising(AWAY))
    with pytest.raises(StoreUnavailable):
        StoreBoard(storage).get("note")
