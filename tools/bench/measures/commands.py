"""How long kstore's own programs take to start."""

from __future__ import annotations

import subprocess
import sys
import time

from tools.bench import processes
from tools.bench.race import Bench
from tools.bench.results import Claim, Table, Unit

_COLUMN = "kstore"
_IMPORT = "import kstore, sys; assert 'torch' not in sys.modules"
_FIRST = "import kstore.api, kstore.operations.restore"
"""What `kstore.restore` imports when it is called first."""


def commands(bench: Bench) -> Table:
    """The import without the interpreter's own start, and a whole command."""
    table = Table("commands", "The start of kstore itself", conditions=["page cache warm"])
    for _ in range(bench.rounds):
        bare = _seconds("-c", "pass")
        table.add("import kstore", _COLUMN, _seconds("-c", _IMPORT) - bare, Unit.SECONDS)
        table.add("what a first restore imports", _COLUMN, _seconds("-c", _FIRST) - bare, Unit.SECONDS)
        table.add("kstore --help", _COLUMN, _seconds("-m", "kstore", "--help"), Unit.SECONDS)
    table.note("Imports are counted without the interpreter's own start. A job that has imported torch has some of it.")
    table.claims += [Claim("import kstore", _COLUMN, 0.05), Claim("kstore --help", _COLUMN, 0.2)]
    return table


def _seconds(*arguments: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, env=processes.environment({}))
    return time.perf_counter() - started
