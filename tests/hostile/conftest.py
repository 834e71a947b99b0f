from __future__ import annotations

from collections.abc import Iterator

import pytest

from kstore.environment import Host
from tests.conftest import follow_always
from tests.hostile.victim import Victim


@pytest.fixture(scope="module")
def known_host() -> Iterator[None]:
    """A host that is known without running the compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kstore.environment.ownhost.detect_host", lambda _: Host("a" * 16, {"cpu": "test"}))
        yield


@pytest.fixture(scope="module")
def loose(tmp_path_factory: pytest.TempPathFactory, known_host: None) -> Victim:
    """A store of loose blobs. Each test leaves it as it was."""
    return Victim(tmp_path_factory.mktemp("loose") / "victim", "loose")


@pytest.fixture(scope="module")
def following(tmp_path_factory: pytest.TempPathFactory, known_host: None) -> Victim:
    """A store of loose blobs whose second manifest follows on the first. Use it with `deltas`."""
    with pytest.MonkeyPatch.context() as patch:
        follow_always(patch)
        return Victim(tmp_path_factory.mktemp("following") / "victim", "loose")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory, known_host: None) -> Victim:
    """A store of packs. Each test leaves it as it was."""
    return Victim(tmp_path_factory.mktemp("packed") / "victim", "packed")
