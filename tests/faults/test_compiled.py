"""The same at every system call of the compiled calls, which Python's own functions do not replace here."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstore.calls import NewFile, publish_first
from tests.faults import compiled
from tests.faults.compiled import Struck
from tests.faults.injection import LOST_TO_EXISTS, REFUSED_OR_LOST, SHORT_READS, Faults
from tests.faults.operations import COMMITS, OPERATIONS, Operation
from tests.faults.test_faults import LOST_LINKS, strike_each_call
from tests.trees import contents, without_nameless


@pytest.fixture(scope="session")
def struck(tmp_path_factory: pytest.TempPathFactory) -> Struck:
    return compiled.build(tmp_path_factory.mktemp("struck"))


@pytest.mark.parametrize("faults", [REFUSED_OR_LOST, SHORT_READS], ids=str)
@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_system_calls_that_fail(
    operation: Operation,
    layout: str,
    faults: Faults,
    struck: Struck,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    pytestconfig: pytest.Config,
) -> None:
    """Every call with --exhaustive."""
    step = 1 if pytestconfig.getoption("exhaustive") else 9
    strike_each_call(operation, layout, struck.of(faults), tmp_path, caplog, step=step)


@pytest.mark.parametrize("operation", COMMITS, ids=str)
def test_a_server_that_says_exists_of_what_it_has_just_linked(
    operation: Operation, struck: Struck, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Packed objects are linked one by one, by Python."""
    strike_each_call(operation, "loose", struck.of(LOST_LINKS), tmp_path, caplog)


@pytest.fixture
def files(tmp_path: Path) -> list[NewFile]:
    if why := without_nameless(tmp_path):
        pytest.skip(why)
    return [NewFile(f"{tmp_path}/{name}", name.encode(), 0o444, None) for name in ("one", "two")]


def test_nameless_files_get_their_names_where_descriptors_alone_cannot_be_linked(
    files: list[NewFile], struck: Struck, tmp_path: Path
) -> None:
    with struck.without_nameless_links():
        answers, error = publish_first(str(tmp_path), files)
    assert ([*answers], error) == ([0, 0], 0)
    assert contents(tmp_path) == {"one": b"one", "two": b"two"}


def test_a_nameless_file_that_has_its_name_though_the_server_says_exists_was_made(
    files: list[NewFile], struck: Struck, tmp_path: Path
) -> None:
    with struck.strike(LOST_TO_EXISTS, 0) as striker:
        answers, error = publish_first(str(tmp_path), files)
    assert striker.struck == "linkat"
    assert ([*answers], error) == ([0, 0], 0)
