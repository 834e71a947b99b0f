"""A model's start, end to end: what a worker waits for until its first call has returned."""

from __future__ import annotations

import shutil
from pathlib import Path

from tools.bench import processes
from tools.bench.kstores import KstoreLoose, KstorePacked
from tools.bench.peers import B10, Fal
from tools.bench.places import Place
from tools.bench.processes import Spec, Told
from tools.bench.race import Bench, note_missing, rotated, tell
from tools.bench.results import Claim, Table, Unit
from tools.bench.sharing import Program, present

_WHOLE, _CALL, _FETCH = "whole process", "compile and first call", "restore or load"
_WARM, _COLD, _MEGA = "untouched warm folder", "cold", "mega-cache"
_WAYS: list[type[Program]] = [KstoreLoose, KstorePacked, Fal, B10]


def start(bench: Bench) -> Table:
    """The models of tests/programs/compile_models.py, which compile C++ for this CPU: no GPU is needed."""
    table = Table("start", "A model's start")
    _race(bench, table, bench.trees.models)
    return table


def start_gpt2(bench: Bench) -> Table:
    """GPT-2, of its public configuration with random weights."""
    table = Table("start-gpt2", "GPT-2's start")
    note_missing(bench, table)
    if "gpt2" in bench.trees.public:
        _race(bench, table, ("gpt2",))
    return table


def _race(bench: Bench, table: Table, models: tuple[str, ...]) -> None:
    table.conditions += [f"models: {', '.join(models)}", "torch.compile for the CPU, one compile process"]
    table.conditions.append("page cache warm; the precompiled headers, which torch keeps apart, are there")
    ways = [way for way in _WAYS if not way.absent()]
    table.notes += present(_WAYS)[1]
    with bench.place("local", table) as place:
        starts = _Starts(place, models)
        for way in ways:
            starts.build(way)
        starts.build_others()
        for number in range(bench.rounds):
            for column in rotated([*starts.shared, _COLD, _WARM, _MEGA], number):
                _add(table, column, starts.start(column, number))
            tell(f"{table.name}: round {number + 1} of {bench.rounds}")
        for column, size in starts.stored().items():
            table.add("bytes stored", column, size, Unit.BYTES)
    for ours in (KstoreLoose.name, KstorePacked.name):
        table.claims.append(Claim(_WHOLE, ours, 1.05, _WARM))
    table.note("In a mega-cache are no C++ objects: what it holds is compiled to machine code again.")


class _Starts:
    """Folders that were compiled once, and starts from them. A path that is compiled in must be the same again."""

    def __init__(self, place: Place, models: tuple[str, ...]) -> None:
        self.shared: dict[str, Program] = {}
        self._place = place
        self._models = ["models", *models]
        self._file = place.local / "mega-cache"
        (place.local / "tmp").mkdir()

    def build(self, way: type[Program]) -> None:
        """Compile, and publish. The compiler's folder is moved away."""
        sharing = way(self._place, way.name.replace(" ", "-").replace(",", ""))
        sharing_spec = self._spec(sharing, ["fetch"], self._models, ["publish"])
        processes.run(sharing_spec)
        sharing.local("worker").rename(sharing.local("builder"))
        self.shared[way.name] = sharing

    def build_others(self) -> None:
        """The folder that is not touched, and torch's own artifacts of the same processes."""
        processes.run(self._plain("warm", self._models, ["megacache", "save", str(self._file)]))

    def start(self, column: str, number: int) -> Told:
        """One start."""
        if column in self.shared:
            sharing = self.shared[column]
            told = processes.run(self._spec(sharing, ["fetch"], self._models))
            sharing.local("worker").rename(sharing.local(f"worker-{number}"))
            shutil.rmtree(sharing.local(f"worker-{number}"))
            return told
        if column == _MEGA:
            return processes.run(self._plain(f"mega-{number}", ["megacache", "load", str(self._file)], self._models))
        return processes.run(self._plain("warm" if column == _WARM else f"cold-{number}", self._models))

    def stored(self) -> dict[str, int]:
        """Bytes that are shared."""
        return {name: way.stored() for name, way in self.shared.items()} | {_MEGA: self._file.stat().st_size}

    def _spec(self, sharing: Program, *steps: list[str]) -> Spec:
        plain = sharing.spec("worker", 0, steps)
        return Spec(plain.way, plain.folders, plain.steps, self._variables | dict(plain.variables))

    def _plain(self, folder: str, *steps: list[str]) -> Spec:
        return Spec("none", {}, steps, self._variables | {"TORCHINDUCTOR_CACHE_DIR": str(self._place.local / folder)})

    @property
    def _variables(self) -> dict[str, str]:
        return {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TMPDIR": str(Path(self._place.local, "tmp"))}


def _add(table: Table, column: str, told: Told) -> None:
    table.add(_WHOLE, column, told.wall, Unit.SECONDS)
    table.add(f"{_WHOLE}: processor", column, told.processor, Unit.SECONDS)
    fetched = [step.seconds for step in told.steps if step.verb != "models"]
    if fetched:
        table.add(_FETCH, column, fetched[0], Unit.SECONDS)
    table.add(_CALL, column, told.last.seconds, Unit.SECONDS)
    missed = told.last.status != "0 graphs compiled"
    if missed != (column == _COLD):
        table.note(f"{column}: {told.last.status}.")
