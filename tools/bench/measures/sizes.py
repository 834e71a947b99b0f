"""Bytes: what is stored, and what is written for one more kernel."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tools.bench.kstores import Kstore, KstoreLoose, KstorePacked
from tools.bench.peers import B10, Fal, Tar
from tools.bench.race import Bench, Reading, describe, note_missing, reading
from tools.bench.results import Claim, Table, Unit
from tools.bench.sharing import Sharing

_WAYS = [KstorePacked, KstoreLoose, Fal, B10, Tar]


def bytes_model(bench: Bench) -> Table:
    """One tree in an empty store."""
    table = Table("bytes-model", "Bytes stored for one tree")
    trees = {"mixed corpus": bench.trees.corpus} | {
        name: bench.trees.model(name) for name in bench.trees.models + bench.trees.public
    }
    note_missing(bench, table)
    for what, tree in trees.items():
        describe(table, tree, what)
        bench.race(table, "local", _WAYS, partial(_stored, what=what, tree=tree))
        table.claims += [
            Claim(what, KstorePacked.name, 1 / 3, Fal.name), Claim(what, KstorePacked.name, 1 / 2, B10.name),
        ]  # fmt: skip
    return table


def _stored(sharing: Sharing, what: str, tree: Path) -> Iterator[Reading]:
    sharing.fill("builder", tree)
    sharing.publish("builder")
    yield Reading(what, sharing.stored(), Unit.BYTES)


def bytes_releases(bench: Bench) -> Table:
    """Releases of one model, each under its own key. Peers, which share nothing between keys, store each alone."""
    table = Table("bytes-releases", "Bytes stored for the releases of one model")
    releases = bench.trees.releases()
    describe(
        table, releases[0], f"each of {len(releases)} releases, which differ from the first in a tenth of their kernels"
    )
    one, all_of_them = "one release", f"{len(releases)} releases"

    def scene(sharing: Sharing) -> Iterator[Reading]:
        total = 0
        for number, tree in enumerate(releases, start=1):
            stored = _store_release(sharing, number, tree)
            # Only kstore shares between keys. With the others each release has its own archive, so the bytes add up.
            total = stored if isinstance(sharing, Kstore) else total + stored
            if number == 1:
                yield Reading(one, total, Unit.BYTES)
        yield Reading(all_of_them, total, Unit.BYTES)

    bench.race(table, "local", _WAYS, scene)
    table.note("Each release has its own key. Only kstore shares between keys; the others store each release alone.")
    table.claims.append(Claim(all_of_them, KstorePacked.name, 1 / 15, Fal.name))
    return table


def _store_release(sharing: Sharing, number: int, tree: Path) -> int:
    worker = f"release{number}"
    sharing.fill(worker, tree)
    if isinstance(sharing, Kstore):
        sharing.publish_as(worker, f"bench/release{number}")
        return sharing.stored()
    sharing.empty()
    sharing.publish(worker)
    return sharing.stored()


def one_kernel(bench: Bench) -> Table:
    """What is written by a worker that finds all kernels but one, and compiles that one."""
    table = Table("one-kernel", "A commit that adds one kernel")
    tree, kernel = bench.trees.without_one_kernel()
    describe(table, tree, "corpus without that kernel")
    describe(table, kernel, "the kernel")

    def scene(sharing: Sharing) -> Iterator[Reading]:
        sharing.fill("builder", tree)
        sharing.publish("builder")
        before = sharing.stored()
        step = sharing.later("later", kernel)
        yield reading("commit of one more kernel", step)
        yield Reading("bytes written", sharing.written(before), Unit.BYTES)

    bench.race(table, "local", _WAYS, scene)
    table.claims += [
        Claim("bytes written", KstorePacked.name, 1 / 50, Fal.name),
        Claim("bytes written", KstoreLoose.name, 1 / 50, Fal.name),
    ]
    table.note("b10-transfer never stores what is compiled after the first save.")
    return table
