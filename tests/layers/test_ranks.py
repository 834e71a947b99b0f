"""Ranks of one job whose stores are an image's below a shared one."""

from __future__ import annotations

from functools import partial
from typing import Any

from kstore.report import RestoreReport, RestoreStatus
from tests.layers.images import Fleet, Worker, fill, has
from tests.ranks.fleet import at_once, outcome


def job(fleet: Fleet, names: tuple[str, ...], **settings: Any) -> list[Worker]:
    ranks = [fleet.worker(name, **settings) for name in names]
    for number, rank in enumerate(ranks):
        rank.environ |= {"RANK": str(number), "WORLD_SIZE": str(len(names))}
        rank.environ |= {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    return ranks


def restored(ranks: list[Worker]) -> list[RestoreReport]:
    found = at_once([partial(outcome, partial(rank.restore, group=True)) for rank in ranks])
    assert [report for report in found if isinstance(report, Exception)] == []
    return [report for report in found if isinstance(report, RestoreReport)]


def test_all_ranks_restore_what_the_image_has(fleet: Fleet) -> None:
    fleet.bake("one")
    ranks = job(fleet, ("first", "second"))
    reports = restored(ranks)
    assert [(report.status, report.store) for report in reports] == [(RestoreStatus.RESTORED, str(fleet.base))] * 2
    assert [has(rank) for rank in ranks] == [{"one"}, {"one"}]


def test_ranks_of_one_node_share_what_comes_from_the_image(fleet: Fleet) -> None:
    fleet.bake("one")
    assert sorted(report.status for report in restored(job(fleet, ("node", "node")))) == ["current", "restored"]


def test_all_ranks_restore_what_was_committed_upon_the_image(fleet: Fleet) -> None:
    fleet.bake("one")
    worker = fleet.worker("worker")
    worker.restore()
    fill(worker, "two")
    worker.commit()
    ranks = job(fleet, ("first", "second"))
    assert [report.left_out for report in restored(ranks)] == [0, 0]
    assert [has(rank) for rank in ranks] == [{"one", "two"}] * 2
