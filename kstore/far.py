"""Many small questions to a store: side by side once it turns out to be far, because each takes a round trip."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

from kstore.backends.base import NEAR
from kstore.threads import answer_now, map_ahead

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_THREADS = 8


def ask_each(
    ask: Callable[[Item], Answer], items: Iterable[Item], threads: int = _THREADS
) -> Iterator[tuple[Item, Callable[[], Answer]]]:
    """Each item, in order, with what returns the answer to it or raises its error.

    As long as answers come at once, as they do from a local disk, no thread is started, and an item is asked about when
    it is its turn. After that this many `threads` ask about the next ones, and as many answers are held.
    """
    rest = iter(items)
    for item in rest:
        began = time.perf_counter()
        answer = asked(partial(ask, item))
        is_far = time.perf_counter() - began > NEAR
        yield item, answer
        if is_far:
            break

    def ask_ahead(item: Item) -> tuple[Item, Callable[[], Answer]]:
        return item, asked(partial(ask, item))

    # Whoever interrupts this does not wait for a store that hangs.
    yield from map_ahead(ask_ahead, rest, threads, threads, waits=False)


def asked(function: Callable[[], Answer]) -> Callable[[], Answer]:
    """Call `function` now; returns what gives its answer or raises its error. What ends the process, such as Ctrl-C, is
    raised at once.
    """
    answer = answer_now(function)
    error = answer.exception()
    if error is None or isinstance(error, Exception):
        return answer.result
    raise error
