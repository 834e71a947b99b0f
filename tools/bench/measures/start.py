"""A model's start, end to end: what a worker waits for until its first call has returned."""

from __future__ import annotations

import importlib.metadata
import shutil
import site
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.bench import processes
from tools.bench.kstores import Kstore, KstoreLoose, KstorePacked
from tools.bench.peers import B10, Fal
from tools.bench.places import Absent, Place, nvidia_gpu
from tools.bench.processes import Spec, Told
from tools.bench.race import Bench, note_missing, rotated, tell
from tools.bench.results import Claim, Table, Unit
from tools.bench.sharing import Program, present
from tools.bench.worker import NOTHING_COMPILED

_WHOLE, _CALL, _FETCH = "whole process", "compile and first call", "restore or load"
_WARM, _COLD, _MEGA = "untouched warm folder", "cold", "mega-cache"
_WAYS: list[type[Program]] = [KstoreLoose, KstorePacked, Fal, B10]


@dataclass(frozen=True, slots=True)
class _Job:
    """What a worker compiles."""

    step: list[str]
    variables: Mapping[str, str]
    roams: bool = False
    """Whether each of kstore's workers has a cache root of its own. Its peers have a fixed folder, so their workers
    have the path at which the artifacts were compiled: it may be compiled into them.
    """


def start(bench: Bench) -> Table:
    """The models of tests/programs/compile_models.py, which compile C++ for this CPU: no GPU is needed."""
    table = Table("start", "A model's start")
    _race_models(bench, table, bench.trees.models)
    return table


def start_gpt2(bench: Bench) -> Table:
    """GPT-2 in its public configuration, with random weights."""
    table = Table("start-gpt2", "GPT-2's start")
    note_missing(bench, table)
    if "gpt2" in bench.trees.public:
        _race_models(bench, table, ("gpt2",))
    return table


def start_cuda(bench: Bench) -> Table:
    """A part of a transformer and a user's Triton kernels, from tests/programs/compile_cuda.py. Raises Absent."""
    if not (gpu := nvidia_gpu()):
        raise Absent("there is no NVIDIA GPU")
    table = Table("start-cuda", "A model's start on a GPU")
    table.conditions += [
        f"GPU: {gpu}",
        *(f"{package} {_version(package)}" for package in ("torch", "triton")),
        "two Triton kernels of the user's own, one of them also in a graph, then a transformer's feed-forward part",
        'torch.compile(mode="max-autotune"), as many compile processes as torch chooses',
        "each worker has its own home folder, and with kstore or mega-cache a new cache folder; page cache warm",
    ]
    _race(bench, table, _Job(["cuda", "max-autotune", "own-kernels", "feed-forward"], {}, roams=True))
    table.note("Without kstore, kernels that are called before any graph are in Triton's folder in the home folder.")
    table.note(
        "Later starts compile because torch again tunes, step by step, kernels that began with a single configuration. "
        "What it tries stays in the start's folder, and all starts from the untouched warm folder have the same one."
    )
    return table


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise Absent(f"{package} is not installed") from None


def _race_models(bench: Bench, table: Table, models: tuple[str, ...]) -> None:
    table.conditions += [f"models: {', '.join(models)}", "torch.compile for the CPU, one compile process"]
    headers = "torch's precompiled headers, which it keeps elsewhere, exist after the first start"
    table.conditions.append(f"page cache warm; {headers}")
    _race(bench, table, _Job(["models", *models], {"TORCHINDUCTOR_COMPILE_THREADS": "1"}))
    table.note("A mega-cache has no C++ objects: the C++ code that it holds is compiled to machine code again.")


def _race(bench: Bench, table: Table, job: _Job) -> None:
    ways = [way for way in _WAYS if not way.absent()]
    table.notes += present(_WAYS)[1]
    with bench.place("local", table) as place:
        starts = _Starts(place, job)
        for cold in starts.build(ways):
            _add(table, _COLD, cold)
            tell(f"{table.name}: built in {cold.wall:.1f} s")
        table.note(f"{_COLD}: the starts that compiled, before the rounds, what the others find.")
        for number in range(bench.rounds):
            for column in rotated([*starts.shared, _WARM, _MEGA], number):
                _add(table, column, starts.start(column, number))
            tell(f"{table.name}: round {number + 1} of {bench.rounds}")
        for column, size in starts.stored().items():
            table.add("bytes stored", column, size, Unit.BYTES)
    for ours in (KstoreLoose.name, KstorePacked.name):
        table.claims.append(Claim(_WHOLE, ours, 1.05, _WARM))


class _Starts:
    """Folders that were filled once, by compiling, and starts from them."""

    def __init__(self, place: Place, job: _Job) -> None:
        self.shared: dict[str, Program] = {}
        self._place = place
        self._job = job
        self._file = place.local / "mega-cache"
        (place.local / "tmp").mkdir()

    def build(self, ways: Iterable[type[Program]]) -> Iterator[Told]:
        """Build everything that later starts find. Yields the cold starts that compiled it."""
        yield from map(self._build, ways)
        yield self._build_others()

    def _build(self, way: type[Program]) -> Told:
        """Find nothing, compile, and publish in another process. The compilers' folder is then moved away."""
        sharing = way(self._place)
        cold = processes.run(self._spec(sharing, "worker", ["fetch"], self._job.step))
        processes.run(self._spec(sharing, "worker", ["publish"]))
        sharing.local("worker").rename(sharing.local("builder"))
        self.shared[way.name] = sharing
        return cold

    def _build_others(self) -> Told:
        """The untouched folder, and torch's own artifacts, saved by a process that found everything in that folder."""
        cold = processes.run(self._plain("warm", self._job.step))
        processes.run(self._plain("warm", self._job.step, ["megacache", "save", str(self._file)]))
        return cold

    def start(self, column: str, number: int) -> Told:
        """One start."""
        if column in self.shared:
            sharing = self.shared[column]
            worker = f"worker-{number}" if self._job.roams and isinstance(sharing, Kstore) else "worker"
            told = processes.run(self._spec(sharing, worker, ["fetch"], self._job.step))
            sharing.local(worker).rename(sharing.local(f"gone-{number}"))
            shutil.rmtree(sharing.local(f"gone-{number}"))
            return told
        if column == _MEGA:
            return processes.run(self._plain(f"mega-{number}", ["megacache", "load", str(self._file)], self._job.step))
        return processes.run(self._plain("warm", self._job.step))

    def stored(self) -> dict[str, int]:
        """Bytes that are shared."""
        return {name: way.stored() for name, way in self.shared.items()} | {_MEGA: self._file.stat().st_size}

    def _spec(self, sharing: Program, worker: str, *steps: list[str]) -> Spec:
        plain = sharing.spec(worker, 0, steps)
        return Spec(plain.way, plain.folders, plain.steps, self._at(sharing.local(worker)) | dict(plain.variables))

    def _plain(self, worker: str, *steps: list[str]) -> Spec:
        folder = self._place.local / worker
        return Spec("none", {}, steps, self._at(folder) | {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")})

    def _at(self, folder: Path) -> dict[str, str]:
        """The environment variables of a worker with that folder."""
        home = folder / "home"
        home.mkdir(parents=True, exist_ok=True)
        # The user's own packages are found wherever HOME is.
        found = {"HOME": str(home), "PYTHONUSERBASE": site.getuserbase(), "TMPDIR": str(self._place.local / "tmp")}
        return found | dict(self._job.variables)


def _add(table: Table, column: str, told: Told) -> None:
    table.add(_WHOLE, column, told.wall, Unit.SECONDS)
    table.add(f"{_WHOLE}: processor", column, told.processor, Unit.SECONDS)
    for fetched in told.steps[:-1] if column != _COLD else ():
        table.add(_FETCH, column, fetched.seconds, Unit.SECONDS)
    table.add(_CALL, column, told.last.seconds, Unit.SECONDS)
    if (told.last.status == NOTHING_COMPILED) == (column == _COLD):
        table.note(f"{column}, in one start or more: {told.last.status}.")
