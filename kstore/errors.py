"""What can go wrong, one line each. Every error says what failed, on what, why, and what to do."""

from __future__ import annotations

from typing import ClassVar


class KstoreError(Exception):
    """Base of all errors that kstore raises on purpose."""

    exit_code: ClassVar[int] = 1
    """What the command line returns for it."""


class UsageError(KstoreError, ValueError):
    """An argument, setting or key is malformed: the caller's mistake, raised even where trouble is not."""

    exit_code = 2


class StoreUnavailable(KstoreError):
    """The store cannot be reached, read or written."""


class StoreBelowMissing(StoreUnavailable):
    """A generation leans on a store that was not named, or is not there, or has lost what it had."""


class StoreFormatError(KstoreError):
    """The folder is not a store, or one that a newer kstore wrote."""


class AmbiguousScopeError(KstoreError):
    """The key has been committed for several GPUs or environments, none of which is this worker's."""

    exit_code = 2


class MissError(KstoreError):
    """Nothing is published for what was requested, and the caller said that something must be."""

    exit_code = 3


class IntegrityError(KstoreError):
    """Bytes in the store are not what their name says."""

    exit_code = 4


class FileError(KstoreError):
    """A file cannot be read or written: one that was named, such as a bundle, or a temporary one."""


class CacheRootError(KstoreError):
    """The local cache root cannot be used."""


class WaitTimeout(KstoreError):
    """Something took too long: another process held a local lock, or the store hangs."""

    exit_code = 5


class ArchiveError(KstoreError):
    """What another tool has archived cannot be taken: it is damaged, or is made to do harm."""

    exit_code = 4


class PackageMissing(KstoreError):
    """What was requested needs a package that is not installed, or another version of it."""


def described(error: BaseException) -> str:
    """What an error is, and says. Its repr might hold all the bytes that could not be decoded."""
    return f"{type(error).__name__}: {error}"


def reason_of(error: BaseException) -> str:
    """What an error says, or, where it has no text, what it is."""
    return str(error) or ("it does not fit in memory" if isinstance(error, MemoryError) else repr(error))
