"""What a program sees of the log that has configured none."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

import kstore.told

BEGIN = "import logging, kstore.store; log = logging.getLogger('kstore.somewhere'); "


def stderr_of(program: str) -> str:
    return subprocess.run([sys.executable, "-c", BEGIN + program], capture_output=True, text=True, check=True).stderr


@pytest.mark.parametrize("text", ["left out: 7 files", "kstore: left out: 7 files"])
def test_where_no_log_is_configured_each_warning_says_that_it_is_from_kstore(text: str) -> None:
    assert stderr_of(f"log.warning('%s', {text!r}); log.info('more')") == "kstore: left out: 7 files\n"


def test_what_others_log_is_left_as_it_is() -> None:
    assert stderr_of("logging.getLogger('another').warning('bare')") == "bare\n"


@pytest.mark.parametrize("name", ["", "kstore", "kstore.somewhere"])
def test_a_log_that_is_configured_has_each_record_once_and_as_it_is(name: str) -> None:
    program = f"logging.getLogger({name!r}).addHandler(logging.StreamHandler()); log.warning('left out: %d', 7)"
    assert stderr_of(program) == "left out: 7\n"


def test_a_log_that_does_not_propagate_is_not_configured_by_those_above() -> None:
    program = "logging.basicConfig(); logging.getLogger('kstore').propagate = False; log.warning('left out')"
    assert stderr_of(program) == "kstore: left out\n"


def test_a_program_that_wants_no_last_resort_sees_nothing() -> None:
    assert stderr_of("logging.lastResort = None; log.warning('left out')") == ""


def test_a_warning_is_said_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kstore.told, "_told", set())
    caplog.set_level(logging.DEBUG, "kstore.somewhere")
    for count in (1, 1, 2):
        kstore.told.warn_once(logging.getLogger("kstore.somewhere"), "%d missing", count)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "1 missing"), ("DEBUG", "1 missing"), ("WARNING", "2 missing"),
    ]  # fmt: skip
