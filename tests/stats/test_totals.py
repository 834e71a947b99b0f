from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.local.link import LinkMode
from kstore.report import RestoreReport, RestoreStatus
from kstore.stats.totals import COUNTED, NEWEST, SLOWEST, Sample, Timing, Totals, load_totals, sum_of
from tests.stats.stores import sample

SAMPLES = st.lists(
    st.builds(
        sample, st.sampled_from([status.value for status in COUNTED]), st.integers(0, 9), at=st.integers(1, 99)
    ),
    max_size=30,
)  # fmt: skip


REPORT = RestoreReport(
    RestoreStatus.RESTORED, "key", generation=1, files=2, bytes=3, placed=4, left_out=1, seconds=6.54321, waited=7.89
)


def totals_of(samples: list[Sample]) -> Totals:
    totals = Totals()
    for one in samples:
        totals.add_sample(one)
    return totals


@given(SAMPLES, SAMPLES)
def test_totals_of_two_workers_are_those_of_one_who_did_both(one: list[Sample], other: list[Sample]) -> None:
    together, joined = totals_of(one + other), sum_of((totals_of(one), totals_of(other)))
    assert joined.timings == together.timings
    assert (joined.since, joined.last, joined.placed) == (together.since, together.last, together.placed)
    assert [s.seconds for s in joined.slowest] == [s.seconds for s in together.slowest]
    assert [s.at for s in joined.newest] == [s.at for s in together.newest]


@given(SAMPLES)
def test_totals_are_read_as_they_were_written(samples: list[Sample]) -> None:
    totals = totals_of(samples)
    assert load_totals(json.loads(json.dumps(totals.as_json()))) == totals


@given(SAMPLES)
def test_no_more_than_a_few_reports_are_kept(samples: list[Sample]) -> None:
    totals = totals_of(samples)
    assert len(totals.newest) == min(NEWEST, len(samples))
    assert len(totals.slowest) <= SLOWEST
    assert totals.restores == len(samples)


def test_hits_are_restores_of_the_key_itself() -> None:
    totals = totals_of([sample("restored"), sample("current"), sample("seeded"), sample("miss")])
    assert (totals.hits, totals.restores, totals.misses, totals.seeded) == (2, 4, 1, 1)


def test_the_last_and_the_slowest_reports_are_those_that_are_kept() -> None:
    numbers = range(1, 13)
    totals = totals_of([sample(seconds=float(number * 5 % 13), at=float(number * 7 % 13)) for number in numbers])

    assert [one.at for one in totals.newest] == sorted(numbers, reverse=True)[:NEWEST]
    assert [one.seconds for one in totals.slowest] == sorted(numbers, reverse=True)[:SLOWEST]


def test_files_and_waits_of_restores_add_up() -> None:
    one = replace(sample(), placed=3, left_out=1, waited=0.5)
    totals = totals_of([one, replace(one, left_out=4), replace(one, waited=2.0)])

    assert (totals.placed, totals.left_out, totals.waited) == (9, 6, 3.0)


def test_restores_that_ended_alike_have_a_shortest_a_longest_and_a_mean() -> None:
    totals = totals_of([sample(seconds=2.0), sample("current", 9.0), sample(seconds=0.25), sample(seconds=0.75)])

    assert totals.timing(RestoreStatus.RESTORED) == Timing(3, 3.0, 0.25, 2.0)
    assert totals.timing(RestoreStatus.RESTORED).mean == 1.0


def test_where_none_ended_so_there_are_no_times() -> None:
    totals = totals_of([sample(seconds=2.0)])
    totals.add(Totals(timings={RestoreStatus.SEEDED: Timing(), RestoreStatus.RESTORED: Timing()}))

    assert totals.timing(RestoreStatus.RESTORED) == Timing(1, 2.0, 2.0, 2.0)
    for status in (RestoreStatus.SEEDED, RestoreStatus.CURRENT):
        assert (totals.timing(status), totals.timing(status).mean) == (Timing(0, 0.0, 0.0, 0.0), 0.0)


def test_the_first_and_the_last_restore_are_known() -> None:
    empty, totals = Totals(), totals_of([sample(at=30.0), sample(at=10.0), sample(at=20.0)])
    totals.add(empty)

    assert (totals.since, totals.last) == (10.0, 30.0)
    assert (empty.since, empty.last) == (0.0, 0.0)


def test_a_miss_is_no_slow_restore() -> None:
    assert totals_of([sample("miss", 9.0), sample(seconds=1.0)]).slowest == [sample(seconds=1.0)]


def test_of_a_report_each_figure_is_kept() -> None:
    kept = Sample.of(replace(REPORT, link_mode=LinkMode.COPY))

    assert replace(kept, at=0.0, worker="") == Sample(
        0.0, RestoreStatus.RESTORED, 1, 6.5432, 7.9, 2, 3, 4, 1, str(LinkMode.COPY), ""
    )
    assert Sample.of(REPORT).link_mode == ""


def test_of_what_lists_more_reports_than_are_kept_only_these_are_read() -> None:
    content = totals_of([sample()]).as_json()
    read = load_totals(content | {name: content[name] * 100 for name in ("newest", "slowest")})

    assert (len(read.newest), len(read.slowest)) == (NEWEST, SLOWEST)


@pytest.mark.parametrize(
    "nonsense", [{"worker": "x" * 201}, {"worker": ["me"]}, {"files": 1.5}, {"status": "exploded"}]
)
def test_a_report_that_makes_no_sense_is_refused(nonsense: dict[str, Any]) -> None:
    content = totals_of([sample()]).as_json()
    with pytest.raises(ValueError, match="is not a"):
        load_totals(content | {"newest": [content["newest"][0] | nonsense]})


@pytest.mark.parametrize(
    "nonsense",
    [
        {"placed": -1},
        {"placed": 10**400},
        {"placed": "1"},
        {"waited": float("nan")},
        {"since": float("inf")},
        {"last": 1e300},
        {"timings": {"exploded": {}}},
        {"timings": []},
        {"newest": [{"worker": "x" * 10**6}]},
        {"newest": {"a": 1}},
        {"slowest": None},
    ],
)
def test_what_makes_no_sense_is_refused(nonsense: dict[str, Any]) -> None:
    content = totals_of([sample()]).as_json() | nonsense
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        load_totals(content)
