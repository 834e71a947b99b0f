"""A store whose report has something in every part, and one in which every text was written to be run as code."""

from __future__ import annotations

import os
from pathlib import Path

from kstore.digest import digest_of
from kstore.published.manifest import Entry, Manifest
from kstore.published.ref import Ref
from kstore.report import RestoreStatus
from kstore.scope import Scope
from kstore.stats.pages import add
from kstore.stats.totals import Sample
from kstore.storage import Storage
from tests.stats.stores import A100, H100, busy_store, commit, sample
from tests.trees import ENVIRONMENT, publish

EVIL = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>&amp;\u2028\"'"
EVIL_COMPONENT = "<img src=x onerror='window.hacked = 3'>"


def full_store(folder: Path) -> Storage:
    """Several keys, GPUs, components and generations; restores and misses; generations that gc would remove."""
    storage = busy_store(folder)
    for number in range(3):
        commit(folder, "llama/v2", f"more {number}")
    for number, gpu in enumerate((H100, A100, H100)):
        scope = Scope(gpu, "llama/v1", ENVIRONMENT)
        add(storage.backend, scope, sample(seconds=1.0 + number, worker=f"svc@worker-{number}"))
    add(storage.backend, Scope(H100, "flux/dev", ENVIRONMENT), sample("miss"))
    for path in (Path(storage.location) / "refs").rglob("[0-9]"):  # long ago by the store's clock
        then = path.stat().st_mtime_ns - 10**13
        os.utime(path, ns=(then, then))
    return storage


def hostile_store(folder: Path) -> Storage:
    """Only keys, GPUs and environments are checked when they are read: everything else may be anything."""
    storage = Storage(folder / "store")
    storage.create()
    names = (EVIL_COMPONENT, "__proto__", "constructor")
    files = {f"{name}/{EVIL.replace('/', '')}": Entry(bytes(32), 1000, 0, 0o644, 0, 0) for name in names}
    meta = {"environment": {"torch": EVIL, EVIL: EVIL}, "key": EVIL, "cache_root": EVIL}
    scope = Scope(H100, "model/v1", ENVIRONMENT)
    for number, created in ((1, "nan"), (2, "1e300")):
        publish_manifest(storage, scope, number, Manifest(files, meta=meta | {"number": number}), created)
    add(storage.backend, scope, Sample(1e15, RestoreStatus.RESTORED, 1, 2.0, 0.0, 1, 1, 1, 0, EVIL, EVIL))
    return storage


def publish_manifest(storage: Storage, scope: Scope, number: int, manifest: Manifest, created: str = "1000") -> None:
    """Publish a generation with a manifest that no commit would make."""
    data = manifest.dump()
    storage.blobs.loose.put_many([(digest_of(data), data)])
    publish(storage.refs, Ref(scope, number, digest_of(data), len(data), (), float(created), EVIL, 1, 2**63 - 1))
