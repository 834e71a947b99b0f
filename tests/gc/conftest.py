from __future__ import annotations

from pathlib import Path

import pytest

from tests.trees import Node


@pytest.fixture(autouse=True)
def known_host(host: object) -> None:
    """What the compiler would say does not matter here."""


@pytest.fixture
def node(tmp_path: Path, layout: str) -> Node:
    return Node(tmp_path, layout=layout)
