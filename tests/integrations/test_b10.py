"""b10-transfer's interface on a store, side by side with b10-transfer itself."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import logging
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kstore.components import load_table
from kstore.components.variables import default_folder
from kstore.deadline import Abandoned, Waiting, within
from kstore.errors import StoreUnavailable
from kstore.integrations import b10
from kstore.integrations.b10 import variables
from kstore.integrations.b10.archives import Archives
from kstore.integrations.b10.deployment import Deployment, local_files
from kstore.integrations.b10.hardware import archive_key
from kstore.integrations.b10.space import compressed_mb
from kstore.integrations.b10.status import CacheValidationError, never_raises
from kstore.scope import check_key
from kstore.stats.pages import read_hits
from kstore.stats.record import finish as finish_counting
from kstore.store import Store
from tests.compilers.programs import PATH
from tests.programs.share_b10 import FREE
from tests.trees import KEY, Node, Tree, contents

REPOSITORY = Path(__file__).parents[2]
PROGRAM = REPOSITORY / "tests/programs/share_b10.py"
LOAD, SAVE, CLEAR = ["call", "load_compile_cache"], ["call", "save_compile_cache"], ["call", "clear_local_cache"]
ONE, TWO = ["write", "ab/cone.py", "one"], ["write", "cd/ctwo.py", "two"]
HUGE = "".join(map(str, range(400_000)))
SECOND = ["replica", "second"]

SAME: dict[str, tuple[list[list[Any]], list[Any]]] = {
    "the volume is switched off": ([["set", {"BASETEN_FS_ENABLED": None}], ONE, LOAD, SAVE], ["ERROR", "ERROR"]),
    "the switch is no switch": ([["set", {"BASETEN_FS_ENABLED": "maybe"}], ONE, LOAD, SAVE], ["ERROR", "ERROR"]),
    "the switch may be a word": ([["set", {"BASETEN_FS_ENABLED": "True"}], ONE, SAVE], ["SUCCESS"]),
    "nothing was saved": ([LOAD, LOAD], ["DOES_NOT_EXIST", "DOES_NOT_EXIST"]),
    "nothing was compiled": ([SAVE], ["SKIPPED"]),
    "a first save": ([LOAD, ONE, SAVE, SAVE], ["DOES_NOT_EXIST", "SUCCESS", "SKIPPED"]),
    "a second replica": ([ONE, SAVE, SECOND, LOAD, LOAD, SAVE], ["SUCCESS", "SUCCESS", "SKIPPED", "SKIPPED"]),
    "who saved finds it all there": ([ONE, SAVE, LOAD], ["SUCCESS", "SKIPPED"]),
    "a folder that is cleared": ([ONE, SAVE, CLEAR, LOAD], ["SUCCESS", True, "SUCCESS"]),
    "nothing to clear": ([CLEAR], [True]),
    "torch's folder out of bounds": (
        [["set", {"TORCHINDUCTOR_CACHE_DIR": "/etc/torch"}], LOAD, SAVE, CLEAR], ["ERROR", "ERROR", False]
    ),
    "a folder that climbs": ([["set", {"TORCHINDUCTOR_CACHE_DIR": "/tmp/../tmp/torch"}], LOAD], ["ERROR"]),
    "a sibling of a folder that is allowed": ([["set", {"TORCHINDUCTOR_CACHE_DIR": "/tmpfoo/torch"}], LOAD], ["ERROR"]),
    "the volume out of bounds": ([["set", {"B10FS_CACHE_DIR": "/tmp/elsewhere"}], ONE, LOAD, SAVE], ["ERROR", "ERROR"]),
    "no room on the volume": ([["set", {"MIN_B10FS_SPACE_MB": "1000000000"}], ONE, SAVE], ["ERROR"]),
    "no room on the volume and nothing new": (
        [ONE, SAVE, ["set", {"MIN_B10FS_SPACE_MB": "1000000000"}], SAVE], ["SUCCESS", "SKIPPED"]
    ),
    "no room on the volume and nothing new since a load": (
        [ONE, SAVE, SECOND, LOAD, ["set", {"MIN_B10FS_SPACE_MB": "1000000000"}], SAVE],
        ["SUCCESS", "SUCCESS", "SKIPPED"],
    ),
    "room is for many saves": (
        [["set", {"MAX_CONCURRENT_SAVES": "100", "MAX_CACHE_SIZE_MB": "1000000000",
                  "MAX_CACHE_SIZE_CAP_MB": "1000000000"}], ONE, SAVE], ["ERROR"]
    ),
    "the cap of a save": (
        [["set", {"MAX_CACHE_SIZE_MB": "5", "MAX_CACHE_SIZE_CAP_MB": "0"}], ["write", "ab/cone.py", HUGE], SAVE],
        ["ERROR"],
    ),
    "a number that is none": ([["set", {"MAX_CACHE_SIZE_MB": "much"}], ONE, SAVE], ["ERROR"]),
    "no room here": ([ONE, SAVE, SECOND, ["set", {"MIN_LOCAL_SPACE_MB": "1000000000"}], LOAD], ["SUCCESS", "ERROR"]),
    "no room here and nothing missing": (
        [ONE, SAVE, ["set", {"MIN_LOCAL_SPACE_MB": "1000000000"}], LOAD], ["SUCCESS", "SKIPPED"]
    ),
    "too large": ([["set", {"MAX_CACHE_SIZE_MB": "0"}], ["write", "ab/cone.py", HUGE], SAVE], ["ERROR"]),
    "large, but not when compressed": (
        [["set", {"MAX_CACHE_SIZE_MB": "2"}], ["write", "ab/cone.py", HUGE * 2], SAVE], ["SUCCESS"]
    ),
    "a transfer": ([ONE, ["call", "transfer", "{home}/.cache/torchinductor/ab/cone.py", "{home}/x/y"]], ["SUCCESS"]),
    "a transfer to the volume": (
        [ONE, ["set", {"MIN_B10FS_SPACE_MB": "1000000000"}],
         ["call", "transfer", "{home}/.cache/torchinductor/ab/cone.py", "{volume}/y"]], ["ERROR"]
    ),
    "a transfer without room": (
        [ONE, ["set", {"MIN_LOCAL_SPACE_MB": "1000000000"}],
         ["call", "transfer", "{home}/.cache/torchinductor/ab/cone.py", "{home}/y"]], ["ERROR"]
    ),
    "a transfer of a large file": (
        [["write", "ab/cone.py", HUGE], ["set", {"LOCAL_SPACE_ARCHIVE_MULTIPLIER": "1e9"}],
         ["call", "transfer", "{home}/.cache/torchinductor/ab/cone.py", "{home}/y"]], ["ERROR"]
    ),
    "a transfer of nothing": ([["call", "transfer", "{home}/nothing", "{home}/y"]], ["ERROR"]),
    "a transfer of a folder": ([ONE, ["call", "transfer", "{home}/.cache", "{home}/y"]], ["ERROR"]),
}  # fmt: skip
"""Scene → steps, and what both packages return."""
DIFFERENT: dict[str, tuple[list[list[Any]], list[Any], list[Any]]] = {
    "a kernel that was compiled later": ([ONE, SAVE, TWO, SAVE], ["SUCCESS", "SKIPPED"], ["SUCCESS", "SUCCESS"]),
    "a replica that is half warm": ([ONE, SAVE, SECOND, TWO, LOAD], ["SUCCESS", "SKIPPED"], ["SUCCESS", "SUCCESS"]),
    "damage on the volume": (
        [ONE, SAVE, ["break"], SECOND, LOAD, ONE, SAVE],
        ["SUCCESS", "ERROR", "SKIPPED"],
        ["SUCCESS", "DOES_NOT_EXIST", "SUCCESS"],
    ),
}  # fmt: skip
"""Scene → steps, what b10-transfer returns, and what kstore does."""
INFO, LIST = ["call", "get_cache_info"], ["call", "list_available_caches"]
TOLD: dict[str, list[list[Any]]] = {
    "told of nothing": [INFO, LIST],
    "told without a volume": [["set", {"BASETEN_FS_ENABLED": "0"}], ONE, INFO, LIST],
    "told of local files": [ONE, INFO, LIST],
    "told of what was saved": [ONE, SAVE, INFO, LIST],
    "told to another replica": [ONE, SAVE, SECOND, INFO, LIST],
}
"""Scene → steps whose results differ only in their values."""


def play(which: str, top: Path, scenes: dict[str, list[list[Any]]]) -> dict[str, list[Any]]:
    """Play all scenes in one process of that package."""
    return finish(start(which, top, scenes))


def start(which: str, top: Path, scenes: dict[str, list[list[Any]]]) -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("KSTORE_", "B10"))}
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), which, str(top)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ | PATH, text=True,
    )  # fmt: skip
    assert process.stdin
    process.stdin.write(json.dumps(scenes))
    process.stdin.close()
    process.stdin = None
    return process


def finish(process: subprocess.Popen[str]) -> dict[str, list[Any]]:
    """What the calls returned."""
    output, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    results: dict[str, list[Any]] = json.loads(output.splitlines()[-1])
    return results


@pytest.fixture(scope="module")
def real() -> Any:
    """The package itself."""
    return pytest.importorskip("b10_transfer", reason="b10-transfer is not installed: see tools/peers.txt")


@functools.cache
def scenes() -> dict[str, list[list[Any]]]:
    return {name: steps for name, (steps, *_) in [*SAME.items(), *DIFFERENT.items()]} | TOLD


@pytest.fixture(scope="module")
def theirs(real: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    return play("real", tmp_path_factory.mktemp("real"), scenes())


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    return play("ours", tmp_path_factory.mktemp("ours"), scenes())


# ---- Names


def declared(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of the function as it was written: the real package's decorators hide it."""
    while cell := next((c for c in function.__closure__ or () if inspect.isfunction(c.cell_contents)), None):
        function = cell.cell_contents
    return inspect.signature(function)


def test_every_public_name_is_there(real: Any) -> None:
    assert set(b10.__all__) == set(real.__all__)


@pytest.mark.parametrize("name", [name for name in b10.__all__ if inspect.isfunction(getattr(b10, name))])
def test_every_function_takes_the_same_arguments(real: Any, name: str) -> None:
    assert list(inspect.signature(getattr(b10, name)).parameters) == list(declared(getattr(real, name)).parameters)


def test_the_statuses_have_the_same_names_and_values(real: Any) -> None:
    assert {s.name: s.value for s in b10.OperationStatus} == {s.name: s.value for s in real.OperationStatus}


@pytest.mark.parametrize("name", ["CacheError", "CacheValidationError", "CacheOperationInterrupted"])
def test_the_exceptions_are_related_in_the_same_way(real: Any, name: str) -> None:
    assert issubclass(getattr(b10, name), b10.CacheError) == issubclass(getattr(real, name), real.CacheError)


def test_the_caps_are_the_same(real: Any) -> None:
    assert import_module("b10_transfer.constants").MAX_CONCURRENT_SAVES_CAP == (
        import_module("kstore.integrations.b10.variables").MAX_CONCURRENT_SAVES_CAP
    )


# ---- Statuses


@pytest.mark.parametrize("name", SAME)
def test_both_return_the_same(theirs: dict[str, list[Any]], ours: dict[str, list[Any]], name: str) -> None:
    expected = SAME[name][1]
    assert (theirs[name], ours[name]) == (expected, expected)


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_difference_on_purpose(theirs: dict[str, list[Any]], ours: dict[str, list[Any]], name: str) -> None:
    assert (theirs[name], ours[name]) == DIFFERENT[name][1:]


# ---- What is told


def shape(told: Any) -> Any:
    """Names and types, and the values of switches and counts."""
    if isinstance(told, dict):
        return {name: shape(value) for name, value in told.items()}
    if isinstance(told, list):
        return [shape(value) for value in told]
    return told if isinstance(told, bool | int) else type(told)


@pytest.mark.parametrize("name", TOLD)
def test_both_report_the_same_things(theirs: dict[str, list[Any]], ours: dict[str, list[Any]], name: str) -> None:
    assert shape(ours[name]) == shape(theirs[name])
    info, listed = ours[name][-2:]
    assert info["environment_key"] == listed["current_environment"]


def test_a_malformed_variable_is_reported_not_raised(ours_here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/etc/torch")

    assert b10.get_cache_info()["local_cache_exists"] is False
    assert "TORCHINDUCTOR_CACHE_DIR" in b10.list_available_caches()["error"]


# ---- In this process


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """The deployment's folder on the shared volume."""
    return tmp_path / "cache/model/compile_cache"


@pytest.fixture
def ours_here(tmp_path: Path, volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One replica of a deployment."""
    monkeypatch.setattr(variables, "VOLUME", str(tmp_path / "cache/model"))
    settings = FREE | {"B10FS_CACHE_DIR": str(volume), "HOME": str(tmp_path / "home")}
    settings |= {"KSTORE_GPU": "cpu-test", "KSTORE_ENVIRONMENT": "torch-test", "KSTORE_LAYOUT": "packed"}
    settings |= {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "home/.cache/torch"), "TRITON_CACHE_DIR": ""}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


def compile_here(name: str, text: str = "") -> None:
    target = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"], "ab", f"c{name}.py")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text or name)


@pytest.mark.usefixtures("ours_here", "host")
def test_where_no_volume_is_mounted_none_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was saved on the container's own disk would be lost with it."""
    top = Path("/kstore-tests-no-volume")
    monkeypatch.setattr(variables, "VOLUME", str(top / "model"))
    monkeypatch.setenv("B10FS_CACHE_DIR", str(top / "model/compile_cache"))
    with pytest.raises(StoreUnavailable, match="no volume"):
        Deployment.of_vllm().prepare()
    assert not top.exists()


@pytest.mark.usefixtures("ours_here", "host")
def test_the_store_is_beside_the_archives_and_its_key_names_the_folder(volume: Path) -> None:
    compile_here("one")
    b10.save_compile_cache()

    (scope,) = Store(volume / "kstore").scopes()
    assert scope.key == "b10/compile_cache"


@pytest.mark.usefixtures("ours_here", "host")
def test_another_store_holds_several_deployments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KSTORE_ROOT", str(tmp_path / "shared"))
    for name in ("flux/v 1", "sdxl"):
        monkeypatch.setenv("B10FS_CACHE_DIR", str(tmp_path / "cache/model" / name))
        compile_here(name[:4])
        assert b10.save_compile_cache() is b10.OperationStatus.SUCCESS

    assert [scope.key for scope in Store(tmp_path / "shared").scopes()] == ["b10/flux/v-1", "b10/sdxl"]


@pytest.mark.usefixtures("ours_here", "host")
def test_a_load_is_counted(volume: Path) -> None:
    compile_here("one")
    b10.save_compile_cache()
    b10.clear_local_cache()
    assert b10.load_compile_cache() is b10.OperationStatus.SUCCESS
    finish_counting(60)

    store = Store(volume / "kstore")
    (scope,) = store.scopes()
    assert read_hits(store.storage.backend, scope).restores == 1


@pytest.mark.usefixtures("ours_here", "host")
def test_a_later_save_adds_only_what_is_new(volume: Path) -> None:
    compile_here("one", HUGE)
    b10.save_compile_cache()
    before = stored(volume)
    compile_here("two")

    assert b10.save_compile_cache() is b10.OperationStatus.SUCCESS
    assert stored(volume) - before < len(HUGE) / 100


def stored(volume: Path) -> int:
    return sum(path.stat().st_size for path in volume.rglob("*") if path.is_file())


@pytest.mark.usefixtures("ours_here", "host")
def test_locks_that_a_dead_replica_has_left_hold_up_nobody(volume: Path) -> None:
    compile_here("one")
    b10.save_compile_cache()
    for name in ("copy_in.lock", "copy_out.lock", "cache_x.incomplete.tar.gz"):
        (volume / name).touch()
    b10.clear_local_cache()

    assert b10.load_compile_cache() is b10.OperationStatus.SUCCESS
    compile_here("two")
    assert b10.save_compile_cache() is b10.OperationStatus.SUCCESS


@pytest.mark.usefixtures("ours_here", "host")
def test_a_load_sets_the_variables_that_compilers_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.setattr(
        "kstore.integrations.b10.variables.default_torch_cache_dir", lambda: f"{tmp_path}/home/.cache/t"
    )

    assert b10.load_compile_cache() is b10.OperationStatus.DOES_NOT_EXIST
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == f"{tmp_path}/home/.cache/t"
    assert os.environ["TRITON_CACHE_DIR"].endswith("/triton")


@pytest.mark.usefixtures("ours_here", "host")
def test_a_save_goes_where_the_load_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kstore.toml").write_text('store = "shared"\ncache_root = "root"\n')
    b10.load_compile_cache()
    kernel = Tree(tmp_path / "root").kernel()
    monkeypatch.chdir("/")
    b10.save_compile_cache()

    shared = Store(tmp_path / "shared")
    (ref,) = map(shared.newest, shared.scopes())
    assert ref and all(path.startswith(f"{kernel}/") for path in shared.snapshot(ref).manifest.files)


@pytest.mark.usefixtures("ours_here", "host")
def test_a_folder_that_torch_has_pinned_already_stays_torch_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model server has imported torch._dynamo before it loads anything."""
    monkeypatch.setitem(sys.modules, "torch._dynamo", ModuleType("torch._dynamo"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "home/.cache"))
    pinned = default_folder(load_table()["inductor"])
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", pinned)
    b10.load_compile_cache()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == pinned

    compile_here("one")
    assert b10.save_compile_cache() is b10.OperationStatus.SUCCESS
    b10.clear_local_cache()
    assert b10.load_compile_cache() is b10.OperationStatus.SUCCESS
    assert Path(pinned, "ab/cone.py").read_text() == "one"


@pytest.mark.usefixtures("ours_here", "host")
def test_clearing_removes_the_triton_kernels_too_but_not_the_user_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b10.load_compile_cache()
    own = Path(os.environ["TRITON_CACHE_DIR"])
    theirs = tmp_path / "mine"
    for folder in (own, theirs):
        (folder / "kernel").mkdir(parents=True)

    assert b10.clear_local_cache() is True
    assert not own.exists()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(theirs))
    assert b10.clear_local_cache() is True
    assert theirs.exists()


@pytest.mark.usefixtures("ours_here", "host")
def test_clearing_removes_no_folder_that_other_programs_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / ".cache"))
    weights = tmp_path / ".cache/huggingface/weights"
    weights.mkdir(parents=True)

    assert b10.clear_local_cache() is False
    assert weights.exists()
    assert "is not only torch's; set TORCHINDUCTOR_CACHE_DIR to a folder in it" in caplog.text


@pytest.mark.usefixtures("ours_here", "host")
@pytest.mark.parametrize(
    ("store", "place"),
    [("", "model/here"), ("shared/kstore", "shared"), ("shared/kstore", "model/here")],
    ids=["on the volume", "elsewhere", "where the store would be"],
)
def test_clearing_does_not_remove_what_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, store: str, place: str
) -> None:
    """Whoever let torch compile where its replicas save would lose the kernels of all."""
    allowed = tmp_path / "home/.cache"
    monkeypatch.setattr(variables, "VOLUME", str(allowed / "model"))
    monkeypatch.setenv("B10FS_CACHE_DIR", str(allowed / "model/here"))
    monkeypatch.setenv("KSTORE_ROOT", store and str(allowed / store))
    (allowed / "shared").mkdir(parents=True)
    compile_here("one")
    assert b10.save_compile_cache() is b10.OperationStatus.SUCCESS
    saved = allowed / place
    saved.mkdir(parents=True, exist_ok=True)
    before = contents(saved)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(saved))

    assert b10.clear_local_cache() is False
    assert saved.is_dir() and contents(saved) == before
    assert f"{saved} holds what replicas have saved" in caplog.text


@pytest.mark.usefixtures("ours_here", "host")
def test_a_folder_that_inductor_chose_for_triton_is_not_the_users_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = os.environ["TORCHINDUCTOR_CACHE_DIR"] + "/triton/0"
    monkeypatch.setenv("TRITON_CACHE_DIR", inside)
    b10.load_compile_cache()

    assert os.environ["TRITON_CACHE_DIR"] != inside


@pytest.mark.usefixtures("ours_here", "host")
def test_a_replica_that_only_reads_saves_nothing(volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KSTORE_MODE", "read")
    compile_here("one")

    assert b10.load_compile_cache() is b10.OperationStatus.DOES_NOT_EXIST
    assert b10.save_compile_cache() is b10.OperationStatus.SKIPPED
    Deployment.of_vllm().prepare()
    assert not volume.exists()


@pytest.mark.usefixtures("ours_here", "host")
def test_a_store_that_is_named_is_taken_even_if_it_is_the_default_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KSTORE_ROOT", "/data/kstore")

    assert variables.store_location(Path("/cache/model/x")) == "/data/kstore"


@pytest.mark.usefixtures("ours_here", "host")
def test_files_that_go_while_they_are_counted_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_here("one")
    compile_here("gone")
    real = os.lstat

    def lstat(path: Any, **options: Any) -> os.stat_result:
        if str(path).endswith("cgone.py"):
            raise FileNotFoundError(path)
        return real(path, **options)

    monkeypatch.setattr("os.lstat", lstat)
    assert b10.get_cache_info()["local_cache_size_mb"] == len("one") / (1 << 20)


@pytest.mark.usefixtures("ours_here", "host")
def test_an_archive_that_goes_while_archives_are_listed_is_not_listed(
    volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume.mkdir(parents=True)
    (volume / "cache_0123.latest.tar.gz").symlink_to("gone")
    (volume / "cache_4567.latest.tar.gz").write_bytes(bytes(1 << 20))
    monkeypatch.setattr("kstore.integrations.b10.archives.archive_key", lambda: "0123")
    monkeypatch.setattr("kstore.integrations.b10.info.archive_key", lambda: "0123")
    info, listed = b10.get_cache_info(), b10.list_available_caches()

    assert (info["b10fs_cache_exists"], "error" in info) == (False, False)
    assert [(cache["environment_key"], cache["size_mb"]) for cache in listed["caches"]] == [("4567", 1.0)]
    assert listed["current_cache_exists"] is False


@pytest.mark.usefixtures("ours_here", "host")
def test_caches_are_listed_newest_first_with_their_files(volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_here("one")
    b10.save_compile_cache()
    for digits, time in (("0123", 1), ("4567", 1 << 32)):
        (volume / f"cache_{digits}.latest.tar.gz").write_bytes(bytes(2 << 20))
        os.utime(volume / f"cache_{digits}.latest.tar.gz", (time, time))
    monkeypatch.setattr("kstore.integrations.b10.info.archive_key", lambda: "0123")
    newest, saved, oldest = b10.list_available_caches()["caches"]

    assert (newest["filename"], oldest["filename"]) == ("cache_4567.latest.tar.gz", "cache_0123.latest.tar.gz")
    assert (newest["is_current_environment"], oldest["is_current_environment"]) == (False, True)
    assert (newest["size_mb"], newest["created_time"]) == (2.0, 1 << 32)
    assert (volume / "kstore" / saved["filename"]).is_file()
    assert (saved["is_current_environment"], saved["size_mb"]) == (True, len("one") / (1 << 20))
    assert b10.get_cache_info()["b10fs_cache_size_mb"] == saved["size_mb"]


@pytest.mark.usefixtures("ours_here", "host")
def test_a_cache_of_another_environment_is_listed_as_such_until_it_is_forgotten(
    volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_here("one")
    b10.save_compile_cache()
    monkeypatch.setenv("KSTORE_ENVIRONMENT", "torch-other")

    (listed,) = b10.list_available_caches()["caches"]
    assert (listed["environment_key"], listed["is_current_environment"]) == ("cpu-test/torch-test", False)
    Store(volume / "kstore", environment="torch-test").forget("b10/compile_cache")
    assert b10.list_available_caches()["caches"] == []


@pytest.mark.usefixtures("ours_here", "host")
def test_an_archive_that_is_not_imported_yet_counts_with_its_own_size(
    volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume.mkdir(parents=True)
    (volume / "cache_0123.latest.tar.gz").write_bytes(bytes(1 << 20))
    monkeypatch.setattr("kstore.integrations.b10.archives.archive_key", lambda: "0123")

    assert b10.get_cache_info()["b10fs_cache_size_mb"] == 1.0


@pytest.mark.usefixtures("ours_here", "host")
@pytest.mark.parametrize("own", ["own", "cache/model/compile_cache/kstore"], ids=["elsewhere", "on the volume"])
def test_before_anything_was_saved_what_an_image_below_has_is_told_of_and_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    monkeypatch.setenv("KSTORE_ROOT", str(tmp_path / "image"))
    compile_here("one")
    b10.save_compile_cache()
    b10.clear_local_cache()
    monkeypatch.setenv("KSTORE_ROOT", f"{tmp_path / own}:{tmp_path / 'image'}")

    assert b10.get_cache_info()["b10fs_cache_exists"]
    assert b10.list_available_caches()["current_cache_exists"]
    assert b10.load_compile_cache() is b10.OperationStatus.SUCCESS


def a_file(folder: Path) -> Path:
    """A file whose mode and time are not those of a new one."""
    (path := folder / "source").write_text("content")
    path.chmod(0o640)
    os.utime(path, (1, 1))
    return path


@pytest.mark.usefixtures("ours_here")
@pytest.mark.parametrize("target", ["some/where/copy", "folder"], ids=["a new file", "a folder that exists"])
def test_a_transfer_copies_bytes_mode_and_time(tmp_path: Path, target: str) -> None:
    source, folder = a_file(tmp_path), tmp_path / "folder"
    folder.mkdir()
    copy = folder / "source" if target == "folder" else tmp_path / target

    assert b10.transfer(str(source), str(tmp_path / target)) is b10.OperationStatus.SUCCESS
    assert (copy.read_text(), copy.stat().st_mode & 0o777, copy.stat().st_mtime) == ("content", 0o640, 1)
    assert list(copy.parent.iterdir()) == [copy]


@pytest.mark.usefixtures("ours_here")
def test_a_transfer_may_make_a_file_with_the_longest_name(tmp_path: Path) -> None:
    copy = tmp_path / ("n" * 255)

    assert b10.transfer(str(a_file(tmp_path)), str(copy)) is b10.OperationStatus.SUCCESS
    assert copy.read_text() == "content"


@pytest.mark.usefixtures("ours_here")
def test_a_transfer_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop_halfway(source: Path, target: Path) -> None:
        target.write_text("con")
        raise OSError("no room")

    (tmp_path / "folder").mkdir()
    (copy := tmp_path / "folder/copy").write_text("before")
    monkeypatch.setattr("shutil.copy2", stop_halfway)

    assert b10.transfer(str(a_file(tmp_path)), str(copy)) is b10.OperationStatus.ERROR
    assert (copy.read_text(), list(copy.parent.iterdir())) == ("before", [copy])


@pytest.mark.usefixtures("ours_here", "host")
def test_a_filesystem_without_a_size_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ramfs, a tmpfs with size=0, and some mounts of FUSE."""
    monkeypatch.setenv("MIN_B10FS_SPACE_MB", "1")
    monkeypatch.setenv("MIN_LOCAL_SPACE_MB", "1")
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_blocks=0, f_bavail=0, f_frsize=4096, f_flag=0))
    compile_here("one")

    assert b10.save_compile_cache() is b10.OperationStatus.SUCCESS
    b10.clear_local_cache()
    assert b10.load_compile_cache() is b10.OperationStatus.SUCCESS
    assert b10.transfer(str(a_file(tmp_path)), str(tmp_path / "copy")) is b10.OperationStatus.SUCCESS


def test_a_file_that_goes_while_it_is_compressed_counts_as_nothing(tmp_path: Path) -> None:
    (full := tmp_path / "full").write_bytes(os.urandom(1 << 20))

    assert 1 < compressed_mb([tmp_path / "gone", full, full.with_name("gone too")]) < 1.01


@pytest.mark.usefixtures("ours_here", "host")
def test_only_regular_files_of_compilers_count(tmp_path: Path) -> None:
    """Reading a pipe to compress it would wait for ever."""
    compile_here("one")
    folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("/dev/zero")
    (folder / ".kstore").mkdir()
    (folder / ".kstore/note").write_text("kstore's own")

    assert [path for path, _ in local_files(Deployment.of_torch().worker)] == ["inductor/ab/cone.py"]


@pytest.mark.parametrize(
    ("folder", "key"),
    [
        ("/cache/model/a/b", "b10/a/b"),
        ("/cache/model", "b10"),
        ("/cache/model/.a/...", "b10/a/-"),
        ("/cache/model/é b", "b10/--b"),
        ("/linked/to/a", "b10/a"),
    ],
)
def test_any_folder_of_a_volume_makes_a_key(folder: str, key: str) -> None:
    assert variables.key_of(Path(folder)) == check_key(key)


def test_a_volume_may_be_at_the_top() -> None:
    """By a link, such as /models."""
    deployment: Any = SimpleNamespace(variables=SimpleNamespace(volume=Path("/proc")))
    Deployment._make_volume(deployment)


@pytest.mark.usefixtures("ours_here")
@pytest.mark.parametrize("folder", ["", "torch ", " torch"])
def test_text_that_is_hardly_meant_as_a_folder_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", folder)
    (tmp_path / "home/.cache").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "home/.cache")

    with pytest.raises(CacheValidationError, match="it must be a folder"):
        assert variables.Variables(os.environ).torch_cache_dir


@pytest.mark.usefixtures("ours_here")
def test_a_folder_counts_from_where_the_process_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "torch")
    (tmp_path / "home/.cache").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "home/.cache")

    assert variables.Variables(os.environ).torch_cache_dir == tmp_path / "home/.cache/torch"


@pytest.mark.usefixtures("ours_here")
@pytest.mark.parametrize(("said", "folder"), [("~/.cache/mine", "mine"), ("", "vllm")])
def test_vllm_s_folder_may_begin_with_a_tilde_or_be_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, folder: str
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("VLLM_CACHE_ROOT", said)

    assert variables.Variables(os.environ).vllm_cache_root == tmp_path / "home/.cache" / folder


@pytest.mark.usefixtures("ours_here")
def test_a_folder_that_is_a_link_to_itself_leads_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.setenv("VLLM_CACHE_ROOT", f"{tmp_path}/loop/vllm")

    with pytest.raises(CacheValidationError, match="VLLM_CACHE_ROOT"):
        assert variables.Variables(os.environ).vllm_cache_root


@pytest.mark.usefixtures("ours_here")
def test_a_log_handler_of_the_job_s_that_fails_does_not_fail_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise ZeroDivisionError

    monkeypatch.setattr(logging.getLogger("kstore"), "handlers", [Failing()])
    monkeypatch.setenv("BASETEN_FS_ENABLED", "maybe")

    assert b10.load_compile_cache() is b10.OperationStatus.ERROR


@pytest.mark.usefixtures("ours_here", "host")
def test_a_vllm_server_s_load_leaves_this_process_s_environment_alone(tmp_path: Path) -> None:
    before = dict(os.environ)
    Deployment.of_vllm().load()

    assert dict(os.environ) == before


@pytest.mark.usefixtures("ours_here", "host")
def test_a_vllm_servers_caches_are_where_vllm_and_triton_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("VLLM_CACHE_ROOT", "TRITON_CACHE_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/home/.cache/mine")
    monkeypatch.setenv("TRITON_HOME", f"{tmp_path}/scratch")

    assert Deployment.of_vllm().worker.root.folders == {
        "vllm": f"{tmp_path}/home/.cache/mine/vllm", "triton": f"{tmp_path}/scratch/.triton/cache"
    }  # fmt: skip


@pytest.mark.usefixtures("ours_here", "host")
def test_trouble_is_one_line_in_the_log(volume: Path, caplog: pytest.LogCaptureFixture) -> None:
    volume.parent.mkdir(parents=True)
    volume.write_text("no folder")
    compile_here("one")

    assert b10.save_compile_cache() is b10.OperationStatus.ERROR
    assert [(record.levelname, "job goes on" in record.message) for record in caplog.records] == [("ERROR", True)]


@pytest.mark.usefixtures("ours_here", "host")
def test_a_number_above_its_cap_is_lowered_and_reported(caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    monkeypatch.setenv("MAX_CONCURRENT_SAVES", "101")
    monkeypatch.setenv("MAX_CACHE_SIZE_MB", "2000")
    found = variables.Variables(os.environ)

    assert (found.max_saves, found.max_save_mb) == (100, 1024)
    assert ["MAX_CONCURRENT_SAVES is 101" in r.message for r in caplog.records] == [True, False]


def test_savers_at_the_same_time_lose_nothing_of_each_other(tmp_path: Path) -> None:
    names = ["one", "two", "six"]
    steps = [[["replica", name], ["write", f"ab/c{name}.py", HUGE + name], SAVE] for name in names]
    started = [start("ours", tmp_path, {"deployment": step}) for step in steps]
    assert [finish(process) for process in started] == [{"deployment": ["SUCCESS"]}] * 3

    assert play("ours", tmp_path, {"deployment": [["replica", "late"], LOAD]}) == {"deployment": ["SUCCESS"]}
    found = tmp_path / "scenes/deployment/late/.cache/torchinductor/ab"
    assert sorted(path.name for path in found.iterdir()) == ["cone.py", "csix.py", "ctwo.py"]


# ---- What b10-transfer has saved


KERNEL = "triton/0/KERNELKERNELKERNELKERNELKERNELKERNELKERNELKERNELKER"
COMPILED = [
    ONE,
    ["write", f"{KERNEL}/k.cubin", "code"],
    ["write", f"{KERNEL}/__grp__k.json", json.dumps({"child_paths": {"k.cubin": f"/tmp/torch/{KERNEL}/k.cubin"}})],
]


@pytest.fixture(scope="module")
def archived(real: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a replica with the real package has saved."""
    folder = tmp_path_factory.mktemp("archived")
    assert play("real", folder, {"deployment": [*COMPILED, SAVE]}) == {"deployment": ["SUCCESS"]}
    return folder


@pytest.fixture
def deployment(archived: Path, tmp_path: Path) -> Path:
    """A copy of what that replica has saved."""
    shutil.copytree(archived / "cache", tmp_path / "cache")
    return tmp_path


def test_an_archive_is_imported_by_the_first_load(deployment: Path) -> None:
    steps = [SECOND, LOAD, LOAD, SAVE, ["replica", "third"], LOAD]
    returned = ["SUCCESS", "SKIPPED", "SKIPPED", "SUCCESS"]

    assert play("ours", deployment, {"deployment": steps}) == {"deployment": returned}
    for name in ("second", "third"):
        home = deployment / "scenes/deployment" / name
        kernel = home / "root/triton" / Path(KERNEL).name
        assert (home / ".cache/torchinductor/ab/cone.py").read_text() == "one"
        assert json.loads((kernel / "__grp__k.json").read_text())["child_paths"] == {"k.cubin": f"{kernel}/k.cubin"}


def test_an_archive_is_listed_until_it_is_imported_and_after(deployment: Path) -> None:
    steps = [SECOND, INFO, LIST, LOAD, LIST]
    info, before, _, after = play("ours", deployment, {"deployment": steps})["deployment"]
    (archive,) = (deployment / "cache/model/deployment").glob("*.tar.gz")

    assert info["b10fs_cache_exists"] is True
    assert [cache["filename"] for cache in before["caches"]] == [archive.name]
    assert (before["current_cache_exists"], after["total_caches"]) == (True, 2)


def test_an_archive_is_not_imported_again_into_a_key_that_was_forgotten(deployment: Path) -> None:
    play("ours", deployment, {"deployment": [SECOND, LOAD]})
    Store(deployment / "cache/model/deployment/kstore").forget("b10/deployment")

    steps = [["replica", "third"], LOAD, INFO]
    status, info = play("ours", deployment, {"deployment": steps})["deployment"]
    assert (status, info["b10fs_cache_exists"]) == ("DOES_NOT_EXIST", False)


def test_what_another_replica_imported_meanwhile_is_there(tmp_path: Path, host: object) -> None:
    node, archives = Node(tmp_path), Archives(variables.Variables({}), "inductor", tmp_path)
    node.tree.wrapper()
    node.commit()
    assert archives.adopt(node.store, KEY)
    node.store.forget(KEY)
    assert not archives.adopt(node.store, KEY)


def test_an_import_that_nobody_waits_for_says_nothing_more(
    volume: Path, tmp_path: Path, ours_here: None, host: object, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr("kstore.integrations.b10.archives.archive_key", lambda: "0123")
    volume.mkdir(parents=True)
    with tarfile.open(volume / "cache_0123.latest.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("ab/cone.py"))
    node = Node(tmp_path)
    node.store.waiting.give_up()
    with pytest.raises(Abandoned):
        Archives(variables.Variables(os.environ), "inductor", tmp_path).adopt(node.store, KEY)

    assert caplog.records == []


def test_an_archive_that_cannot_be_read_leaves_the_replica_to_compile(deployment: Path) -> None:
    steps = [["break"], SECOND, LOAD, ONE, SAVE, ["replica", "third"], LOAD]
    returned = ["DOES_NOT_EXIST", "SUCCESS", "SUCCESS"]

    assert play("ours", deployment, {"deployment": steps}) == {"deployment": returned}


def test_an_archive_for_which_there_is_no_room_stays(deployment: Path) -> None:
    steps = [SECOND, ["set", {"LOCAL_SPACE_ARCHIVE_MULTIPLIER": "1e12"}], LOAD]

    assert play("ours", deployment, {"deployment": steps}) == {"deployment": ["DOES_NOT_EXIST"]}


def test_the_real_package_goes_on_beside_the_store(deployment: Path) -> None:
    play("ours", deployment, {"deployment": [SECOND, LOAD, TWO, SAVE]})

    assert play("real", deployment, {"deployment": [["replica", "old"], LOAD]}) == {"deployment": ["SUCCESS"]}
    assert play("ours", deployment, {"deployment": [["replica", "new"], LOAD]}) == {"deployment": ["SUCCESS"]}


def test_the_key_of_a_gpu_is_the_one_in_its_archives_names(real: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    device = SimpleNamespace(name="NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)
    monkeypatch.setattr(torch.version, "cuda", "12.8")

    assert archive_key() == import_module("b10_transfer.environment").get_environment_key()


def test_a_process_that_has_not_imported_torch_lets_another_one_ask_it(real: Any) -> None:
    code = (
        "import sys; from kstore.integrations.b10.hardware import archive_key as k; print(k(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == [import_module("b10_transfer.environment").get_environment_key(), "False"]


def test_the_process_that_asks_torch_may_print_other_things_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('a line')")
    (tmp_path / "torch.py").write_text("print('no line', end='')\nclass cuda: is_available = bool")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{REPOSITORY}")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    quiet = json.dumps(
        {"cpu_architecture": platform.machine(), "device_type": "cpu", "platform_system": platform.system()}
    )

    assert archive_key() == hashlib.sha256(quiet.encode()).hexdigest()[:16]


def test_without_torch_no_archive_is_anybody_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstore.integrations.b10.hardware.sys.executable", "/nonexistent/python3")
    monkeypatch.delitem(sys.modules, "torch", raising=False)

    assert archive_key() is None


def test_a_bundle_is_not_run_again_to_ask_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bundle = tmp_path / "serve"
    bundle.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    bundle.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bundle))
    monkeypatch.delitem(sys.modules, "torch", raising=False)

    assert archive_key() is None
    assert not (tmp_path / "started").exists()


def test_a_time_limit_of_the_jobs_goes_on_into_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from `kstore.restore`: what a signal handler raises while this waits is no trouble with the cache."""

    class JobTimeout(Exception):
        pass

    def expire(*arguments: object) -> None:
        raise JobTimeout

    @never_raises("loading", lambda why: why)
    def load() -> str:
        return within(60, Waiting(), "loading", lambda: "loaded")

    assert load() == "loaded"
    monkeypatch.setattr("kstore.deadline.Answer.wait", expire)
    with pytest.raises(JobTimeout):
        load()
