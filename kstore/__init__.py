"""kstore: compiled kernels stored once, put back before the next start.

    with kstore.synchronized("my-model/v1"):
        model = torch.compile(model)
        warmup(model)

Everything is loaded when it is first used: `import kstore` costs a few milliseconds and never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kstore.api import commit, restore, watch
    from kstore.errors import (
        AmbiguousScopeError,
        CacheRootError,
        IntegrityError,
        KstoreError,
        MissError,
        PackageMissing,
        StoreFormatError,
        StoreUnavailable,
        UsageError,
        WaitTimeout,
    )
    from kstore.hits import UsageReport
    from kstore.inspect.comparison import Comparison, compare
    from kstore.job import synchronized
    from kstore.report import CommitReport, CommitStatus, RestoreReport, RestoreStatus
    from kstore.store import Store

__version__ = "0.1.0"

_HOMES = {
    "kstore.api": ("commit", "restore", "watch"),
    "kstore.errors": (
        "AmbiguousScopeError", "CacheRootError", "IntegrityError", "KstoreError", "MissError", "PackageMissing",
        "StoreFormatError", "StoreUnavailable", "UsageError", "WaitTimeout",
    ),
    "kstore.hits": ("UsageReport",),
    "kstore.job": ("synchronized",),
    "kstore.inspect.comparison": ("Comparison", "compare"),
    "kstore.report": ("CommitReport", "CommitStatus", "RestoreReport", "RestoreStatus"),
    "kstore.store": ("Store",),
}  # fmt: skip
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AmbiguousScopeError",
    "CacheRootError",
    "CommitReport",
    "CommitStatus",
    "Comparison",
    "IntegrityError",
    "KstoreError",
    "MissError",
    "PackageMissing",
    "RestoreReport",
    "RestoreStatus",
    "Store",
    "StoreFormatError",
    "StoreUnavailable",
    "UsageError",
    "UsageReport",
    "WaitTimeout",
    "__version__",
    "commit",
    "compare",
    "restore",
    "synchronized",
    "watch",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
