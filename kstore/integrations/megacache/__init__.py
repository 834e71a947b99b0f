"""PyTorch's mega-cache: `torch.compiler.save_cache_artifacts` and `load_cache_artifacts`, backed by a store.

    from kstore.integrations import megacache

    megacache.load("my-model/v1")        # for torch.compiler.load_cache_artifacts(data)
    warmup(torch.compile(model))
    megacache.save("my-model/v1")        # for data, info = torch.compiler.save_cache_artifacts()

A mega-cache is one string of bytes with copies of some of torch's cache files. `export` makes one from a generation,
`bring_in` publishes one. Both need torch, whose serialiser they use. The contents are pickled: whoever loads them runs
the code of whoever wrote them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kstore.integrations.megacache.process import load, save
    from kstore.integrations.megacache.transfer import Imported, bring_in, export

_HOMES = {"process": ("load", "save"), "transfer": ("Imported", "bring_in", "export")}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = ["Imported", "bring_in", "export", "load", "save"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
