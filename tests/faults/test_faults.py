"""Errors at every call in turn: no job breaks, no report lies, nothing is lost."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path

import pytest

from tests.faults.aftermath import nothing_is_lost, portable, root_is_sound, store_is_whole, told_truly
from tests.faults.injection import (
    LOST,
    LOST_ANSWERS,
    LOST_TO_EXISTS,
    Faults,
    Strike,
    Striker,
    every_fault,
    every_fault_at_length,
    every_usual_fault,
    of_backend,
    of_filesystem,
)
from tests.faults.operations import COMMITS, FOLLOWING_COMMIT, FOLLOWING_RESTORE, OPERATIONS, Operation

LOST_LINKS = Faults("lost to exists", (LOST_TO_EXISTS,))
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
    operation.publish(folder / "scene", layout)
    published = (folder / "scene").rename(folder / "published")
    for number in count(step=step):
        scene = operation.join(shutil.copytree(published, folder / "scene"), layout)
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
    """A file that cannot be removed, or was made by a call that seemed to fail, is left to the store's gc."""
    made_unknown = striker.fault is LOST and striker.struck.startswith("open")
    return striker.fault.lasting or made_unknown or striker.struck.startswith("unlink")


@every_fault
@every_operation
def test_a_backend_whose_calls_fail(
    operation: Operation, layout: str, faults: Faults, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    strike_each_call(operation, layout, of_backend(faults), tmp_path, caplog)


@pytest.mark.parametrize("operation", COMMITS, ids=str)
def test_a_backend_that_says_exists_of_what_it_has_just_created(
    operation: Operation, layout: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    strike_each_call(operation, layout, of_backend(LOST_LINKS), tmp_path, caplog)


@pytest.mark.usefixtures("deltas")
@every_usual_fault
@pytest.mark.parametrize("operation", [FOLLOWING_COMMIT, FOLLOWING_RESTORE], ids=str)
def test_a_backend_whose_calls_fail_with_a_manifest_that_follows_on_another(
    operation: Operation, layout: str, faults: Faults, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    strike_each_call(operation, layout, of_backend(faults), tmp_path, caplog)


@every_operation
def test_a_filesystem_that_loses_some_answers(
    operation: Operation, layout: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    strike_each_call(operation, layout, of_filesystem(LOST_ANSWERS), tmp_path, caplog, step=67)


@every_fault_at_length
@every_operation
def test_a_filesystem_whose_calls_fail(
    operation: Operation,
    layout: str,
    faults: Faults,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    pytestconfig: pytest.Config,
) -> None:
    """Every call with --exhaustive."""
    step = 1 if pytestconfig.getoption("exhaustive") else 29 if layout == "loose" else 43
    strike_each_call(operation, layout, of_filesystem(faults), tmp_path, caplog, step=step)


@pytest.mark.slow
@pytest.mark.parametrize("operation", COMMITS, ids=str)
def test_a_filesystem_that_says_exists_of_what_it_has_just_linked(
    operation: Operation,
    layout: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    pytestconfig: pytest.Config,
) -> None:
    """Every link with --exhaustive."""
    step = 1 if pytestconfig.getoption("exhaustive") else 3
    strike_each_call(operation, layout, of_filesystem(LOST_LINKS), tmp_path, caplog, step=step)
