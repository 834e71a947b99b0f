"""Other packages' functions against kstore's of the same names, as the guide on migrating quotes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tools.bench.kstores import LooseAsB10, LooseAsFal, PackedAsB10, PackedAsFal
from tools.bench.peers import B10, Fal
from tools.bench.race import Bench, Reading, describe, reading
from tools.bench.results import Table, Unit
from tools.bench.sharing import Sharing


def fal(bench: Bench) -> Table:
    """fal.toolkit."""
    table = Table("fal", "fal.toolkit, and kstore's functions of its names")
    return _compare(bench, table, [Fal, LooseAsFal, PackedAsFal], ("sync", "load"))


def b10(bench: Bench) -> Table:
    """b10-transfer."""
    table = Table("b10", "b10-transfer, and kstore's functions of its names")
    _compare(bench, table, [B10, LooseAsB10, PackedAsB10], ("save", "load"))
    table.note("Where b10-transfer's status with one more kernel is SKIPPED, that kernel is not stored.")
    return table


def _compare(bench: Bench, table: Table, ways: Sequence[type[Sharing]], verbs: tuple[str, str]) -> Table:
    tree, kernel = bench.trees.without_one_kernel()
    describe(table, tree, "corpus")
    publish, fetch = verbs

    def scene(sharing: Sharing) -> Iterator[Reading]:
        sharing.fill("first", tree)
        yield reading(f"first {publish}", sharing.publish("first"))
        stored = sharing.stored()
        yield Reading("bytes stored", stored, Unit.BYTES)
        yield reading(f"{publish} with nothing new", sharing.unchanged("first"))
        yield reading(f"{fetch} into an empty folder", sharing.fetch("second"))
        if isinstance(sharing, B10):
            sharing.add("half", kernel)
            yield reading("load into a folder with one other kernel", sharing.fetch("half"))
        yield reading(f"{publish} with one more kernel", sharing.later("third", kernel))
        yield Reading("bytes written for it", sharing.written(stored), Unit.BYTES)

    bench.race(table, "local", ways, scene)
    return table
