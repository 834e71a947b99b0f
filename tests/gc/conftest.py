from __future__ import annotations

from pathlib import Path

import pytest

from kstore.environment import Host
from tests.trees import Node


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstore.worker.detect_host", lambda _: Host("a" * 16, {}))


@pytest.fixture(params=["loose", "packed"])
def layout(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


@pytest.fixture
def node(tmp_path: Path, layout: str) -> Node:
    return Node(tmp_path, layout=layout)
