"""The contract of a backend, on real filesystems."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstore.backends import PosixBackend
from tests.backends.conformance import BackendConformance
from tests.filesystems.volumes import KINDS, Volumes

pytestmark = [pytest.mark.privileged, pytest.mark.slow]


class TestPosixBackend(BackendConformance):
    @pytest.fixture(params=KINDS)
    def backend(self, request: pytest.FixtureRequest, volumes: Volumes) -> PosixBackend:
        folder: Path = volumes.make(request.param)
        return PosixBackend(folder / "store")
