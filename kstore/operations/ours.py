"""Ours: what a commit has to publish, and what it leaves to the next one."""

from __future__ import annotations

from collections.abc import Mapping, Set

from kstore.local.found import Skipped
from kstore.published.manifest import HOST, Files, compact, compacted, unit_of, with_flags

HOST_UNKNOWN = "the compiler cannot be asked for which hosts it is"


class Ours:
    """What the scan of a cache root has found, less what the commit leaves out."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.foreign: Mapping[str, bytes] = {}
        """What was left out because it was built on another host, with its digests."""
        self.skipped: list[Skipped] = []
        """What waits for the next commit, other than what the scan has skipped."""

    def leave_out_foreign(self, foreign: Mapping[str, bytes]) -> None:
        """Leave out what was built on another host."""
        self.foreign = foreign
        self._leave_out(foreign.keys(), "it was built on another host")

    def leave_out_bound(self, foreign: Mapping[str, bytes]) -> None:
        """Leave out what is bound to a host, as long as nobody knows which one this is; `foreign` as known before."""
        self.foreign = foreign
        self._leave_out({*with_flags(self.files, HOST)}, HOST_UNKNOWN)

    def leave_out_changed(self, digests: set[bytes]) -> None:
        """Leave out files that changed since they were hashed, with their groups."""
        units = {unit_of(path, entry) for path, entry in self.files.items() if entry.digest in digests}
        self.files = compact(item for item in self.files.items() if unit_of(*item) not in units)
        self.skipped += (Skipped(unit, "it changed while it was uploaded") for unit in sorted(units))

    def _leave_out(self, paths: Set[str], why: str) -> None:
        self.files = compacted(self.files).without(paths)
        self.skipped += (Skipped(path, why) for path in sorted(paths))
