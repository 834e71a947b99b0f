"""The ninja that tests build with: the one of the test extra, beside the interpreter, or else the system's."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
ENVIRON = os.environ | {"PATH": PATH}


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skip the test if ninja, or one of these programs, is not installed."""
    lacks = [name for name in ("ninja", *programs) if shutil.which(name, path=PATH) is None]
    return pytest.mark.skipif(bool(lacks), reason=f"{' and '.join(lacks)} not installed")
