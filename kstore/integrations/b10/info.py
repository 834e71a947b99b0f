"""What is present, for people and for logs."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from kstore.integrations.b10.archives import find_archives, key_in, own_archive
from kstore.integrations.b10.deployment import Deployment, local_files
from kstore.integrations.b10.hardware import archive_key
from kstore.integrations.b10.space import MIB
from kstore.integrations.b10.status import never_raises
from kstore.published.ref import Ref, RefState
from kstore.scope import Scope


def _no_info(error: str) -> dict[str, Any]:
    return {
        "environment_key": "", "local_cache_exists": False, "b10fs_enabled": False, "b10fs_cache_exists": False,
        "error": error,
    }  # fmt: skip


def _no_list(error: str) -> dict[str, Any]:
    return {"caches": [], "current_environment": "", "b10fs_enabled": False, "error": error}


@never_raises("get_cache_info", _no_info)
def get_cache_info() -> dict[str, Any]:
    """What this replica has, and what a load would find.

    Sizes are in MiB, of the files as they are on a replica; an archive that is not imported yet counts with its own
    size. If the caches cannot be examined, the answer has an `error`, and says that nothing was found.
    """
    deployment = Deployment.of_torch()
    files = dict(local_files(deployment.worker))
    enabled, waiting = deployment.variables.enabled, deployment.store.waiting
    shared = waiting.within("looking at the store", lambda: _shared_size(deployment)) if enabled else None
    info: dict[str, Any] = {
        "environment_key": _name(deployment.worker.scope),
        "local_cache_exists": bool(files),
        "b10fs_enabled": enabled,
        "b10fs_cache_exists": shared is not None,
    }
    if files:
        info["local_cache_size_mb"] = sum(files.values()) / MIB
    if shared is not None:
        info["b10fs_cache_size_mb"] = shared / MIB
    return info


@never_raises("list_available_caches", _no_list)
def list_available_caches() -> dict[str, Any]:
    """What was saved for each GPU and environment, newest first, and which archives are there to be imported.

    A row's `filename` is the ref of its newest generation, relative to the store, or the archive. Sizes are as in
    `get_cache_info`.
    """
    deployment = Deployment.of_torch()
    current = _name(deployment.worker.scope)
    if not deployment.variables.enabled:
        return {"caches": [], "current_environment": current, "b10fs_enabled": False, "error": "b10fs is not enabled"}
    if not deployment.variables.volume.is_dir() and not deployment.has_store:
        return {"caches": [], "current_environment": current, "b10fs_enabled": True}
    waiting = deployment.store.waiting
    caches = waiting.within("listing the store", lambda: [*_generations(deployment), *_archives(deployment)])
    caches.sort(key=lambda cache: cache["created_time"], reverse=True)
    return {
        "caches": caches,
        "current_environment": current,
        "total_caches": len(caches),
        "current_cache_exists": any(cache["is_current_environment"] for cache in caches),
        "b10fs_enabled": True,
    }


def _name(scope: Scope) -> str:
    return f"{scope.gpu}/{scope.environment}"


def _shared_size(deployment: Deployment) -> int | None:
    """Bytes that a load would find; None for nothing."""
    if deployment.has_store and (ref := deployment.store.newest(deployment.worker.scope)):
        return ref.size if ref.state is RefState.LIVE else None
    archive = own_archive(deployment.variables.volume)
    status = _status(archive) if archive else None
    return status.st_size if status else None


def _generations(deployment: Deployment) -> list[dict[str, Any]]:
    store = deployment.store
    scopes = list(store.scopes(deployment.key)) if deployment.has_store else []
    refs = [ref for scope in scopes if (ref := store.newest(scope)) and ref.state is RefState.LIVE]
    return [_generation(ref, deployment.worker.scope) for ref in refs]


def _generation(ref: Ref, own: Scope) -> dict[str, Any]:
    return {
        "filename": ref.name,
        "environment_key": _name(ref.scope),
        "size_mb": ref.size / MIB,
        "is_current_environment": ref.scope == own,
        "created_time": ref.created,
    }


def _status(archive: Path) -> os.stat_result | None:
    """None if it has been removed since it was listed."""
    with suppress(FileNotFoundError):
        return archive.stat()
    return None


def _archives(deployment: Deployment) -> list[dict[str, Any]]:
    found = [(path, status) for path in find_archives(deployment.variables.volume) if (status := _status(path))]
    own = archive_key() if found else None
    return [
        {
            "filename": path.name,
            "environment_key": key_in(path.name),
            "size_mb": status.st_size / MIB,
            "is_current_environment": key_in(path.name) == own,
            "created_time": status.st_mtime,
        }
        for path, status in found
    ]
