"""What is measured: one function for each table. On the command line it has the table's name."""

from __future__ import annotations

from collections.abc import Callable

from tools.bench.measures.commands import commands
from tools.bench.measures.crowds import host, writers, writers_far
from tools.bench.measures.distributed import distributed, far
from tools.bench.measures.live import live
from tools.bench.measures.local import first_commit, model, nothing_new, restore_link, restore_pack
from tools.bench.measures.migrating import b10, fal
from tools.bench.measures.scale import grown, keys, keys_far, memory
from tools.bench.measures.sizes import bytes_model, bytes_releases, one_kernel
from tools.bench.measures.start import start, start_cuda, start_gpt2
from tools.bench.race import Bench
from tools.bench.results import Table

MEASURES: dict[str, Callable[[Bench], Table]] = {
    "restore-link": restore_link,
    "restore-pack": restore_pack,
    "first-commit": first_commit,
    "nothing-new": nothing_new,
    "model": model,
    "bytes-model": bytes_model,
    "bytes-releases": bytes_releases,
    "one-kernel": one_kernel,
    "distributed": distributed,
    "far": far,
    "writers": writers,
    "writers-far": writers_far,
    "host": host,
    "memory": memory,
    "keys": keys,
    "keys-far": keys_far,
    "grown": grown,
    "start": start,
    "start-gpt2": start_gpt2,
    "start-cuda": start_cuda,
    "live": live,
    "commands": commands,
    "fal": fal,
    "b10": b10,
}
"""In the order of the report."""
