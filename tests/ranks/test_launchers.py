"""Real ranks of launchers other than torchrun: srun, in a cluster of two nodes on this host, and Open MPI's mpirun."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.compilers.programs import PROGRAMS
from tests.ranks.fleet import environ_of, free_ports, publish
from tests.trees import KEY, Node, contents
from tests.waiting import until

NODES = ("node-0", "node-1")
TIMEOUT = 120
pytestmark = pytest.mark.slow

Launch = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]
"""Runs a command as four ranks, two on each node, with a cache root for each node."""


class Cluster:
    """Slurm, with both nodes on this host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {"SLURM_CONF": str(folder / "slurm.conf")}

    def run(self, *command: object) -> str:
        """Run one of Slurm's commands."""
        return subprocess.run(
            [*map(str, command)], env=os.environ | self.environ, text=True, timeout=TIMEOUT, check=True,
            stdout=subprocess.PIPE,
        ).stdout  # fmt: skip

    @contextmanager
    def started(self) -> Iterator[None]:
        """Runs the daemons of Slurm while the context lasts."""
        self._configure()
        with ExitStack() as daemons:
            daemons.enter_context(self._daemon("munged", "--foreground", "--force", *self._of_munge()))
            daemons.enter_context(self._daemon("slurmctld", "-D"))
            for node in NODES:
                daemons.enter_context(self._daemon("slurmd", "-D", "-N", node))
            until(lambda: self.run("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "2", TIMEOUT)
            yield

    @contextmanager
    def _daemon(self, *command: str) -> Iterator[None]:
        with open(self.folder / f"{'-'.join(command)[-20:].replace('/', '-')}.log", "wb") as log:
            daemon = subprocess.Popen(command, env=os.environ | self.environ, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield
        finally:
            daemon.terminate()
            daemon.wait(TIMEOUT)

    def _of_munge(self) -> list[str]:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        files = {"socket": "munge", "pid-file": "munge.pid", "log-file": "munge.log", "seed-file": "munge.seed"}
        return [f"--key-file={key}", *(f"--{option}={self.folder / name}" for option, name in files.items())]

    def _configure(self) -> None:
        ports, host = free_ports(3), socket.gethostname()
        nodes = (
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4"
            for node, port in zip(NODES, ports, strict=False)
        )
        lines = (
            "ClusterName=test", f"SlurmctldHost={host}(127.0.0.1)", f"SlurmctldPort={ports[2]}",
            "SlurmUser=root", "SlurmdUser=root", "AuthType=auth/munge", f"AuthInfo=socket={self.folder / 'munge'}",
            f"StateSaveLocation={self.folder / 'state'}", f"SlurmdSpoolDir={self.folder}/spool-%n",
            f"SlurmctldPidFile={self.folder / 'slurmctld.pid'}", f"SlurmdPidFile={self.folder}/%n.pid",
            "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "SlurmdParameters=config_overrides",
            "MpiDefault=none", "ReturnToService=2", "KillWait=60", *nodes, "PartitionName=all Nodes=ALL Default=YES",
        )  # fmt: skip
        (self.folder / "state").mkdir()
        (self.folder / "slurm.conf").write_text("\n".join((*lines, "")))


def need(*programs: str) -> None:
    for program in programs:
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    need("munged", "slurmctld", "slurmd", "srun")
    if os.geteuid():
        pytest.skip("a cluster of Slurm's needs root")
    made = Cluster(tmp_path_factory.mktemp("slurm"))
    with made.started():
        yield made


def job_environ(folder: Path) -> dict[str, str]:
    return environ_of(folder) | {"FOLDER": str(folder)}


def on_node(command: Sequence[str], node: str) -> list[str]:
    """The command with a cache root named by what `node` expands to in a shell."""
    return ["sh", "-c", f'KSTORE_CACHE_ROOT="$FOLDER/{node}" exec "$@"', "sh", *command]


@pytest.fixture(params=["srun", "mpirun"])
def launch(request: pytest.FixtureRequest, tmp_path: Path) -> Launch:
    environ = job_environ(tmp_path)
    if request.param == "srun":
        environ |= request.getfixturevalue("cluster").environ
        launcher, node = ["srun", "-N2", "-n4", "--ntasks-per-node=2", "-D", str(tmp_path)], "$SLURMD_NODENAME"
    else:
        need("mpirun")
        environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        launcher, node = ["mpirun", "--oversubscribe", "-n", "4"], "node-$((OMPI_COMM_WORLD_RANK / 2))"

    def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*launcher, *on_node(command, node)], env=environ, cwd=tmp_path, text=True, timeout=TIMEOUT,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    return run


def kstore_exec(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "kstore", "exec", KEY, *arguments]


def test_all_ranks_restore(tmp_path: Path, launch: Launch) -> None:
    publisher = publish(tmp_path, "one", "two")
    done = launch(kstore_exec("--group", "--", "sh", "-c", 'echo "triton is $TRITON_CACHE_DIR"'))
    assert done.returncode == 0, done.stdout
    for node in NODES:
        assert done.stdout.count(f"triton is {tmp_path / node}/triton") == 2
        assert contents(tmp_path / node).keys() == contents(publisher.tree.root).keys()


def test_no_rank_restores_if_one_cannot(tmp_path: Path, launch: Launch) -> None:
    publish(tmp_path, "one")
    (tmp_path / NODES[1]).write_bytes(b"")
    done = launch(kstore_exec("--group", "--", "echo", "it runs"))
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("it runs") == 4
    assert contents(tmp_path / NODES[0]) == {}
    assert f"the cache root {tmp_path / NODES[1]} cannot be made" in done.stdout


def test_what_a_cancelled_job_has_compiled_is_published(tmp_path: Path, cluster: Cluster) -> None:
    program = [sys.executable, str(PROGRAMS / "wait_with_kernel.py")]
    command = on_node(kstore_exec("--no-live", "--", *program), "$SLURMD_NODENAME")
    job = subprocess.Popen(
        ["srun", "-N2", "-n2", "-J", "to-be-cancelled", "-D", str(tmp_path), *command],
        env=job_environ(tmp_path) | cluster.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until(lambda: all((tmp_path / f"made-{rank}").exists() for rank in range(2)), TIMEOUT)
    cluster.run("scancel", "-n", "to-be-cancelled")
    job.wait(TIMEOUT)
    last = Node(tmp_path, "last")
    assert last.restore().ok
    assert len(list((last.tree.root / "triton").iterdir())) == 2
