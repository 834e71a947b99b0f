"""A far store is asked for many things at a time, a near one when an answer is wanted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kstore.blobs.packreader import PackReader
from kstore.errors import MissError
from kstore.far import ask_each
from kstore.published.fetched import fetch_each
from kstore.scope import Scope
from tests.cli.test_hidden_keys import raising
from tests.stats.stores import commit
from tests.trees import KEY


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer comes late."""
    monkeypatch.setattr("kstore.far.NEAR", -1.0)


def answers_to(items: list[int], ask: Callable[[int], int]) -> list[tuple[int, int]]:
    return [(item, answer()) for item, answer in ask_each(ask, items)]


class TestQuestions:
    def test_a_near_store_is_asked_when_an_answer_is_wanted_by_whoever_wants_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("kstore.far.NEAR", 60.0)
        asked = list[tuple[int, int]]()
        each = ask_each(lambda item: asked.append((item, threading.get_ident())), range(3))
        next(each)
        assert asked == [(0, threading.get_ident())]
        assert len(list(each)) == 2
        assert {thread for _, thread in asked} == {threading.get_ident()}

    @pytest.mark.usefixtures("far")
    def test_a_far_store_is_asked_for_several_at_a_time_after_the_first(self) -> None:
        together = threading.Barrier(4)

        def ask(item: int) -> int:
            if item:
                together.wait(60)
            return -item

        assert answers_to([0, 1, 2, 3, 4], ask) == [(0, 0), (1, -1), (2, -2), (3, -3), (4, -4)]

    @pytest.mark.parametrize("near", [60.0, -1.0], ids=["near", "far"])
    def test_an_error_costs_its_own_answer(self, near: float, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("kstore.far.NEAR", near)
        each = ask_each(lambda item: 1 // item, [1, 0, 1, 0])
        found = list[int | None]()
        for _, answer in each:
            try:
                found.append(answer())
            except ZeroDivisionError:
                found.append(None)
        assert found == [1, None, 1, None]

    @pytest.mark.parametrize("near", [60.0, -1.0], ids=["near", "far"])
    def test_an_interruption_is_no_answer(self, near: float, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing else is asked first: the store may hang."""
        monkeypatch.setattr("kstore.far.NEAR", near)
        with pytest.raises(KeyboardInterrupt):
            next(ask_each(raising(KeyboardInterrupt()), range(3)))

    @pytest.mark.usefixtures("far")
    def test_nobody_waits_for_answers_that_are_not_wanted_any_more(self) -> None:
        """Ctrl-C closes it, and the store may hang."""
        begun, go_on, ended = threading.Event(), threading.Event(), list[int]()

        def ask(item: int) -> None:
            if item > 1:
                begun.set()
                go_on.wait(10)
                ended.append(item)

        each = ask_each(ask, range(4), threads=2)
        assert [item for item, _ in (next(each), next(each))] == [0, 1]
        assert begun.wait(60)
        each.close()  # type: ignore[attr-defined]
        assert not ended
        go_on.set()

    @pytest.mark.usefixtures("far")
    def test_no_more_is_asked_than_threads_are_allowed(self) -> None:
        given = list[int]()

        def items() -> Iterator[int]:
            for number in range(20):
                given.append(number)
                yield number

        each = ask_each(lambda item: item, items(), threads=2)
        assert [item for item, _ in (next(each), next(each))] == [0, 1]
        assert given == [0, 1, 2, 3]


class TestGenerations:
    def test_a_pack_that_several_name_is_read_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(4):
            node = commit(tmp_path, KEY, f"kernel {number}")
        read, load = list[str](), PackReader._load_index
        monkeypatch.setattr(PackReader, "_load_index", lambda reader: read.append(reader.pack_id) or load(reader))
        storage = node.store.storage
        scope = next(storage.refs.scopes())
        found = [fetch() for _, fetch in fetch_each(storage, [(scope, number) for number in range(1, 5)])]
        packs = {pack for fetched in found for pack in fetched.ref.packs}
        assert len(packs) == 4
        assert sorted(read) == sorted(packs)
        assert all(fetched.data() for fetched in found)

    def test_what_earlier_ones_named_is_forgotten(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Memory stays flat, however many generations are read."""
        monkeypatch.setattr("kstore.published.fetched._RECENT", 2)
        every = list[tuple[Scope, int]]()
        for number in range(4):
            node = commit(tmp_path, f"model/v{number}", f"kernel {number}")
            every.append((node.newest(f"model/v{number}").scope, 1))
        blobs = [fetch().blobs for _, fetch in fetch_each(node.store.storage, every)][-1]
        assert len(blobs._readers) == 2

    def test_an_interruption_while_it_is_read_what_packs_hold_is_raised(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """gc is ended by a signal, and must not go on as if nothing had come."""
        node = commit(tmp_path, KEY, "kernel")
        monkeypatch.setattr("kstore.published.fetched._Fetcher._read_indexes", raising(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            next(fetch_each(node.store.storage, [(node.newest().scope, 1)]))

    def test_one_that_is_gone_costs_itself(self, tmp_path: Path) -> None:
        node = commit(tmp_path, KEY, "kernel")
        scope = node.newest().scope
        (_, gone), (_, there) = fetch_each(node.store.storage, [(scope, 7), (scope, 1)])
        with pytest.raises(MissError, match="no generation 7"):
            gone()
        assert there().ref.generation == 1
