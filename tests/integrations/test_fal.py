"""fal's functions on a store: the same names and meanings, fal's own zips, and what fal loses."""

from __future__ import annotations

import inspect
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kstore.errors import UsageError
from kstore.integrations import fal
from kstore.report import RestoreReport, RestoreStatus
from kstore.scope import check_key
from kstore.store import Store
from tests.compilers.programs import PROGRAMS, TIMEOUT, Container, compiled_graphs, fingerprint, run_program
from tests.environment.test_gpu import ADA, ADA_SLUG, BLACKWELL, BLACKWELL_SLUG, FakeNvml, Gpu
from tests.integrations.peers import load_module
from tests.trees import ENVIRONMENT, GPU, Tree, listing

KEY = "flux/2"
FUNCTIONS = ("get_gpu_type", "load_inductor_cache", "sync_inductor_cache", "synchronized_inductor_cache")
OURS, THEIRS = "OURS", "THEIRS"
H100 = "NVIDIA H100 80GB HBM3"
KERNELS = 3


@pytest.fixture(scope="session")
def theirs() -> ModuleType:
    return load_module("fal", "toolkit/compilation.py")


@dataclass(frozen=True)
class Fleet:
    """Workers of a fal app: they share `data`, and each has a /tmp of its own."""

    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def zips(self) -> Path:
        return self.data / "inductor-caches"

    def local(self, worker: str = "worker") -> Path:
        """The worker's Inductor folder."""
        return self.folder / worker / "inductor-cache"

    def start(self, whose: str, *steps: str, worker: str = "worker", key: str = KEY) -> subprocess.Popen[str]:
        tmp = self.folder / worker
        tmp.mkdir(exist_ok=True)
        environ = Container(self.folder).environ() | {
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "KSTORE_ROOT": str(self.data / "kstore"), "KSTORE_GPU": GPU,
        }  # fmt: skip
        command = [sys.executable, PROGRAMS / "share_with_fal.py", whose, tmp, self.data, key, *steps]
        return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, whose: str, *steps: str, worker: str = "worker", key: str = KEY) -> dict[str, Any]:
        """What a worker reports at its end."""
        return finish(self.start(whose, *steps, worker=worker, key=key))

    def gpu(self, name: str) -> None:
        """Sets what nvidia-smi says from now on."""
        program = self.folder / "nvidia-smi"
        program.write_text(f"#!/bin/sh\necho '{name}'\n")
        program.chmod(0o755)


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, errors
    told: dict[str, Any] = json.loads(output.splitlines()[-1])
    return told | {"log": errors}


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    made = Fleet(tmp_path)
    made.data.mkdir()
    made.gpu(H100)
    return made


class App:
    """kstore's functions in this process."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.tree = Tree(fleet.folder / "unused")
        self.local = fleet.local()

    def write(self, name: str, content: str = "content") -> None:
        """Write what Inductor would."""
        folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / "ab"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)

    def store(self) -> Store:
        return Store()

    def published(self, key: str = KEY) -> set[str]:
        ref = self.store().newest(self.store().scope(key))
        return set(self.store().snapshot(ref).manifest.files) if ref else set()

    def lose(self) -> None:
        """The container is gone: the next one is empty."""
        for path in (self.local.parent, self.fleet.folder / "roots"):
            shutil.rmtree(path, ignore_errors=True)
        self.local.parent.mkdir()


@pytest.fixture
def app(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, host: object) -> Iterator[App]:
    (fleet.folder / "worker").mkdir()
    monkeypatch.setattr(fal, "INDUCTOR_FOLDER", fleet.local())
    monkeypatch.setattr(fal, "TRITON_FOLDER", fleet.folder / "worker/inductor-cache-triton")
    monkeypatch.setattr(fal, "OLD_CACHES", fleet.zips)
    monkeypatch.setenv("PATH", f"{fleet.folder}:{os.environ['PATH']}")
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    monkeypatch.setenv("KSTORE_ROOT", str(fleet.data / "kstore"))
    monkeypatch.setenv("KSTORE_GPU", GPU)
    monkeypatch.setenv("KSTORE_ENVIRONMENT", ENVIRONMENT)
    yield App(fleet)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


# ---- The same functions


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_the_signature_of_fal_s(theirs: ModuleType, name: str) -> None:
    assert inspect.signature(getattr(fal, name)) == inspect.signature(getattr(theirs, name))


def test_the_folders_are_fal_s(theirs: ModuleType) -> None:
    assert fal.INDUCTOR_FOLDER == theirs.LOCAL_INDUCTOR_CACHE_DIR
    assert fal.OLD_CACHES == theirs.GLOBAL_INDUCTOR_CACHES_DIR


def test_the_gpu_may_be_said(app: App) -> None:
    assert fal.get_gpu_type() == GPU


@pytest.mark.parametrize("whose", [OURS, THEIRS])
def test_a_worker_gets_what_another_has_compiled(theirs: ModuleType, fleet: Fleet, whose: str) -> None:
    cold = fleet.run(whose, "load", "write", "c1.py", "one", "sync", worker="first")
    warm = fleet.run(whose, "load", worker="second")

    assert cold["hash"] == ""
    assert len(warm["hash"]) == 64
    assert (fleet.local("second") / "ab/c1.py").read_text() == "one"
    assert warm["cache"] == str(fleet.local("second"))


def without_marks(found: dict[str, Any]) -> dict[str, Any]:
    """A load is counted, and marks its key as used; these files are left out."""
    return {path: what for path, what in found.items() if "/used" not in path and "/stats" not in path}


@pytest.mark.parametrize("whose", [OURS, THEIRS])
def test_a_sync_without_news_writes_nothing(theirs: ModuleType, fleet: Fleet, whose: str) -> None:
    fleet.run(whose, "load", "write", "c1.py", "one", "sync", worker="first")
    before = without_marks(listing(fleet.data))
    fleet.run(whose, "load", "sync", worker="second")
    after = without_marks(listing(fleet.data))

    assert {path for path in before if after[path] != before[path] and (fleet.data / path).is_file()} == set()
    assert {path for path in after if path not in before and (fleet.data / path).is_file()} == set()


@pytest.mark.parametrize("whose", [OURS, THEIRS])
def test_the_keys_of_a_host_share_the_local_folder(theirs: ModuleType, fleet: Fleet, whose: str) -> None:
    fleet.run(whose, "load", "write", "c1.py", "one", "sync", key="one")
    fleet.run(whose, "load", "write", "c2.py", "two", "sync", key="two")
    fleet.run(whose, "load", worker="next", key="two")

    assert sorted(path.name for path in fleet.local("next").glob("ab/*")) == ["c1.py", "c2.py"]


def test_the_hash_is_that_of_what_was_loaded(app: App) -> None:
    fal.load_inductor_cache(KEY)
    app.write("c1.py")
    fal.sync_inductor_cache(KEY, "")
    first = fal.load_inductor_cache(KEY)
    again = fal.load_inductor_cache(KEY)
    app.write("c2.py")
    fal.sync_inductor_cache(KEY, again)

    assert first == again != fal.load_inductor_cache(KEY)


@pytest.mark.parametrize("name", ["store", "gpu", "key", "environment", "generation"])
def test_what_another_generation_holds_has_another_hash(name: str) -> None:
    report = RestoreReport(RestoreStatus.RESTORED, KEY, gpu=GPU, environment=ENVIRONMENT, store="/data", generation=1)

    assert fal._hash(report) != fal._hash(replace(report, **{name: 2 if name == "generation" else "other"}))


def test_a_sync_without_a_load_is_of_the_folder_that_fal_compiles_into(app: App) -> None:
    """As in a process beside the one that loaded."""
    (app.local / "ab").mkdir(parents=True)
    (app.local / "ab/c1.py").write_text("content")
    fal.sync_inductor_cache(KEY, "")

    assert app.published() == {"inductor/ab/c1.py"}


def test_a_sync_is_of_nothing_that_fal_does_not_share(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(app.fleet.folder / "vllm"))
    compiled = app.fleet.folder / "vllm/torch_compile_cache/torch_aot_compile/one/rank_0_0/one"
    compiled.parent.mkdir(parents=True)
    compiled.write_text("compiled")
    with fal.synchronized_inductor_cache(KEY):
        app.write("c1.py")

    assert app.published() == {"inductor/ab/c1.py"}


def test_a_load_in_another_folder_has_the_settings_of_that_one(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    (app.fleet.folder / "kstore.toml").write_text('cache_root = "root"\n')
    fal.load_inductor_cache(KEY)
    monkeypatch.chdir("/")
    fal.load_inductor_cache(KEY)

    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(fal.INDUCTOR_FOLDER)


def test_a_block_that_fails_is_synced_and_its_exception_goes_on(app: App) -> None:
    with pytest.raises(ZeroDivisionError), fal.synchronized_inductor_cache(KEY):
        app.write("c1.py")
        raise ZeroDivisionError

    assert app.published() == {"inductor/ab/c1.py"}


def test_it_decorates_a_function_too(app: App) -> None:
    @fal.synchronized_inductor_cache(KEY)
    def setup() -> str:
        app.write("c1.py")
        return "ready"

    assert setup() == "ready"
    assert app.published() == {"inductor/ab/c1.py"}


# ---- What fal has stored


def test_fal_s_zip_is_imported_on_the_first_miss(theirs: ModuleType, fleet: Fleet, app: App) -> None:
    fleet.run(THEIRS, "load", "write", "c1.py", "one", "sync", worker="old")
    assert [path.relative_to(fleet.zips) for path in fleet.zips.rglob("*.zip")] == [Path("H100/flux/2.zip")]

    assert fal.load_inductor_cache(KEY)
    assert (app.local / "ab/c1.py").read_text() == "one"
    assert app.published() == {"inductor/ab/c1.py"}


def test_a_zip_without_a_gpu_of_fal_s_earlier_versions_is_imported_too(theirs: ModuleType, app: App) -> None:
    source = Tree(app.fleet.folder / "source").wrapper()
    app.fleet.zips.joinpath("flux").mkdir(parents=True)
    shutil.make_archive(str(app.fleet.zips / KEY), "zip", app.fleet.folder / "source/inductor")

    assert fal.load_inductor_cache(KEY)
    assert app.published() == {source}


def test_the_zip_of_the_gpu_goes_before_one_without(theirs: ModuleType, fleet: Fleet, app: App) -> None:
    fleet.run(THEIRS, "load", "write", "c1.py", "one", "sync", worker="old")
    Tree(fleet.folder / "source").wrapper()
    shutil.make_archive(str(fleet.zips / KEY), "zip", fleet.folder / "source/inductor")
    fal.load_inductor_cache(KEY)

    assert app.published() == {"inductor/ab/c1.py"}


def test_a_zip_is_imported_once(theirs: ModuleType, fleet: Fleet, app: App) -> None:
    fleet.run(THEIRS, "load", "write", "c1.py", "one", "sync", worker="old")
    fal.load_inductor_cache(KEY)
    fleet.run(THEIRS, "load", "write", "c2.py", "two", "sync", worker="old")
    fal.load_inductor_cache(KEY)

    assert app.published() == {"inductor/ab/c1.py"}


@pytest.mark.parametrize("verb", ["forget", "quarantine"])
def test_what_was_taken_back_is_not_imported_again(theirs: ModuleType, fleet: Fleet, app: App, verb: str) -> None:
    fleet.run(THEIRS, "load", "write", "c1.py", "one", "sync", worker="old")
    fal.load_inductor_cache(KEY)
    getattr(app.store(), verb)(KEY)
    app.lose()

    assert fal.load_inductor_cache(KEY) == ""
    assert app.published() == set()


def test_a_worker_that_may_only_read_imports_nothing(
    theirs: ModuleType, fleet: Fleet, app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.run(THEIRS, "load", "write", "c1.py", "one", "sync", worker="old")
    monkeypatch.setenv("KSTORE_MODE", "read")

    assert fal.load_inductor_cache(KEY) == ""
    assert (warnings(caplog), (fleet.data / "kstore").exists()) == ([], False)


def test_what_another_worker_imported_meanwhile_is_loaded(
    theirs: ModuleType, fleet: Fleet, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.run(THEIRS, "load", "write", "c1.py", "one", "sync", worker="old")
    restore, reports = fal._restore, list[RestoreReport]()

    def late(key: str) -> RestoreReport:
        reports.append(restore(key))
        if reports[0] is reports[-1]:
            assert fal._import_old(KEY, key)
        return reports[-1]

    monkeypatch.setattr(fal, "_restore", late)
    assert fal.load_inductor_cache(KEY)
    assert [report.status for report in reports] == [RestoreStatus.MISS, RestoreStatus.RESTORED]
    assert (app.local / "ab/c1.py").read_text() == "one"


def test_concurrent_importers_publish_the_zip_once(theirs: ModuleType, fleet: Fleet) -> None:
    fleet.run(THEIRS, "load", "write", "c1.py", "one", "sync", worker="old")
    started = [fleet.start(OURS, "load", worker=f"new{number}") for number in range(3)]

    assert len({finish(process)["hash"] for process in started}) == 1
    assert all((fleet.local(f"new{number}") / "ab/c1.py").exists() for number in range(3))


# ---- What fal loses


@pytest.mark.parametrize(("whose", "kept"), [(THEIRS, ["c2.py"]), (OURS, ["c1.py", "c2.py"])])
def test_fal_keeps_the_kernels_of_one_of_two_cold_workers_and_kstore_keeps_both(
    theirs: ModuleType, fleet: Fleet, whose: str, kept: list[str]
) -> None:
    one = fleet.start(whose, "load", "write", "c1.py", "one", "done", "1", "wait", "2", "sync", "done", "1-synced",
                      worker="first")  # fmt: skip
    two = fleet.start(whose, "load", "write", "c2.py", "two", "done", "2", "wait", "1-synced", "sync", worker="second")
    for process in (one, two):
        finish(process)
    fleet.run(whose, "load", worker="third")

    assert sorted(path.name for path in fleet.local("third").glob("ab/*")) == kept


@pytest.mark.parametrize(("whose", "kept"), [(THEIRS, "old"), (OURS, "new")])
def test_a_file_whose_content_changed_is_synced_by_kstore_and_not_by_fal(
    theirs: ModuleType, fleet: Fleet, whose: str, kept: str
) -> None:
    name = "measured.best_config"
    fleet.run(whose, "load", "write", name, "old", "sync", worker="first")
    fleet.run(whose, "load", "write", name, "new", "sync", worker="second")
    fleet.run(whose, "load", worker="third")

    assert (fleet.local("third") / "ab" / name).read_text() == kept


def test_two_gpus_of_one_word_share_a_folder_of_fal_s_and_none_here(
    theirs: ModuleType, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KSTORE_GPU")
    words, slugs = [], []
    for name, capability in ((ADA, (8, 9)), (BLACKWELL, (12, 0))):
        app.fleet.gpu(name)
        monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([Gpu(name, capability)]))
        words.append(theirs.get_gpu_type())
        slugs.append(fal.get_gpu_type())
        assert fal.old_gpu_type() == words[-1]

    assert words == ["RTX", "RTX"]
    assert slugs == [ADA_SLUG, BLACKWELL_SLUG]


@pytest.mark.parametrize("says", ["", "Tesla V100", "NVIDIA ", "NVIDIA L40S\nNVIDIA H100", "NVIDIA GeForce RTX 4090"])
def test_the_folder_of_old_zips_is_named_as_fal_names_it(theirs: ModuleType, app: App, says: str) -> None:
    app.fleet.gpu(says)

    assert fal.old_gpu_type() == theirs.get_gpu_type()


def test_without_a_driver_the_folder_is_fal_s_too(
    theirs: ModuleType, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    assert fal.old_gpu_type() == theirs.get_gpu_type() == "UNKNOWN"


@pytest.mark.parametrize(
    "error", [UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no text"), subprocess.TimeoutExpired("nvidia-smi", 60)]
)
def test_nor_does_a_driver_that_cannot_be_asked_fail_a_load(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def ask(*command: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", ask)

    assert fal.old_gpu_type() == "UNKNOWN"


# ---- A job goes on


def test_a_store_that_cannot_be_used_is_one_line_for_each_call(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KSTORE_ROOT", str(app.fleet.folder / "missing" / "store"))
    app.fleet.zips.mkdir()

    assert fal.load_inductor_cache(KEY) == ""
    assert len(warnings(caplog)) == 1
    app.write("c1.py")
    fal.sync_inductor_cache(KEY, "")
    assert len(warnings(caplog)) == 2


def test_fal_fails_a_job_that_cannot_write_its_zips_and_kstore_does_not(theirs: ModuleType, fleet: Fleet) -> None:
    fleet.data.rmdir()
    fleet.data.write_text("no folder")
    steps = ("load", "write", "c1.py", "one", "sync")

    failed = fleet.start(THEIRS, *steps)
    assert "NotADirectoryError" in failed.communicate(timeout=TIMEOUT)[1]
    assert failed.returncode == 1
    assert fleet.run(OURS, *steps)["hash"] == ""


def test_a_damaged_zip_is_one_line(app: App, caplog: pytest.LogCaptureFixture) -> None:
    app.fleet.zips.joinpath("H100/flux").mkdir(parents=True)
    app.fleet.zips.joinpath("H100/flux/2.zip").write_bytes(b"PK\x03\x04 and no more")

    assert fal.load_inductor_cache(KEY) == ""
    (line,) = warnings(caplog)
    assert "flux/2 is not imported, the job goes on" in line


def test_a_log_handler_of_the_job_s_that_fails_does_not_fail_the_job(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise ZeroDivisionError

    app.fleet.zips.joinpath("H100/flux").mkdir(parents=True)
    app.fleet.zips.joinpath("H100/flux/2.zip").write_bytes(b"PK\x03\x04 and no more")
    app.local.symlink_to(app.fleet.folder / "elsewhere")
    monkeypatch.setattr(fal.log, "handlers", [Failing()])
    with fal.synchronized_inductor_cache(KEY):
        app.write("c1.py")

    assert app.published() == {"inductor/ab/c1.py"}


def test_a_store_whose_path_is_no_text_is_loaded_from_too(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KSTORE_ROOT", str(app.fleet.data / "k\udcffstore"))
    fal.load_inductor_cache(KEY)
    app.write("c1.py")
    fal.sync_inductor_cache(KEY, "")

    assert len(fal.load_inductor_cache(KEY)) == 64


def test_settings_that_leave_out_what_fal_shares_are_no_mistake(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KSTORE_COMPONENTS", "vllm")
    with fal.synchronized_inductor_cache(KEY):
        app.write("c1.py")

    assert app.published() == set()


@pytest.mark.parametrize(
    "key", ["FLUX.1 [dev]/v2", "a b", "a:b", "../x", ".hidden", "", "ä", "x" * 300, "a//b", "\udcff"]
)
def test_a_key_that_only_fal_takes_has_a_name_of_its_own(app: App, key: str) -> None:
    fal.load_inductor_cache(key)
    app.write("c1.py")
    fal.sync_inductor_cache(key, "")

    assert check_key(fal.store_key(key)) == fal.store_key(key) != fal.store_key(f"{key}?")
    assert fal.store_key(key)[0].isalnum()  # A command would take a key that begins with a dash for an option.
    assert app.published(fal.store_key(key)) == {"inductor/ab/c1.py"}


def test_a_key_that_is_not_text_is_the_caller_s_mistake() -> None:
    with pytest.raises(UsageError):
        fal.load_inductor_cache(3)  # type: ignore[arg-type]


def test_a_time_limit_of_the_jobs_goes_on_into_the_job(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    class JobTimeout(Exception):
        pass

    def expire(*arguments: object) -> None:
        raise JobTimeout

    monkeypatch.setattr("kstore.deadline.Answer.wait", expire)
    with pytest.raises(JobTimeout):
        fal._import_old(KEY, KEY)


# ---- Where it compiles


def test_only_inductor_and_triton_are_pointed_elsewhere(app: App) -> None:
    before = dict(os.environ)
    fal.load_inductor_cache(KEY)
    changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
    changed.pop("KSTORE_MANAGED", None)

    assert changed == {
        "TORCHINDUCTOR_CACHE_DIR": str(fal.INDUCTOR_FOLDER), "TRITON_CACHE_DIR": str(fal.TRITON_FOLDER)
    }  # fmt: skip


def test_the_user_s_own_folder_is_used(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    own = app.fleet.folder / "own"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(own))
    with fal.synchronized_inductor_cache(KEY):
        app.write("c1.py")

    assert (own / "ab/c1.py").exists()
    assert app.published() == {"inductor/ab/c1.py"}


def test_the_user_s_own_cache_root_is_used(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KSTORE_CACHE_ROOT", str(app.fleet.folder / "own"))
    with fal.synchronized_inductor_cache(KEY):
        app.write("c1.py")

    assert (app.fleet.folder / "own/inductor/ab/c1.py").exists()
    assert app.published() == {"inductor/ab/c1.py"}


def test_a_sync_goes_where_the_load_came_from(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    (app.fleet.folder / "kstore.toml").write_text('cache_root = "root"\n')
    fal.load_inductor_cache(KEY)
    app.write("c1.py")
    monkeypatch.chdir("/")
    fal.sync_inductor_cache(KEY, "")

    assert app.published() == {"inductor/ab/c1.py"}


def test_a_folder_that_another_could_replace_is_not_used(app: App, caplog: pytest.LogCaptureFixture) -> None:
    (app.fleet.folder / "elsewhere").mkdir()
    app.local.symlink_to(app.fleet.folder / "elsewhere")
    with fal.synchronized_inductor_cache(KEY):
        app.write("c1.py")

    assert os.environ["TORCHINDUCTOR_CACHE_DIR"].startswith(str(app.fleet.folder / "roots"))
    assert app.published() == {"inductor/ab/c1.py"}
    assert "another folder is" in warnings(caplog)[0]


def test_where_fal_s_folder_cannot_be_made_another_one_is_used(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fal, "INDUCTOR_FOLDER", Path("/proc/nothing/inductor-cache"))
    with fal.synchronized_inductor_cache(KEY):
        app.write("c1.py")

    assert app.published() == {"inductor/ab/c1.py"}
    assert "another folder is" in warnings(caplog)[0]


@pytest.mark.compiler
def test_graphs_that_fal_stored_are_found_in_a_new_process(theirs: ModuleType, fleet: Fleet) -> None:
    cold = fleet.run(THEIRS, "load", "compile", "mlp-f", "sync")
    shutil.rmtree(fleet.folder / "worker")
    imported = fleet.run(OURS, "load", "compile", "mlp-f", "sync")
    shutil.rmtree(fleet.folder / "worker")
    fleet.run(OURS, "load")
    loaded = fingerprint(fleet.local())
    warm = fleet.run(OURS, "load", "compile", "mlp-f")

    assert compiled_graphs(cold["report"])["fxgraph_cache_miss"]
    assert imported["hash"]
    for worker in (imported, warm):
        assert compiled_graphs(worker["report"]) == {}
        assert worker["report"]["outputs"] == cold["report"]["outputs"]
    # C++ objects, which a model on a CPU needs, are not imported: they are compiled once more, and shared from then on.
    assert any(path.endswith(".so") for path in loaded)
    assert fingerprint(fleet.local()) == loaded


@pytest.mark.compiler
def test_triton_kernels_that_fal_stored_are_found_in_the_new_folder(theirs: ModuleType, fleet: Fleet) -> None:
    new = fleet.folder / "worker/inductor-cache-triton"
    cold = compile_kernels(fleet, fleet.local() / "triton/0")  # where Inductor has them without TRITON_CACHE_DIR
    fleet.run(THEIRS, "sync")
    shutil.rmtree(fleet.folder / "worker")
    fleet.run(OURS, "load")
    loaded = fingerprint(new)
    warm = compile_kernels(fleet, new)

    assert (cold["hits"], cold["compiled"]) == (0, KERNELS)
    assert (warm["hits"], warm["compiled"]) == (KERNELS, 0)
    assert fingerprint(new) == loaded


def compile_kernels(fleet: Fleet, folder: Path) -> dict[str, Any]:
    environ = Container(fleet.folder).environ() | {"TRITON_CACHE_DIR": str(folder)}
    return run_program("compile_kernels", "--sources", fleet.folder / "sources", "--count", KERNELS, "--release", 1,
                       environ=environ)  # fmt: skip
