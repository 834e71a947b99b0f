"""Trees of a single model, and of the releases of one model. They are built once, beside the corpus."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tools.corpus.build import beside, one_at_a_time, run_program

_INDEX = re.compile(r"_(\d{5})\.json$")


def build_model(folder: Path, name: str) -> Path:
    """The tree of one model of compile_models.py."""
    with one_at_a_time(_made(folder)):
        if not beside(folder, ".complete").exists():
            run_program(folder, "compile_models.py", name)
            beside(folder, ".complete").touch()
    return folder


def build_releases(folder: Path, *, kernels: int, releases: int) -> list[Path]:
    """A tree for each release of one set of Triton kernels. Each differs from the first in a tenth of them.

    All are compiled from the same sources, as releases of one image are.
    """
    paths = [folder / f"release{number}" for number in range(1, releases + 1)]
    with one_at_a_time(_made(folder)):
        if not beside(folder, ".complete").exists():
            for number, path in enumerate(paths, start=1):
                _build_release(folder, paths[0], path, number, kernels)
            beside(folder, ".complete").touch()
    return paths


def _build_release(folder: Path, first: Path, path: Path, number: int, kernels: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    if number > 1:
        subprocess.run(["cp", "-al", str(first), str(path)], check=True)
        for changed in _changed(path, number):
            shutil.rmtree(changed)
    options = {"--sources": folder / "sources", "--count": kernels, "--release": number}
    done = run_program(path, "compile_kernels.py", *(str(word) for option in options.items() for word in option))
    if number > 1 and done["compiled"] != sum(_is_changed(index, number) for index in range(kernels)):
        raise RuntimeError(f"release {number}: {done}")


def _changed(tree: Path, release: int) -> Iterator[Path]:
    """Folders of the kernels that a release compiles again. Files are named after their kernel."""
    for group in tree.glob("triton/*/__grp__*.json"):
        found = _INDEX.search(group.name)
        if found and _is_changed(int(found[1]), release):
            yield group.parent


def _is_changed(index: int, release: int) -> bool:
    """Whether a release has changed a kernel, by the rule of compile_kernels.py."""
    return (index + release) % 10 == 0


def _made(folder: Path) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder
