"""Runs the compile programs as the workers of a fleet would: each in a process and a cache root of its own."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kstore.components import load_table
from kstore.store import Store

PROGRAMS = Path(__file__).parent.parent / "programs"
REPOSITORY = PROGRAMS.parents[1]
GPU = "nvidia-test-sm90"
TIMEOUT = 500
SOUND_COUNTERS = {
    "inductor": ("fxgraph_cache_miss", "fxgraph_cache_bypass", "fxgraph_lookup_write_file"),
    "aot_autograd": ("autograd_cache_saved",),
}
"""What torch counts when it compiles. Other counters reappear on a perfect hit: it adds those of the first compile."""


PATH = {"PYTHONPATH": f"{PROGRAMS / 'startup'}:{REPOSITORY}"}
"""Where Python looks first: for what it runs when it starts, and for kstore in this version."""
ONE_PROCESS = {"TORCHINDUCTOR_COMPILE_THREADS": "1", **PATH}
QUICK = {"TORCHINDUCTOR_VEC_ISA_OK": "1", **ONE_PROCESS}


def temporary_folder(folder: Path) -> dict[str, str]:
    """Variables of programs whose temporary files are there.

    Headers that torch has precompiled, which it keeps there as well, are those of all tests: making them takes seconds.
    """
    headers = f"torchinductor_{getpass.getuser()}/precompiled_headers"
    shared, link = Path(tempfile.gettempdir(), headers), folder / headers
    shared.mkdir(parents=True, exist_ok=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        link.symlink_to(shared)
    return {"TMPDIR": str(folder)}


@dataclass(frozen=True)
class Container:
    """A worker's process environment: nothing in it is the user's, and temporary files are in the test's folder."""

    temporary: Path
    as_shipped: bool = False
    """Whether Inductor tries instructions, which takes seconds."""

    def environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("KSTORE_")}
        for name in ("CI", *(component.variable for component in load_table().values())):
            kept.pop(name, None)  # torch's configuration has other defaults in a CI.
        return kept | {
            **(ONE_PROCESS if self.as_shipped else QUICK),
            **temporary_folder(self.temporary),
        }


def worker(store: Path, root: Path, environ: MutableMapping[str, str], layout: str = "loose") -> Store:
    """A store as seen by a worker with its cache root at `root`. Its scope is a GPU's, so it needs no vector ISA."""
    return Store(store, cache_root=root, layout=layout, gpu=GPU, environ=environ)


def start_program(name: str, *arguments: object, environ: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAMS / f"{name}.py"), *map(str, arguments)],
        env=dict(environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish_program(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The report that the program prints last."""
    output, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, errors
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    return report


def run_program(name: str, *arguments: object, environ: Mapping[str, str]) -> dict[str, Any]:
    return finish_program(start_program(name, *arguments, environ=environ))


def compiled_graphs(report: Mapping[str, Any]) -> dict[str, int]:
    """The reliable counters that are not 0: empty if nothing was compiled."""
    counters = report["counters"]
    return {
        name: counters[section][name]
        for section, names in SOUND_COUNTERS.items()
        for name in names
        if counters.get(section, {}).get(name)
    }


def fingerprint(root: Path) -> dict[str, tuple[int, int, int]]:
    """Every file except locks and kstore's own files, with what changes if anybody writes it."""
    found = {}
    for path in root.rglob("*"):
        relative = path.relative_to(root)
        if path.is_file() and ".kstore" not in relative.parts and "locks" not in relative.parts:
            status = path.stat()
            found[str(relative)] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return found


def stored_bytes(store: Store) -> int:
    """Bytes of all blobs and packs, without the manifests."""
    manifests = [store.snapshot(ref).ref for scope in store.scopes() for ref in store.generations(scope)]
    packs, loose = store.storage.blobs.packs(), Path(store.location, "blobs")
    total = sum(store.storage.blobs.pack(pack).size for pack in packs)
    total += sum(path.stat().st_size for path in loose.rglob("*") if path.is_file())
    return total - sum(_stored_size(store, *stored) for stored in {s for ref in manifests for s in ref.stored.items()})


def _stored_size(store: Store, digest: bytes, size: int) -> int:
    """The size of a stored manifest: its own size as a loose blob, that of its frame in a pack."""
    for pack in store.storage.blobs.packs():
        index = store.storage.blobs.pack(pack).index
        if digest in index.digests:
            assert index.digests[-1] == digest
            return index.frames[-1].packed_size
    return size
