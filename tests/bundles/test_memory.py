"""Exports, imports and copies take little memory besides their largest blob, however much they move."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bundles.carrying import other_store
from tests.bundles.test_hostile_bundles import Bundle, bomb
from tests.trees import ENVIRONMENT, GPU, KEY, Node

MIB = 1 << 20
ROOM = 64 * MIB
LARGEST = 32 * MIB

CHILD = """
import re, sys
from pathlib import Path
import kstore, kstore.bundles.archives, kstore.bundles.importing, kstore.operations.copy, zstandard, lmdb
from kstore.bundles.partial import finished_as
from kstore.bundles.writer import BundleWriter
from kstore.store import Store
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
def store(location, layout="packed"):
    return Store(location, layout=layout, gpu=sys.argv[2], environment=sys.argv[3], environ={})
source, folder, key = store(sys.argv[1]), sys.argv[4], sys.argv[5]
def newest():
    return source.newest(source.scope(key))
def export():
    with finished_as(f"{folder}/bundle", resumable=True) as file:
        writer = BundleWriter(source.storage, [source.snapshot(newest())])
        writer.resume(file)
def export_tar():
    with open(f"{folder}/tar", "wb") as file:
        kstore.bundles.archives.export_tar(source, newest(), file)
def export_zip():
    with open(f"{folder}/zip", "wb") as file:
        kstore.bundles.archives.export_zip(source, newest(), file)
def bring(layout):
    try:
        kstore.bundles.importing.import_bundle(store(f"{folder}/{layout}", layout), f"{folder}/bundle")
    except kstore.IntegrityError as error:
        print("IntegrityError", file=sys.stderr)
def copy(layout):
    kstore.operations.copy.copy_keys(source, store(f"{folder}/copy-{layout}", layout))
before = peak()
eval(sys.argv[6])
print(peak() - before)
"""


def peak_of(node: Node, folder: Path, call: str) -> int:
    """Bytes that it needs beyond the interpreter and its imports."""
    arguments = [str(node.location), GPU, ENVIRONMENT, str(folder), KEY, call]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    if call.startswith("bring") and not node.location.exists():
        assert done.stderr == "IntegrityError\n"
    return int(done.stdout) * 1024


@pytest.mark.slow
def test_memory_stays_flat(tmp_path: Path, layout: str) -> None:
    node = other_store(tmp_path / "source", layout)
    node.tree.put("inductor/ab/largest.bin", os.urandom(LARGEST))
    for number in range(8):
        node.tree.put(f"inductor/ab/large{number}.bin", os.urandom(8 * MIB))
    for number in range(2000):
        node.tree.put(f"inductor/ab/c{number}.py", b"%d" % number + os.urandom(10_000))
    node.commit()
    calls = ("export()", "export_tar()", "export_zip()", "bring('loose')", "bring('packed')", "copy('loose')")
    peaks = {call: peak_of(node, tmp_path, call) for call in (*calls, "copy('packed')")}
    assert {call: peak for call, peak in peaks.items() if peak > LARGEST + ROOM} == {}


@pytest.mark.parametrize("size", [0, 1 << 30])
def test_a_bomb_takes_no_memory(tmp_path: Path, size: int) -> None:
    Bundle().write(tmp_path / "bundle", bomb(size))
    assert peak_of(other_store(tmp_path / "source"), tmp_path, "bring('packed')") < ROOM
