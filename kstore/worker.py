"""One worker's side of a restore or commit: whose kernels, from which store, in which cache root."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from kstore.components import Table, method_of
from kstore.deadline import Waiting
from kstore.digest import digest_of
from kstore.environment import Environment
from kstore.environment.ownhost import OwnHost
from kstore.errors import KstoreError
from kstore.files import read_whole
from kstore.lazy import cached_property
from kstore.local.cacheroot import CacheRoot
from kstore.local.found import Scan
from kstore.local.relocate import to_stored
from kstore.local.scan import scan
from kstore.local.state import State, StateFolder
from kstore.local.unread import Offer
from kstore.local.untouched import UNMARKED, Mark, Untouched
from kstore.progress import Progress
from kstore.published.layers import base_of
from kstore.published.manifest import RELOCATE, Entry, Files, Manifest, in_components
from kstore.published.snapshot import Snapshot
from kstore.scope import Scope

if TYPE_CHECKING:
    from kstore.blobs import Layout
    from kstore.storage import Storage


@dataclass(frozen=True)
class Worker:
    """Everything that a restore or a commit needs to know."""

    storage: Storage
    scope: Scope
    environment: Environment
    root: CacheRoot
    table: Table
    rules: str
    """Names the version of the component table."""
    layout: Layout | None
    """How new blobs are stored; None to choose by what links."""
    environ: Mapping[str, str]
    """The variables that its compilers are run with."""
    progress: Progress
    waiting: Waiting
    may_write: bool = True
    """Whether anything may be written to the store."""
    key_facts: Callable[[], Mapping[str, object]] = dict
    """Finds the facts about this process that change the keys under which compilers look: for manifests alone."""
    lease_ttl: float = 60.0
    """Seconds after which this worker counts as gone, if it compiles for others and does not say so."""
    built_under: Mapping[str, object] = field(default_factory=dict)
    """What its manifests say about the cache root, if its artifacts were built under another one."""
    is_temporary: bool = False
    """Whether the cache root is gone after one commit: nothing can wait in it for another one."""
    lease: str = ""
    """Nonce of the lease under which it goes on compiling for others after its commit; empty if it does not."""
    ahead: tuple[str, ...] = ()
    """Packs that were uploaded ahead of the commit; it may rely on those that it finds there."""

    @cached_property
    def state(self) -> StateFolder:
        """What kstore remembers about the cache root."""
        return StateFolder(self.root, self.rules, self.waiting)

    @property
    def links_into(self) -> str:
        """A folder on the filesystem that loose blobs would be linked into."""
        return self.root.state

    @cached_property
    def host(self) -> OwnHost:
        """Its fingerprint is needed only where there are host-bound artifacts: finding it out runs the compiler."""
        return OwnHost(self.environ)

    @property
    def store_found(self) -> str:
        """Where the store is, if there was one when it was last looked at; else empty."""
        return self.storage.location if self.storage.was_found else ""

    def scan(self, state: State, offer: Offer | None = None) -> Scan:
        """Read the cache root; `offer` is given what is read."""
        return self._scan(state, self.base(state), offer)

    def scan_alone(self, state: State) -> Scan:
        """Read the cache root without a look at the store that it grew from, which may be away by now."""
        return self._scan(state, state.base.snapshot if state.base else None)

    def _scan(self, state: State, base: Snapshot | None, offer: Offer | None = None) -> Scan:
        files = cache(lambda: self.files_of(base.manifest) if base else {})
        untouched = Untouched(self.untouched(state, base), files)
        stores = (self.storage.location, *self.storage.below.locations)
        return scan(self.root, self.table, state.index, files, untouched, offer, stores)

    def untouched(self, state: State, base: Snapshot | None) -> Mark:
        """`State.untouched`, unless that was said of another host: other files were placed there."""
        if base is None or not state.untouched.mtime_ns:
            return UNMARKED
        is_other = base.manifest.hosts and state.host != self.host.fingerprint
        return UNMARKED if is_other else state.untouched

    def files_of(self, manifest: Manifest) -> Files:
        """The artifacts of a manifest that this host can use."""
        return manifest.for_host(self.host.fingerprint) if manifest.hosts else manifest.files

    def managed_files_of(self, manifest: Manifest) -> Files:
        """The same, of the components that this worker manages."""
        return in_components(self.files_of(manifest), self.root.folders)

    def bound_of(self, manifest: Manifest) -> Files:
        """The artifacts of a manifest that run only on hosts like this one."""
        return manifest.hosts.get(self.host.fingerprint, {}) if manifest.hosts else {}

    def give_up_lease(self) -> None:
        """Compile for nobody else any more: another worker that waits goes on with it, if any does. If the store cannot
        be told, the lease lapses.
        """
        with suppress(OSError, KstoreError):
            if nonce := self.state.lease():
                from kstore.flight import release
                from kstore.operations.wait import lease_of

                self.state.save_lease("")
                release(lease_of(self.storage, self.scope, self.lease_ttl, nonce))

    def read_stored(self, path: str, entry: Entry) -> bytes | None:
        """A file of the cache root, in the form in which it is stored; None if it is no longer what was scanned."""
        component, _, relative = path.partition("/")
        try:
            data = read_whole(self.root.local_path(path))
            if entry.flags & RELOCATE:
                method = method_of(self.table, "relocate", path) or ""
                data = to_stored(method, data, relative, self.root.folders[component]).data
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return data if digest_of(data) == entry.digest else None

    def lists(self, path: str) -> bool:
        """Whether an artifact is a list of those beside it, none of which may be missing."""
        component, _, relative = path.partition("/")
        return self.table[component].lists(relative)

    def ignores(self, path: str) -> bool:
        """Whether an artifact path is never stored; folders are given with a final "/"."""
        component, _, relative = path.partition("/")
        return self.table[component].ignores(relative)

    def base(self, state: State) -> Snapshot | None:
        """What the root grew from, if that was in this store, or one below."""
        return base_of(self.storage, state.base)
