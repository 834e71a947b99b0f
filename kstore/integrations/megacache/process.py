"""A process's own mega-cache. Trouble is one log line and a status, as with `kstore.restore` and `kstore.commit`."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from kstore.api import commit, degrade, make_store, restore
from kstore.errors import UsageError
from kstore.integrations.megacache import container
from kstore.integrations.megacache.entries import COMPONENT, Artifact, files_of
from kstore.integrations.megacache.tree import unchosen, write_files
from kstore.redirect import end_use
from kstore.report import CommitReport, RestoreReport
from kstore.scope import check_key
from kstore.store import Store
from kstore.words import plural

log = logging.getLogger("kstore")


def load(key: str, **settings: Any) -> RestoreReport:
    """Instead of `torch.compiler.load_cache_artifacts`: put what is published for `key` into torch's cache folders.

    Torch's own load leaves nothing behind but files in its cache folders, so this is a restore. It may come after
    `import torch`, and must come before the first compile. Arguments are those of `kstore.restore`.

    Raises:
        UsageError: the key or a setting is malformed.
        KstoreError: anything else, if `strict`.
    """
    return restore(key, **settings)


def save(key: str, *, strict: bool = False, **settings: Any) -> CommitReport:
    """Instead of `torch.compiler.save_cache_artifacts`: publish under `key` what this process compiled or found.

    What torch has recorded is written into the cache root of `key`, unless it is there already, and the cache root is
    committed. So what others have published stays. If `load` or `kstore.restore` redirected torch to that cache root,
    what a mega-cache cannot hold is published too. Arguments are those of `kstore.commit`.

    Raises:
        UsageError: the key or a setting is malformed.
        KstoreError, OSError: anything else, if `strict`.
    """
    settings["environ"] = unchosen(settings.get("environ", os.environ))
    check_key(key)
    store = make_store(key, settings)
    end_use(key)  # As a commit does, which a failure keeps from being tried.
    failed = partial(CommitReport.of_failure, key)
    unsaved = degrade("saving the mega-cache", key, strict, lambda: _write_recorded(store, key), failed)
    return unsaved or commit(key, strict=strict, **settings)


def _write_recorded(store: Store, key: str) -> None:
    """Write it within the time limit: the cache root may hang as a store may."""
    files, unknown = files_of(_recorded())
    with suppress(Exception):  # A log handler of the job's may fail.
        for kind, count in Counter(artifact.kind for artifact in unknown).items():
            entries = plural(count, "entry", "entries")
            log.warning("kstore: %s of kind %s left out: where their files belong is not known", entries, kind)
    store.waiting.within("writing the mega-cache", partial(_write, store, key, files))


def _write(store: Store, key: str, files: Mapping[str, bytes]) -> None:
    folders = store.worker(key, before_import=False).root.folders
    if COMPONENT not in folders:
        raise UsageError(f"a mega-cache is saved as files of {COMPONENT}, which the setting `components` leaves out")
    write_files(Path(folders[COMPONENT]), files)


def _recorded() -> list[Artifact]:
    """What torch has compiled, or found in its caches, since this process began."""
    container.check_torch()
    import torch

    recorded = torch.compiler.save_cache_artifacts()
    return container.read(recorded[0]) if recorded else []
