from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kstore.backends import Backend
from tests.backends import conformance
from tests.backends.conformance import BackendConformance
from tests.interleavings.memory import Memory, MemoryBackend


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> MemoryBackend:
    monkeypatch.setattr(conformance, "in_processes", in_threads)
    return Memory().backend


def in_threads(function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Processes would each have a memory of their own."""
    with ThreadPoolExecutor(len(arguments)) as pool:
        return [answer.result() for answer in [pool.submit(function, *each) for each in arguments]]


class TestMemoryBackend(BackendConformance):
    pass


def test_a_moved_object_has_its_new_name_only(backend: MemoryBackend) -> None:
    backend.put("one", b"content")
    backend.move("one", "folder/two")
    assert backend.get("folder/two") == b"content"
    with pytest.raises(FileNotFoundError):
        backend.stat("one")
    with pytest.raises(FileNotFoundError):
        backend.move("one", "folder/two")


def test_a_folder_stays_when_it_is_empty(backend: MemoryBackend) -> None:
    backend.put("folder/name", b"")
    backend.delete("folder/name")
    assert [child.name for child in backend.list("")] == ["folder"]


def test_a_memory_backend_is_a_backend() -> None:
    backend: Backend = Memory().backend
    assert list(backend.list("")) == []
