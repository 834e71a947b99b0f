from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commandline import ENVIRONMENT, GPU, Cli


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    made = Cli(tmp_path, capsys)
    monkeypatch.setenv("KSTORE_ROOT", str(made.store))
    monkeypatch.setenv("KSTORE_CACHE_ROOT", str(made.cache_root))
    monkeypatch.setenv("KSTORE_GPU", GPU)
    monkeypatch.setenv("KSTORE_ENVIRONMENT", ENVIRONMENT)
    logger = logging.getLogger("kstore")
    handlers, level = logger.handlers, logger.level
    yield made
    logger.handlers = handlers
    logger.setLevel(level)
