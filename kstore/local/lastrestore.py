"""What the last restore put into a cache root: to tell whether it was of use, and for workers that came for the same.

Workers that wait for the root read all this without its lock. That is safe because a restore writes in this order:

1. It takes the lock, and `begin` notes its name before it looks at the store or at the root. So it counts for workers
   that had come by then. One that comes later finds that name, and must not rely on what was looked at before.
2. It places the artifacts, and saves the index, then the base. From then on `StateFolder.grew_from` is true of that
   generation, and of no other, until somebody saves another base.
3. `save` notes the same name with the answer, last of all. Whoever finds the name in both places finds everything
   there. If a restore failed, was killed or has been followed by another, its name is in one of them only.
4. If somebody waits who may have come since (`ask`), it begins once more, with a new name, and looks whether anything
   has changed. If not, `save` notes that name: for those who had come by then, too, everything is as it should be.
5. It gives the lock back. Whoever takes it next, and looks once more, misses nothing.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from kstore.digest import digest_of
from kstore.errors import CacheRootError
from kstore.files import read_whole
from kstore.local.record import UNREADABLE, dump_ref, read_ref, replace_record
from kstore.published.ref import Ref
from kstore.published.snapshot import Snapshot
from kstore.scope import Scope


class Restored(NamedTuple):
    """What the last restore put into a cache root."""

    ended_ns: int
    """When it ended, by the clock of the root's filesystem: only ever compared with times of its files."""
    snapshot: Snapshot | None = None
    """None if there was nothing to restore."""
    notes_reads: bool = True
    """Whether the root's filesystem sets access times, as seen by that of the file that says all this."""


class LastRestore:
    """The last restore of one cache root."""

    def __init__(self, folder: str, base: str, placing: Mapping[str, Any]) -> None:
        """`folder` is the root's `.kstore`, `base` the manifest in it that the root grew from.

        `placing` says where this worker would place artifacts, and by which rules.
        """
        self._folder = folder
        self._base = base
        self._placing = placing
        self._manifest = os.path.join(folder, "restored")
        self._record = os.path.join(folder, "restored.json")
        self._begun = os.path.join(folder, "begun")
        self._asked = os.path.join(folder, "asked")

    def load(self) -> Restored | None:
        """What it put here; None if nobody has restored, or it is no longer known."""
        with suppress(*UNREADABLE):
            content = json.loads(read_noticed(self._record))
            status = os.stat(self._record)
            ended_ns, notes_reads = status.st_mtime_ns, status.st_atime_ns > status.st_mtime_ns
            if "scope" not in content:
                return None  # No restore has ended; see `note_first_host`.
            if "ref" not in content:
                return Restored(ended_ns, notes_reads=notes_reads)
            ref, data = read_ref(content), read_whole(self._manifest)
            if digest_of(data) == ref.manifest:
                return Restored(ended_ns, Snapshot(ref, data), notes_reads)
        return None

    def begin(self, store: str) -> str:
        """Give the restore that begins a name of its own; empty if it cannot be written, and nobody relies on it.

        The holder of the lock calls this before anything is chosen. `store` is where there is a store, which may be
        gone before the restore has ended; empty if there is none.
        """
        name = secrets.token_hex(8)
        try:
            replace_record(self._begun, f"{name}\n{store}".encode(errors="surrogateescape"))
        except CacheRootError:
            return ""
        return name

    def ask(self) -> None:
        """Have whoever is restoring look once more at the end: this process waits, and may have come too late."""
        with suppress(OSError), open(self._asked, "wb"):
            pass

    def was_asked(self) -> bool:
        """Whether somebody has called `ask` since the last time that this was called."""
        try:
            os.unlink(self._asked)
        except OSError:
            return False
        return True

    def begun(self) -> str | None:
        """The name of the restore that began last; empty if none has begun, None if it cannot be read."""
        try:
            return read_whole(self._begun).partition(b"\n")[0].decode()
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError):
            return None

    def save(
        self,
        ref: Ref | None,
        whole: str,
        answer: Mapping[str, Any] | None,
        *,
        scope: Scope,
        store: str,
        host_hint: str,
    ) -> None:
        """Remember that a restore of `ref`, which is the base now, has ended; None for a miss.

        `whole` is the restore's name, if it left nothing out. `answer` is what workers that came for the same are told,
        if they may rely on it. `scope` is the worker's own, `store` is where its store was, if there was one, and
        `host_hint` is that of its host.
        """
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):
            os.unlink(self._manifest)
        if ref:
            try:
                os.link(self._base, self._manifest)  # later commits replace the base, and leave this file
            except OSError:  # a filesystem without hard links
                shutil.copyfile(self._base, self._manifest)
        content = {**dump_ref(ref), "whole": whole, "placing": self._placing, "answer": answer} if ref else {}
        seen = {"scope": scope.path, "store": store, "host": host_hint}
        replace_record(self._record, json.dumps({**content, **seen}).encode())

    def save_host_hint(self, hint: str) -> None:
        """Remember that the root is on another host now, if anything is remembered: it is not whole for that host."""
        with suppress(*UNREADABLE, CacheRootError):
            content = self._read_record()
            replace_record(self._record, json.dumps({**content, "host": hint, "whole": ""}).encode())

    def note_first_host(self, hint: str) -> None:
        """Remember the host of a new root, whatever becomes of its first restore. Needs no lock: what another process
        has noted stays.
        """
        with suppress(OSError):
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            with open(self._record, "x", encoding="utf-8") as file:
                json.dump({"host": hint}, file)

    def is_whole(self) -> bool:
        """Whether the last restore has ended, and has left nothing out."""
        return self._seen("whole") == self.begun() != ""

    def scope(self) -> str:
        """The path of the scope that it was for, not of a seed that was restored; empty if it is not known."""
        return self._seen("scope")

    def found_store(self, location: str) -> bool:
        """Whether the last restore has found a store there, whether that restore has ended or not."""
        with suppress(*UNREADABLE):
            if read_whole(self._begun).partition(b"\n")[2] == location.encode(errors="surrogateescape"):
                return True
        return self._seen("store") == location

    def host_hint(self) -> str:
        """The hint of the host that it was made on, from `environment.host_hint`; empty if it is not known."""
        return self._seen("host")

    def _read_record(self) -> Any:
        """What `save` noted; raises one of `UNREADABLE`."""
        return json.loads(read_whole(self._record))

    def _seen(self, what: str) -> str:
        with suppress(*UNREADABLE):
            return str(self._read_record()[what])
        return ""

    def has_base(self, ref: Ref) -> bool:
        """Whether the manifest that the root grew from is here, and is that of `ref`."""
        with suppress(*UNREADABLE):
            return digest_of(read_whole(self._base)) == ref.manifest
        return False

    def since(self, before: str | None) -> tuple[Ref, Mapping[str, Any]] | None:
        """What a restore that began after `before` did has put here, and its answer; None if there is none.

        None, too, if that cannot be told now, if it left anything out, or if this worker would place it elsewhere.
        """
        return None if before is None or self.begun() in (None, before) else self.answer()

    def answer(self) -> tuple[Ref, Mapping[str, Any]] | None:
        """What the last restore has put here, and its answer.

        None if it left anything out, or if this worker would have placed it elsewhere.
        """
        with suppress(*UNREADABLE):
            last, content = self.begun(), self._read_record()
            if last == content["whole"] != "" and content["answer"] and content["placing"] == self._placing:
                return read_ref(content), content["answer"]
        return None


def read_noticed(path: str) -> bytes:
    """Read a whole file, so that its access time shows that, if the filesystem notes any."""
    with open(path, "rb") as file:
        return file.read()
