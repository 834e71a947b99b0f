"""Copies one file, if there is room for it."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from kstore.integrations.b10.space import check_free
from kstore.integrations.b10.status import CacheError, OperationStatus, never_raises
from kstore.integrations.b10.variables import Variables


@never_raises("the transfer", lambda _: OperationStatus.ERROR)
def transfer_file(source: str, dest: str) -> OperationStatus:
    """Copy the file `source` to `dest`, with its times and mode, making folders as needed.

    `dest` appears when it is complete. Below B10FS_CACHE_DIR there must be as much room as before a save; elsewhere
    MIN_LOCAL_SPACE_MB, or LOCAL_SPACE_ARCHIVE_MULTIPLIER times the file if that is more.
    """
    variables, origin, target = Variables(os.environ), Path(source), Path(dest)
    if not origin.is_file():
        raise CacheError(f"{source} is not a file")
    if target.is_dir():
        target = target / origin.name
    target.parent.mkdir(parents=True, exist_ok=True)
    check_free(target.parent, _needed_mb(variables, origin, target), f"copying {source}")
    partial = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        shutil.copy2(origin, partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return OperationStatus.SUCCESS


def _needed_mb(variables: Variables, source: Path, target: Path) -> float:
    if target.parent.resolve().is_relative_to(variables.volume.resolve()):
        return variables.free_volume_mb
    return variables.free_to_unpack_mb(source)
