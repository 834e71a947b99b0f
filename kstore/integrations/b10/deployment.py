"""One deployment: whose kernels, in which store, in which folders of this replica; its load and its save."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kstore.api import make_store
from kstore.components import load_table
from kstore.components.table import KSTORE_FOLDER
from kstore.components.variables import MANAGED, default_folder, set_variables
from kstore.errors import IntegrityError, StoreUnavailable
from kstore.integrations.b10.archives import Archives
from kstore.integrations.b10.space import MIB, check_free, compressed_mb, free_mb
from kstore.integrations.b10.status import CacheError, OperationStatus, log
from kstore.integrations.b10.variables import TORCH_VARIABLE, VLLM_VARIABLE, Variables, key_of, store_location
from kstore.lazy import cached_property
from kstore.origin import begin, origin_of
from kstore.published.layers import newest_whole
from kstore.report import CommitStatus, RestoreReport, RestoreStatus
from kstore.settings import Mode
from kstore.stats.record import record
from kstore.store import Store
from kstore.worker import Worker

TORCH = ("inductor", "triton")
VLLM = ("vllm", "triton")
_TRITON_VARIABLE = "TRITON_CACHE_DIR"
_LOADED = {
    RestoreStatus.RESTORED: OperationStatus.SUCCESS,
    RestoreStatus.CURRENT: OperationStatus.SKIPPED,
    RestoreStatus.MISS: OperationStatus.DOES_NOT_EXIST,
}
_SAVED = {
    CommitStatus.COMMITTED: OperationStatus.SUCCESS,
    CommitStatus.UNCHANGED: OperationStatus.SKIPPED,
    CommitStatus.READ_ONLY: OperationStatus.SKIPPED,
}


@dataclass(frozen=True)
class Deployment:
    """What its replicas share, and this replica's side of it."""

    variables: Variables
    store: Store
    key: str
    environ: MutableMapping[str, str]
    """The variables that `store` reads, and where a restore writes those that it sets."""
    archives: Archives

    @classmethod
    def of_torch(cls) -> Deployment:
        """The deployment, for a program that compiles in this process.

        Raises:
            CacheValidationError: a variable is malformed.
            UsageError: a kstore setting is.
        """
        variables = Variables(os.environ)
        folder = variables.torch_cache_dir
        # Written with a final "/": otherwise kstore would take torch's default for nobody's choice, and override it.
        environ = dict(os.environ) | {TORCH_VARIABLE: f"{folder}/"}
        if Path(environ.get(_TRITON_VARIABLE, "/")).is_relative_to(folder):
            del environ[_TRITON_VARIABLE]  # Inductor set it, with its first kernel (CachingAutotuner).
        return cls._of(variables, environ, TORCH, folder)

    @classmethod
    def of_vllm(cls) -> Deployment:
        """The deployment, for a vLLM server that is not our child, and so keeps its caches where it looks for them by
        itself.

        Raises:
            CacheValidationError, UsageError: as `of_torch` does.
        """
        variables = Variables(os.environ)
        folder = variables.vllm_cache_root
        environ = dict(os.environ) | {VLLM_VARIABLE: str(folder)}
        environ.setdefault(_TRITON_VARIABLE, default_folder(load_table()["triton"]))
        return cls._of(variables, environ, VLLM, folder)

    @classmethod
    def _of(
        cls, variables: Variables, environ: MutableMapping[str, str], components: tuple[str, ...], folder: Path
    ) -> Deployment:
        key = key_of(variables.volume)
        location = store_location(variables.volume, origin_of(key).settings())
        store = make_store(key, {"store": location, "components": components, "environ": environ})
        archives = Archives(variables, components[0], built_under=folder)
        return cls(variables, store, key, environ, archives)

    # ---- What b10-transfer does

    def load(self) -> OperationStatus:
        """Restore what is published; the first of all replicas imports what b10-transfer left."""
        self.variables.check_enabled()
        try:
            return self.store.waiting.within("loading the compile cache", self._load)
        finally:
            self._export()

    def save(self) -> OperationStatus:
        """Publish what is new."""
        self.variables.check_enabled()
        return self.store.waiting.within("saving the compile cache", self._save)

    def prepare(self) -> None:
        """Make sure that there can be a store, and that it has what b10-transfer left, for a caller that restores by
        itself.
        """
        if self._is_on_volume and self.store.settings.mode is not Mode.READ:
            self._make_volume()
        self.store.waiting.within("importing an archive", lambda: self.archives.adopt(self.store, self.key))

    def _load(self) -> OperationStatus:
        if not self.has_store and self._is_on_volume and not self.variables.volume.is_dir():  # Nobody has saved yet.
            set_variables(self.store.variables(self.key), self.environ)
            return OperationStatus.DOES_NOT_EXIST
        try:
            report = self._restore()
            if report.status is RestoreStatus.MISS and self.archives.adopt(self.store, self.key):
                report = self._restore()
        except IntegrityError as error:  # A save can store what is compiled instead.
            log.warning("kstore: nothing is loaded: %s", error)
            return OperationStatus.DOES_NOT_EXIST
        record(self.store, report)
        return _LOADED[report.status]

    def _restore(self) -> RestoreReport:
        self._check_local_room()
        return self.store.restore(self.key)

    def _save(self) -> OperationStatus:
        if self.store.settings.mode is not Mode.READ:
            self._check_shared_room()
            if self._is_on_volume:
                self._make_volume()
        return _SAVED[self.store.commit(self.key).status]

    def _make_volume(self) -> None:
        """Make the folder in the volume; without a volume, what is saved would vanish with the container."""
        top = Path(*self.variables.volume.parts[:2])
        if not top.is_dir():
            raise StoreUnavailable(f"there is no volume at {top}; check whether it is mounted")
        self.variables.volume.mkdir(parents=True, exist_ok=True)

    @property
    def has_store(self) -> bool:
        """Whether there is a store to read, or may be one below, as an image brings it along."""
        return bool(self.store.storage.below) or Path(self.store.location).is_dir()

    @property
    def _is_on_volume(self) -> bool:
        """Whether the store is beside the archives, where kstore may make its folder."""
        return Path(self.store.location).parent == self.variables.volume

    def _export(self) -> None:
        """Set the variables in this process's environment, for its compilers and its children."""
        if self.store.settings.components == TORCH:
            changed = {name: self.environ[name] for name in (_TRITON_VARIABLE, MANAGED) if name in self.environ}
            changed[TORCH_VARIABLE] = os.environ.get(TORCH_VARIABLE) or str(self.variables.torch_cache_dir)
            os.environ.update(changed)

    # ---- Room

    def _check_local_room(self) -> None:
        """Check that there is room for what is missing here. If nothing is, no room is needed."""
        worker = self.worker
        ref = self.store.newest(worker.scope)
        target = Path(next(iter(worker.root.folders.values())))
        needed = max(ref.size / MIB if ref else 0.0, self.variables.free_local_mb)
        if ref and free_mb(target) < needed and not self._is_all_there(worker):
            check_free(target, needed, "loading the compile cache")

    def _is_all_there(self, worker: Worker) -> bool:
        root, published = worker.root, self._published(worker)
        known = (path for path in published if path.partition("/")[0] in root.folders)
        return all(os.path.lexists(root.local_path(path)) for path in known)

    def _check_shared_room(self) -> None:
        """Check that there is room for what is new, and that it is not more than one save may add. If nothing is new,
        no room is needed.
        """
        worker, variables = self.worker, self.variables
        volume, needed = Path(self.store.location), variables.free_volume_mb
        limit, files = variables.max_save_mb, dict(local_files(worker))
        if free_mb(volume) >= needed and sum(files.values()) <= limit * MIB:
            return
        new = files.keys() - self._published(worker) if volume.is_dir() else files.keys()
        if not new:
            return
        check_free(volume, needed, "saving the compile cache")
        if sum(files[path] for path in new) <= limit * MIB:
            return
        size = compressed_mb(Path(worker.root.local_path(path)) for path in new)
        if size > limit:
            raise CacheError(f"what is new takes {size:.1f} MiB compressed; MAX_CACHE_SIZE_MB allows {limit}")

    def _published(self, worker: Worker) -> set[str]:
        """Paths of the newest generation, for any host."""
        _, snapshot = newest_whole(self.store.storage, worker.scope)
        manifest = snapshot.manifest if snapshot else None
        return {path for path, _ in manifest.items()} if manifest else set()

    @cached_property
    def worker(self) -> Worker:
        """This replica's side, as of before a commit."""
        return self.store.worker(self.key, before_import=False)


def start_here() -> None:
    """Begin a load: the settings of this process are those of the folder that it is in now, for later saves too.

    Raises:
        CacheValidationError: a variable is malformed.
    """
    begin(key_of(Variables(os.environ).volume))


def local_files(worker: Worker) -> Iterator[tuple[str, int]]:
    """Artifact path and size in bytes of every file that may be stored, by its status alone."""
    table = load_table()
    for name, top in worker.root.folders.items():
        for folder, folders, files in os.walk(top):
            inside = f"{os.path.relpath(folder, top)}/" if folder != top else ""
            folders[:] = [s for s in folders if s != KSTORE_FOLDER and not table[name].ignores(f"{inside}{s}/")]
            for file in files:
                with suppress(FileNotFoundError):  # A compiler's temporary file.
                    status = os.lstat(f"{folder}/{file}")
                    if stat.S_ISREG(status.st_mode) and not table[name].ignores(inside + file):
                        yield f"{name}/{inside}{file}", status.st_size
