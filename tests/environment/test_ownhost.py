"""When a worker's host is asked for."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

import pytest

from kstore.environment.host import Host
from kstore.environment.ownhost import OwnHost


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Event:
    """Set as soon as the compiler is asked."""
    is_asked = Event()

    def detect(_: object) -> Host:
        is_asked.set()
        return Host("here", {"compiler": "gcc"})

    monkeypatch.setattr("kstore.environment.ownhost.detect_host", detect)
    return is_asked


@pytest.mark.parametrize("begin", [OwnHost.ask, OwnHost.foresee])
def test_the_compiler_is_asked_before_anybody_waits_for_it(asked: Event, begin: Callable[[OwnHost], None]) -> None:
    begin(OwnHost({}))
    assert asked.wait(60)


@pytest.mark.parametrize("needed", [OwnHost.ask, lambda host: host.fingerprint, lambda host: host.facts])
def test_the_fingerprint_of_a_host_that_was_needed_takes_the_place_of_what_is_remembered(
    asked: Event, needed: Callable[[OwnHost], object]
) -> None:
    host = OwnHost({})
    needed(host)
    assert host.fingerprint_or("elsewhere") == "here"


def test_nobody_waits_for_a_host_that_was_only_foreseen(asked: Event) -> None:
    host = OwnHost({})
    host.foresee()
    assert host.fingerprint_or("elsewhere") == "elsewhere"
