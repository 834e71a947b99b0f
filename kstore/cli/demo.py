"""`kstore demo`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kstore.cli.columns import Column
from kstore.cli.options import ERROR, Command, Invocation, output_options, pass_invocation
from kstore.cli.termination import terminable
from kstore.errors import KstoreError, PackageMissing
from kstore.words import amount, duration, size

if TYPE_CHECKING:
    from kstore.cli.output import Output

_COLUMNS = (Column(""), Column("COLD", right=True), Column("RESTORED", right=True))

Run = Mapping[str, Any]
"""What `demo_program` reported about one run."""


@click.command("demo", cls=Command, exit_codes=ERROR)
@click.option("--keep", is_flag=True, help="Keep the folder with the store and the cache root, and say where it is.")
@output_options
@pass_invocation
def command(invocation: Invocation, keep: bool) -> None:
    """Compile a small model, restore it, and compare the two.

    Takes about half a minute on a CPU, in a temporary folder; no store of yours is touched. One process compiles
    into an empty cache root and commits; a second one, with an empty cache root again, restores and runs. Before
    both, a trivial model makes the compiler's precompiled headers, which every machine makes once and which no
    cache root holds, so that they count for neither process.
    """
    from kstore.environment.software import torch_folder

    if torch_folder() is None:
        raise PackageMissing("torch is not installed here; pip install torch")
    output = invocation.output
    with terminable():
        folder = Path(tempfile.mkdtemp(prefix="kstore-demo-"))
        try:
            cold, restored = _compare(output, folder)
        finally:
            if not keep:
                shutil.rmtree(folder, ignore_errors=True)
    equal, kept = cold["output"] == restored["output"], str(folder) if keep else None
    if output.json:
        output.document({"cold": cold, "restored": restored, "equal_outputs": equal, "folder": kept})
    else:
        _tell(output, cold, restored, equal=equal)
        if kept:
            output.line(f"kept in   {kept}")
    if not equal:
        raise KstoreError("the outputs of the two processes differ; a restored kernel is not the one that was compiled")


def _compare(output: Output, folder: Path) -> tuple[Run, Run]:
    """Do the two runs. Both have the cache root at the same path, as two workers would."""
    cache_root = folder / "cache"
    output.say("1/3 warming up the C++ compiler; this counts for neither run")
    _run(output, folder / "warm-up", cache_root, "trivial")
    shutil.rmtree(cache_root)
    output.say("2/3 process A: an empty cache root; compiles and commits")
    cold = _run(output, folder / "store", cache_root, "block")
    shutil.rmtree(cache_root)
    output.say("3/3 process B: an empty cache root again; restores and runs")
    return cold, _run(output, folder / "store", cache_root, "block")


def _run(output: Output, store: Path, cache_root: Path, model: str) -> Run:
    command = [sys.executable, "-m", "kstore.cli.demo_program", str(store), str(cache_root), model]
    with output.working("running torch.compile"):
        done = subprocess.run(command, env=_environ(), capture_output=True, encoding="utf-8", check=False)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    if done.returncode:
        output.detail("\n".join(lines))
        raise KstoreError(f"the demo's program failed: {lines[-1] if lines else done.returncode}")
    result: Run = json.loads(done.stdout.splitlines()[-1])
    return result


def _environ() -> dict[str, str]:
    """The environment without the user's caches and settings, set for the CPU."""
    from kstore.components import load_table

    caches = {component.variable for component in load_table().values()}
    kept = {name: v for name, v in os.environ.items() if name not in caches and not name.startswith("KSTORE_")}
    return kept | {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}


def _tell(output: Output, cold: Run, restored: Run, *, equal: bool) -> None:
    output.table(_COLUMNS, _rows(cold, restored))
    stored, placed = cold["commit"], restored["restore"]
    ways = ", ".join(f"{way} {count}" for way, count in placed["used_modes"].items())
    output.line()
    output.line(f"stored    {amount(stored['files'], stored['bytes'])}; {size(stored['uploaded'])} in the store")
    output.line(f"restored  {amount(placed['files'], placed['bytes'])}; {ways}")
    output.line(f"outputs   {'equal' if equal else 'NOT EQUAL'}")


def _rows(cold: Run, restored: Run) -> list[tuple[str, str, str]]:
    return [
        ("restore", "-", duration(restored["restore"]["seconds"])),
        ("import torch", duration(cold["import"]), duration(restored["import"])),
        ("first call", duration(cold["first_call"]), duration(restored["first_call"])),
        ("commit", duration(cold["commit"]["seconds"]), duration(restored["commit"]["seconds"])),
        ("graphs compiled", str(cold["compiled"]), str(restored["compiled"])),
        ("new files", str(cold["commit"]["new_files"]), str(restored["commit"]["new_files"])),
    ]
