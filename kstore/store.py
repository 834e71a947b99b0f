"""The Store: restore, commit and look at keys. Raises typed errors; `kstore.api` turns them into statuses."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kstore.components import load_table
from kstore.components.placement import place_components
from kstore.components.table import table_version
from kstore.components.variables import set_variables
from kstore.deadline import Waiting
from kstore.environment import Environment, key_facts
from kstore.errors import AmbiguousScopeError, KstoreError
from kstore.lazy import cached_property
from kstore.local.cacheroot import CacheRoot, make_usable
from kstore.local.numbered import Owner, claim_root, numbered_folder, owned_root
from kstore.operations.slips import warn_of_moved
from kstore.origin import Origin
from kstore.polls import check_wait, polls
from kstore.progress import Progress
from kstore.published.layers import PATIENCE, attempt, generations, newest_ref, scopes, unforgotten
from kstore.published.pins import pin, unpin
from kstore.published.ref import Ref, RefState
from kstore.published.scopes import scopes_of
from kstore.published.snapshot import Snapshot
from kstore.report import CommitReport, CommitStatus, RestoreReport
from kstore.scope import Scope, check_generation, check_key, choices
from kstore.settings import Mode, Settings
from kstore.storage import DEFAULT_GRACE, Storage, reporting_trouble
from kstore.worker import Worker

if TYPE_CHECKING:
    from kstore.gc import GcReport, Policy
    from kstore.operations.request import Request
    from kstore.operations.verified import VerifyReport


class Store:
    """A store as one worker sees it. The settings say where its `Storage` is (the refs and blobs that all share), and
    make a `Worker` (scope, cache root, host). The operations are given that worker, or the storage alone.

    Every method but `release` raises a `KstoreError`: `StoreUnavailable`, `StoreFormatError`, `IntegrityError`,
    `CacheRootError`, `MissError`, `AmbiguousScopeError`, `WaitTimeout`; `UsageError` for a malformed key or setting.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        cache_root: str | os.PathLike[str] | None = None,
        layout: str | None = None,
        mode: str | None = None,
        gpu: str | None = None,
        environment: str | None = None,
        components: tuple[str, ...] | None = None,
        timeout: float | None = None,
        lease_ttl: float | None = None,
        stats: bool | None = None,
        origin: Origin | None = None,
        environ: MutableMapping[str, str] = os.environ,
    ) -> None:
        """Settings that are not given come from `KSTORE_*`, kstore.toml or [tool.kstore], or their defaults. With
        `origin`, they, the folder, the GPU and the software are what this process had when it began with a key.

        `environ` is read, and gets the component variables on a restore. `timeout` is for callers that use
        `waiting.within`, as `kstore.restore` and `kstore.commit` do: the methods here wait for as long as it takes.
        """
        given: dict[str, Any] = {
            "store": root, "cache_root": cache_root, "layout": layout, "mode": mode, "gpu": gpu, "stats": stats,
            "environment": environment, "components": components, "timeout": timeout, "lease_ttl": lease_ttl,
        }  # fmt: skip
        self._origin = origin or Origin(environ)
        self.settings: Settings = self._origin.settings(**given)
        self.storage = Storage(*self.settings.store)
        self.storage.patience = min(PATIENCE, self.settings.timeout / 2 or PATIENCE)
        self.progress = Progress()
        """How far the restore or commit that is running has come."""
        self.waiting = Waiting(self.settings.timeout)
        """Whether somebody still waits for it."""
        self.environ = environ
        self._ahead: tuple[str, ...] = ()

    @property
    def location(self) -> str:
        """Absolute path of the root of the store that is written."""
        return self.storage.location

    def create(self, grace: int = DEFAULT_GRACE) -> bool:
        """Make the store unless it exists; returns whether it was made now. `grace` is in seconds."""
        if not self.storage.settings:
            self.settings.check_writes(f"create the store at {self.location}")
        return self.storage.create(grace)

    def restore(
        self,
        key: str,
        *,
        generation: int | None = None,
        seed: str | None = None,
        wait: float = 0.0,
        lead: bool = True,
        group: bool = False,
        uniform: bool = True,
    ) -> RestoreReport:
        """Put what is published for `key` into the cache root, and set the component variables.

        With `generation`, exactly that one. With `seed`, start from that key if `key` has nothing yet. With `wait`,
        if there is nothing yet, one of the workers that wait goes on at once to compile, and its report says that it
        `leads`; the others wait for what it commits, for up to that many seconds. Without `lead` this worker only
        waits. With `group`, all ranks of the job restore what rank 0 chooses; with `uniform`, all of them or none.
        """
        from kstore.operations.request import Request
        from kstore.operations.restore import restore

        for name in filter(None, (key, seed)):
            check_key(name)
        check_generation(generation)
        until, self.storage.trouble = time.monotonic() + check_wait(wait), ""
        # A repair may have taken away the packs of a generation that was asked for.
        hurry = self.storage.blobs.in_a_hurry() if generation is None else nullcontext()
        with reporting_trouble(self.location, "restore from"), hurry:
            if group and (report := self._restore_together(key, Request(generation, seed, wait, lead), uniform)):
                return report
            worker = self._ready_worker(key, wait)
            return restore(worker, Request(generation, seed, max(0.0, until - time.monotonic()), lead))

    def _ready_worker(self, key: str, wait: float) -> Worker:
        """This process's side of a restore, with its variables set and the store looked at anew."""
        from kstore.operations.takeover import lock_and_take_over

        scope = self._published_scope(self.scope(key), wait)
        self.storage.look_ahead(scope)
        lock_and_take_over(worker := self._worker(scope, before_import=True))  # whatever becomes of the rest
        with self.waiting.visible():
            set_variables(worker.root.variables, self.environ)
        attempt(self.storage, self.storage.open, None)
        return worker

    def _restore_together(self, key: str, request: Request, uniform: bool) -> RestoreReport | None:
        """None for a rank that is the only one."""
        from kstore.operations.together import find_board, restore_together
        from kstore.ranks import Agreement, find_rank

        if (rank := find_rank(self.environ)).size == 1:
            return None
        board = find_board(rank, self.storage, may_write=self.settings.mode is not Mode.READ)
        call, patience, limit = rank.next_call(key), request.patience, self.settings.timeout
        agreement = Agreement(board, rank.number, rank.size, call, seconds=limit, patience=patience, uniform=uniform)
        return restore_together(partial(self._ready_worker, key, patience), agreement, request)

    def commit(self, key: str) -> CommitReport:
        """Publish what the cache root of `key` has and the store lacks."""
        try:
            return self.attempt(key)
        except BaseException:
            self.release(key)
            raise

    def attempt(self, key: str) -> CommitReport:
        """As `commit`, for a caller that tries again: if it fails, others wait on for this worker, until `release`."""
        worker = self._committer(key)
        try:
            report = self._commit(key, worker)
        finally:
            warn_of_moved(worker)
        if worker:
            worker.give_up_lease()
        return report

    def checkpoint(self, key: str) -> CommitReport:
        """As `commit`, by a worker that goes on compiling for others that wait."""
        worker = self._committer(key)
        return self._commit(key, worker and replace(worker, lease=worker.state.lease()))

    def release(self, key: str) -> None:
        """Give up compiling `key` for others, as a commit does: one of them goes on with it. Trouble with that does not
        concern the caller: the lease lapses.
        """
        with suppress(OSError, KstoreError):
            if worker := self._committer(key):
                worker.give_up_lease()

    def _committer(self, key: str) -> Worker | None:
        """None if this worker may not write."""
        check_key(key)
        return None if self.settings.mode is Mode.READ else self.worker(key, before_import=False)

    def _commit(self, key: str, worker: Worker | None) -> CommitReport:
        from kstore.operations.commit import commit

        if worker is None:
            return CommitReport(CommitStatus.READ_ONLY, key, store=self.location)
        with reporting_trouble(self.location, "commit to"), self.storage.blobs.in_a_hurry():
            self.storage.open()
            report = commit(worker)
        self._ahead = ()
        return report

    def upload_ahead(self, key: str) -> None:
        """Upload what is finished in the cache root of `key`, so that the next `commit` needs only to publish it."""
        from kstore.operations.commit import upload_ahead

        if worker := self._committer(key):
            with reporting_trouble(self.location, "upload to"), self.storage.blobs.in_a_hurry():
                self.storage.open()
                self._ahead += upload_ahead(worker)

    def variables(self, key: str) -> dict[str, str]:
        """The environment variables that a worker of `key` needs, without what the user set."""
        return dict(self.worker(key, before_import=True).root.variables)

    def scopes(self, key: str | None = None) -> Iterator[Scope]:
        """Every scope that has generations, including forgotten ones; of one key if given."""
        with reporting_trouble(self.location, "read"):
            yield from scopes(self.storage, key)

    def newest(self, scope: Scope) -> Ref | None:
        """The newest generation of a scope, even an empty one, from the first store that has one."""
        with reporting_trouble(self.location, "read"):
            return newest_ref(self.storage, scope)

    def generations(self, scope: Scope) -> list[Ref]:
        """All generations of a scope, oldest first, including empty ones, from the first store that has any."""
        with reporting_trouble(self.location, "read"):
            return generations(self.storage, scope)

    def snapshot(self, ref: Ref) -> Snapshot:
        """What a generation holds."""
        with reporting_trouble(self.location, "read"):
            return self.storage.snapshot(ref)

    # ---- Looking after a store

    def gc(self, policy: Policy | None = None, *, dry_run: bool = False) -> GcReport:
        """Remove what `policy` does not keep, in two phases at least the grace apart: see `kstore.gc`."""
        from kstore.gc import Policy, collect

        with self._maintaining("collect garbage in"):
            return collect(self.storage, policy or Policy(), dry_run=dry_run, progress=self.progress)

    def verify(self, key: str | None = None, *, repair: bool = False) -> VerifyReport:
        """Read every byte that the generations of `key`, or of all keys, need, and the key's local cache root.

        With `repair`, what is damaged is moved aside, and what can be saved is saved.
        """
        from kstore.operations.altered import altered_files
        from kstore.operations.verify import verify

        with self._maintaining("repair") if repair else reporting_trouble(self.location, "read"):
            self.storage.open_existing()
            gpu, environment = self.settings.gpu, self.settings.environment
            report = verify(self.storage, key, gpu, environment, repair=repair, progress=self.progress)
            if key and (worker := self.local_worker(self.scope(key))):
                report.local = altered_files(worker, remove=repair)
        return report

    def local_worker(self, scope: Scope) -> Worker | None:
        """This user's side of `scope` on this node, if there is a cache root for it."""
        owner = Owner(self.location, scope.gpu, scope.key, os.geteuid())
        path = self.settings.cache_root or owned_root(numbered_folder(scope.environment), owner)
        return self._worker(scope, before_import=False) if path and os.path.isdir(path) else None

    def forget(self, key: str) -> list[Ref]:
        """Make `key` miss, for every GPU and environment that the settings do not exclude; gc frees its bytes."""
        return self._publish_empty(key, RefState.FORGOTTEN)

    def quarantine(self, key: str) -> list[Ref]:
        """Make `key` miss until something new is committed. What it had can be rolled back to."""
        return self._publish_empty(key, RefState.QUARANTINED)

    def rollback(self, key: str, generation: int | None = None) -> Ref:
        """Publish an earlier generation as the newest; by default the last one that holds something else."""
        from kstore.published.generations import roll_back

        check_generation(generation)
        with self._maintaining("roll back in"):
            return roll_back(self.storage, self._one_scope(key), generation)

    def pin(self, key: str, generation: int) -> Scope:
        """Keep a generation whatever gc is told; returns the scope that it belongs to."""
        check_generation(generation)
        with self._maintaining("pin in"):
            pin(self.storage, scope := self._one_scope(key), generation)
            return scope

    def unpin(self, key: str, generation: int) -> Scope:
        """Let gc decide about a generation again; returns the scope that it belongs to."""
        check_generation(generation)
        with self._maintaining("unpin in"):
            unpin(self.storage, scope := self._one_scope(key), generation)
            return scope

    def _publish_empty(self, key: str, state: RefState) -> list[Ref]:
        from kstore.published.generations import publish_empty

        with self._maintaining("write to"):
            scopes = self._scopes_of(key)
            return [ref for scope in scopes if (ref := publish_empty(self.storage, scope, state, upon=None))]

    def _scopes_of(self, key: str) -> list[Scope]:
        """Every scope of `key` that the settings do not exclude, including forgotten ones."""
        return scopes_of(self.storage, check_key(key), self.settings.gpu, self.settings.environment)

    def _one_scope(self, key: str) -> Scope:
        """This worker's own scope of `key`, else its only one, else the only one that was not forgotten."""
        every = self._scopes_of(key)
        found = [scope for scope in every if scope == self.scope(key)] or every
        if len(found) > 1:
            found = unforgotten(self.storage, found)
        if len(found) != 1:
            raise AmbiguousScopeError(f"{key} has been committed under several scopes; choose: {choices(every)}")
        return found[0]

    @contextmanager
    def _maintaining(self, verb: str) -> Iterator[None]:
        self.settings.check_writes(f"{verb} the store at {self.location}")
        with reporting_trouble(self.location, verb):
            self.storage.open_existing()
            yield

    @cached_property
    def gpu(self) -> str:
        """Slug of this worker's GPU."""
        return self.settings.gpu or self._origin.gpu

    @cached_property
    def environment(self) -> Environment:
        """This worker's software."""
        found = self._origin.environment(self.gpu)
        return found._replace(tag=self.settings.environment) if self.settings.environment else found

    @property
    def knows_software(self) -> bool:
        """Whether this process can tell whose kernels it restores and commits."""
        return bool(self.settings.environment) or self.environment.facts.get("torch", "none") != "none"

    def scope(self, key: str) -> Scope:
        """What may share kernels with this worker."""
        return Scope(self.gpu, check_key(key), self.environment.tag)

    def worker(self, key: str, *, before_import: bool) -> Worker:
        """This process's side of a restore (`before_import`) or a commit."""
        scope = self.scope(key)
        if before_import or self.knows_software:
            return self._worker(scope, before_import)
        # A sidecar without torch commits for the software that its cache root was restored for.
        worker = self._worker(scope if self.settings.cache_root else self._published_scope(scope, 0), before_import)
        base = worker.base(worker.state.load())
        return replace(worker, scope=base.ref.scope) if base and base.ref.scope.key == key else worker

    def _worker(self, scope: Scope, before_import: bool) -> Worker:
        return Worker(
            storage=self.storage,
            scope=scope,
            environment=self.environment,
            environ=self.environ,
            key_facts=partial(key_facts, self.environ),
            root=self._cache_root(scope, before_import),
            table=load_table(),
            rules=table_version(),
            layout=self.settings.layout,
            may_write=self.settings.mode is not Mode.READ,
            lease_ttl=self.settings.lease_ttl,
            ahead=self._ahead,
            progress=self.progress,
            waiting=self.waiting,
        )

    def _cache_root(self, scope: Scope, before_import: bool) -> CacheRoot:
        path = self.settings.cache_root
        if path is None:
            owner = Owner(self.location, scope.gpu, scope.key, os.geteuid())
            path = claim_root(numbered_folder(scope.environment), owner)
        environ = self._origin.absolute(self.environ)
        placement = place_components(load_table(), self.settings.components, path, environ, before_import=before_import)
        root = CacheRoot(path, placement.folders, placement.variables, placement.notes)
        make_usable(root, load_table(), self.location, before_import=before_import)
        return root

    def _published_scope(self, scope: Scope, wait: float) -> Scope:
        """Where there is no torch to ask, as in an init container, the only scope of the key decides."""
        if self.knows_software:
            return scope
        for _ in polls(wait, self.waiting):
            every = [s for s in self.scopes(scope.key) if not self.settings.gpu or s.gpu == self.settings.gpu]
            found = unforgotten(self.storage, every)
            if len(found) > 1:
                raise AmbiguousScopeError(
                    f"torch is not installed here, and {scope.key} has several environments; choose: {choices(found)}"
                )
            if found:
                return found[0]
        return every[0] if len(every) == 1 else scope
