"""`kstore.synchronized` in a job that sets variables while it runs, or uses several keys."""

from __future__ import annotations

import os
import signal
import time
import tracemalloc
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.environment import Environment
from tests.trees import ENVIRONMENT, GPU, KEY, Tree

pytestmark = pytest.mark.usefixtures("host")


class Failure(Exception):
    """A failure of the job."""


def published(settings: dict[str, Any]) -> int:
    """How many files are published."""
    store = kstore.Store(settings["store"], gpu=GPU, environment=ENVIRONMENT)
    ref = store.newest(store.scope(KEY))
    return ref.files if ref else 0


def graphics_of(environ: Mapping[str, str]) -> str:
    """A machine with a GPU that its job can hide from itself."""
    return GPU if environ.get("CUDA_VISIBLE_DEVICES", "0") else "cpu-test"


def software_of(gpu: str, environ: Mapping[str, str]) -> Environment:
    return Environment(environ.get("ATEN_CPU_CAPABILITY", ENVIRONMENT), {"torch": "2.13"})


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings of a worker that detects its GPU, software and cache root."""
    monkeypatch.setattr("kstore.origin.gpu_slug", graphics_of)
    monkeypatch.setattr("kstore.origin.detect_environment", software_of)
    return {"store": tmp_path / "store"}


def compile_kernel(name: str = "one") -> None:
    """Compile into the folder that the variables name."""
    Tree(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).parent).wrapper(name)


# ---- Variables

CHANGES = {"CUDA_VISIBLE_DEVICES": "", "ATEN_CPU_CAPABILITY": "avx2", "KSTORE_CACHE_ROOT": "other"}


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_a_job_may_set_variables_that_would_have_meant_another_cache_root(
    found: dict[str, Any], monkeypatch: pytest.MonkeyPatch, name: str, live: bool
) -> None:
    with kstore.synchronized(KEY, live=live, **found) as block:
        compile_kernel()
        monkeypatch.setenv(name, CHANGES[name])
    assert published(found) == 1
    assert (block.committed.gpu, block.committed.environment) == (GPU, ENVIRONMENT)


def test_a_commit_by_hand_is_of_the_scope_that_was_restored(
    found: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kstore.restore(KEY, **found)
    compile_kernel()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert kstore.commit(KEY, **found).gpu == GPU
    assert published(found) == 1


def test_an_inner_block_commits_what_it_found_and_the_outer_one_what_that_had(
    found: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with kstore.synchronized(KEY, **found) as outer:
        compile_kernel()
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        with kstore.synchronized(KEY, **found) as inner:
            compile_kernel("two")
    assert [block.committed.gpu for block in (outer, inner)] == [GPU, "cpu-test"]
    assert [block.committed.new_files for block in (outer, inner)] == [1, 1]


def test_a_child_that_was_forked_commits_by_hand_what_its_parent_restored(
    found: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kstore.restore(KEY, **found)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    child = os.fork()
    if not child:
        compile_kernel()
        os._exit(kstore.commit(KEY, **found).new_files)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_a_process_that_has_restored_nothing_commits_as_it_is(
    found: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kstore.restore("another/v1", **found)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert kstore.commit(KEY, **found).gpu == "cpu-test"


# ---- Several keys

OTHER = "other/v1"


def test_a_process_that_restores_many_keys_remembers_its_variables_once(
    found: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LARGE", "x" * 123_456)
    kstore.restore(OTHER, **found)
    tracemalloc.start()
    try:
        for number in range(20):
            kstore.restore(f"model/v{number}", **found)
        sizes = [trace.size for trace in tracemalloc.take_snapshot().traces]  # those of other threads, too
        assert sum(123_456 <= size < 123_600 for size in sizes) < 5
    finally:
        tracemalloc.stop()


def root_of(report: kstore.RestoreReport) -> str:
    return f"{report.cache_root}/inductor"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings about compilers that are redirected elsewhere."""
    return [line.getMessage() for line in caplog.records if "from now on" in line.getMessage()]


@pytest.mark.parametrize("live", [False, True])
def test_what_is_compiled_after_a_block_of_another_key_is_of_the_outer_one(found: dict[str, Any], live: bool) -> None:
    with kstore.synchronized(KEY, live=live, **found) as outer:
        compile_kernel("one")
        with kstore.synchronized(OTHER, live=live, **found) as inner:
            compile_kernel("other")
        compile_kernel("two")
    assert (outer.committed.new_files, inner.committed.new_files) == (2, 1)


def test_what_is_compiled_after_deeply_nested_blocks_or_a_failed_body_is_of_the_outer_one(
    found: dict[str, Any],
) -> None:
    committed = {}

    def warm_up(depth: int) -> None:
        with kstore.synchronized(f"model/v{depth}", **found) as block:
            if depth < 3:
                with suppress(Failure):
                    warm_up(depth + 1)
            compile_kernel(str(depth))
            committed[depth] = block
            raise Failure

    with pytest.raises(Failure):
        warm_up(1)
    assert [block.committed.new_files for block in committed.values()] == [1, 1, 1]


@pytest.mark.parametrize("way", ["strict", "strict_hits"])
def test_what_is_compiled_after_a_block_that_could_not_be_entered_is_of_the_outer_one(
    found: dict[str, Any], tmp_path: Path, way: str
) -> None:
    (tmp_path / "unusable").mkdir()
    (tmp_path / "unusable/kstore.json").write_text("{")
    store = tmp_path / "unusable" if way == "strict" else found["store"]
    with kstore.synchronized(KEY, **found) as block:
        with pytest.raises(kstore.KstoreError), kstore.synchronized(OTHER, store=store, **{way: True}):
            compile_kernel("never")
        compile_kernel()
    assert block.committed.new_files == 1


def test_what_is_compiled_after_a_block_whose_commit_failed_is_of_the_outer_one(
    found: dict[str, Any], tmp_path: Path
) -> None:
    with kstore.synchronized(KEY, **found) as block:
        with pytest.raises(kstore.StoreUnavailable), kstore.synchronized(OTHER, store=tmp_path / "lost", strict=True):
            compile_kernel("never")
            (tmp_path / "lost").write_text("no folder")
        compile_kernel()
    assert block.committed.new_files == 1


def test_what_is_committed_on_sigterm_is_for_the_gpu_that_the_block_began_with(
    found: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block inside it has begun with the key anew."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        with kstore.synchronized(KEY, **found) as block:
            with monkeypatch.context() as hidden:
                hidden.setenv("CUDA_VISIBLE_DEVICES", "")
                with kstore.synchronized(KEY, **found) as inner:
                    pass
            compile_kernel()
            signal.raise_signal(signal.SIGTERM)
            assert (inner.committed.gpu, block.committed.gpu, published(found)) == ("cpu-test", GPU, 1)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_block_that_could_not_be_entered_leaves_what_was_restored_by_hand_in_use(
    found: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    kstore.restore(KEY, **found)
    with pytest.raises(kstore.MissError), kstore.synchronized(KEY, strict_hits=True, **found):
        pass
    kstore.restore(OTHER, **found)
    assert len(warnings(caplog)) == 1


def test_what_is_compiled_after_a_block_of_another_key_is_of_the_key_restored_by_hand(found: dict[str, Any]) -> None:
    kstore.restore(KEY, **found)
    with kstore.synchronized(OTHER, **found):
        compile_kernel("other")
    compile_kernel("one")
    assert kstore.commit(KEY, **found).new_files == 1


def test_a_block_alone_leaves_the_variables_so_that_late_kernels_go_to_its_root(found: dict[str, Any]) -> None:
    for key in (KEY, OTHER):
        with kstore.synchronized(key, **found) as block:
            pass
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == root_of(block.restored)


def test_variables_are_not_put_back_to_a_key_that_was_committed(found: dict[str, Any]) -> None:
    kstore.restore(KEY, **found)
    with kstore.synchronized(OTHER, **found) as block:
        kstore.commit(KEY, **found)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == root_of(block.restored)


def test_what_the_job_has_set_in_the_block_is_left_alone(found: dict[str, Any], tmp_path: Path) -> None:
    with kstore.synchronized(KEY, **found), kstore.synchronized(OTHER, **found):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)


def test_a_job_that_restores_another_key_before_the_commit_is_told_where_compilers_write(
    found: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    kstore.restore(KEY, **found)
    kstore.restore(OTHER, **found)
    assert warnings(caplog) == [
        f"kstore: from now on compilers write into the cache root of {OTHER}, not into that of {KEY}, which is in use"
    ]


def test_a_job_that_restores_its_key_into_another_root_is_told_where_compilers_write(
    found: dict[str, Any], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        kstore.restore(KEY, cache_root=tmp_path / name, **found)
    where = f"the cache root of {KEY}, not into the one that it had, which is in use"
    assert warnings(caplog) == [f"kstore: from now on compilers write into {where}"]


def test_a_job_that_leads_a_compiler_elsewhere_after_the_restore_is_told_what_stays_out(
    found: dict[str, Any], caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kstore.synchronized(KEY, **found) as block:
        compile_kernel("before")
        before = os.environ["TORCHINDUCTOR_CACHE_DIR"]
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "elsewhere"))
        Tree(tmp_path).put("elsewhere/ab/cafter.py", b"after")
    assert block.committed.new_files == 1
    told = [text for text in caplog.messages if "after kstore had set it" in text]
    assert len(told) == 1
    assert f"TORCHINDUCTOR_CACHE_DIR was changed to {tmp_path / 'elsewhere'} " in told[0] and before in told[0]


def test_nobody_is_told_of_a_folder_that_a_compiler_is_led_to_for_a_while(
    found: dict[str, Any], caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by torch's `fresh_cache`."""
    with kstore.synchronized(KEY, live=True, settle=0.05, every=0.1, **found) as block:
        compile_kernel("before")
        with monkeypatch.context() as patched:
            patched.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "fresh"))
            Tree(tmp_path).put("fresh/ab/cafter.py", b"after")
            until = time.monotonic() + 30
            while len(block.checkpoints) < 1 and time.monotonic() < until:
                time.sleep(0.01)
    assert block.committed.new_files >= 1
    assert "after kstore had set it" not in caplog.text


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("on_error", ["commit", "discard"])
def test_nobody_is_told_of_a_key_that_is_done_with_or_restored_again(
    found: dict[str, Any], caplog: pytest.LogCaptureFixture, live: bool, on_error: str
) -> None:
    with suppress(Failure), kstore.synchronized(KEY, live=live, on_error=on_error, **found):
        kstore.restore(KEY, **found)
        raise Failure
    kstore.restore(OTHER, **found)
    kstore.commit(OTHER, **found)
    kstore.restore(KEY, **found)
    assert warnings(caplog) == []


def test_a_worker_that_only_reads_is_told_of_no_key_because_it_loses_nothing(
    found: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    for key in (KEY, OTHER):
        kstore.restore(key, mode="read", **found)
    assert warnings(caplog) == []


# ---- Several children


def test_a_launcher_may_restore_one_key_for_children_with_variables_of_their_own(tmp_path: Path) -> None:
    children = {}
    for gpu in ("gpu-a", "gpu-b"):
        children[gpu] = {
            "KSTORE_ROOT": str(tmp_path / "store"),
            "KSTORE_CACHE_ROOT": str(tmp_path / gpu),
            "KSTORE_GPU": gpu,
            "KSTORE_ENVIRONMENT": ENVIRONMENT,
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / f"chosen-for-{gpu}/inductor"),
        }
        kstore.restore(KEY, environ=children[gpu])
    wrappers = {gpu: Tree(tmp_path / f"chosen-for-{gpu}").wrapper(gpu) for gpu in children}
    for gpu, environ in children.items():
        report = kstore.commit(KEY, environ=environ)
        assert (report.gpu, report.cache_root, report.new_files) == (gpu, environ["KSTORE_CACHE_ROOT"], 1)
        store = kstore.Store(tmp_path / "store", gpu=gpu, environment=ENVIRONMENT, environ={})
        newest = store.newest(store.scope(KEY))
        assert newest and list(store.snapshot(newest).manifest.files) == [wrappers[gpu]]
