"""What a program sees of the log that has configured none."""

from __future__ import annotations

import logging

import pytest

import kstore.told

LOG = logging.getLogger("kstore.somewhere")


def configure_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what pytest itself has configured."""
    monkeypatch.setattr(logging.root, "handlers", [])


@pytest.mark.parametrize("text", ["left out: 7 files", "kstore: left out: 7 files"])
def test_where_no_log_is_configured_each_line_says_that_it_is_from_kstore(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_nothing(monkeypatch)
    LOG.warning("%s", text)
    LOG.info("more")
    assert capsys.readouterr().err == "kstore: left out: 7 files\n"


def test_of_other_loggers_nothing_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    configure_nothing(monkeypatch)
    logging.getLogger("another").warning("bare")
    assert capsys.readouterr().err == "bare\n"


@pytest.mark.parametrize("name", ["", "kstore", "kstore.somewhere"])
def test_a_log_that_is_configured_has_the_record_alone_and_as_it_is(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_nothing(monkeypatch)
    records: list[logging.LogRecord] = []
    handler = logging.NullHandler()
    monkeypatch.setattr(handler, "handle", records.append)
    log = logging.getLogger(name)
    monkeypatch.setattr(log, "handlers", [*log.handlers, handler])
    LOG.warning("left out: %d files", 7)
    assert [record.getMessage() for record in records] == ["left out: 7 files"]
    assert capsys.readouterr().err == ""


def test_a_program_that_wants_no_last_resort_sees_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_nothing(monkeypatch)
    monkeypatch.setattr(logging, "lastResort", None)
    LOG.warning("left out")
    assert capsys.readouterr().err == ""


def test_a_log_that_does_not_propagate_is_not_configured_by_those_above(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [logging.NullHandler()])
    monkeypatch.setattr(logging.getLogger("kstore"), "propagate", False)
    LOG.warning("left out")
    assert capsys.readouterr().err == "kstore: left out\n"


def test_a_warning_is_said_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kstore.told, "_told", set())
    with caplog.at_level(logging.DEBUG):
        for count in (1, 1, 2):
            kstore.told.warn_once(LOG, "%d missing", count)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "1 missing"), ("DEBUG", "1 missing"), ("WARNING", "2 missing"),
    ]  # fmt: skip
