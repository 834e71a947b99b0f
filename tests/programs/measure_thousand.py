"""Fills a store with many keys, asks whose bytes it holds, and prints what that took.

python measure_thousand.py FOLDER KEYS
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from kstore.blobs.loose import blob_name
from kstore.digest import digest_of
from kstore.htmlreport.facts import collect_facts
from kstore.published.manifest import Entry, Manifest
from kstore.published.ref import Ref
from kstore.scope import Scope
from kstore.stats.accounts import space_of
from kstore.stats.overview import overview
from kstore.storage import Storage

OWN, COMMON = 150, 50
"""How many artifacts of 1 kB each key has that no other key has, and how many all keys have."""
SIZE = 1000


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def touch(storage: Storage, blobs: Iterable[bytes]) -> None:
    for blob in blobs:
        path = f"{storage.location}/{blob_name(blob)}"
        try:
            open(path, "xb").close()
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path))
            open(path, "xb").close()


def fill(storage: Storage, keys: int) -> int:
    """Returns what each key alone needs, all keys together, in bytes. The blobs are empty: nobody reads them."""
    alone = 0
    common = [str(number) for number in range(COMMON)]
    touch(storage, map(digest, common))
    for key in range(keys):
        own = [f"{key}-{number}" for number in range(OWN)]
        touch(storage, map(digest, own))
        files = {f"inductor/ab/{name}": Entry(digest(name), SIZE, 0, 0o644, 1, 0) for name in own + common}
        data = Manifest(files).dump()
        storage.blobs.loose.put_many([(digest_of(data), data)])
        with storage.refs.reserve() as reserved:
            scope = Scope(f"gpu-{key % 4}", f"family-{key % 20}/{key}", "env")
            size = SIZE * len(files)
            storage.refs.publish(Ref(scope, 1, digest_of(data), len(data), (), 0.0, "me", len(files), size), reserved)
        alone += OWN * SIZE + len(data)
    return alone


class Memory:
    """The peak of this process's own memory in use beyond what it used at first, in MiB."""

    def __init__(self) -> None:
        self.start = self.peak = self._now()
        threading.Thread(target=self._watch, daemon=True).start()

    def _now(self) -> int:
        status = Path("/proc/self/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("RssAnon"))
        return int(line.split()[1]) >> 10

    def _watch(self) -> None:
        while True:
            self.peak = max(self.peak, self._now())
            time.sleep(0.01)


def main() -> None:
    storage = Storage(sys.argv[1])
    storage.create()
    expected = fill(storage, int(sys.argv[2]))
    memory, seconds = Memory(), []
    started = time.perf_counter()
    space = space_of(storage, lambda scope: scope.key)
    seconds.append(round(time.perf_counter() - started, 1))
    rows = len(overview(storage).rows)
    seconds.append(round(time.perf_counter() - started, 1))
    facts = collect_facts(storage, None)
    seconds.append(round(time.perf_counter() - started, 1))
    assert rows == len(facts["keys"])
    print(json.dumps({"keys": len(space.groups), "alone": space.whole.alone, "expected": expected,
                      "memory": memory.peak - memory.start, "seconds": seconds}))  # fmt: skip


main()
