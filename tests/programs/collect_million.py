"""Fills a store with many loose blobs, half of them dead, collects it twice, and prints what that took.

python collect_million.py FOLDER BLOBS
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from pathlib import Path

from kstore.blobs.loose import blob_name
from kstore.digest import digest_of
from kstore.gc import Policy, collect
from kstore.published.manifest import Entry, Manifest
from kstore.published.ref import Ref
from kstore.scope import Scope
from kstore.storage import Storage

PER_KEY = 10_000


def digest(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def fill(storage: Storage, count: int) -> None:
    root = Path(storage.location)
    for shard in range(256):
        os.makedirs(root / f"blobs/{shard:02x}")
    for number in range(count):
        os.close(os.open(root / blob_name(digest(number)), os.O_CREAT | os.O_WRONLY))
    for start in range(0, count // 2, PER_KEY):
        files = {f"inductor/ab/{n}": Entry(digest(n), 0, 0, 0o644, 1, 0) for n in range(start, start + PER_KEY)}
        data = Manifest(files).dump()
        storage.blobs.loose.put_many([(digest_of(data), data)])
        scope = Scope("gpu", f"key/{start}", "env")
        with storage.refs.reserve() as reserved:
            ref = Ref(scope, 1, digest_of(data), len(data), (), 0.0, "nobody", len(files), 0)
            storage.refs.publish(ref, reserved)


class Memory:
    """The peak of this process's own memory that was seen in use, in MiB, without pages of mapped files."""

    def __init__(self) -> None:
        self.peak = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            status = Path("/proc/self/status").read_text()
            (line,) = (line for line in status.splitlines() if line.startswith("RssAnon"))
            self.peak = max(self.peak, int(line.split()[1]) >> 10)
            time.sleep(0.01)


def main() -> None:
    storage = Storage(sys.argv[1])
    storage.create(grace=1)
    fill(storage, int(sys.argv[2]))
    memory = Memory()
    first = collect(storage, Policy())
    time.sleep(1.1)
    second = collect(storage, Policy())
    left = sum(len(files) for _, _, files in os.walk(Path(storage.location) / "blobs"))
    print(json.dumps({"condemned": first.condemned.files, "deleted": second.deleted.files, "left": left,
                      "memory": memory.peak, "seconds": [first.seconds, second.seconds]}))  # fmt: skip


main()
