from __future__ import annotations

from kstore.blobs.wanted import Wanted
from kstore.digest import digest_of

ONE, TWO, THREE = map(digest_of, (b"1", b"22", b"333"))
BLOBS = [(ONE, 1), (TWO, 2), (ONE, 1), (THREE, 3)]


def test_each_blob_has_a_number_however_often_it_is_added() -> None:
    wanted = Wanted()
    assert [*wanted.add(BLOBS), *wanted.add([(THREE, 3)])] == [0, 1, 0, 2, 2]
    assert wanted.take([TWO, TWO, ONE, digest_of(b"other")]) == [1, None, 0, None]
    assert wanted.take([ONE]) == [None] and [*wanted.left()] == [2]


def test_what_is_found_is_wanted_no_more_and_keeps_its_number() -> None:
    wanted = Wanted(BLOBS)
    wanted.found([TWO, digest_of(b"other")])
    assert [*wanted.items()] == [(ONE, 1), (THREE, 3)]
    assert [*map(wanted.get, (ONE, TWO, THREE, digest_of(b"other")))] == [1, None, 3, None]
    assert [*wanted] == [ONE, THREE] and TWO not in wanted and wanted.take([TWO]) == [1]


def test_what_is_wanted_is_told_as_it_was_whatever_is_found_meanwhile() -> None:
    wanted = Wanted(BLOBS)
    told = wanted.items()
    wanted.take([ONE])
    wanted.found([TWO])
    assert [*told] == [(ONE, 1), (TWO, 2), (THREE, 3)] and [*wanted.items()] == [(ONE, 1), (THREE, 3)]


def test_all_are_among_some_digests_only_if_each_is() -> None:
    wanted = Wanted(BLOBS)
    assert wanted.are_among([THREE, digest_of(b"other"), ONE, TWO, ONE])
    assert not wanted.are_among([ONE, ONE, TWO, digest_of(b"other")])
    assert Wanted().are_among([])
