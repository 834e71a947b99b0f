"""Which programs run Python code."""

from __future__ import annotations

import sys

import pytest

from kstore.environment.interpreter import own_interpreter


@pytest.mark.parametrize(
    ("program", "expected"),
    [(f"/bin/{name}", f"/bin/{name}") for name in ("python3.11", "pypy3")] + [("/bin/uwsgi", ""), ("", ""), (None, "")],
)
def test_only_python_itself_runs_its_code(monkeypatch: pytest.MonkeyPatch, program: str | None, expected: str) -> None:
    """An embedded Python may not know its program at all."""
    monkeypatch.setattr(sys, "executable", program)
    assert own_interpreter() == expected
