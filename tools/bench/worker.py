"""One worker, in a process of its own: it takes steps in one way of sharing, and says how long each one took.

    python -m tools.bench.worker SPEC

SPEC is JSON: `way`, one of `WAYS`; `folders`, which folders that way needs; `steps`. A step is one of

    ["fetch"]                      what a worker does before it compiles
    ["publish"]                    what it does after that
    ["watched", SOURCE, TARGET]    as publish, after a live watch has published a kernel, a copy of SOURCE
    ["copy", SOURCE, TARGET]       put a folder beside what TARGET holds
    ["barrier", READY, START]      make the file READY, and wait for START
    ["megacache", "load", FILE]    torch's own way, with one file; or "save"
    ["models", NAME...]            compile and run models of tests/programs/compile_models.py
    ["cuda", MODE, PART...]        compile and run parts of tests/programs/compile_cuda.py
    ["command", WORD...]           a command of kstore, in this process

The last line on stdout is JSON: `steps`, a list of {"verb", "seconds", "status"}; `peak`, the most bytes that
this process has had in memory at a time; and `ended`, when the last step was done, by a clock that all
processes share.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parents[2] / "tests/programs"
KEY = "bench/model"
NOTHING_COMPILED = "nothing compiled"
_PATIENCE = 60
"""Seconds for a checkpoint."""


class Kstore:
    """kstore itself."""

    def __init__(self, store: str, root: str, layout: str, key: str = KEY) -> None:
        # A verb's module would be imported at its first call. It is not counted, as what peers import at first is not.
        from kstore.operations import commit, restore  # noqa: F401
        from kstore.store import Store

        self._open: Callable[[], Any] = lambda: Store(store, cache_root=root, layout=layout)
        self._key = key
        self._settings = {"store": store, "cache_root": root, "layout": layout}

    def fetch(self) -> str:
        """Restore."""
        report = self._open().restore(self._key)
        return f"{report.status}, {report.left_out} left out" if report.left_out else str(report.status)

    def publish(self) -> str:
        """Commit."""
        return str(self._open().commit(self._key).status)

    def watched(self, kernel: str, target: str) -> Callable[[], str]:
        """What remains to be done at the end of a job whose live commits have published its last kernel."""
        import kstore
        from tools.bench.trees import name_in_place

        live = kstore.watch(self._key, settle=0.5, every=1.0, strict=True, **self._settings)  # type: ignore[arg-type]
        copy(kernel, target)
        name_in_place(Path(target))
        until = time.monotonic() + _PATIENCE
        while not live.checkpoints and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(3)  # The copy has settled, and no beat is under way.
        return lambda: live.stop().status


class Fal:
    """The functions of fal.toolkit, or kstore's functions of the same names."""

    def __init__(self, whose: str, tmp: str, data: str) -> None:
        programs = _program("share_with_fal")
        self._module = getattr(programs, whose)(Path(tmp), Path(data))
        self._hash = ""

    def fetch(self) -> str:
        """Load."""
        self._hash = self._module.load_inductor_cache(KEY)
        return "loaded" if self._hash else "nothing"

    def publish(self) -> str:
        """Sync, with the hash of the last load, as its callers have it."""
        try:
            self._module.sync_inductor_cache(KEY, self._hash)
        except FileExistsError as error:
            # If several of fal's workers find no folder at the same moment, all but one fail to make it.
            return f"failed: {error.strerror}"
        return "synced"


class B10:
    """The functions of b10-transfer, or kstore's functions of the same names."""

    def __init__(self, whose: str, top: str, app: str) -> None:
        import torch  # noqa: F401  # It reads torch's version, and the server that it runs in has imported torch already.

        os.environ["LOCAL_WORK_DIR"] = app
        self._package = _program("share_b10").load_package("ours" if whose == "ours" else "real", Path(top), app)

    def fetch(self) -> str:
        """Load."""
        return str(self._package.load_compile_cache().name)

    def publish(self) -> str:
        """Save."""
        return str(self._package.save_compile_cache().name)


class Nothing:
    """No sharing: a worker that only compiles."""


WAYS: dict[str, Callable[..., Any]] = {"kstore": Kstore, "fal": Fal, "b10": B10, "none": Nothing}


def _program(name: str) -> Any:
    if str(PROGRAMS) not in sys.path:
        sys.path.insert(0, str(PROGRAMS))
    return importlib.import_module(name)


def take(way: Any, verb: str, arguments: list[str]) -> tuple[float, str]:
    """Take one step: seconds and status."""
    work: Callable[[], object]
    if verb in _COMPILING:
        _program(_COMPILING[verb])  # A worker that compiles imports torch in any case.
    if verb in ("fetch", "publish"):
        work = getattr(way, verb)
    elif verb == "watched":
        work = way.watched(*arguments)
    else:
        work = lambda: _OTHERS[verb](*arguments)  # noqa: E731
    started = time.perf_counter()
    status = work()
    return time.perf_counter() - started, str(status or "")


def copy(source: str, target: str) -> None:
    """Copy a folder, with all times."""
    import shutil

    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)


def barrier(ready: str, start: str) -> None:
    """All workers that wait for the same file go on together."""
    Path(ready).touch()
    while not os.path.exists(start):
        time.sleep(0.001)


def megacache(verb: str, file: str) -> str:
    """Torch's artifacts of this process, as one file."""
    import torch
    import torch._dynamo

    if verb == "load":
        return "loaded" if torch.compiler.load_cache_artifacts(Path(file).read_bytes()) else "nothing"
    saved = torch.compiler.save_cache_artifacts()
    assert saved is not None
    Path(file).write_bytes(saved[0])
    return "saved"


def models(*names: str) -> str:
    """Compile and run models. Returns what was compiled."""
    programs = _program("compile_models")
    import torch

    torch.set_num_threads(programs.THREADS)
    for name in names:
        programs.run(name)
    return _compiled()


def cuda(mode: str, *parts: str) -> str:
    """The same for parts of compile_cuda. What compile processes compile for a graph is not counted beside it."""
    return _compiled(_program("compile_cuda").run(mode, parts).asked[False])


def _compiled(kernels: int = 0) -> str:
    from torch._dynamo.utils import counters

    graphs = counters["inductor"]["fxgraph_cache_miss"]
    counted = [f"{count} {what}" for count, what in ((graphs, "graphs"), (kernels, "kernels")) if count]
    return f"{' and '.join(counted)} compiled" if counted else NOTHING_COMPILED


def command(*words: str) -> str:
    """Run a command of kstore. Returns the exit code."""
    from kstore.cli import main

    try:
        sys.argv = ["kstore", *words]
        main()
    except SystemExit as end:
        return str(end.code or 0)
    return "0"


_OTHERS: dict[str, Callable[..., object]] = {
    "copy": copy, "barrier": barrier, "megacache": megacache, "models": models, "cuda": cuda, "command": command,
}  # fmt: skip
_COMPILING = {"models": "compile_models", "megacache": "compile_models", "cuda": "compile_cuda"}
"""Verb → the program that imports what the verb needs."""


def peak_bytes() -> int:
    """The most that was resident. `getrusage` would also count the parent's memory before the exec."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    """Take the steps."""
    spec = json.loads(sys.argv[1])
    with contextlib.redirect_stdout(sys.stderr):
        way = WAYS[spec["way"]](**spec["folders"])
        steps = []
        for verb, *arguments in spec["steps"]:
            seconds, status = take(way, verb, arguments)
            steps.append({"verb": verb, "seconds": seconds, "status": status})
        ended = time.monotonic()
    print(json.dumps({"steps": steps, "peak": peak_bytes(), "ended": ended}))


if __name__ == "__main__":
    main()
