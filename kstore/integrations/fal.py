"""The functions of `fal.toolkit` that share Inductor's cache, backed by a kstore store: to switch, change the import.

    from kstore.integrations.fal import synchronized_inductor_cache

Names, signatures and meanings are those of fal 1.83. What fal stored as one zip for each key is imported when a key is
first loaded. Trouble with the store is one log line, never an exception.

Inductor's folder is the one that fal uses: a graph holds the path of the folder that it was built in, and looks there
for the measured choices of its kernels, so an imported graph is whole only there. All keys of a host share the folder,
as they do with fal. Triton's kernels, which fal leaves in a folder inside it, have a folder beside it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from kstore.api import commit, make_store, restore
from kstore.components import load_table
from kstore.components.variables import is_users
from kstore.deadline import is_interruption
from kstore.environment import gpu_slug
from kstore.errors import KstoreError, UsageError, reason_of
from kstore.local.numbered import make_private
from kstore.origin import begin, origin_of
from kstore.report import CommitReport, RestoreReport, RestoreStatus
from kstore.scope import check_key
from kstore.settings import Mode, load_settings
from kstore.store import Store

log = logging.getLogger("kstore")

INDUCTOR_FOLDER = Path("/tmp/inductor-cache")
"""Where fal lets Inductor compile."""
TRITON_FOLDER = Path("/tmp/inductor-cache-triton")
OLD_CACHES = Path("/data/inductor-caches")
"""Where fal keeps its zips: `<GPU>/<key>.zip`, and those of its earlier versions as `<key>.zip`."""
_COMPONENTS = ("inductor", "triton")
_READABLE = 100


def get_gpu_type() -> str:
    """The GPU that kernels are shared for, such as `nvidia-h100-80gb-hbm3-sm90`: its full name and architecture."""
    return load_settings().gpu or gpu_slug()


def load_inductor_cache(cache_key: str) -> str:
    """Put what is stored for `cache_key` where Inductor and Triton look for it, and point them there.

    Returns a hash of what was loaded; "" if nothing is stored or the store cannot be used.

    Raises:
        UsageError: a setting is malformed.
    """
    key = store_key(cache_key)
    begin(key)
    os.environ.update(_variables(key))
    report = _restore(key)
    if report.status is RestoreStatus.MISS and _import_old(cache_key, key):
        report = _restore(key)
    return _hash(report) if report.ok else ""


def sync_inductor_cache(cache_key: str, unpacked_dir_hash: str) -> None:
    """Store what was compiled and is not stored yet; nothing is written if there is nothing new.

    kstore knows what is new better than `unpacked_dir_hash` can tell, so any value will do.

    Raises:
        UsageError: a setting is malformed.
    """
    key = store_key(cache_key)
    commit(key, environ={**os.environ, **_variables(key)}, **_settings(key))


@contextmanager
def synchronized_inductor_cache(cache_key: str) -> Iterator[None]:
    """Load before the block and sync after it, even if it raises."""
    unpacked_dir_hash = load_inductor_cache(cache_key)
    try:
        yield
    finally:
        sync_inductor_cache(cache_key, unpacked_dir_hash)


def store_key(cache_key: str) -> str:
    """The key in the store: the same, unless it holds what a kstore key cannot; fal takes any text.

    Raises:
        UsageError: it is not text.
    """
    try:
        return check_key(cache_key)
    except UsageError:
        if not isinstance(cache_key, str):
            raise
        readable = re.sub(r"[^A-Za-z0-9]+", "-", cache_key).strip("-")[:_READABLE] or "key"
        return f"{readable}-{hashlib.sha256(cache_key.encode(errors='surrogatepass')).hexdigest()[:8]}"


def old_gpu_type() -> str:
    """fal's word for the GPU, which names the folder of its zips: the first after "NVIDIA", so many GPUs share one."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        names = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, timeout=60).stdout
    except (OSError, ValueError, subprocess.SubprocessError):
        names = ""
    found = re.search(r"NVIDIA ([A-Za-z0-9]*)", names)
    return found[1] if found else "UNKNOWN"


def adopt_old(store: Store, key: str, archive: Path) -> CommitReport:
    """Import one of fal's zips.

    Raises:
        KstoreError: as `adopt` does.
    """
    from kstore.integrations.archives import adopt

    return adopt(store, key, archive, built_under=INDUCTOR_FOLDER)


def _restore(key: str) -> RestoreReport:
    return restore(key, **_settings(key))


def _settings(key: str) -> dict[str, Any]:
    """fal's components, without those that the settings leave out; if they leave out both, what they name."""
    chosen = origin_of(key).settings().components
    return {"components": tuple(name for name in _COMPONENTS if name in chosen) or chosen}


def _variables(key: str) -> dict[str, str]:
    """The variables that point the compilers to fal's folders; none if the user chose others or they cannot be used."""
    if origin_of(key).settings().cache_root:
        return {}
    folders = {"inductor": INDUCTOR_FOLDER, "triton": TRITON_FOLDER}
    try:
        for folder in folders.values():
            make_private(folder)
    except (OSError, KstoreError) as error:
        with suppress(Exception):  # A log handler of the job's may fail.
            log.warning("kstore: %s cannot be used, another folder is: %s", folder, error)
        return {}
    components = ((load_table()[name], folder) for name, folder in folders.items())
    return {known.variable: str(folder) for known, folder in components if not is_users(known, os.environ)}


def _import_old(cache_key: str, key: str) -> bool:
    """Import what fal stored for a key that was never published here. Returns whether something is published now."""
    try:
        store = make_store(key, _settings(key))
        return store.waiting.within(f"importing from {OLD_CACHES}", partial(_adopt_first, store, cache_key, key))
    except Exception as error:
        if is_interruption(error):
            raise
        why = reason_of(error)
        with suppress(Exception):
            log.warning("kstore: fal's cache of %s is not imported, the job goes on without it: %s", cache_key, why)
            log.debug("kstore: fal's cache of %s is not imported", cache_key, exc_info=error)
        return False


def _adopt_first(store: Store, cache_key: str, key: str) -> bool:
    if store.settings.mode is Mode.READ or not OLD_CACHES.is_dir():
        return False
    from kstore.integrations.archives import settled

    if (is_there := settled(store, key)) is not None:  # Has another worker imported it just now?
        return is_there
    candidates = (OLD_CACHES / folder / f"{cache_key}.zip" for folder in (old_gpu_type(), ""))
    archive = next((path for path in candidates if path.is_file()), None)
    if archive is None:
        return False
    report = adopt_old(store, key, archive)
    with suppress(Exception):
        log.info("kstore: imported %s as %s: %d files", archive, key, report.files)
    return bool(report.files)


def _hash(report: RestoreReport) -> str:
    """A hash of the generation's name: generations never change, so what names one names its content."""
    names = (report.store, report.gpu, report.key, report.environment, str(report.generation))
    return hashlib.sha256("\n".join(names).encode(errors="surrogatepass")).hexdigest()  # A path may hold any bytes.
