"""The store that the contents of another cache are imported into."""

from __future__ import annotations

from kstore.errors import UsageError
from kstore.store import Store


def check_mode(store: Store) -> None:
    """Check that this worker may write to it.

    Raises:
        StoreUnavailable: this worker only reads.
    """
    store.settings.check_writes(f"import into the store at {store.location}")


def check_target(store: Store) -> None:
    """Check that it may be written, and that it is known whose kernels they are.

    Raises:
        StoreUnavailable: this worker only reads.
        UsageError: there is no torch to ask, and the settings do not say.
    """
    check_mode(store)
    if not store.knows_software:
        raise UsageError("torch is not installed here: say with --gpu and --environment what the kernels are for")
