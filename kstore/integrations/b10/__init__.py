"""The interface of Baseten's b10-transfer 0.4.1, backed by a store: to switch, change the import.

    from kstore.integrations.b10 import OperationStatus, load_compile_cache, save_compile_cache

Nothing here raises, except `save_vllm_compile_cache`, which is a program: trouble is one line in the log, and
`OperationStatus.ERROR`.
"""

from __future__ import annotations

from kstore.integrations.b10.cache import clear_local_cache, load_compile_cache, save_compile_cache
from kstore.integrations.b10.info import get_cache_info, list_available_caches
from kstore.integrations.b10.server import save_vllm_compile_cache
from kstore.integrations.b10.status import (
    CacheError,
    CacheOperationInterrupted,
    CacheValidationError,
    OperationStatus,
    get_b10_logger,
)
from kstore.integrations.b10.transfer import transfer_file as transfer

__all__ = [
    "CacheError",
    "CacheOperationInterrupted",
    "CacheValidationError",
    "OperationStatus",
    "clear_local_cache",
    "get_b10_logger",
    "get_cache_info",
    "list_available_caches",
    "load_compile_cache",
    "save_compile_cache",
    "save_vllm_compile_cache",
    "transfer",
]
