"""What is measured: kstore's operations, and what people use instead. Each runs in a process of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

KEY = "bench/corpus"
_OPERATION = """
import json, os, sys, time
from kstore.store import Store
import kstore.operations.commit, kstore.operations.restore
verb, store, root, layout = sys.argv[1:]
started = time.perf_counter()
report = getattr(Store(store, cache_root=root, layout=layout), verb)("bench/corpus")
print(json.dumps({"seconds": time.perf_counter() - started, "status": report.status, "files": report.files}))
"""


@dataclass(frozen=True)
class Place:
    """Where one round works. Nothing in it is deleted before the end: ext4 reuses freed inodes slowly."""

    corpus: Path
    work: Path
    round: int

    def fresh(self, name: str) -> Path:
        """A path that does not exist yet."""
        return self.work / f"{name}-{self.round}"

    def store(self, layout: str) -> Path:
        """The store that the first commit of this round made."""
        return self.work / f"store-{layout}-{self.round}"


Measure = Callable[[Place], float]
"""Runs once and returns seconds."""


def kstore(verb: str, store: Path, root: Path, layout: str, expected: str) -> float:
    """Seconds of one verb in a fresh process, detection of GPU, software and host included, imports not."""
    command = [sys.executable, "-c", _OPERATION, verb, str(store), str(root), layout]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    if report["status"] != expected:
        raise RuntimeError(f"kstore {verb} was {report['status']}, not {expected}")
    return float(report["seconds"])


def first_commit(layout: str) -> Measure:
    """Commit the whole corpus to an empty store."""

    def run(place: Place) -> float:
        root = place.fresh(f"root-{layout}")
        subprocess.run(["cp", "-a", str(place.corpus), str(root)], check=True)
        return kstore("commit", place.store(layout), root, layout, "committed")

    return run


def unchanged_commit(layout: str) -> Measure:
    """Commit again; the second time, so that nothing in the root is too young to be trusted."""

    def run(place: Place) -> float:
        root = place.fresh(f"root-{layout}")
        kstore("commit", place.store(layout), root, layout, "unchanged")
        return kstore("commit", place.store(layout), root, layout, "unchanged")

    return run


def restore(layout: str) -> Measure:
    """Restore into a root that does not exist."""
    return lambda place: kstore("restore", place.store(layout), place.fresh(f"restored-{layout}"), layout, "restored")


def copy(*options: str) -> Measure:
    """`cp` of the corpus."""

    def run(place: Place) -> float:
        target = place.fresh("cp" + "".join(options))
        return _timed(lambda: subprocess.run(["cp", *options, str(place.corpus), str(target)], check=True))

    return run


def zip_archive(place: Place) -> float:
    """The whole folder as a zip, as platforms share it today."""
    return _timed(lambda: shutil.make_archive(str(place.fresh("archive")), "zip", place.corpus))


def command(*arguments: str) -> Measure:
    """A whole process."""
    return lambda place: _timed(lambda: subprocess.run(arguments, check=True, capture_output=True))


def tree_bytes(path: Path) -> int:
    """Bytes of all files below `path`, or of the file."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def _timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
