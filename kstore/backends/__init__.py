"""Where the shared bytes are: a small interface, and a folder on a filesystem behind it."""

from kstore.backends.base import Backend, Child, LocalPaths, NewObject, Opened, StagingLost, Stat, Upload, check_name
from kstore.backends.posix import PosixBackend

__all__ = [
    "Backend",
    "Child",
    "LocalPaths",
    "NewObject",
    "Opened",
    "PosixBackend",
    "StagingLost",
    "Stat",
    "Upload",
    "check_name",
]
