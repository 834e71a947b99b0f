from __future__ import annotations

import pytest

from kstore.environment import Host


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstore.worker.detect_host", lambda _: Host("a" * 16, {}))
