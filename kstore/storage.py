"""One store's shared side: its format, refs, manifests and blobs. It knows nothing of cache roots."""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from kstore.backends import PosixBackend
from kstore.backends.base import STAGING
from kstore.backends.publishing import CannotPublish
from kstore.blobs import BlobStore, packindex
from kstore.digest import Bytes, digest_of
from kstore.errors import IntegrityError, MissError, StoreFormatError, StoreUnavailable, described
from kstore.files import CORRUPT
from kstore.folders import make_folder
from kstore.published.delta import read_manifest
from kstore.published.layers import PATIENCE, Below
from kstore.published.manifest import Seen
from kstore.published.ref import Ref, RefState, folder_of
from kstore.published.refs import Refs
from kstore.published.snapshot import Snapshot
from kstore.scope import Scope
from kstore.threads import Pool, submit

log = logging.getLogger(__name__)

FORMAT = 1
_ATTEMPTS = 3
DEFAULT_GRACE = 3600
"""Seconds that superseded generations and condemned blobs are kept."""
_FOR_EVER = 1 << 63
Follow = Callable[[Ref], Seen | None]
"""Called with each ref that is read; returns what to call with the rows of its manifest, or None."""
_PASSING = {
    errno.EAGAIN, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH,
    errno.EIO, errno.ENETDOWN, errno.ENETUNREACH, errno.ENOTCONN, errno.EPIPE, errno.EREMOTEIO, errno.ESHUTDOWN,
    errno.ESTALE, errno.ETIMEDOUT,
}  # fmt: skip
"""What network filesystems say while a server starts again."""
_LIMITS = {errno.EMFILE, errno.ENOMEM, errno.EFBIG}
_MOUNT = "the mount, its space and its permissions"
_NAMING = "with --store or KSTORE_ROOT"
ELSEWHERE = "put the store on a filesystem that has one of them"
"""Advice where nothing can be published."""
_SETTINGS = "kstore.json"
_MOST_BYTES = 1 << 16
"""The most of that file that is read: a sparse one is as large as anybody likes."""
_TAG = "CACHEDIR.TAG"
_BEFORE_SETTINGS = {_TAG, STAGING, "lost+found"}
"""What may be in the folder of a store that is not made yet."""
_TAG_TEXT = b"Signature: 8a477f597d28d172789f06886806bc55\n# A kstore. Backup programs may leave it out.\n"


class Storage:
    """A store in a folder."""

    def __init__(self, root: str | os.PathLike[str], *below: str | os.PathLike[str], depth: int = 0) -> None:
        """`below` are the roots of the stores that are read for what this one lacks, `depth` how many are above it."""
        self.location = os.path.abspath(root)
        self.depth = depth
        self.backend = PosixBackend(root)
        self.refs = Refs(self.backend, depth)
        self._told: set[str] = set()
        self.blobs = self.blobs_anew()
        self.below = Below(self, tuple(Storage(path, depth=number) for number, path in enumerate(below, 1)))
        self.place: tuple[int, int] | None = None
        """Device and inode of its folder, which are the same by every name; None until a store was found there."""
        self.trouble = ""
        """Why this store is passed over, where there are others below; empty if it is not. See `published.layers`."""
        self.patience = PATIENCE
        """Seconds without an answer that count as trouble."""
        self.naming = _NAMING
        """How whoever named it names another one, for advice."""
        self.must_exist = False
        """Whether a store that is not there is gone, rather than never made: then it is not made anew."""
        self._follow: Follow | None = None
        self._settings: dict[str, Any] = {}

    def blobs_anew(self) -> BlobStore:
        """The same blobs, with nothing known about them yet: what is known takes memory, and may be out of date."""
        return BlobStore(self.backend, self._told)

    @property
    def settings(self) -> dict[str, Any]:
        """What kstore.json says; empty if the store has not been made yet.

        Raises:
            StoreFormatError: this is no store, or one of a newer kstore.
            StoreUnavailable: it cannot be reached.
        """
        if not self._settings:
            with reporting_trouble(self.location, "read", self.naming):
                self._settings = self._read_settings()
        return self._settings

    @property
    def was_found(self) -> bool:
        """Whether it was there when it was last looked at."""
        return bool(self._settings)

    @property
    def identity(self) -> str:
        """Where it is and when it was made: one that was made anew in the same place is another store."""
        return f"{self.location} {self.settings.get('created', '')}"

    @property
    def grace(self) -> float:
        """Seconds that superseded generations and condemned blobs are kept: all gcs must agree on it.

        Raises:
            StoreFormatError: what somebody has written there is no time.
        """
        found = self.settings.get("grace", DEFAULT_GRACE)
        if type(found) not in (int, float) or not 0 <= found < _FOR_EVER:
            raise StoreFormatError(
                f"{self.location}/{_SETTINGS} has the grace {json.dumps(found)}, "
                "which is not a number of seconds from 0 on; correct it there"
            )
        return float(found)

    def clock(self) -> int:
        """What time it is by the store's own clock, in nanoseconds: only ever compared with times of its files."""
        name = f"{STAGING}/clock-{secrets.token_hex(8)}"  # where gc finds it if this process is killed now
        self.backend.put_if_absent(name, b"")
        try:
            return self.backend.stat(name).mtime_ns
        finally:
            self.backend.delete(name)

    def newest_whole(self, scope: Scope, taken: int = 0) -> tuple[int, Snapshot | None]:
        """The number of the newest generation, 0 for none, and the newest generation that can be restored.

        A damaged one is passed over, because the one before it is better than none. `taken` is a number that somebody
        has, listed or not: NFS may go on listing a folder as it was.

        Raises:
            MissError: generations are listed that are not there.
            StoreFormatError: a newer kstore wrote one.
        """
        for _ in range(_ATTEMPTS):
            generations = self.refs.generations_ahead(scope)
            if taken > max(generations, default=0):
                generations.append(taken)
            with suppress(MissError):  # gc has removed the newest since it was listed: there is a newer one
                whole = (self.whole(scope, generation) for generation in reversed(generations))
                return max(generations, default=0), next(filter(None, whole), None)
        raise MissError(f"{scope} lists generations that do not exist; `kstore show {scope.key}` shows them")

    def whole(self, scope: Scope, generation: int) -> Snapshot | None:
        """One generation; None, and a line in the log, if it is damaged.

        Raises:
            MissError: there is no such generation.
            StoreFormatError: a newer kstore wrote it.
        """
        try:
            snapshot = self.snapshot(self.refs.get(scope, generation))
            _ = snapshot.checked
        except IntegrityError as error:
            log.warning("passed over: %s", error)
            return None
        return snapshot

    def create(self, grace: int = DEFAULT_GRACE) -> bool:
        """Make the store unless it exists; returns whether it was made now. `grace` is in seconds.

        Raises:
            StoreFormatError: the folder holds something else.
            StoreUnavailable: it cannot be made, or is gone.
        """
        if self._settings:
            return False
        if self.must_exist and not self.settings:
            raise StoreUnavailable(
                f"the store at {self.location} is gone; check whether its filesystem is mounted, "
                "or make another one there with `kstore init`"
            )
        with reporting_trouble(self.location, "create", self.naming):
            if self.is_made():
                return False
            os.makedirs(self.location, exist_ok=True)
            make_folder(os.path.join(self.location, STAGING))
            content = {"format": FORMAT, "created": time.time(), "grace": grace}
            with Pool(1) as aside:
                tagged = submit(aside, self.backend.put_if_absent, _TAG, _TAG_TEXT)
                created = self.backend.put_if_absent(_SETTINGS, json.dumps(content, indent=1).encode() + b"\n")
                if created:  # Without it nothing here can be read, and nobody has it to bring it back.
                    self.backend.write_out(_SETTINGS)
                tagged.result()
            if created:
                log.info("made a store in %s", self.location)
                self._settings = content
                self._note_place()
        return created

    def look_ahead(self, scope: Scope) -> None:
        """The refs of `scope` are about to be asked for, and then packs."""
        self.backend.look_ahead([folder_of(scope), packindex.FOLDER])

    def open(self) -> None:
        """Look at the store anew: it may have been made, or replaced, since the last time.

        Raises:
            StoreFormatError, StoreUnavailable: as `settings` does.
        """
        self._settings = {}
        self.trouble = ""
        _ = self.settings

    def open_existing(self) -> None:
        """As `open`, where nobody would make the store now: a missing store must not look like an empty one.

        Raises:
            StoreFormatError, StoreUnavailable: as `settings` does, and if there is no store.
        """
        self.open()
        if not (self.settings or self.is_made()):
            new = ", make it with `kstore init` if it is new" if self.below else ""
            raise StoreUnavailable(
                f"there is no store at {self.location}; check whether its filesystem is mounted{new}, "
                f"or name another store {self.naming}"
            )

    def is_there(self) -> bool:
        """Whether the store is still where it was when it was opened, and was not unmounted since."""
        return bool(self.settings) and self.backend.stat_many([_SETTINGS]) != [None]

    def is_made(self) -> bool:
        """Whether there is a store by now; another worker may have made it meanwhile.

        Raises:
            StoreFormatError: the folder holds something else.
            StoreUnavailable: it cannot be read.
        """
        with reporting_trouble(self.location, "read"):
            foreign = [child.name for child in self.backend.list("") if child.name not in _BEFORE_SETTINGS]
            if not foreign:
                self._check_parent()
                return False
            self._settings = self._read_settings()
        if not self._settings:
            raise StoreFormatError(
                f"{self.location} is not a store but holds {foreign[0]!r}; choose an empty folder for the store, or, "
                f"if this one has lost its {_SETTINGS}, put one there, its own or another store's"
            )
        return True

    def _read_settings(self) -> dict[str, Any]:
        try:
            settings = _parse_settings(self.location, self.backend.get(_SETTINGS, 0, _MOST_BYTES))
        except FileNotFoundError:
            self.backend.rely_on("")
            self._check_parent()
            return {}
        self._note_place()
        return settings

    def _note_place(self) -> None:
        self.backend.rely_on(_SETTINGS)
        with suppress(OSError):
            found = os.stat(self.location)
            self.place = found.st_dev, found.st_ino

    def snapshot(self, ref: Ref, followed: dict[bytes, Bytes] | None = None) -> Snapshot:
        """The generation that `ref` publishes. If it is not live, and its manifest is lost, the snapshot has an empty
        manifest instead, and its ref names that one, by which it is known what grows from this generation.

        For `followed` see `read_manifest`.

        Raises:
            IntegrityError: its manifest is missing or damaged.
        """
        return self.read_snapshot(ref, partial(read_manifest, self.holder(ref).blobs, ref, followed))

    def read_snapshot(self, ref: Ref, read: Callable[[], Bytes]) -> Snapshot:
        """The same, if `read` reads the manifest."""
        try:
            data = read()
        except IntegrityError as error:
            raise IntegrityError(
                f"the manifest of generation {ref.generation} of {ref.scope} is lost: {error}; "
                "an earlier generation may still be whole"
            ) from error
        if ref.state is not RefState.LIVE and digest_of(data) != ref.manifest:  # An empty one stands for it.
            ref = replace(ref, manifest=digest_of(data), manifest_size=len(data), packs=(), delta=None)
        return Snapshot(ref, data, self._follow(ref) if self._follow else None)

    @contextmanager
    def followed(self, follow: Follow) -> Iterator[None]:
        """In the block, `follow` is called with the ref of each generation that is read; what it returns is called with
        the manifest's rows while they are parsed.
        """
        self._follow = follow
        try:
            yield
        finally:
            self._follow = None

    def holder(self, ref: Ref) -> Storage:
        """The store that a generation is in: this one, or one of those below."""
        return self if ref.depth == self.depth else self.below.at(ref.depth)

    def _check_parent(self) -> None:
        parent = os.path.dirname(self.location)
        if not os.path.isdir(parent):
            raise StoreUnavailable(
                f"there is no store at {self.location}, nor the folder {parent} to make one in; "
                f"mount it, or name another store {self.naming}"
            )


@contextmanager
def reporting_trouble(location: str, verb: str, naming: str = _NAMING) -> Iterator[None]:
    """Turn an operating system's error into one that says what it means for a store; for `naming` see `Storage`."""
    try:
        yield
    except OSError as error:
        path = error.filename2 or error.filename  # For a link, what was to be made.
        raise StoreUnavailable(
            f"cannot {verb} the store at {location}: {error.strerror or error}{f' ({path})' if path else ''}; "
            f"{_advice(error, naming)}"
        ) from error


def may_pass(error: StoreUnavailable) -> bool:
    """Whether the trouble is of a kind that lasts some seconds."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _PASSING


def _advice(error: OSError, naming: str) -> str:
    if isinstance(error, CannotPublish):
        return f"check {_MOUNT}, or {ELSEWHERE}" if error.errno == errno.EIO else ELSEWHERE
    if error.errno in CORRUPT:
        return "check its filesystem (fsck)"
    if error.errno == errno.ENOTDIR:
        return f"a store is a folder: name one {naming}"
    return f"check {'the limits of this process (ulimit -a)' if error.errno in _LIMITS else _MOUNT}"


def _parse_settings(location: str, data: bytes) -> dict[str, Any]:
    try:
        content = json.loads(data)
        found = content["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreFormatError(
            f"{location}/{_SETTINGS} is damaged: {described(error)}; put a whole one there, its own or another store's"
        ) from error
    if found != FORMAT:
        raise StoreFormatError(
            f"the store at {location} has format {found}, this kstore reads {FORMAT}; install the version that made it"
        )
    return dict(content)
