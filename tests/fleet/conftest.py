from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def known_host(host: object) -> None:
    """What the compiler would say does not matter here."""
