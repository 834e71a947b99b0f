from __future__ import annotations

from pathlib import Path

import pytest

from kstore.components import load_table
from kstore.environment import Host
from kstore.local import cacheroot

pytest.register_assert_rewrite("tests.backends.conformance", "tests.trees")


@pytest.fixture(autouse=True)
def isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test sees the user's settings, or touches anything but its own folder."""
    for component in load_table().values():
        monkeypatch.delenv(component.variable, raising=False)
    for name in (
        "ROOT",
        "CACHE_ROOT",
        "LAYOUT",
        "MODE",
        "GPU",
        "ENVIRONMENT",
        "COMPONENTS",
        "TIMEOUT",
        "LEASE_TTL",
        "MANAGED",
    ):
        # Set first, so that what a test lets kstore write there is undone as well.
        monkeypatch.setenv(f"KSTORE_{name}", "")
        monkeypatch.delenv(f"KSTORE_{name}")
    monkeypatch.setattr(cacheroot, "NUMBERED_ROOTS", tmp_path / "roots")


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host that is known without running the compiler."""
    found = Host("a" * 16, {"cpu": "test"})
    monkeypatch.setattr("kstore.worker.detect_host", lambda: found)
    return found


@pytest.fixture(params=["loose", "packed"])
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)
