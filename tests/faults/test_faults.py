"""Errors at every call in turn: no job breaks, no lie is told, nothing is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.faults.aftermath import nothing_is_lost, portable, root_is_sound, store_is_whole, told_truly
from tests.faults.injection import (
    GONE,
    HEALING,
    LOST,
    LOST_TO_EXISTS,
    REFUSALS,
    SHORT,
    Fault,
    Striker,
    backend_fault,
    system_fault,
)
from tests.faults.operations import COMMITS, OPERATIONS, Operation

Strike = Callable[[int, Path], AbstractContextManager[Striker]]
RARER = [*REFUSALS[1:], HEALING, *GONE, SHORT]
every_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=str)


def strike_each_call(
    operation: Operation,
    layout: str,
    strike: Strike,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    step: int = 1,
) -> None:
    wrong: list[str] = []
    for number in count(step=step):
        scene = operation.prepare(folder / "scene", layout)
        scene.before = portable(scene.tree)
        caplog.clear()
        with strike(number, scene.folder) as striker:
            report = operation.run(scene)
        records = list(caplog.records)
        checks = [told_truly(scene, report, records), store_is_whole(scene), root_is_sound(scene)]
        checks.append(nothing_is_lost(scene, may_leave_staged=may_leave_staged(striker)))
        wrong += [f"call {number}, {striker.struck}: {what}" for check in checks for what in check]
        shutil.rmtree(folder / "scene")
        if not striker.struck:
            break
    assert number > 0
    assert not wrong, "\n".join(wrong)


def may_leave_staged(striker: Striker) -> bool:
    """What cannot be removed, or was made by a call that seemed to fail, is for the store's garbage collector."""
    made_unknown = striker.fault is LOST and striker.struck.startswith("open")
    return striker.fault.lasting or made_unknown or striker.struck.startswith("unlink")


def slow(faults: list[Fault]) -> list[Any]:
    return [pytest.param(fault, marks=pytest.mark.slow) for fault in faults]


@pytest.mark.parametrize("fault", [REFUSALS[0], LOST, *slow(RARER)], ids=str)
@every_operation
def test_a_backend_whose_calls_fail(
    operation: Operation, layout: str, fault: Fault, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    strike_each_call(operation, layout, lambda number, folder: backend_fault(fault, number), tmp_path, caplog)


@pytest.mark.parametrize("operation", COMMITS, ids=str)
def test_a_backend_that_says_exists_of_what_it_has_just_created(
    operation: Operation, layout: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    strike_each_call(operation, layout, lambda number, folder: backend_fault(LOST_TO_EXISTS, number), tmp_path, caplog)


@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.slow)], ids=["some calls", "every call"])
@pytest.mark.parametrize("fault", [REFUSALS[0], LOST, *slow([*RARER, LOST_TO_EXISTS])], ids=str)
@every_operation
def test_a_filesystem_whose_calls_fail(
    operation: Operation, layout: str, fault: Fault, step: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def strike(number: int, folder: Path) -> AbstractContextManager[Striker]:
        # Only a client of a file server takes what is there for absent for a while.
        return system_fault(fault, number, folder / "store" if fault is HEALING else folder)

    strike_each_call(operation, layout, strike, tmp_path, caplog, step)
