from __future__ import annotations

from pathlib import Path

import pytest

from tests.layers.images import Fleet

LAYOUTS = ["loose", "packed"]


@pytest.fixture(params=[(above, below) for above in LAYOUTS for below in LAYOUTS], ids=lambda pair: " over ".join(pair))
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Fleet:
    """A fleet whose image is not made yet; for every pair of layouts."""
    return Fleet(tmp_path, *request.param)


@pytest.fixture(autouse=True)
def known_host(host: object) -> None:
    """What the compiler would say does not matter here."""
