"""Many workers at the same time."""

from __future__ import annotations

import filecmp
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

from tools.bench import processes
from tools.bench.kstores import KstoreLoose, KstorePacked
from tools.bench.peers import B10, Fal, Rsync, Tar
from tools.bench.processes import Step
from tools.bench.race import Bench, Reading, bad_statuses, describe, reading
from tools.bench.results import Claim, Table, Unit
from tools.bench.sharing import Program, Sharing
from tools.bench.trees import vary

_BASE_FILES = 200
_OWN_KERNELS = 2


def writers(bench: Bench) -> Table:
    """Workers that start cold compile the same kernels and some of their own, and share all at the same moment."""
    table = Table("writers", f"{bench.trees.sizes.writers} workers commit at once, then one restores")
    return _writers(bench, table, "local", [KstorePacked, KstoreLoose, Fal, B10, Tar, Rsync])


def writers_far(bench: Bench) -> Table:
    """The same on two hosts, where each call takes long: a worker that is outrun has to call the store anew."""
    table = Table("writers-far", f"{bench.trees.sizes.writers} workers of two far hosts commit at once")
    return _writers(bench, table, "far", [KstorePacked, Fal, B10, Tar])


def _writers(bench: Bench, table: Table, place: str, ways: Sequence[type[Sharing]]) -> Table:
    count = bench.trees.sizes.writers
    base = bench.trees.some(_BASE_FILES)
    describe(table, base, "what every worker compiles")
    own = _own_kernels(bench, table.name, count)
    table.conditions.append(f"each worker has {_OWN_KERNELS} more kernels of its own")
    lost, seconds = "kernels lost", "until the last has committed"

    def scene(sharing: Sharing) -> Iterator[Reading]:
        names = [f"writer{number}" for number in range(count)]
        for name, kernels in zip(names, own, strict=True):
            sharing.fill(name, base)
            for kernel in kernels:
                sharing.add(name, kernel)
        yield reading(seconds, _publish_at_once(sharing, names, bench.work))
        yield reading("restore afterwards", sharing.fetch("reader", 1))
        found = sharing.folders("reader")["triton"]
        wanted = [kernel for kernels in own for kernel in kernels]
        yield Reading(lost, sum(not _is_whole(kernel, found / kernel.name) for kernel in wanted), Unit.KERNELS)

    bench.race(table, place, ways, scene)
    table.conditions.append(f"{count * _OWN_KERNELS} own kernels that the restore should find")
    table.note("Kernels lost: the workers' own kernels that the restore did not bring back whole.")
    table.claims += [Claim(lost, way.name, 0) for way in ways if way in (KstorePacked, KstoreLoose)]
    return table


def _own_kernels(bench: Bench, name: str, count: int) -> list[list[Path]]:
    """Kernels for each writer, made from real ones."""
    folder = bench.work / f"own-{name}"
    templates = bench.trees.kernels(_OWN_KERNELS)
    if folder.exists():
        raise RuntimeError(f"{folder} is there")
    return [[vary(kernel, folder, 1 + number) for kernel in templates] for number in range(count)]


def _publish_at_once(sharing: Sharing, names: list[str], work: Path) -> Step:
    """Seconds until the last is done, and the statuses of those that failed."""
    if isinstance(sharing, Program):
        specs = [sharing.spec(name, number % 2, [["publish"]]) for number, name in enumerate(names)]
        seconds, told = processes.run_crowd(specs, work)
        return Step(seconds, bad_statuses(each.last for each in told))
    with ThreadPoolExecutor(len(names)) as pool:
        return Step(max(step.seconds for step in pool.map(sharing.publish, names, cycle((0, 1)))), "")


def _is_whole(kernel: Path, found: Path) -> bool:
    """Whether all files of a kernel exist and are equal. Those that hold their own path need not be equal."""
    names = [path.name for path in kernel.iterdir()]
    if not all((found / name).is_file() for name in names):
        return False
    plain = [name for name in names if not name.startswith("__grp__")]
    return not any(filecmp.cmpfiles(kernel, found, plain, shallow=False)[1:])


def host(bench: Bench) -> Table:
    """Workers of one host that start at the same moment, as a job's ranks do."""
    count = bench.trees.sizes.workers
    table = Table("host", f"{count} workers of one host restore at once")
    describe(table, bench.trees.corpus, "corpus")
    one, together, apart = "one worker", f"{count} workers, one cache root", f"{count} workers, a cache root each"

    def scene(sharing: Sharing) -> Iterator[Reading]:
        assert isinstance(sharing, Program)
        sharing.fill("builder", bench.trees.corpus)
        sharing.publish("builder")
        yield reading(one, sharing.fetch("one"))
        for row, names in (together, ["same"] * count), (apart, [f"own{number}" for number in range(count)]):
            specs = [sharing.spec(name, 0, [["fetch"]]) for name in names]
            seconds, told = processes.run_crowd(specs, bench.work)
            yield reading(row, Step(seconds, bad_statuses((each.last for each in told), ["current"])))

    bench.race(table, "local", [KstorePacked, KstoreLoose, Fal, B10], scene)
    table.claims += [Claim(together, way.name, 3, way.name, one) for way in (KstorePacked, KstoreLoose)]
    return table
