"""The real packages that kstore takes over from. tools/python installs them without their dependencies."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


def load_module(package: str, path: str) -> ModuleType:
    """One module of a package, by its file: importing the package would need all that its platform's client needs."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"{package} is not installed; tools/python installs what tools/peers.txt names")
    file = Path(found.submodule_search_locations[0], path)
    spec = importlib.util.spec_from_file_location(f"their_{file.stem}", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
