from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable, Iterator

import pytest

from kstore.digest import DIGEST_SIZE, digest_of
from kstore.digest.numbers import NONE, DictTable, DigestSet, Numbers

ONE, TWO, THREE = map(digest_of, (b"one", b"two", b"three"))


@pytest.fixture(params=["compiled", "dict"], autouse=True)
def table(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kind = DictTable if request.param == "dict" else pytest.importorskip("kstore.digest.table").Table
    monkeypatch.setattr("kstore.digest.numbers.Table", kind)
    yield


def test_each_digest_has_the_number_with_which_it_came() -> None:
    numbers = Numbers()
    assert [*numbers.add([ONE, TWO, ONE]), *numbers.add([THREE, TWO])] == [0, 1, 0, 2, 1]
    assert [*numbers.find([THREE, ONE, digest_of(b"other")])] == [2, 0, NONE]
    assert [numbers.number(digest) for digest in (TWO, digest_of(b"other"))] == [1, NONE]
    assert len(numbers) == 3 and [*map(numbers.digest, range(3))] == [ONE, TWO, THREE]


def test_nothing_has_no_numbers() -> None:
    numbers = Numbers()
    assert [*numbers.add([])] == [*numbers.find([])] == [] and len(numbers) == 0
    assert numbers.number(ONE) == NONE


def test_very_many_are_as_few() -> None:
    """Whatever the digests are: those of a damaged manifest may differ in any single bit alone."""
    chosen = random.Random(7)
    alike = [bytes(DIGEST_SIZE - 3) + n.to_bytes(3) for n in range(20_000)]
    alike += [n.to_bytes(3) + bytes(DIGEST_SIZE - 3) for n in range(1, 20_000)]
    every = [*alike, *(chosen.randbytes(DIGEST_SIZE) for _ in range(50_000))]
    numbers = Numbers()
    assert [*numbers.add(every)] == [*range(len(every))]
    chosen.shuffle(alike)
    assert [*map(numbers.digest, numbers.find(alike))] == alike
    assert {*numbers.find(map(digest_of, (b"1", b"2")))} == {NONE}


def test_a_number_that_nobody_has_is_an_error() -> None:
    numbers = Numbers()
    numbers.add([ONE])
    for number in (1, 2**40):
        with pytest.raises(IndexError):
            numbers.digest(number)


@pytest.mark.parametrize("use", [Numbers.add, Numbers.find])
def test_what_is_no_digest_is_refused(use: Callable[..., Iterable[int]]) -> None:
    numbers = Numbers()
    with pytest.raises((ValueError, struct.error)):
        list(use(numbers, [ONE, b"short"]))


def test_a_set_has_what_was_added_and_not_taken_out() -> None:
    some = DigestSet([ONE])
    assert some.add_each([ONE, TWO, TWO, THREE]) == [False, True, False, True]
    some.discard_each([TWO, digest_of(b"other")])
    assert {*some} == {ONE, THREE} == some and len(some) == 2
    assert [*some.has_each([ONE, TWO, THREE, digest_of(b"other")])] == [True, False, True, False]
    assert ONE in some and TWO not in some and digest_of(b"other") not in some and "text" not in some
    assert some.add_each([TWO]) == [True] and len(some) == 3


def test_a_set_can_be_joined_with_others() -> None:
    assert DigestSet([ONE]) | {TWO} == {ONE, TWO} and {TWO} - DigestSet([TWO]) == set()
    assert not DigestSet() and (DigestSet([ONE, TWO]) | {THREE: 1}.keys()) - {ONE} == {TWO, THREE}
