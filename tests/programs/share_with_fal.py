"""One worker of a fal app, with fal's own functions or with kstore's.

    python share_with_fal.py OURS|THEIRS TMP DATA KEY STEP...

TMP and DATA take the places of /tmp and /data. Steps, in order:

    load                 load_inductor_cache
    sync                 sync_inductor_cache with the hash that load returned
    write NAME CONTENT   what a compiler would write to `ab/NAME` in the cache
    wait NAME            until another worker has made DATA/NAME
    done NAME            make DATA/NAME
    compile MODEL        compile a model of compile_models.py
    fill FOLDER          what `inductor` and `triton` in FOLDER hold, where the compilers would have it
    add FOLDER           a Triton kernel, where Triton would have it

The last line on stdout is JSON: `hash`, what load returned; `cache`, what TORCHINDUCTOR_CACHE_DIR says; `gpu`;
`report`, that of compile_models.py; and `seconds`, how long load and sync took.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import os
import runpy
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODELS = Path(__file__).with_name("compile_models.py")


def theirs(tmp: Path, data: Path) -> Any:
    """fal's module, by its file: `import fal` needs the dependencies of its platform, which this module does not."""
    (package,) = importlib.util.find_spec("fal").submodule_search_locations
    spec = importlib.util.spec_from_file_location("their_compilation", f"{package}/toolkit/compilation.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.LOCAL_INDUCTOR_CACHE_DIR = tmp / "inductor-cache"
    module.GLOBAL_INDUCTOR_CACHES_DIR = data / "inductor-caches"
    module.PERSISTENT_TMP_DIR = data / "tmp"
    return module


def ours(tmp: Path, data: Path) -> Any:
    """kstore's module."""
    from kstore.local import numbered

    numbered.NUMBERED_ROOTS = tmp / "kstore"
    module: Any = importlib.import_module("kstore.integrations.fal")
    module.INDUCTOR_FOLDER = tmp / "inductor-cache"
    module.TRITON_FOLDER = tmp / "inductor-cache-triton"
    module.OLD_CACHES = data / "inductor-caches"
    return module


def compile_model(name: str) -> dict[str, Any]:
    """The report that compile_models.py prints last."""
    sys.argv = [str(MODELS), name]
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        runpy.run_path(str(MODELS), run_name="__main__")
    return json.loads(output.getvalue().splitlines()[-1])


@contextlib.contextmanager
def timing(seconds: dict[str, float], step: str) -> Iterator[None]:
    """Measure the time of the block."""
    started = time.perf_counter()
    yield
    seconds[step] = time.perf_counter() - started


def copy(source: Path, target: Path) -> None:
    """Copy with all times."""
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)


def run(module: Any, tmp: Path, data: Path, key: str, steps: Iterator[str]) -> dict[str, Any]:
    """What the steps leave to report."""
    seconds: dict[str, float] = {}
    told: dict[str, Any] = {"gpu": module.get_gpu_type(), "seconds": seconds}
    # Without TRITON_CACHE_DIR, Inductor keeps the Triton kernels of each device in a folder inside its own.
    triton = getattr(module, "TRITON_FOLDER", tmp / "inductor-cache/triton/0")
    for step in steps:
        if step == "load":
            with timing(seconds, step):
                told["hash"] = module.load_inductor_cache(key)
        elif step == "sync":
            with timing(seconds, step):
                module.sync_inductor_cache(key, told.get("hash", ""))
        elif step == "write":
            path = tmp / "inductor-cache/ab" / next(steps)
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{os.getpid()}.tmp")
            temporary.write_text(next(steps))
            temporary.replace(path)
        elif step == "wait":
            name = data / next(steps)
            while not name.exists():
                time.sleep(0.01)
        elif step == "done":
            (data / next(steps)).touch()
        elif step == "compile":
            told["report"] = compile_model(next(steps))
        elif step == "fill":
            corpus = Path(next(steps))
            copy(corpus / "inductor", tmp / "inductor-cache")
            copy(corpus / "triton", triton)
        elif step == "add":
            kernel = Path(next(steps))
            copy(kernel, triton / kernel.name)
    told["cache"] = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return told


def main() -> None:
    whose, *folders, key = sys.argv[1:5]
    tmp, data = map(Path, folders)
    module = ours(tmp, data) if whose == "OURS" else theirs(tmp, data)
    with contextlib.redirect_stdout(sys.stderr):
        told = run(module, tmp, data, key, iter(sys.argv[5:]))
    print(json.dumps(told))


if __name__ == "__main__":
    main()
