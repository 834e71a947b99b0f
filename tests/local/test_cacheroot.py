from __future__ import annotations

import errno
import os
import resource
import stat
from pathlib import Path

import pytest

from kstore.errors import CacheRootError
from kstore.local import numbered
from kstore.local.cacheroot import check_room
from kstore.local.numbered import (
    Owner,
    claim_root,
    claimed_roots,
    make_private,
    numbered_folder,
    owned_root,
    release_root,
)
from kstore.store import Store
from tests.trees import ENVIRONMENT, GPU, KEY, Node, contents, in_processes

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def owner(key: str = "model", uid: int | None = None) -> Owner:
    return Owner("/store", "gpu", key, os.geteuid() if uid is None else uid)


def test_a_key_keeps_its_root(tmp_path: Path) -> None:
    folder = tmp_path / "kstore/env"
    assert claim_root(folder, owner("one")) == str(folder / "0")
    assert claim_root(folder, owner("two")) == str(folder / "1")
    assert claim_root(folder, owner("one")) == str(folder / "0")


def test_a_root_is_this_users_alone(tmp_path: Path) -> None:
    root = claim_root(tmp_path / "kstore/env", owner())
    assert stat.S_IMODE(os.stat(root).st_mode) == 0o700


def test_another_store_gpu_or_user_is_another_owner(tmp_path: Path) -> None:
    owners = [owner(), Owner("/other", "gpu", "model", 0), Owner("/store", "other", "model", 0), owner(uid=77)]
    roots = [claim_root(tmp_path / "kstore/env", each) for each in owners]
    assert len(set(roots)) == 4


@pytest.mark.parametrize("content", [b"garbage", b"{}", b"[" * 100_000], ids=["no JSON", "no owner", "too deep"])
def test_a_claim_is_never_taken_over(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "kstore/env"
    claim_root(folder, owner("one"))
    (folder / "0.json").write_bytes(content)
    assert claim_root(folder, owner("one")) == str(folder / "1")


def test_a_claim_that_is_a_pipe_holds_nobody_up(tmp_path: Path) -> None:
    """Anybody may make a pipe in /tmp."""
    folder = tmp_path / "kstore/env"
    claim_root(folder, owner("one"))
    os.mkfifo(folder / "1.json")
    assert claim_root(folder, owner("two")) == str(folder / "2")


def test_a_folder_that_nobody_claimed_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "kstore/env"
    (folder / "0").mkdir(parents=True)
    assert claim_root(folder, owner()) == str(folder / "1")


def test_a_process_keeps_its_root_when_the_claim_is_gone(tmp_path: Path) -> None:
    """As happens to files in /tmp that nobody has read for long."""
    folder = tmp_path / "kstore/env"
    root = claim_root(folder, owner("one"))
    (folder / "0.json").unlink()
    assert claim_root(folder, owner("two")) == str(folder / "1")
    assert claim_root(folder, owner("one")) == root
    assert owned_root(folder, owner("one")) == root


def test_a_root_that_another_key_has_claimed_meanwhile_is_lost(tmp_path: Path) -> None:
    folder = tmp_path / "kstore/env"
    Path(claim_root(folder, owner("one"))).rmdir()
    release_root(folder / "0")
    assert claim_root(folder, owner("two")) == str(folder / "0")
    assert claim_root(folder, owner("one")) == str(folder / "1")


def test_a_released_number_can_be_claimed(tmp_path: Path) -> None:
    folder = tmp_path / "kstore/env"
    root = Path(claim_root(folder, owner("one")))
    root.rmdir()
    release_root(root)
    assert claim_root(folder, owner("two")) == str(root)


def test_claimed_roots_are_listed_with_their_owners(tmp_path: Path) -> None:
    folder = tmp_path / "kstore/env"
    claim_root(folder, owner("one"))
    claim_root(folder, owner("two"))
    assert dict(claimed_roots(tmp_path / "kstore")) == {folder / "0": owner("one"), folder / "1": owner("two")}


def test_different_keys_at_once_get_different_roots(tmp_path: Path) -> None:
    folder = tmp_path / "kstore/env"
    keys = [f"key{number}" for number in range(16)]
    roots = in_processes(lambda key: claim_root(folder, owner(key)), [(key,) for key in keys])
    assert len(set(roots)) == 16
    assert [claim_root(folder, owner(key)) for key in keys] == roots
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def test_equal_keys_at_once_get_one_root(tmp_path: Path) -> None:
    for attempt in range(4):
        folder = tmp_path / f"kstore/env{attempt}"
        roots = in_processes(lambda key, folder=folder: claim_root(folder, owner(key)), [("key",)] * 16)
        assert set(roots) == {str(folder / "0")}


def test_a_folder_that_cannot_be_made_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CacheRootError, match="KSTORE_CACHE_ROOT"):
        claim_root(tmp_path / "file/kstore/env", owner())


def test_what_keeps_a_root_from_being_written_is_named(tmp_path: Path) -> None:
    """A process that may write no large files does not mean a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError) as raised:
            check_room(str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (raised.value.errno, list(tmp_path.iterdir())) == (errno.EFBIG, [])


def test_a_link_in_place_of_a_root_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(CacheRootError):
        make_private(tmp_path / "link")
    with pytest.raises(CacheRootError):
        claim_root(tmp_path / "link/env", owner())


@needs_root
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 4711, 4711)
    with pytest.raises(CacheRootError, match="not a folder of user 0"):
        make_private(theirs)
    with pytest.raises(CacheRootError, match="belongs to another user"):
        claim_root(theirs / "env", owner())


@needs_root
def test_another_user_may_claim_beside_root(tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    folder = tmp_path / "kstore/env"
    claim_root(folder, owner("one"))

    def as_somebody_else() -> str:
        os.setgid(4711)
        os.setuid(4711)
        return claim_root(folder, owner("two"))

    assert in_processes(as_somebody_else, [()]) == [str(folder / "1")]
    assert (folder / "1").stat().st_uid == 4711


def test_a_root_that_an_equal_key_made_meanwhile_is_shared(tmp_path: Path) -> None:
    """Claimed and made between this worker's look at the folder and its own claim."""
    folder = tmp_path / "kstore/env"
    root = claim_root(folder, owner())
    assert str(folder / str(numbered._claim_free(folder, owner(), set()))) == root
    assert numbered._claim_free(folder, owner("other"), set()) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder to another user needs root")
@pytest.mark.parametrize("foreign", ["", "env"])
def test_where_another_user_owns_the_shared_folder_the_roots_are_in_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, foreign: str
) -> None:
    shared = tmp_path / "shared"
    monkeypatch.setattr(numbered, "NUMBERED_ROOTS", shared)
    assert numbered_folder("env") == shared / "env"
    (shared / "env").mkdir(parents=True)
    assert numbered_folder("env") == shared / "env"
    os.chown(shared / foreign, 12345, -1)
    assert numbered_folder("env") == tmp_path / "shared-0" / "env"


@pytest.mark.parametrize("inside", ["", "packs", "roots/0"])
def test_a_cache_root_in_the_store_is_refused_and_nothing_is_made(tmp_path: Path, inside: str) -> None:
    node = Node(tmp_path)
    node.tree.kernel()
    node.commit()
    before = contents(node.location)
    store = Store(node.location, cache_root=node.location / inside, gpu=GPU, environment=ENVIRONMENT, environ={})
    for verb in (store.restore, store.commit):
        with pytest.raises(CacheRootError, match="is in the store at"):
            verb(KEY)
    assert contents(node.location) == before
    assert not (node.location / inside / ".kstore").exists()


def test_a_store_where_numbered_roots_would_be_is_left_as_it_is_and_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    node.tree.kernel()
    monkeypatch.setattr(numbered, "NUMBERED_ROOTS", node.location)
    store = Store(node.location, gpu=GPU, environment=ENVIRONMENT, environ={})
    for verb in (store.restore, store.commit):
        with pytest.raises(CacheRootError, match="set KSTORE_CACHE_ROOT"):
            verb(KEY)
    assert not node.location.exists()
    assert node.commit().ok
