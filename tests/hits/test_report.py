"""What is said of the use of what was restored."""

from __future__ import annotations

import pytest

from kstore.hits import Usage, UsageReport
from tests.trees import KEY

HIT, UNUSED, UNKNOWN = Usage(2, 1), Usage(2, 0), Usage(2, None)
WHY = "the filesystem of the cache root notes no access times"


def report(generation: int = 1, why: str = "", **components: Usage) -> UsageReport:
    return UsageReport(KEY, generation, components, why)


@pytest.mark.parametrize(
    ("found", "failure"),
    [
        (report(inductor=Usage(2, 1, misses=1, compiled=1)), "1 entry was compiled anew"),
        (report(inductor=HIT, triton=Usage(misses=2, compiled=9)), "2 entries were compiled anew"),
        (report(inductor=HIT, extensions=Usage(compiled=3)), "1 entry was compiled anew"),
        (report(inductor=UNUSED), "nothing of what was restored was used"),
        (report(), "nothing is left of what was restored"),
    ],
)
def test_a_job_that_requires_hits_is_told_why_it_failed(found: UsageReport, failure: str) -> None:
    assert found.has_failed
    assert found.failure == failure


@pytest.mark.parametrize("found", [report(0), report(inductor=HIT, triton=UNUSED), report(inductor=UNKNOWN, why=WHY)])
def test_a_job_fails_for_nothing_that_is_not_certain(found: UsageReport) -> None:
    assert not found.has_failed


@pytest.mark.parametrize("other", [HIT, UNKNOWN, Usage(misses=1, compiled=8)])
def test_a_component_is_not_called_unused_where_another_may_have_made_it_unneeded(other: Usage) -> None:
    assert report(inductor=other, triton=UNUSED).unused == ()
    assert report(triton=UNUSED).unused == ("triton",)


def test_that_nobody_can_tell_is_said_to_a_job_that_requires_hits() -> None:
    doubt = f"{KEY} was expected to hit, but it is not known whether it did: {WHY}"

    assert report(inductor=UNKNOWN, why=WHY).doubt == report(why=WHY, generation=0).doubt == doubt


@pytest.mark.parametrize(
    "found",
    [
        report(inductor=UNKNOWN),
        report(inductor=HIT, triton=UNKNOWN, why=WHY),
        report(inductor=UNKNOWN, triton=Usage(misses=1, compiled=8), why=WHY),
    ],
)
def test_nothing_is_doubted_that_is_known(found: UsageReport) -> None:
    assert not found.doubt


def test_machines_are_told_everything() -> None:
    assert report(inductor=UNUSED, triton=Usage(compiled=3)).as_json() == {
        "schema": 1,
        "key": KEY,
        "generation": 1,
        "components": {
            "inductor": {"restored": 2, "hits": 0, "misses": 0, "compiled": 0, "counted": False},
            "triton": {"restored": 0, "hits": 0, "misses": 0, "compiled": 3, "counted": False},
        },
        "why_unknown": "",
        "missed": 1,
        "unused": ("inductor",),
    }
