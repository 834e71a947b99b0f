"""Which rank this process is."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kstore
from kstore.errors import UsageError
from kstore.ranks import find_rank

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
SRUN = {
    "SLURM_CLUSTER_NAME": "cluster", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4",
}  # fmt: skip
HYDRA = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALNRANKS": "2"}
"""In addition to the variables of a Slurm step in which its daemons run, one on each node."""
INTEL = HYDRA | {"I_MPI_HYDRA_UUID": "241c0000-b6c2-e812-6261-0600739b8541"}
MPIRUN = {"PMIX_NAMESPACE": "1859387393", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "5"}


@pytest.fixture(autouse=True)
def no_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)


def process_group(**answers: Any) -> SimpleNamespace:
    names = {"is_available": True, "is_initialized": True, "get_rank": 1, "get_world_size": 2} | answers
    module = SimpleNamespace(**{name: lambda value=value: value for name, value in names.items()})
    module.distributed_c10d = SimpleNamespace(_get_default_store=lambda: "the store")
    return module


def test_the_variables_of_torchrun_say_it() -> None:
    rank = find_rank(TORCHRUN)
    assert (rank.number, rank.size, rank.group_store) == (3, 8, None)


@pytest.mark.parametrize(
    ("environ", "number", "size"), [(SRUN, 2, 4), (MPIRUN, 1, 5), (INTEL, 5, 8)], ids=["srun", "mpirun", "intel"]
)
def test_the_variables_of_srun_and_mpirun_say_it_too(environ: dict[str, str], number: int, size: int) -> None:
    rank = find_rank(environ)
    assert (rank.number, rank.size, rank.group_store) == (number, size, None)


@pytest.mark.parametrize("inherited", [SRUN, MPIRUN, SRUN | MPIRUN], ids=["srun", "mpirun", "both"])
def test_what_torchrun_started_goes_by_torchrun_wherever_that_was_started(inherited: dict[str, str]) -> None:
    assert find_rank(inherited | TORCHRUN) == find_rank(TORCHRUN)


def test_what_mpirun_started_within_a_job_of_slurm_goes_by_mpirun() -> None:
    assert find_rank(SRUN | MPIRUN) == find_rank(MPIRUN)


def test_what_hydra_started_through_daemons_of_a_step_goes_by_hydra() -> None:
    rank = find_rank(SRUN | HYDRA)
    assert (rank.number, rank.size) == (5, 8)
    assert rank.job == find_rank(SRUN | HYDRA | {"PMI_RANK": "0", "SLURM_PROCID": "0"}).job
    assert rank.job != find_rank(SRUN | HYDRA | {"SLURM_STEP_ID": "1"}).job


@pytest.mark.parametrize("of_daemon", [{}, SRUN], ids=["", "within slurm"])
def test_intels_hydra_names_each_of_its_jobs(of_daemon: dict[str, str]) -> None:
    job = find_rank(of_daemon | INTEL).job
    assert job == find_rank(of_daemon | INTEL | {"PMI_RANK": "0", "SLURM_PROCID": "0"}).job
    assert job != find_rank(of_daemon | INTEL | {"I_MPI_HYDRA_UUID": "841c0000-b6c2-e812-6261-060000000000"}).job


def test_what_hydra_started_without_slurm_has_no_job_that_could_be_named(caplog: pytest.LogCaptureFixture) -> None:
    assert find_rank(HYDRA).size == 1
    (line,) = caplog.messages
    assert line.startswith("PMI_SIZE is 8, but no variable names the job: this rank restores without the others; ")


def test_the_only_rank_needs_no_job(caplog: pytest.LogCaptureFixture) -> None:
    assert find_rank(HYDRA | {"PMI_RANK": "0", "PMI_SIZE": "1"}).size == 1
    assert not caplog.messages


@pytest.mark.parametrize("of_daemon", [{}, SRUN], ids=["", "within slurm"])
def test_what_mpirun_started_in_a_container_that_was_not_told_which_job_it_is_has_none(
    of_daemon: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    assert find_rank({name: value for name, value in MPIRUN.items() if name != "PMIX_NAMESPACE"} | of_daemon).size == 1
    assert caplog.messages[0].startswith("OMPI_COMM_WORLD_SIZE is 5, but no variable names the job")


def test_a_step_that_was_not_told_which_it_is_has_no_job() -> None:
    assert find_rank({name: SRUN[name] for name in ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")}).size == 1


def test_what_slurm_itself_tells_mpi_is_not_hydras() -> None:
    assert find_rank(SRUN | {"PMI_RANK": "0", "PMI_SIZE": "1"}) == find_rank(SRUN)


@pytest.mark.parametrize("lacking", ["RANK", "MASTER_ADDR"])
def test_a_batch_script_may_set_some_of_torchruns_variables_for_all_ranks(lacking: str) -> None:
    environ = {name: value for name, value in (TORCHRUN | SRUN).items() if name != lacking}
    assert find_rank(environ) == find_rank(SRUN)


def test_a_batch_script_is_no_rank() -> None:
    assert find_rank({"SLURM_JOB_ID": "77", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}).size == 1


def _size(environ: dict[str, str], answers: SimpleQueue[int]) -> None:
    answers.put(find_rank(environ).size)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_what_a_rank_makes_by_multiprocessing_is_not_the_same_rank_again(method: str) -> None:
    context = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    child = context.Process(target=_size, args=(SRUN, answers))
    child.start()
    assert answers.get() == 1
    child.join()


AT_THE_TOP = """
import multiprocessing
import os
import sys
from kstore.ranks import find_rank
print(find_rank(os.environ).size, flush=True)
if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[1]).Process(target=print)
    child.start()
    child.join()
"""


@pytest.mark.parametrize("variables", [TORCHRUN, SRUN], ids=["torchrun", "srun"])
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_script_that_runs_once_more_for_a_child_is_not_the_same_rank_again(
    tmp_path: Path, method: str, variables: dict[str, str]
) -> None:
    """As for each worker of a DataLoader: what restores at its top would wait for ranks that do not call again."""
    (tmp_path / "train.py").write_text(AT_THE_TOP)
    root = str(Path(kstore.__file__).parents[1])
    ran = subprocess.run(
        [sys.executable, "train.py", method], cwd=tmp_path, env={**os.environ, **variables, "PYTHONPATH": root},
        capture_output=True, text=True,
    )  # fmt: skip
    assert (ran.stdout.split(), ran.stderr) == ([str(find_rank(variables).size), "1"], "")


def test_a_process_without_them_is_alone() -> None:
    assert find_rank({}).size == 1


@pytest.mark.parametrize("wrong", ["4", "-1", "", "two"])
def test_a_rank_that_srun_cannot_have_given_is_the_callers_mistake(wrong: str) -> None:
    with pytest.raises(UsageError, match="SLURM_PROCID"):
        find_rank(SRUN | {"SLURM_PROCID": wrong})


@pytest.mark.parametrize(
    "wrong", [{"RANK": "8"}, {"RANK": "-1"}, {"RANK": ""}, {"WORLD_SIZE": "many"}, {"MASTER_PORT": None}], ids=str
)
def test_variables_that_do_not_say_it_are_the_callers_mistake(wrong: dict[str, str | None]) -> None:
    environ = {name: value for name, value in (TORCHRUN | wrong).items() if value is not None}
    with pytest.raises(UsageError, match="rank"):
        find_rank(environ)


def test_it_is_said_which_of_torchruns_variables_are_missing() -> None:
    """Lightning's own launcher gives its children all of them except RANK."""
    with pytest.raises(UsageError, match="not RANK: that"):
        find_rank({name: value for name, value in TORCHRUN.items() if name != "RANK"})


def test_an_initialised_process_group_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", process_group())
    rank = find_rank(TORCHRUN)
    assert (rank.number, rank.size, rank.group_store) == (1, 2, "the store")


@pytest.mark.parametrize("answer", ["is_available", "is_initialized"])
def test_without_a_process_group_the_variables_say_it(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", process_group(**{answer: False}))
    assert find_rank(TORCHRUN).number == 3


def test_a_process_group_of_a_torch_that_hides_its_store_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    group = process_group()
    del group.distributed_c10d._get_default_store
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    assert find_rank(TORCHRUN).number == 3


def test_all_ranks_of_a_job_name_their_agreements_alike() -> None:
    ranks = [find_rank(TORCHRUN | {"RANK": str(number), "MASTER_PORT": "1"}) for number in range(2)]
    first, second = ([rank.next_call(key) for key in ("a", "b", "a")] for rank in ranks)
    assert first == second
    assert len(set(first)) == 3


@pytest.mark.parametrize("name", ["MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"])
def test_another_job_names_them_otherwise(name: str) -> None:
    assert find_rank(TORCHRUN | {name: "77"}).job != find_rank(TORCHRUN).job


@pytest.mark.parametrize("name", [*SRUN, "SLURM_RESTART_COUNT"])
def test_another_step_of_slurm_names_them_otherwise(name: str) -> None:
    is_another = name != "SLURM_PROCID"
    assert (find_rank(SRUN | {name: "3"}).job != find_rank(SRUN).job) is is_another


def test_another_run_of_mpirun_names_them_otherwise() -> None:
    assert find_rank(MPIRUN | {"PMIX_NAMESPACE": "7"}).job != find_rank(MPIRUN).job


def test_a_loopback_address_means_this_host_only(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = TORCHRUN | {"MASTER_ADDR": "localhost"}
    here = find_rank(environ).job
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    assert find_rank(environ).job != here


def test_a_restart_that_only_some_agents_count_is_the_same_job() -> None:
    assert find_rank(TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "1"}).job == find_rank(TORCHRUN).job
