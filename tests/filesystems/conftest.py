from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.filesystems.volumes import Volumes

pytest.register_assert_rewrite("tests.filesystems.conformance")


@pytest.fixture
def volumes(tmp_path: Path) -> Iterator[Volumes]:
    with ExitStack() as finalizers:
        yield Volumes(tmp_path, finalizers)


@pytest.fixture(autouse=True)
def known_host(host: object) -> None:
    """What the compiler would say does not matter here."""
