"""One system call for each of many arguments, in loops without a step of the interpreter between two calls.

Threads that take such steps wait for each other's turn after every call; these spend their time in the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import length_hint
from typing import Any, TypeVar

Answer = TypeVar("Answer")


def call_each(function: Callable[..., Answer], *columns: Sequence[Any]) -> list[Answer | OSError]:
    """What `function` answers for each row of the columns, or the error that it raises."""
    answers: list[Answer | OSError] = []
    rows = [iter(column) for column in columns]
    while length_hint(rows[0]):
        try:
            answers.extend(map(function, *rows))  # what was answered before an error stays in the list
        except OSError as error:
            answers.append(error)
    return answers
