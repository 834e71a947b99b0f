"""A generation as a mega-cache, and a mega-cache as a generation."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from kstore.errors import FileError, IntegrityError, MissError
from kstore.integrations.megacache import container
from kstore.integrations.megacache.entries import COMPONENT, Artifact, artifact_of, files_of
from kstore.integrations.megacache.omissions import bundled_kernels, left_out
from kstore.integrations.megacache.tree import unchosen, write_files
from kstore.integrations.unpacked import CLASHES, temporary_root
from kstore.published.leaning import check_supported, fetch_many
from kstore.published.manifest import Files, blobs_of
from kstore.published.ref import Ref
from kstore.published.snapshot import Snapshot
from kstore.report import CommitReport, Count, LeftOut, Written
from kstore.settings import Mode, Settings
from kstore.storage import reporting_trouble
from kstore.store import Store


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of a mega-cache."""

    committed: CommitReport
    entries: Mapping[str, int]
    """How many were in it, by torch's name for their kind."""
    left_out: tuple[LeftOut, ...]
    """Entries of kinds that torch itself does not have."""


def export(store: Store, ref: Ref, stream: BinaryIO) -> Written:
    """Write what `torch.compiler.load_cache_artifacts` takes; what a mega-cache cannot hold is left out.

    Raises:
        MissError: the generation holds nothing that a mega-cache can hold.
        IntegrityError: it is damaged, or holds what no commit makes. Nothing has been written then.
        StoreBelowMissing: the generation leans on a store that was not named.
        PackageMissing: torch is not installed.
        KstoreError: the store cannot be read.
    """
    container.check_torch()
    snapshot = store.snapshot(ref)
    manifest = snapshot.checked
    carried = {path: entry for path, entry in manifest.files.items() if artifact_of(path)}
    if not carried:
        raise MissError(f"generation {ref.generation} of {ref.scope} holds nothing that a mega-cache could hold")
    with reporting_trouble(store.location, "read"):
        artifacts = list(_fetch(store, snapshot, carried))
    stream.write(container.write(artifacts))
    held = Count.of([entry.size for entry in carried.values()])
    return Written(held, left_out(manifest, bundled_kernels(artifacts)))


def bring_in(store: Store, data: bytes, key: str, source: str = "") -> Imported:
    """Publish a mega-cache under `key`, merged with what is published already. None of it is unpickled.

    `source` is the file that `data` was read from, for errors.

    It is committed from a temporary folder: neither the cache root nor a folder that the user chose is touched.

    Raises:
        IntegrityError: the data is damaged, or not a mega-cache. Nothing is published then.
        PackageMissing: torch is not installed.
        KstoreError: the store, or a temporary folder, cannot be written.
    """
    artifacts = container.read(data, source)
    files, unknown = files_of(artifacts)
    with _unpacked(files) as root:
        committed = _commit(_committing_from(root, store.settings), key)
    entries = Counter(artifact.kind for artifact in artifacts)
    return Imported(committed, dict(entries), tuple(_unknown_kinds(unknown)))


def _fetch(store: Store, snapshot: Snapshot, carried: Files) -> Iterator[Artifact]:
    ref, sizes = snapshot.ref, dict(blobs_of(carried))
    check_supported(store.storage, snapshot, sizes)
    contents = {digest: bytes(data) for digest, data in fetch_many(store.storage, (ref,), sizes)}
    for path, entry in carried.items():
        if entry.digest not in contents:
            raise IntegrityError(f"{path} of {ref.scope} is missing or damaged; see `kstore verify {ref.scope.key}`")
        if found := artifact_of(path):
            yield Artifact(*found, contents[entry.digest])


@contextmanager
def _unpacked(files: Mapping[str, bytes]) -> Iterator[str]:
    """A temporary cache root."""
    with temporary_root("a mega-cache") as root:
        try:
            write_files(Path(root, COMPONENT), files)
        except OSError as error:
            if error.errno in CLASHES:
                raise IntegrityError(f"a mega-cache holds a file that is also a folder: {error.filename}") from error
            raise FileError(f"a mega-cache cannot be unpacked: {error}; set TMPDIR to another folder") from error
        yield root


def _committing_from(root: str, settings: Settings) -> Store:
    return Store(
        ":".join(settings.store),
        cache_root=root,
        layout=settings.layout,
        mode=settings.mode,
        gpu=settings.gpu,
        environment=settings.environment,
        components=(COMPONENT,),
        environ=unchosen(os.environ),
    )


def _commit(store: Store, key: str) -> CommitReport:
    """Publish what is in the temporary root. The root will not last, so the manifest names no folder. Another process
    has compiled it, so the manifest has nothing of this one's variables and processors.
    """
    from kstore.operations.commit import commit

    if store.settings.mode is Mode.READ:
        return store.commit(key)  # which reports that
    nowhere: dict[str, object] = {"cache_root": "", "folders": {}}
    worker = store.worker(key, before_import=False)
    importer = replace(worker, is_temporary=True, key_facts=dict, built_under=nowhere)
    with reporting_trouble(store.location, "import into"):
        store.storage.open()
        return replace(commit(importer), cache_root="")


def _unknown_kinds(artifacts: Iterable[Artifact]) -> Iterator[LeftOut]:
    """Entries of kinds that another package registered with torch."""
    kinds: dict[str, list[int]] = {}
    for artifact in artifacts:
        kinds.setdefault(artifact.kind, []).append(len(artifact.content))
    for kind, sizes in kinds.items():
        yield LeftOut(f"entries of kind {kind}", "", len(sizes), sum(sizes), "where their files belong is not known")
