"""Load, save and clear, as a model server calls them."""

from __future__ import annotations

import shutil
from pathlib import Path

from kstore.integrations.b10.deployment import Deployment, start_here
from kstore.integrations.b10.status import OperationStatus, never_raises
from kstore.integrations.b10.variables import check_own


@never_raises("load_compile_cache", lambda _: OperationStatus.ERROR)
def load_compile_cache() -> OperationStatus:
    """Put what replicas of this deployment have saved into torch's cache folder, beside what it already holds.

    It sets TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR, unless they are set. If nothing was ever saved here, what
    b10-transfer saved is imported.

    Returns:
        SUCCESS: something was put there. SKIPPED: everything was there already. DOES_NOT_EXIST: nothing was saved yet.
        ERROR: BASETEN_FS_ENABLED is not set, or it cannot be done; the log says why.
    """
    start_here()
    return Deployment.of_torch().load()


@never_raises("save_compile_cache", lambda _: OperationStatus.ERROR)
def save_compile_cache() -> OperationStatus:
    """Save what was compiled and no replica has saved yet. Cheap if there is nothing new: call it after every warm-up.

    Returns:
        SUCCESS: something was saved. SKIPPED: there was nothing new.
        ERROR: BASETEN_FS_ENABLED is not set, or it cannot be done; the log says why.
    """
    return Deployment.of_torch().save()


@never_raises("clear_local_cache", lambda _: False)
def clear_local_cache() -> bool:
    """Remove this replica's torch cache folder, and the Triton kernels that a load keeps beside it.

    A TRITON_CACHE_DIR that the user set stays, and so does a folder that other programs keep theirs in, such as /tmp,
    or that replicas save in. Returns whether they are gone.
    """
    deployment = Deployment.of_torch()
    root, saved = deployment.worker.root, [deployment.variables.volume, *map(Path, deployment.store.settings.store)]
    folders = {folder for name, folder in root.folders.items() if name == "inductor" or name not in root.outside}
    for folder in folders:
        check_own(folder, saved)
    for folder in folders:
        if Path(folder).exists():
            shutil.rmtree(folder)
    return True
