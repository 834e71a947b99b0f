"""The life of a tree on one machine's disk: commits and restores."""

from __future__ import annotations

import os
from collections.abc import Iterator

from tools.bench.kstores import Kstore, KstoreLoose, KstorePacked, LinkFloor
from tools.bench.peers import B10, Copy, CopyFloor, Fal, Link, Rsync, StoreFloor, Tar
from tools.bench.race import Bench, Reading, Scene, describe, reading
from tools.bench.results import Claim, Table
from tools.bench.sharing import Program, Sharing

_WARM = "restore, page cache warm"
_COLD = "restore, page cache dropped"


def restore_link(bench: Bench) -> Table:
    """A restore into an empty folder on the store's own filesystem."""
    table = Table("restore-link", "A restore by link")
    describe(table, bench.trees.corpus, "corpus")
    bench.race(table, "local", [KstoreLoose, Fal, Link, LinkFloor], _restoring(bench))
    bench.race(table, "xfs", [KstoreOnXfs], _restoring(bench))
    ours = KstoreLoose.name
    floor = LinkFloor.name
    table.claims += [Claim(row, ours, 1 / 25, Fal.name, floor=floor) for row in (_WARM, _COLD)]
    table.claims += [Claim(_WARM, ours, 1.5, floor), Claim(_WARM, ours, 0.4, Link.name, floor=floor)]
    return table


class KstoreOnXfs(KstoreLoose):
    """Where files can be cloned."""

    name = "kstore, loose, on XFS"


def restore_pack(bench: Bench) -> Table:
    """A restore that copies, as from another filesystem."""
    table = Table("restore-pack", "A restore from a pack")
    describe(table, bench.trees.corpus, "corpus")
    bench.race(table, "local", [KstorePacked, Fal, B10, Tar, Copy, Rsync, CopyFloor], _restoring(bench))
    ours = KstorePacked.name
    floor = CopyFloor.name
    for row in (_WARM, _COLD):
        table.claims += [
            Claim(row, ours, 1 / 8, Fal.name, floor=floor),
            Claim(row, ours, 1 / 10, B10.name, floor=floor),
        ]
    table.claims += [Claim(_WARM, ours, 1.5, floor), Claim(_WARM, ours, 0.7, Copy.name, floor=floor)]
    return table


def _restoring(bench: Bench) -> Scene:
    def scene(sharing: Sharing) -> Iterator[Reading]:
        sharing.fill("builder", bench.trees.corpus)
        sharing.publish("builder")
        if isinstance(sharing, CopyFloor | LinkFloor):  # It reads everything that it writes before its clock starts.
            yield reading(_WARM, sharing.fetch("warm"))
        else:
            yield from bench.cold_or_warm(sharing)

    return scene


def first_commit(bench: Bench) -> Table:
    """Sharing a whole tree for the first time."""
    table = Table("first-commit", "A first commit")
    describe(table, bench.trees.corpus, "corpus")

    def scene(sharing: Sharing) -> Iterator[Reading]:
        sharing.fill("builder", bench.trees.corpus)
        os.sync()
        yield reading("first commit", sharing.publish("builder"))

    bench.race(table, "local", [KstoreLoose, KstorePacked, Fal, B10, Tar, Copy, Rsync, StoreFloor], scene)
    for ours, floor in ((KstoreLoose.name, StoreFloor.name), (KstorePacked.name, "")):
        table.claims += [Claim("first commit", ours, 1 / 6, peer.name, floor=floor) for peer in (Fal, B10)]
    return table


def nothing_new(bench: Bench) -> Table:
    """Sharing again what is already shared."""
    table = Table("nothing-new", "A commit with nothing new")
    tree, kernel = bench.trees.without_one_kernel()
    describe(table, tree, "corpus without one kernel")
    watched = "at the end of a live watch"

    def scene(sharing: Sharing) -> Iterator[Reading]:
        sharing.fill("builder", tree)
        sharing.publish("builder")
        yield reading("commit, nothing new", sharing.unchanged("builder"), ["SKIPPED"])
        if isinstance(sharing, Program):
            told = sharing.run("reader", 0, ["fetch"], ["publish"])
            yield reading("likewise, the first after a restore", told.last, ["SKIPPED"])
            yield reading("restore of what is there already", sharing.fetch("reader"), ["current", "SKIPPED"])
        if isinstance(sharing, Kstore):
            target = sharing.folders("builder")["triton"] / kernel.name
            yield reading(watched, sharing.run("builder", 0, ["watched", str(kernel), str(target)]).last)

    bench.race(table, "local", [KstoreLoose, KstorePacked, Fal, B10, Rsync], scene)
    for ours in (KstoreLoose.name, KstorePacked.name):
        table.claims += [Claim("commit, nothing new", ours, 1 / 4, Fal.name), Claim(watched, ours, 0.005)]
    table.note("The first after a restore: one process restores, and then commits although nothing is new.")
    table.note("At the end of a live watch: what remains to be done when live commits have published the last kernel.")
    table.note("fal compares only the names of files, and b10-transfer looks only whether an archive exists.")
    return table


def model(bench: Bench) -> Table:
    """A tree as large as most models': what counts is the work that is done once, however many files there are."""
    table = Table("model", "A model of the usual size")
    tree = bench.trees.some(bench.trees.sizes.files_of_a_model)
    describe(table, tree, "model")

    def scene(sharing: Sharing) -> Iterator[Reading]:
        sharing.fill("builder", tree)
        os.sync()
        yield reading("first commit", sharing.publish("builder"))
        yield from bench.cold_or_warm(sharing)
        if isinstance(sharing, Program):
            yield reading("commit, nothing new", sharing.unchanged("builder"), ["SKIPPED"])

    bench.race(table, "local", [KstoreLoose, KstorePacked, Fal, B10, Tar, Copy], scene)
    return table
