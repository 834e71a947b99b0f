"""A store on a distributed filesystem, where each file and call takes time: one host commits, another restores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tools.bench.kstores import KstorePacked
from tools.bench.peers import B10, CopyFloor, Fal, Rsync, Tar
from tools.bench.race import Bench, Reading, describe, reading
from tools.bench.results import Claim, Table, Unit
from tools.bench.sharing import Sharing
from tools.bench.trees import files_in

_FROM_ANOTHER = "restore on another host"


def distributed(bench: Bench) -> Table:
    """On GlusterFS with three replicas."""
    table = Table("distributed", "A distributed filesystem")
    tree, kernel = bench.trees.without_one_kernel()
    describe(table, tree, "corpus without one kernel")
    table.conditions.append("workers' own files on a local filesystem")

    def scene(sharing: Sharing) -> Iterator[Reading]:
        sharing.fill("builder", tree)
        os.sync()
        if isinstance(sharing, CopyFloor):
            yield reading(f"{_FROM_ANOTHER}, page cache warm", sharing.fetch("warm"))
            return
        before = len(files_in(sharing.shared(0)))
        yield reading("first commit", sharing.publish("builder", 0))
        yield Reading("new files of a first commit", len(files_in(sharing.shared(0))) - before, Unit.FILES)
        yield from bench.cold_or_warm(sharing, _FROM_ANOTHER)
        names = {str(path) for path in files_in(sharing.shared(0))}
        yield reading("commit of one more kernel", sharing.later("later", kernel, 1), ["SKIPPED"])
        new = {str(path) for path in files_in(sharing.shared(0))} - names
        yield Reading("new files of a commit of one more kernel", len(new), Unit.FILES)

    bench.race(table, "gluster", [KstorePacked, Fal, B10, Tar, Rsync, CopyFloor], scene)
    ours = KstorePacked.name
    table.claims += [Claim(row, ours, 1 / 10, Fal.name) for row in ("first commit", "commit of one more kernel")]
    rows = [f"{_FROM_ANOTHER}, page cache {state}" for state in ("warm", "dropped")]
    table.claims += [Claim(row, ours, 1 / 8, Fal.name, floor=CopyFloor.name) for row in rows]
    table.claims += [
        Claim(row, ours, 4) for row in ("new files of a first commit", "new files of a commit of one more kernel")
    ]
    table.note("b10-transfer never stores what is compiled after the first save.")
    return table


def far(bench: Bench) -> Table:
    """The same where each call takes long: what counts is how many calls are waited for."""
    table = Table("far", "A filesystem that is far away")
    few = bench.trees.some(bench.trees.sizes.files_of_a_model)
    for what, tree in ("small", few), ("corpus", bench.trees.corpus):
        describe(table, tree, what)

        def scene(sharing: Sharing, what: str = what, tree: Path = tree) -> Iterator[Reading]:
            sharing.fill("builder", tree)
            os.sync()
            yield reading(f"{what}: first commit", sharing.publish("builder", 0))
            yield reading(f"{what}: restore on another host", sharing.fetch("first", 1))
            yield reading(f"{what}: restore there again", sharing.fetch("again", 1))

        bench.race(table, "far", [KstorePacked, Fal, B10, Tar], scene)
    table.note("Before its first restore the other host has looked at nothing; at the second one it knows the paths.")
    return table
