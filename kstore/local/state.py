"""What kstore remembers about a cache root, in the root's `.kstore` folder: index, base, what was declined.

Losing any of it costs time or a duplicate upload, never an artifact: a root without a base merges as if
everything in it were new. The table in docs/design.md, "Cache roots", names each file.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kstore.aside import pieces_of
from kstore.components.table import KSTORE_FOLDER
from kstore.deadline import Waiting
from kstore.digest import digest_of
from kstore.environment import boot
from kstore.errors import CacheRootError, IntegrityError, described
from kstore.files import NO_FILE, read_whole
from kstore.local.cacheroot import CacheRoot
from kstore.local.held import held
from kstore.local.index import Index
from kstore.local.lastrestore import LastRestore
from kstore.local.leftovers import STAGE
from kstore.local.locked import LockedFolder
from kstore.local.record import (
    UNREADABLE,
    dump_ref,
    read_checked,
    read_ref,
    replace_checked,
    replace_record,
    replace_records,
)
from kstore.local.still import Still
from kstore.local.turn import Turn
from kstore.local.untouched import UNMARKED, Mark
from kstore.published.ref import Ref
from kstore.published.snapshot import Snapshot
from kstore.scope import Scope

log = logging.getLogger(__name__)

_HALF_A_DAY = 12 * 3600.0
_TICK = 0.05
"""Seconds: the clock of file times ticks every 10 ms, and on a busy machine it is late by some more."""


class Base(NamedTuple):
    """The generation that a cache root grew from."""

    store: str
    """`Storage.identity` of the store that it was in."""
    snapshot: Snapshot


@dataclass(slots=True)
class State:
    """Everything that is remembered."""

    index: Index = field(default_factory=Index)
    base: Base | None = None
    declined: Mapping[str, bytes] = field(default_factory=dict)
    outdated: frozenset[str] = frozenset()
    """Those of `declined` that hold nothing of the worker's own: a restore replaces them."""
    waiting: int = 0
    """Artifacts that are in none of these, and wait to be published together with other news."""
    host: str = ""
    """Fingerprint of the host on which the root's host-bound artifacts were last seen; empty if nobody asked."""
    foreign: Mapping[str, bytes] = field(default_factory=dict)
    """Artifacts, with their digests, that came from an earlier host than that and are still in the root."""
    missed: frozenset[bytes] = frozenset()
    """Digests of what restores found missing or damaged in the store, manifests too: whoever has it puts it back."""
    synced: bool = False
    """Whether everything in the root, as the index has it, is in the base, declined or waiting."""
    untouched: Mark = UNMARKED
    """The mark of the folders that are as the base has them."""
    seen: int = 0
    """The newest generation of the root's own key when the root was seeded from another key's."""
    supports: list[str] = field(default_factory=list)
    """The stores below that were here when the base was saved, if the base leans on any."""


class StillRoot(NamedTuple):
    """A root in which nothing is new."""

    base: Base
    """Without its manifest."""
    declined: int
    """Artifacts that are not in the base, and were declined."""
    waiting: int
    """As in `State`."""
    still: Still
    damage: str
    """The mark of the store's damage that was found by then, and is looked after."""
    supports: list[str]
    """As in `State`."""


class StateFolder(LockedFolder):
    """The `.kstore` folder of one cache root."""

    def __init__(self, root: CacheRoot, rules: str, waiting: Waiting | None = None) -> None:
        """`rules` names the version of the component table: under other rules an index means nothing."""
        folder, version = root.state, digest_of(rules.encode()).hex()[:8]
        self._index = os.path.join(folder, f"index-{version}")
        self._base = os.path.join(folder, "base")
        self._sync = os.path.join(folder, "sync.json")
        self._still = os.path.join(folder, f"still-{version}")
        self._lease = os.path.join(folder, "lease")
        super().__init__(folder, root.folders.values(), (self._index, self._base, self._sync), waiting or Waiting())
        self._placing = {"rules": rules, "components": dict(root.folders)}
        self.last_restore = LastRestore(folder, self._base, self._placing)
        self._index_digest = b""
        self.own_until = 0.0
        """See `note_own_changes`."""

    def note_own_changes(self) -> None:
        """Note that kstore has made its last change for now: what is written from `own_until` on, a time by
        `time.monotonic`, is somebody else's.
        """
        self.own_until = time.monotonic() + _TICK

    def turn(self, name: str) -> Turn:
        """Something that several processes are to do to the root, and that one does for all of them."""
        return Turn(self._folder, name)

    def load(self) -> State:
        """Read everything; what is missing or damaged is as if it had never been written."""
        state, is_here = State(), False
        with suppress(OSError, IntegrityError):
            digest, data = read_checked(self._index)
            state.index = Index.load(data)
            self._index_digest = digest
        try:
            content = self._read_sync()
            state.host, state.foreign = str(content["host"]), _digests(content["foreign"])
            is_here = content.get("placing") == self._placing and content.get("boot") == boot()
            data = read_whole(self._base)
            ref = read_ref(content)
            if digest_of(data) == ref.manifest:
                state.base = Base(content["store"], Snapshot(ref, data))
                state.declined, state.waiting = _digests(content["declined"]), int(content.get("waiting", 0))
                state.outdated = frozenset(content.get("outdated", ()))
                state.synced = content["synced"] == self._index_digest.hex() != ""
                state.untouched = Mark(*map(int, content["untouched"])) if is_here else UNMARKED
                state.seen = int(content.get("seen", 0))
                state.supports = content.get("supports", [])
                state.missed = frozenset(map(bytes.fromhex, content.get("missed", ())))
        except FileNotFoundError:
            pass
        except UNREADABLE as error:
            if isinstance(error, OSError) and error.errno not in NO_FILE:
                raise CacheRootError(
                    f"{self._folder} cannot be read: {error.strerror}; check its owner, and the disk for errors"
                ) from error
            log.warning("what %s grew from cannot be read (%s); it is merged as new", self._folder, described(error))
        # A moved root holds the paths of another; a power failure empties files in folders whose times stand.
        if not is_here:
            state.index.folders.clear()
        return state

    def _read_sync(self) -> Any:
        """What `save_base` said about the base; raises one of `UNREADABLE`."""
        return json.loads(read_whole(self._sync))

    def save_still(self, still: Still, damage: str) -> None:
        """Remember that everything in the root is in the saved base, declined or waiting, and nothing moves there.

        `damage` is the mark of the store's damage that was found by then, and is looked after.
        """
        sync = digest_of(read_whole(self._sync)).hex()
        fields, paths = still.dump()
        content = {"sync": sync, "still": fields, "damage": damage}
        replace_record(self._still, json.dumps(content).encode(), b"\n", paths)

    def still(self) -> StillRoot | None:
        """What `save_still` remembered since this machine was started, if nothing was saved later. Needs no lock."""
        with suppress(*UNREADABLE):
            fields, _, paths = read_whole(self._still).partition(b"\n")
            content, sync = json.loads(fields), read_whole(self._sync)
            base = json.loads(sync)
            if content["sync"] == digest_of(sync).hex() and base.get("boot") == boot():
                declined, waiting = sum(map(bool, base["declined"].values())), int(base.get("waiting", 0))
                found, still = Base(base["store"], Snapshot(read_ref(base), b"")), Still.load(content["still"], paths)
                return StillRoot(found, declined, waiting, still, content["damage"], base.get("supports", []))
        return None

    def grew_from(self, store: str, ref: Ref) -> bool:
        """Whether the last restore or commit left the root with this generation as its base. Needs no lock."""
        with suppress(*UNREADABLE):
            content = self._read_sync()
            is_here = content["store"] == store and content.get("placing") == self._placing
            return is_here and read_ref(content) == ref
        return False

    def is_old(self) -> bool:
        """Whether the base was saved, or confirmed, half a day ago or more, by this host's clock, or there is none."""
        try:
            return abs(time.time() - os.stat(self._sync).st_mtime) > _HALF_A_DAY
        except OSError:
            return True

    def confirm(self) -> None:
        """Note that the base is as it was: nothing had to be published."""
        with suppress(OSError):
            os.utime(self._sync)

    def scope(self) -> Scope | None:
        """The scope of the generation that the root grew from; None if it has no base. Needs no lock."""
        with suppress(*UNREADABLE):
            return read_ref(self._read_sync()).scope
        return None

    def save_index(self, index: Index) -> int:
        """Replace the index. Returns the time by the clock of the root's filesystem, in nanoseconds."""
        self._index_digest = replace_checked(self._index, index.dump())
        return os.stat(self._index).st_mtime_ns

    def save_base(
        self,
        base: Base,
        declined: Mapping[str, bytes],
        *,
        host: str,
        synced: bool,
        waiting: int = 0,
        untouched: Mark = UNMARKED,
        foreign: Mapping[str, bytes] | None = None,
        missed: Set[bytes] = frozenset(),
        seen: int = 0,
        supports: Sequence[str] = (),
        outdated: Set[str] = frozenset(),
    ) -> None:
        """Replace the base. `synced` says whether everything in the saved index is in it, declined or `waiting`."""
        content = {
            "store": base.store,
            **dump_ref(base.snapshot.ref),
            "host": host,
            "synced": self._index_digest.hex() if synced else "",
            "declined": _texts(declined),
            "outdated": sorted(outdated),
            "waiting": waiting,
            "foreign": _texts(foreign or {}),
            "missed": sorted(digest.hex() for digest in missed),
            "untouched": untouched,
            "seen": seen,
            "supports": supports,
            "placing": self._placing,
            "boot": boot(),
        }
        # The ref names the manifest by its digest: a crash between the two leaves no base rather than a wrong one.
        replace_records({self._base: pieces_of(base.snapshot.data), self._sync: [json.dumps(content).encode()]})

    def doubt_base(self) -> None:
        """Remember that the store could not give what the root grew from, if it grew from anything."""
        with suppress(*UNREADABLE, CacheRootError):
            content = self._read_sync()
            content["missed"] = sorted({*content.get("missed", ()), read_ref(content).manifest.hex()})
            replace_record(self._sync, json.dumps(content).encode())

    def save_host(self, fingerprint: str, foreign: Mapping[str, bytes]) -> None:
        """Remember this host, and that nothing but `foreign` is left in the root from earlier hosts."""
        with suppress(*UNREADABLE, CacheRootError):
            content = self._read_sync()
            content |= {"host": fingerprint, "foreign": _texts(foreign), "untouched": UNMARKED}  # an earlier host's
            replace_record(self._sync, json.dumps(content).encode())

    def host(self) -> str:
        """`State.host`. Needs no lock."""
        with suppress(*UNREADABLE):
            return str(self._read_sync()["host"])
        return ""

    def was_moved(self) -> bool:
        """Whether the root was somewhere else, or its artifacts were placed by other rules, when its base was saved."""
        with suppress(*UNREADABLE):
            return bool(self._read_sync().get("placing") != self._placing)
        return False

    def lease(self) -> str:
        """The nonce of the lease under which this root is filled for others; empty for none."""
        try:
            return read_whole(self._lease).decode()
        except (OSError, UnicodeDecodeError):
            return ""

    def save_lease(self, nonce: str) -> None:
        """Remember the lease, so that every process that uses the root knows it; empty to forget it."""
        if nonce:
            replace_record(self._lease, nonce.encode())
        else:
            with suppress(FileNotFoundError):
                os.unlink(self._lease)

    @contextmanager
    def staging(self, folder: str | None = None) -> Iterator[str]:
        """A folder to build things in, removed afterwards; by default in the state folder.

        In `folder`, a component elsewhere, it is below a name that no scan looks into: a killed restore leaves it.
        """
        parent = os.path.join(folder, KSTORE_FOLDER) if folder else self._folder
        path = os.path.join(parent, f"{STAGE}{secrets.token_hex(8)}")
        os.makedirs(path, mode=0o700)
        try:
            with held(path):
                yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            if folder:
                with suppress(OSError):  # another restore's may be in it
                    os.rmdir(parent)


def _digests(content: Mapping[str, str]) -> dict[str, bytes]:
    return {path: bytes.fromhex(text) for path, text in content.items()}


def _texts(digests: Mapping[str, bytes]) -> dict[str, str]:
    return {path: digest.hex() for path, digest in digests.items()}
