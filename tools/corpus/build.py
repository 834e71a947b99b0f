"""Build the corpus once, and know whether it is complete."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from tools.corpus.census import Census, take_census

PROGRAMS = Path(__file__).parents[2] / "tests" / "programs"
MODELS = ("transformer", "convolution", "dynamic", "training")
COMPONENTS = {"inductor": "TORCHINDUCTOR_CACHE_DIR", "triton": "TRITON_CACHE_DIR"}
PROCESSES = 2
BATCH = 50  # kernels; one line of progress each


class CorpusError(Exception):
    """The folder holds another corpus, or a compiler failed."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What decides the contents of a corpus. The path is part of it, because artifacts hold it."""

    path: str
    kernels: int
    models: tuple[str, ...]
    torch: str
    triton: str
    python: str


@dataclass(frozen=True, slots=True)
class Corpus:
    """A complete corpus: what it was built from and what it holds, by component."""

    recipe: Recipe
    counts: dict[str, Census]


def recipe_for(folder: Path, *, kernels: int, models: tuple[str, ...] = MODELS) -> Recipe:
    """The recipe of a corpus in `folder` with the installed compilers. Imports neither of them."""
    versions = version("torch"), version("triton"), platform.python_version()
    return Recipe(str(folder), kernels, models, *versions)


def build(folder: Path, *, kernels: int, models: tuple[str, ...] = MODELS) -> Corpus:
    """The corpus in `folder`, an absolute path. It is built unless it is complete; an interrupted build goes on.

    Raises CorpusError if the folder holds a corpus with another recipe, or if a program fails.
    """
    recipe = recipe_for(folder, kernels=kernels, models=models)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(folder):
        found = read_marker(folder)
        if found is None:
            return build_now(folder, recipe)
        if found.recipe != recipe:
            raise CorpusError(f"{folder} has another recipe, {found.recipe}: remove it and its marker")
        return found


def build_now(folder: Path, recipe: Recipe) -> Corpus:
    compile_models(folder, recipe.models)
    compile_kernels(folder, recipe.kernels)
    corpus = Corpus(recipe, {component: take_census(folder / component) for component in COMPONENTS})
    write_marker(folder, corpus)
    return corpus


def compile_models(folder: Path, models: tuple[str, ...]) -> None:
    report(f"models: {', '.join(models)}")
    counts = run_program(folder, "compile_models.py", *models)
    report(f"models: done in {counts['seconds']} s")


def compile_kernels(folder: Path, kernels: int) -> None:
    started = time.monotonic()
    with ThreadPoolExecutor(PROCESSES) as pool:
        jobs = [pool.submit(compile_batch, folder, first, kernels) for first in range(0, kernels, BATCH)]
        try:
            for done, job in enumerate(jobs, start=1):
                job.result()
                seconds = time.monotonic() - started
                report(f"kernels: {min(done * BATCH, kernels)} of {kernels}, {seconds:.0f} s")
        finally:
            pool.shutdown(cancel_futures=True)


def compile_batch(folder: Path, first: int, kernels: int) -> None:
    count = min(BATCH, kernels - first)
    options = {"--sources": beside(folder, ".sources"), "--first": first, "--count": count, "--release": 1}
    run_program(folder, "compile_kernels.py", *(str(word) for option in options.items() for word in option))


def run_program(folder: Path, program: str, *arguments: str) -> dict[str, object]:
    """Run a program and return the JSON that it prints last. Its messages go to stderr."""
    command = [sys.executable, str(PROGRAMS / program), *arguments]
    finished = subprocess.run(command, env=environment(folder), stdout=subprocess.PIPE, text=True)
    if finished.returncode:
        raise CorpusError(f"{' '.join(command)} ended with {finished.returncode}")
    answer: dict[str, object] = json.loads(finished.stdout.splitlines()[-1])
    return answer


def environment(folder: Path) -> dict[str, str]:
    """Ours, without the variables that change what the compilers write, and with the corpus as their cache."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("TORCH", "TRITON"))}
    return ours | {variable: str(folder / component) for component, variable in COMPONENTS.items()}


def beside(folder: Path, suffix: str) -> Path:
    """A path next to the corpus, which holds artifacts only."""
    return folder.with_name(folder.name + suffix)


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Wait until nobody else builds this folder, and keep others waiting."""
    with beside(folder, ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read_marker(folder: Path) -> Corpus | None:
    """The corpus that is there; None if it is not complete: it has no marker, or a component is gone."""
    marker = beside(folder, ".complete")
    if not marker.exists() or not all((folder / component).is_dir() for component in COMPONENTS):
        return None
    content = json.loads(marker.read_text())
    recipe = content["recipe"] | {"models": tuple(content["recipe"]["models"])}
    return Corpus(Recipe(**recipe), {name: Census(**counts) for name, counts in content["counts"].items()})


def write_marker(folder: Path, corpus: Corpus) -> None:
    temporary = beside(folder, ".complete.tmp")
    temporary.write_text(json.dumps(asdict(corpus), indent=2) + "\n")
    temporary.replace(beside(folder, ".complete"))


def report(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
