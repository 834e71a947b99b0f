"""Work for other threads. At the end of the interpreter no thread can be started: the work is then done at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

Answer = TypeVar("Answer")


def submit(pool: Executor, function: Callable[..., Answer], *arguments: Any) -> Future[Answer]:
    """As `pool.submit`, also in an atexit handler (a worker may commit in one)."""
    try:
        return pool.submit(function, *arguments)
    except RuntimeError:
        answer: Future[Answer] = Future()
        try:
            answer.set_result(function(*arguments))
        except BaseException as error:
            answer.set_exception(error)
        return answer
