"""Which rank of which job this process is: by an initialised process group, else by what the environment says."""

from __future__ import annotations

import logging
import socket
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kstore.digest import digest_of
from kstore.errors import UsageError

log = logging.getLogger(__name__)

_PROTOCOL = 1
"""Version of the notes on the board: another version does not read them."""
_LOOPBACK = ("localhost", "127.", "::1")
_TORCHRUN = "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"


class _Launcher(NamedTuple):
    """A program that starts the ranks of a job, known by the variables that tell each rank which one it is."""

    number: str
    size: str
    job: tuple[str, ...]
    """Together these tell a job from all others. One must be set, or the ranks cannot agree; not all of them."""
    needs: tuple[str, ...] = ()
    """It has not started this process if one of these is not set."""


_SLURM = "SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID"
_LAUNCHERS = (
    # First, because Open MPI has Slurm start a daemon on each node, and its ranks inherit the daemons' variables.
    _Launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("PMIX_NAMESPACE",)),
    # So does Hydra, the mpiexec of MPICH and Intel MPI. Intel's gives each job a name.
    _Launcher("PMI_RANK", "PMI_SIZE", ("I_MPI_HYDRA_UUID",), needs=("MPI_LOCALNRANKS", "I_MPI_HYDRA_UUID")),
    # Only the step of its daemons tells MPICH's jobs apart.
    _Launcher("PMI_RANK", "PMI_SIZE", _SLURM, needs=("MPI_LOCALNRANKS", "SLURM_STEP_ID")),
    # Not SLURM_NTASKS, which a batch script has, too: it is no rank.
    _Launcher("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", _SLURM),
    # MPICH's without Slurm: nothing does.
    _Launcher("PMI_RANK", "PMI_SIZE", (), needs=("MPI_LOCALNRANKS",)),
)
_ADVICE = "start the job with torchrun, srun or mpirun, or initialise torch.distributed first"
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
        """Name the next agreement about `key`: all ranks must ask for one equally often."""
        _calls[self.job, self.number, key] += 1
        count = _calls[self.job, self.number, key]
        return digest_of(f"{_PROTOCOL}\n{self.job}\n{key}\n{count}".encode()).hex()[:32]


_ALONE = Rank(0, 1, "alone")
"""A process in no job, or in one that nothing tells from others: two such jobs would answer each other."""


def find_rank(environ: Mapping[str, str]) -> Rank:
    """The rank of this process; that of a job of one if it is in no job, or in one that has no name.

    Raises:
        UsageError: the variables of the program that started it are malformed, or some of torchrun's are missing.
    """
    return _of_process_group() or (_ALONE if _is_made_by_rank() else _of_environment(environ))


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
    if all(environ.get(name) for name in _TORCHRUN):
        # Not TORCHELASTIC_RESTART_COUNT: each agent counts for itself, and after the failure of one they differ.
        address, port, run = environ["MASTER_ADDR"], environ["MASTER_PORT"], environ.get("TORCHELASTIC_RUN_ID", "")
        return _rank(environ, "RANK", "WORLD_SIZE", (_host(address), port, run))
    for launcher in () if _is_child_of_rank() else _LAUNCHERS:
        if all(environ.get(name) for name in (launcher.size, *launcher.needs)):
            job = [environ.get(name, "") for name in launcher.job]
            if not any(job):  # As in a container that was given nothing but the number and the size.
                return _without_others(launcher.size, environ[launcher.size])
            return _rank(environ, launcher.number, launcher.size, (launcher.size, *job))
    if environ.get("WORLD_SIZE"):
        missing = ", ".join(name for name in _TORCHRUN if not environ.get(name))
        raise UsageError(f"WORLD_SIZE is set, but not {missing}: that does not say which rank this is; {_ADVICE}")
    return _ALONE


def _rank(environ: Mapping[str, str], number: str, size: str, job: tuple[str, ...]) -> Rank:
    try:
        rank = Rank(int(environ[number]), int(environ[size]), "\n".join((*job, environ[size])))
    except (KeyError, ValueError) as error:
        raise UsageError(f"{number} and {size} do not say which rank this is: {error!r}; {_ADVICE}") from error
    if not 0 <= rank.number < rank.size:
        raise UsageError(f"there is no rank {rank.number} of {rank.size}: see {number} and {size}")
    return rank


def _without_others(name: str, size: str) -> Rank:
    if size != "1":
        log.warning(
            "%s is %s, but no variable names the job: this rank restores without the others; "
            "start the job with torchrun or srun, or initialise torch.distributed first",
            name,
            size,
        )
    return _ALONE


def _is_child_of_rank() -> bool:
    """Whether a rank has made this process by multiprocessing: it has inherited that rank's number."""
    multiprocessing = sys.modules.get("multiprocessing")
    return multiprocessing is not None and multiprocessing.parent_process() is not None


def _is_made_by_rank() -> bool:
    """Whether multiprocessing is only making this process, and so runs the top of the job's script once more, with the
    variables of the rank that asked for it. The others have no such call, and the two would wait for each other.
    """
    process = sys.modules.get("multiprocessing.process")
    # No public name says so; multiprocessing itself goes by this one.
    return process is not None and getattr(process.current_process(), "_inheriting", False)


def _host(address: str) -> str:
    """An address that differs between nodes: a loopback address, the same on all of them, gets this host's name."""
    return f"{address} {socket.gethostname()}" if address.startswith(_LOOPBACK) else address
