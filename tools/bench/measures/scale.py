"""What grows with the number of artifacts and keys, and what must not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path

from tools.bench import processes
from tools.bench.fill_store import fill, grow
from tools.bench.kstores import KstoreLoose, KstorePacked
from tools.bench.peers import Fal
from tools.bench.places import Absent, Place, folder_name
from tools.bench.processes import Spec, Told
from tools.bench.race import Bench, Reading, describe, tell
from tools.bench.results import Claim, Table, Unit
from tools.bench.sharing import Program, Sharing
from tools.bench.trees import files_in, vary

_MIB = 1 << 20
_LOOKS = ["ls"], ["stats"], ["du"], ["verify"], ["gc", "--dry-run"]
"""Commands that look at a whole store."""


def memory(bench: Bench) -> Table:
    """The most memory that one process has at a time, the interpreter and all its modules included."""
    table = Table("memory", "Peak memory of a worker")
    for what, tree in ("corpus", bench.trees.corpus), ("big key", bench.trees.big()):
        describe(table, tree, what)
        largest = max(file.stat().st_size for file in files_in(tree))
        table.conditions.append(f"largest artifact of the {what}: {largest:,} bytes")

        def scene(sharing: Sharing, what: str = what, tree: Path = tree) -> Iterator[Reading]:
            assert isinstance(sharing, Program)
            sharing.fill("builder", tree)
            for verb, worker in ("publish", "builder"), ("fetch", "reader"):
                told = sharing.run(worker, 0, [verb])
                row = f"{'commit' if verb == 'publish' else 'restore'}, {what}"
                yield Reading(row, told.peak, Unit.BYTES)
                yield Reading(f"{row}: time", told.last.seconds)

        bench.race(table, "local", [KstorePacked, KstoreLoose, Fal], scene)
        for verb in ("commit", "restore"):
            limit = 64 * _MIB + largest
            table.claims += [Claim(f"{verb}, {what}", way.name, limit) for way in (KstorePacked, KstoreLoose)]
    table.note("The interpreter and all its modules are included. The limit is 64 MiB plus the largest artifact.")
    table.note("b10-transfer works in a process of its own, whose memory cannot be seen from here.")
    return table


def keys(bench: Bench) -> Table:
    """A store of many keys: looking at it, planning a gc, and committing one more kernel to one of them."""
    sizes = bench.trees.sizes
    table = Table("keys", f"A store of {sizes.keys:,} keys")
    tree = bench.trees.some(sizes.files_of_a_key)
    describe(table, tree, "each key, with a fiftieth of the kernels its own")
    few, many = "store of one key", f"store of {sizes.keys:,} keys"
    try:
        with _filled(bench, table, "local", tree, {few: 1, many: sizes.keys}) as place:
            for number in range(bench.rounds):
                for column in (few, many):
                    for reading in _look(place, column, number, bench.trees.kernels(1)[0]):
                        table.add(reading.row, column, reading.value, reading.unit)
    except Absent as error:
        table.note(f"Not measured: {error}.")
    table.claims += [
        Claim("kstore ls", many, 1.0),
        Claim("kstore gc --dry-run", many, 15.0),
        Claim("kstore gc --dry-run: peak memory", many, 300 * _MIB),
        Claim("commit of one more kernel", many, 1.25, few),
        Claim("restore", many, 1.25, few),
    ]
    return table


def keys_far(bench: Bench) -> Table:
    """Looking at a store of many keys where each call takes long."""
    sizes = bench.trees.sizes
    table = Table("keys-far", f"A far store of {sizes.far_keys} keys")
    tree = bench.trees.some(sizes.files_of_a_model)
    describe(table, tree, "each key, with a fiftieth of the kernels its own")
    few, many = "store of one key", f"store of {sizes.far_keys} keys"
    try:
        with _filled(bench, table, "far", tree, {few: 1, many: sizes.far_keys}) as place:
            for number in range(bench.rounds):
                for column, words in product((few, many), _LOOKS):
                    store = place.shared(1) / _store(place, column).name
                    table.add(f"kstore {' '.join(words)}", column, _told_by(words, store).wall, Unit.SECONDS)
                tell(f"keys-far: round {number + 1} of {bench.rounds}")
    except Absent as error:
        table.note(f"Not measured: {error}.")
    return table


@contextmanager
def _filled(bench: Bench, table: Table, kind: str, tree: Path, keys: Mapping[str, int]) -> Iterator[Place]:
    """A place of a kind with a store for each column, which has so many keys."""
    with bench.place(kind, table) as place:
        for column, count in keys.items():
            fill(_store(place, column), _filling(place, column), tree, count, tell)
        yield place


def _look(place: Place, column: str, number: int, kernel: Path) -> Iterator[Reading]:
    for words in ["ls"], ["gc", "--dry-run"]:
        row, told = f"kstore {' '.join(words)}", _told_by(words, _store(place, column))
        yield Reading(row, told.wall)
        yield Reading(f"{row}: peak memory", told.peak, Unit.BYTES)
    yield from _work(_store(place, column), place.local / column / f"worker{number}", kernel, number)


def grown(bench: Bench) -> Table:
    """A key that grew by many commits, each of them a pack: before and after gc has made one pack of them."""
    sizes = bench.trees.sizes
    table = Table("grown", f"A key that grew by {sizes.commits} commits")
    tree, kernel = bench.trees.some(sizes.files_of_a_key), bench.trees.kernels(1)[0]
    describe(table, tree, "the first commit")
    table.conditions.append("each later commit: one more kernel")
    few, many, merged = "one commit", f"{sizes.commits} commits", f"{sizes.commits} commits, after gc"
    try:
        with bench.place("gluster", table) as place:
            grow(_store(place, many), _filling(place, many), tree, kernel, sizes.commits)
            shutil.copytree(_store(place, many), _store(place, merged))
            grow(_store(place, few), _filling(place, few), _filling(place, many), kernel, 0)
            told = _run(["command", "gc", "--store", str(_store(place, merged))])
            table.add("kstore gc", merged, told.wall, Unit.SECONDS)
            for number in range(bench.rounds):
                for column in (few, many, merged):
                    store = place.shared(1) / _store(place, column).name
                    for reading in _work(store, place.local / column / f"worker{number}", kernel, number):
                        table.add(reading.row, column, reading.value, reading.unit)
                tell(f"grown: round {number + 1} of {bench.rounds}")
    except Absent as error:
        table.note(f"Not measured: {error}.")
    return table


def _work(store: Path, root: Path, kernel: Path, number: int) -> Iterator[Reading]:
    """A worker restores, compiles one kernel, and commits it."""
    folders = {"store": str(store), "root": str(root), "layout": "packed", "key": "bench/key0"}
    restored = processes.run(Spec("kstore", folders, [["fetch"]], {}))
    if restored.last.status != "restored":
        raise RuntimeError(f"the restore was {restored.last.status}")
    yield Reading("restore", restored.last.seconds)
    vary(kernel, root / "triton", 1_000 + number)
    committed = processes.run(Spec("kstore", folders, [["publish"]], {}))
    if committed.last.status != "committed":
        raise RuntimeError(f"the commit was {committed.last.status}")
    yield Reading("commit of one more kernel", committed.last.seconds)


def _told_by(words: list[str], store: Path) -> Told:
    """What a kstore command that succeeds says of a store."""
    told = _run(["command", *words, "--store", str(store)])
    if told.last.status != "0":
        raise RuntimeError(f"kstore {words[0]} ended with {told.last.status}")
    return told


def _run(step: list[str]) -> Told:
    return processes.run(Spec("none", {}, [step], {}))


def _store(place: Place, column: str) -> Path:
    return place.shared(0) / folder_name(column)


def _filling(place: Place, column: str) -> Path:
    return place.local / f"filling-{_store(place, column).name}"
