"""Which rank of which job this process is: of an initialised process group, else of what the environment says."""

from __future__ import annotations

import socket
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kstore.digest import digest_of
from kstore.errors import UsageError

_PROTOCOL = 1
"""Version of the notes on the board: another one does not read them."""
_LOOPBACK = ("localhost", "127.", "::1")
_calls: Counter[tuple[str, int, str]] = Counter()


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of a job."""

    number: int
    size: int
    """How many there are."""
    job: str
    """The same for all ranks of the job, and for no other job at the same time."""
    group_store: Any = None
    """The key-value store of the process group, if there is one."""

    def next_call(self, key: str) -> str:
        """Names the next agreement about `key`: all ranks must ask for them equally often."""
        _calls[self.job, self.number, key] += 1
        count = _calls[self.job, self.number, key]
        return digest_of(f"{_PROTOCOL}\n{self.job}\n{key}\n{count}".encode()).hex()[:32]


def find_rank(environ: Mapping[str, str]) -> Rank:
    """The rank of this process; of a job of one if it is in no job.

    Raises:
        UsageError: the variables of torchrun are malformed, or some are missing.
    """
    return _of_process_group() or _of_environment(environ)


def _of_process_group() -> Rank | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    try:
        # No public name leads to it; it has had this one since torch 1.9.
        store = distributed.distributed_c10d._get_default_store()
    except AttributeError:
        return None
    return Rank(distributed.get_rank(), distributed.get_world_size(), "group", store) if store else None


def _of_environment(environ: Mapping[str, str]) -> Rank:
    if not environ.get("WORLD_SIZE"):
        return Rank(0, 1, "alone")
    try:
        number, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        job = (_host(environ["MASTER_ADDR"]), environ["MASTER_PORT"], environ.get("TORCHELASTIC_RUN_ID", ""), str(size))
    except (KeyError, ValueError) as error:
        raise UsageError(
            f"RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT do not say which rank this is: {error!r}; "
            "start the job with torchrun, or initialise torch.distributed first"
        ) from error
    if not 0 <= number < size:
        raise UsageError(f"there is no rank {number} of {size}: see RANK and WORLD_SIZE")
    # Not TORCHELASTIC_RESTART_COUNT: each agent counts for itself, and after the failure of one they differ.
    return Rank(number, size, "\n".join(job))


def _host(address: str) -> str:
    """All jobs of one node have the same loopback address, and so have those of all others."""
    return f"{address} {socket.gethostname()}" if address.startswith(_LOOPBACK) else address
