"""Runs an actor's real code, and stops it at every step until it is told the answer.

An actor runs in a thread of its own, but only while its caller waits for its next step: no two run at once. Time,
random bytes and thread pools are taken from it, so that what it does is a function of the answers alone.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import secrets
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, NamedTuple, cast

import pytest

from kstore.local.line import Line
from kstore.threads import Pool
from tests.interleavings.memory import Answer, Kind, Memory, MemoryBackend, Step

_PATIENCE = 60.0
_LAST_PATIENCE = 10.0
"""How many seconds to wait for an actor that is to end; one that does not end is reported."""
_M_MMAP_THRESHOLD = -3
"""Of glibc's mallopt(3)."""
_ZEROED, _MOST = 1 << 20, 32 << 20
"""LMDB asks for two megabytes of zeros for each environment: new pages cost nothing, used ones must be cleared."""
_WALL_NS = 2_000_000_000 * 1_000_000_000
"""What the actors' wall clocks always show: times of people, and of cache roots that are all older."""


@dataclass(frozen=True, eq=False)
class Actor:
    """Somebody who works on the store."""

    name: str
    act: Callable[[MemoryBackend], Hashable]
    """Does everything with the given backend, from the same start whenever it is called. Returns its outcome."""
    can_be_killed: bool = True


class Ended(NamedTuple):
    """What comes after the last step."""

    outcome: Hashable


class Trouble(NamedTuple):
    """The outcome of an actor that raised."""

    error: str


class _Abandoned(BaseException):
    """Raised in an actor that is no longer of interest."""


_local = threading.local()


class Conversation:
    """One run of one actor."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._said: SimpleQueue[Step | Ended] = SimpleQueue()
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._random = 0
        self._is_abandoned = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> Step | Ended:
        """Run the actor up to its first step."""
        self._thread.start()
        return self._said.get(timeout=_PATIENCE)

    def answer(self, answer: Answer) -> Step | Ended:
        """Run it to its next step."""
        self._answers.put(answer)
        return self._said.get(timeout=_PATIENCE)

    def abandon(self) -> None:
        """End it where it is."""
        self._is_abandoned = True
        self._answers.put(None)
        self._thread.join(_LAST_PATIENCE)
        if self._thread.is_alive():
            where = sys._current_frames().get(self._thread.ident or 0)
            warnings.warn(f"{self._actor.name} does not end:\n{''.join(traceback.format_stack(where))}", stacklevel=2)

    def perform(self, step: Step) -> Any:
        """What the actor's backend calls."""
        if not self._is_abandoned:
            self._said.put(step)
            answer = self._answers.get()
        if self._is_abandoned:
            raise _Abandoned
        return answer

    def random_bytes(self, count: int) -> bytes:
        """The same bytes in every run, and others for each actor."""
        self._random += 1
        return hashlib.shake_128(f"{self._actor.name} {self._random}".encode()).digest(count)

    def _run(self) -> None:
        _local.conversation = self
        try:
            self._said.put(Ended(self._actor.act(MemoryBackend(self.perform))))
        except _Abandoned:
            pass
        except Exception as error:
            self._said.put(Ended(Trouble(f"{type(error).__name__}: {error}")))


def run_alone(actor: Actor, memory: Memory) -> Hashable:
    """Run an actor from its first step to its last; returns its outcome."""
    with deterministic():
        conversation = Conversation(actor)
        said = conversation.begin()
        while isinstance(said, Step):
            said = conversation.answer(memory.perform(said))
    return said.outcome


def _current() -> Conversation | None:
    return getattr(_local, "conversation", None)


@contextmanager
def deterministic() -> Iterator[None]:
    """Take from the actors' threads, and from no others, whatever would make two runs differ."""
    with pytest.MonkeyPatch.context() as patch:
        _replace(patch, time, "time", lambda _: _WALL_NS / 1e9)
        _replace(patch, time, "time_ns", lambda _: _WALL_NS)
        _replace(patch, time, "monotonic", lambda actor: _clock(actor) / 1e9)
        _replace(patch, time, "perf_counter", lambda _: 0.0)  # Every answer comes at once.
        _replace(patch, time, "clock_gettime", lambda actor, _: _clock(actor) / 1e9)
        _replace(patch, time, "clock_gettime_ns", lambda actor, _: _clock(actor))
        _replace(patch, os, "urandom", Conversation.random_bytes)
        _replace(patch, secrets, "token_bytes", lambda actor, count=16: actor.random_bytes(count))
        _replace(patch, secrets, "token_hex", lambda actor, count=16: actor.random_bytes(count).hex())
        # `kstore.threads` then works in the caller's thread, as it does at the end of the interpreter.
        _replace(patch, Pool, "submit", _refuse)
        _replace(patch, Line, "wait", lambda *_: False)  # Whoever is late in it goes on without it.
        allocate = ctypes.CDLL(None).mallopt
        allocate(_M_MMAP_THRESHOLD, _ZEROED)
        yield
        allocate(_M_MMAP_THRESHOLD, _MOST)


def _replace(patch: pytest.MonkeyPatch, owner: object, name: str, inside: Callable[..., Any]) -> None:
    outside = getattr(owner, name)

    def either(*arguments: Any, **named: Any) -> Any:
        actor = _current()
        return inside(actor, *arguments, **named) if actor else outside(*arguments, **named)

    patch.setattr(owner, name, either)


def _clock(actor: Conversation) -> int:
    return cast(int, actor.perform(Step(Kind.LOOK_AT_CLOCK)))


def _refuse(*_: object, **__: object) -> None:
    raise RuntimeError("actors have one thread")
