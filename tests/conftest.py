from __future__ import annotations

import gc
import math
import os
import shutil
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import hypothesis
import pytest

from kstore.calls import plain
from kstore.components import load_table
from kstore.components.variables import MANAGED
from kstore.environment import Host
from kstore.local import numbered
from kstore.redirect import EXEC_KEY
from kstore.settings import Settings, variables_of
from kstore.stats.record import finish

pytest.register_assert_rewrite("tests.backends.conformance", "tests.trees")


SHARED_MEMORY = Path("/dev/shm")
ROOM = 4 << 30
"""Bytes."""
OF_SETTINGS = variables_of(Settings(), [field.name for field in fields(Settings)])
"""The variables of the settings."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Tens of thousands of small trees take many times as long on a disk as in memory.

    Random examples differ from run to run only with --exhaustive, and no example has a deadline.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        # As in the background of a shell script; the programs that tests interrupt would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    hypothesis.settings.register_profile("kstore", deadline=None, derandomize=not config.getoption("exhaustive"))
    hypothesis.settings.load_profile("kstore")
    if config.option.basetemp is None and is_usable(SHARED_MEMORY):
        folder = tempfile.mkdtemp(prefix="kstore-tests-", dir=SHARED_MEMORY)
        os.chmod(folder, 0o711)  # Tests become other users.
        config.option.basetemp, os.environ["TMPDIR"] = f"{folder}/tests", folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def is_usable(folder: Path) -> bool:
    """Whether programs can be run from the folder, and it has enough room."""
    if not os.access(folder, os.W_OK):
        return False
    found = os.statvfs(folder)
    return not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize >= ROOM


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--exhaustive", action="store_true", help="run the tests that take many minutes as well")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("exhaustive"):
        left_out = [item for item in items if item.get_closest_marker("exhaustive")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        if item.get_closest_marker("exhaustive") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(3600))
    long = {item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("compiler")}
    items.sort(key=lambda item: item.path not in long)  # otherwise one process would still run them at the end


def pytest_collection_finish() -> None:
    """Objects that exist now stay: nobody needs to look for garbage among them."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests have to say whether or not they pass: `record_property("told", …)`."""
    reports = (report for reports in terminalreporter.stats.values() for report in reports)
    calls = (report for report in reports if getattr(report, "when", "") == "call")
    told = [text for report in calls for name, text in report.user_properties if name == "told"]
    if told:
        terminalreporter.section("measured")
        terminalreporter.write("\n".join([*told, ""]))


@pytest.fixture
def plain_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many calls at once are made with Python's own functions, which a test can replace."""
    monkeypatch.setattr("kstore.calls._calls", plain)


@pytest.fixture(autouse=True)
def isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test sees the user's settings, or touches anything but its own folder."""
    for component in load_table().values():
        for name in (component.variable, *component.along):
            monkeypatch.delenv(name, raising=False)
    for name in (*OF_SETTINGS, MANAGED, EXEC_KEY):
        # Set first, so that whatever a test lets kstore write to them is undone as well.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(numbered, "NUMBERED_ROOTS", tmp_path / "roots")
    monkeypatch.setattr("kstore.origin._begun", {})
    monkeypatch.setattr("kstore.told._told", set())
    monkeypatch.setattr("kstore.redirect._by_hand", {})
    monkeypatch.setattr("kstore.ranks.job._calls", Counter())
    monkeypatch.chdir(tmp_path)  # A project's settings are looked for from there upwards.


@pytest.fixture(autouse=True)
def headstart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every restore into an empty root gets a head start, as a restore of many files does."""
    monkeypatch.setattr("kstore.local.headstart._WORTHWHILE", 0)


@pytest.fixture(autouse=True)
def near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which calls are made, and who closes a file, does not depend on how busy the machine is: no folder and no file
    looks as if it came from far away.
    """
    for module in ("kstore.published.refs", "kstore.backends.reading"):
        monkeypatch.setattr(f"{module}.NEAR", math.inf)


@pytest.fixture(autouse=True)
def all_counted() -> Iterator[None]:
    """No test leaves a restore to be counted while another test runs."""
    yield
    finish(10)


@pytest.fixture
def deltas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every manifest follows on an earlier one if there is one, however little that saves."""
    follow_always(monkeypatch)


def follow_always(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("kstore.published.delta.WORTHWHILE", -(1 << 20))
    patch.setattr("kstore.published.delta._MOST", 8.0)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host that is known without running the compiler."""
    found = Host("a" * 16, {"cpu": "test"})
    monkeypatch.setattr("kstore.environment.ownhost.detect_host", lambda _: found)
    return found


@pytest.fixture(params=["loose", "packed"])
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)
