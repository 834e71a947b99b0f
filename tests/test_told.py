"""What the functions for worker setup log without being asked for a report."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.blobs.loose import blob_name
from kstore.report import RestoreStatus
from tests.trees import ENVIRONMENT, GPU, KEY, Node

pytestmark = pytest.mark.usefixtures("host")


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "kstore")
    return caplog


def warnings(told: pytest.LogCaptureFixture) -> list[str]:
    lines = (record for record in told.records if record.name == "kstore")
    return [line.getMessage() for line in lines if line.levelno == logging.WARNING]


def settings(folder: Path, **others: Any) -> dict[str, Any]:
    own = {"store": folder / "store", "cache_root": folder / "root", "stats": False, "environ": {}}
    return own | {"gpu": GPU, "environment": ENVIRONMENT} | others


def publish(folder: Path) -> Node:
    node = Node(folder, "publisher")
    for name in "one", "two":
        node.tree.wrapper(name)
    node.commit()
    return node


def lose(node: Node, path: str) -> str:
    """Remove a blob. Returns its digest."""
    digest = node.published()[path].digest
    (node.location / blob_name(digest)).unlink()
    return digest.hex()


def test_a_miss_names_what_it_looked_for(tmp_path: Path, told: pytest.LogCaptureFixture) -> None:
    publish(tmp_path)
    told.clear()
    assert kstore.restore("other/v1", **settings(tmp_path)).status is RestoreStatus.MISS

    (line,) = told.records
    assert (line.levelno, line.getMessage().endswith(f"other/v1 on {GPU}, {ENVIRONMENT}")) == (logging.INFO, True)


def test_a_key_that_was_withdrawn_is_no_mere_miss(tmp_path: Path, told: pytest.LogCaptureFixture) -> None:
    publish(tmp_path).store.quarantine(KEY)
    assert kstore.restore(KEY, **settings(tmp_path)).withdrawn == "quarantined"
    assert told.records[-1].getMessage() == f"kstore: {KEY} was quarantined on {GPU}, {ENVIRONMENT}"


def test_what_was_left_out_is_a_warning(tmp_path: Path, told: pytest.LogCaptureFixture) -> None:
    node = publish(tmp_path)
    digest = lose(node, min(node.published()))
    report = kstore.restore(KEY, **settings(tmp_path))

    assert (report.left_out, report.ok) == (1, True)
    (warned,) = warnings(told)
    assert f"1 of {report.files} files of {KEY} generation 1 were left out" in warned
    assert digest in warned


def test_where_all_was_left_out_there_is_nothing_to_start_from(tmp_path: Path) -> None:
    node = publish(tmp_path)
    for path in node.published():
        lose(node, path)
    report = kstore.restore(KEY, **settings(tmp_path))

    assert (report.status, report.left_out, report.ok) == (RestoreStatus.RESTORED, report.files, False)


@pytest.mark.parametrize("live", [False, True])
def test_a_job_of_which_no_file_was_found_is_told_once_where_they_were_looked_for(
    tmp_path: Path, told: pytest.LogCaptureFixture, live: bool
) -> None:
    mine = {"TRITON_CACHE_DIR": str(tmp_path / "mine")}
    with kstore.synchronized(KEY, live=live, **settings(tmp_path, environ=mine, components=("triton",))):
        pass
    where = f"{tmp_path}/mine, {tmp_path}/root"
    assert warnings(told) == [f"kstore: nothing to commit to {KEY}: there are no finished files in {where}"]


@pytest.mark.parametrize("live", [False, True])
def test_a_job_that_used_what_was_restored_and_compiled_nothing_is_no_trouble(
    tmp_path: Path, told: pytest.LogCaptureFixture, live: bool
) -> None:
    publish(tmp_path)
    with kstore.synchronized(KEY, live=live, **settings(tmp_path)):
        pass
    assert [line for line in warnings(told) if "nothing to commit" in line] == []


def test_a_job_that_only_reads_is_no_trouble(tmp_path: Path, told: pytest.LogCaptureFixture) -> None:
    with kstore.synchronized(KEY, **settings(tmp_path, mode="read")):
        pass
    assert warnings(told) == []


def test_a_variable_that_stays_the_user_s_is_a_warning(tmp_path: Path, told: pytest.LogCaptureFixture) -> None:
    publish(tmp_path)
    report = kstore.restore(KEY, **settings(tmp_path, environ={"PYTORCH_TUNABLEOP_FILENAME": "/mine.csv"}))

    assert report.ok
    assert ["PYTORCH_TUNABLEOP_FILENAME is set" in line for line in warnings(told)] == [True]
