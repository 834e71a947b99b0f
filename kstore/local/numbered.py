"""Numbered roots: where cache roots are if the user names none.

Compiled artifacts hold the path they were built under, so the path must be the same on every worker and for
every key. A commit takes a whole root, so a root must belong to one key. Hence `/tmp/kstore/<environment>/<n>`,
n = 0 in every fresh container: a key uses the root that it already owns, else the first number that nobody owns.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

from kstore.errors import CacheRootError
from kstore.files import read_whole
from kstore.local.cacheroot import check_outside

NUMBERED_ROOTS = Path("/tmp/kstore")
_OWNED = ".json"


class Owner(NamedTuple):
    """Whose a numbered root is."""

    store: str
    gpu: str
    key: str
    uid: int

    def dump(self) -> bytes:
        """As JSON."""
        return json.dumps({"store": self.store, "gpu": self.gpu, "key": self.key, "uid": self.uid}).encode()

    @classmethod
    def load(cls, path: Path) -> Owner | None:
        """The owner that a claim names; None if it cannot be read, and then nobody may take the root."""
        try:
            content = json.loads(read_whole(str(path)))
            return cls(content["store"], content["gpu"], content["key"], content["uid"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None


_claimed: dict[tuple[Path, Owner], int] = {}
"""The roots that this process has had: claims are old files in /tmp, which may be cleaned while a server runs."""


def numbered_bases() -> tuple[Path, Path]:
    """The folder of everybody's numbered roots, and this user's own in case the first cannot be trusted."""
    return NUMBERED_ROOTS, NUMBERED_ROOTS.with_name(f"{NUMBERED_ROOTS.name}-{os.geteuid()}")


def is_numbered(path: str) -> bool:
    """Whether it is a numbered root of any user: on another host somebody else may have it."""
    return bool(re.fullmatch(rf"{re.escape(str(NUMBERED_ROOTS))}(-\d+)?/[^/]+/\d+", path))


def numbered_folder(environment: str) -> Path:
    """Where the numbered roots of an environment are, the same path on every worker if at all possible.

    If the first user of a host owns the shared folder, and is not root, another user's roots are in that user's own
    folder: whoever owns a folder can replace what is in it.
    """
    shared, own = (base / environment for base in numbered_bases())
    return shared if _is_trusted(shared.parent) and _is_trusted(shared) else own


def claim_root(folder: Path, owner: Owner) -> str:
    """Return the root in `folder` that `owner` has, or make one.

    Raises:
        CacheRootError: no root can be made there, or `folder` is in the folder of the owner's store.
    """
    check_outside(owner.store, folder)
    try:
        folder = _shared_folder(folder)
        taken = {number: Owner.load(_claim(folder, number)) for number in _numbers(folder)}
        mine = [number for number, holder in taken.items() if holder == owner]
        number = mine[0] if mine else _claim_free(folder, owner, set(taken))
        _claimed[folder, owner] = number
        return make_private(folder / str(number))
    except OSError as error:
        raise CacheRootError(
            f"no cache root can be made in {folder}: {error.strerror}; "
            "set KSTORE_CACHE_ROOT to a local folder that can be written"
        ) from error


def owned_root(folder: Path, owner: Owner) -> str | None:
    """The numbered root that `owner` has claimed already, if any."""
    for number in _numbers(folder):
        if Owner.load(_claim(folder, number)) == owner:
            return str(folder / str(number))
    return None


def expected_root(folder: Path, owner: Owner) -> str:
    """The numbered root that `claim_root` would give, if nobody comes first; nothing is claimed."""
    taken = _numbers(folder)
    free = (number for number in count() if number not in taken and not (folder / str(number)).exists())
    return owned_root(folder, owner) or str(folder / str(next(free)))


def claimed_roots(folder: Path) -> Iterator[tuple[Path, Owner | None]]:
    """Every numbered root below `folder`, of every environment, and whose it is. A folder that is not trusted has none
    of this user's: another user could have made it a link to where this user has other folders.
    """
    for claim in sorted(folder.glob(f"*/*{_OWNED}")) if _is_trusted(folder) else ():
        if _is_trusted(claim.parent):
            yield claim.with_suffix(""), Owner.load(claim)


def release_root(root: Path) -> None:
    """Give up the claim on a numbered root that has been removed."""
    root.with_name(root.name + _OWNED).unlink(missing_ok=True)


def make_private(path: Path) -> str:
    """Make `path` a folder of this user's alone, and return it.

    Raises:
        CacheRootError: it is a link, or another user's.
    """
    with suppress(FileExistsError):
        path.mkdir(mode=0o700, parents=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise CacheRootError(
            f"{path} is not a folder of user {os.geteuid()}, who would load compiled code from it; "
            "set KSTORE_CACHE_ROOT to one that is"
        )
    return str(path)


def _shared_folder(folder: Path) -> Path:
    """The folder of all numbered roots: any user may claim in it, none may touch another's (sticky, as /tmp is)."""
    for path in (folder.parent, folder):
        with suppress(FileExistsError):
            path.mkdir(parents=True)
            path.chmod(0o1777)
        if not _is_trusted(path):
            raise CacheRootError(
                f"{path} belongs to another user, who could replace what this user loads, or is not a "
                "folder; set KSTORE_CACHE_ROOT to a folder of your own"
            )
    return folder


def _is_trusted(path: Path) -> bool:
    """Whether `path` is a folder that root or this user owns, or does not exist yet."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return True
    return stat.S_ISDIR(found.st_mode) and found.st_uid in (0, os.geteuid())


def _numbers(folder: Path) -> list[int]:
    stems = (path.stem for path in folder.glob(f"*{_OWNED}"))
    return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdecimal())


def _claim(folder: Path, number: int) -> Path:
    return folder / f"{number}{_OWNED}"


def _claim_free(folder: Path, owner: Owner, taken: set[int]) -> int:
    """Claim by linking a finished file to the name: one of several claimants succeeds, and never without content."""
    finished = folder / f".{secrets.token_hex(8)}"
    finished.write_bytes(owner.dump())
    try:
        had = _claimed.get((folder, owner))
        for number in chain(() if had is None else (had,), count()):
            if number not in taken:
                if number == had or not (folder / str(number)).exists():
                    with suppress(FileExistsError):
                        os.link(finished, _claim(folder, number))
                        return number
                if Owner.load(_claim(folder, number)) == owner:
                    return number
        raise AssertionError("there is always a next number")
    finally:
        finished.unlink()
