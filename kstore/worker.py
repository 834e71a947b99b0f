"""One worker's side of a restore or commit: whose kernels, from which store, in which cache root."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from kstore.components import Table
from kstore.environment import Environment, Host, detect_host
from kstore.local.cacheroot import CacheRoot
from kstore.local.index import Index
from kstore.local.scan import Scan, scan
from kstore.local.state import State, StateFolder
from kstore.scope import Scope
from kstore.snapshot import Snapshot

if TYPE_CHECKING:
    from kstore.blobs import Layout
    from kstore.storage import Storage


@dataclass(frozen=True)
class Worker:
    """Everything that a restore or a commit needs to know."""

    store: Storage
    scope: Scope
    environment: Environment
    root: CacheRoot
    table: Table
    rules: str
    """Names the version of the component table."""
    layout: Layout | None = None

    @cached_property
    def state(self) -> StateFolder:
        """What kstore remembers of the cache root."""
        return StateFolder(self.root, self.rules)

    @cached_property
    def host(self) -> Host:
        """Asked for only where there are host-bound artifacts: it runs the compiler."""
        return detect_host()

    def scan(self, index: Index) -> Scan:
        """Read the cache root."""
        return scan(self.root, self.table, index)

    def base(self, state: State) -> Snapshot | None:
        """What the root grew from, if that was in this store."""
        return state.base.snapshot if state.base and state.base.store == self.store.location else None
