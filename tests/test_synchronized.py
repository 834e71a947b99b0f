"""`kstore.synchronized` whose body is called inside itself, in threads, in children, and in other folders."""

from __future__ import annotations

import asyncio
import atexit
import fcntl
import importlib
import logging
import os
import re
import signal
import threading
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

import kstore
from kstore import redirect
from kstore.errors import UsageError
from kstore.report import CommitStatus
from tests.trees import ENVIRONMENT, GPU, KEY, Tree, contents
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("host")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """What is in the cache root."""
    return Tree(tmp_path / "root")


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    return {"store": tmp_path / "store", "cache_root": tmp_path / "root", "gpu": GPU, "environment": ENVIRONMENT}


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """Afterwards SIGTERM must be handled as before."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    assert signal.getsignal(signal.SIGTERM) == before


class OutOfMemory(Exception):
    """The job's own error, after which it would try a smaller batch."""


def published(settings: dict[str, Any]) -> int:
    """How many files are published."""
    store = kstore.Store(settings["store"], gpu=GPU, environment=ENVIRONMENT)
    ref = store.newest(store.scope(KEY))
    return ref.files if ref else 0


# ---- Calls in calls


@pytest.mark.parametrize("live", [False, True])
def test_a_function_may_call_itself(tree: Tree, settings: dict[str, Any], live: bool) -> None:
    @kstore.synchronized(KEY, live=live, **settings)
    def warm_up(depth: int) -> None:
        tree.wrapper(str(depth))
        if depth:
            warm_up(depth - 1)

    warm_up(2)
    assert published(settings) == 3


@pytest.mark.parametrize("live", [False, True])
def test_a_block_may_be_entered_in_itself_and_goes_on_afterwards(
    tree: Tree, settings: dict[str, Any], live: bool
) -> None:
    before = threading.active_count()
    block = kstore.synchronized(KEY, live=live, settle=3600, **settings)
    with block:
        tree.wrapper("one")
        with block:
            tree.wrapper("two")
        assert (block.restored.generation, block.committed.new_files) == (0, 2)
        tree.wrapper("three")
    assert (published(settings), block.committed.new_files) == (3, 1)
    until(lambda: threading.active_count() <= before)


def test_a_block_that_was_entered_in_itself_says_at_its_end_what_it_had_restored(
    tree: Tree, settings: dict[str, Any]
) -> None:
    block = kstore.synchronized(KEY, **settings)
    with block:
        restored = block.restored
        tree.wrapper()
        for generation in 0, 1:
            with block:
                assert block.restored.generation == generation
    assert block.restored is restored


def test_a_block_that_was_entered_in_itself_still_commits_when_the_process_is_told_to_end(
    tree: Tree, settings: dict[str, Any]
) -> None:
    ended: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
    block = kstore.synchronized(KEY, **settings)
    try:
        with block:
            with block:
                pass
            tree.wrapper()
            signal.raise_signal(signal.SIGTERM)
            assert (published(settings), ended) == (1, [signal.SIGTERM])
    finally:
        signal.signal(signal.SIGTERM, before)


def test_modules_may_be_loaded_anew_in_a_block(tree: Tree, settings: dict[str, Any]) -> None:
    """As notebooks do with modules that have changed."""
    with kstore.synchronized(KEY, **settings):
        tree.wrapper("one")
        importlib.reload(kstore)
        importlib.reload(redirect)
    assert published(settings) == 1


def test_a_function_may_run_in_several_threads(tree: Tree, settings: dict[str, Any]) -> None:
    together = Barrier(3)

    @kstore.synchronized(KEY, live=True, **settings)
    def warm_up(name: str) -> None:
        together.wait(60)
        tree.wrapper(name)
        together.wait(60)

    threads = [Thread(target=warm_up, args=(name,)) for name in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert published(settings) == 3


async def coroutine() -> None:
    pass


def generator() -> Iterator[None]:
    yield


class Coroutine:
    async def __call__(self) -> None:
        pass


LATE = {
    "coroutine": coroutine,
    "generator": generator,
    "partial": partial(coroutine),
    "object": Coroutine(),
    "static method": staticmethod(coroutine),
}


@pytest.mark.parametrize("function", LATE.values(), ids=LATE)
def test_what_works_after_it_was_called_is_refused(function: Callable[[], object], settings: dict[str, Any]) -> None:
    name = re.escape(getattr(function, "__qualname__", repr(function)))
    with pytest.raises(UsageError, match=f"{name} .*with kstore.synchronized"):
        kstore.synchronized(KEY, **settings)(function)


def test_a_coroutine_that_another_decorator_runs_to_its_end_is_a_function(tree: Tree, settings: dict[str, Any]) -> None:
    async def compile_one() -> None:
        tree.wrapper()

    @kstore.synchronized(KEY, **settings)
    @wraps(compile_one)
    def warm_up() -> None:
        asyncio.run(compile_one())

    warm_up()
    assert published(settings) == 1


def test_a_coroutine_that_another_decorator_defers_ends_the_block(tree: Tree, settings: dict[str, Any]) -> None:
    async def compile_one() -> str:
        tree.wrapper()
        await asyncio.sleep(0)
        tree.wrapper("two")
        return "compiled"

    @kstore.synchronized(KEY, **settings)
    @wraps(compile_one)
    def warm_up() -> Any:
        return compile_one()

    assert asyncio.run(warm_up()) == "compiled"
    assert published(settings) == 2


def test_what_a_deferred_coroutine_raises_goes_on_and_what_it_compiled_is_kept(
    tree: Tree, settings: dict[str, Any]
) -> None:
    async def fail() -> None:
        tree.wrapper()
        raise OutOfMemory

    with pytest.raises(OutOfMemory):
        asyncio.run(kstore.synchronized(KEY, **settings)(lambda: fail())())
    assert published(settings) == 1


@pytest.mark.parametrize("ending", ["cancelled", "closed", "forgotten"])
def test_a_deferred_coroutine_that_nobody_runs_ends_the_block_as_well(
    tree: Tree, settings: dict[str, Any], ending: str
) -> None:
    async def nothing() -> None:
        pass

    def compile_one() -> Any:
        tree.wrapper()
        return nothing()

    async def cancel() -> None:
        task = asyncio.get_running_loop().create_task(kstore.synchronized(KEY, **settings)(compile_one)())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # It was never awaited.
        if ending == "cancelled":
            asyncio.run(cancel())
        else:
            deferred = kstore.synchronized(KEY, **settings)(compile_one)()
            assert published(settings) == 0
            if ending == "closed":
                deferred.close()
            del deferred
    assert published(settings) == 1


def test_what_is_logged_by_a_handler_that_fails_is_no_trouble_of_the_jobs(tree: Tree, settings: dict[str, Any]) -> None:
    class Failing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise ConnectionError("there is no log server")

    log, handler = logging.getLogger("kstore"), Failing()
    before = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        with kstore.synchronized(KEY, **settings) as cache:
            tree.wrapper()
        assert cache.committed.status is CommitStatus.COMMITTED
        assert kstore.restore(KEY, **{**settings, "store": "/dev/null/store"}).error
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def test_a_class_is_refused_as_it_would_become_a_function(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="Tree is a class"):
        kstore.synchronized(KEY, **settings)(Tree)


def test_a_class_method_is_refused_as_it_cannot_be_called_yet(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="contents is already a class method; put `@classmethod` above"):
        kstore.synchronized(KEY, **settings)(classmethod(contents))


def test_a_function_that_is_decorated_without_a_key_is_refused() -> None:
    decorate: Any = kstore.synchronized
    with pytest.raises(UsageError, match='is not text, such as "my-model/v1"'):
        decorate(contents)


def test_methods_of_all_kinds_may_be_decorated(tree: Tree, settings: dict[str, Any]) -> None:
    class Model:
        @classmethod
        @kstore.synchronized(KEY, **settings)
        def warm_up_all(cls) -> None:
            tree.wrapper("one")

        @kstore.synchronized(KEY, **settings)
        @staticmethod
        def warm_up_any() -> None:
            tree.wrapper("two")

        @kstore.synchronized(KEY, **settings)
        def warm_up(self) -> None:
            tree.wrapper("three")

    Model.warm_up_all()
    Model.warm_up_any()
    Model().warm_up()
    assert published(settings) == 3


def test_objects_that_are_called_may_be_decorated(tree: Tree, settings: dict[str, Any]) -> None:
    kstore.synchronized(KEY, **settings)(partial(tree.wrapper, "one"))()
    assert published(settings) == 1


@pytest.mark.parametrize("verb", ["restore", "commit"])
def test_a_time_limit_of_the_job_ends_what_waits_for_its_cache(
    tree: Tree, settings: dict[str, Any], verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Celery's and rq's limits, whose signal handlers raise errors that are no trouble with a store."""

    class JobTimeout(Exception):
        pass

    def expire(number: int, frame: object) -> None:
        raise JobTimeout

    lock = tree.root / ".kstore/lock"
    lock.parent.mkdir(parents=True)
    with open(lock, "w") as file:  # another process's lock
        fcntl.flock(file, fcntl.LOCK_EX)
        before = signal.signal(signal.SIGALRM, expire)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            with pytest.raises(JobTimeout):
                getattr(kstore, verb)(KEY, **settings)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def test_what_a_commit_leaves_out_is_a_warning(
    tree: Tree, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    tree.wrapper()
    tree.put("triton/HALF/k.ttir", b"ttir")
    with kstore.synchronized(KEY, **settings):
        pass
    (line,) = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert line.startswith(
        f"kstore: a commit of {KEY} left out 1 of the items in its cache root, for example triton/HALF: "
    )


def test_a_daemon_that_was_made_in_the_block_is_told_that_nothing_is_committed(
    tree: Tree, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    block = kstore.synchronized(KEY, **settings)
    block.__enter__()
    tree.wrapper()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1)
        patch.setattr(os, "kill", gone)
        block.__exit__(None, None, None)
    assert f"nothing is committed to {KEY}: this process was forked in its block" in caplog.text
    block.__exit__(None, None, None)
    assert published(settings) == 1


def gone(process: int, number: int) -> None:
    raise ProcessLookupError


def test_a_child_that_was_forked_in_the_block_commits_nothing(tree: Tree, settings: dict[str, Any]) -> None:
    with kstore.synchronized(KEY, **settings) as block:
        tree.wrapper()
        child = os.fork()
        if not child:
            block.__exit__(None, None, None)
            os._exit(published(settings))
        assert os.waitpid(child, 0)[1] == 0
    assert published(settings) == 1


# ---- The folder of the process


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("where", ["argument", "variable", "file"])
def test_a_job_may_change_its_folder(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, live: bool
) -> None:
    given: dict[str, Any] = {"gpu": GPU, "environment": ENVIRONMENT}
    if where == "argument":
        given |= {"store": "store", "cache_root": "root"}
    elif where == "variable":
        monkeypatch.setenv("KSTORE_ROOT", "store")
        monkeypatch.setenv("KSTORE_CACHE_ROOT", "root")
    else:
        (tmp_path / "kstore.toml").write_text('store = "store"\ncache_root = "root"\n')
    (tmp_path / "out").mkdir()
    with kstore.synchronized(KEY, live=live, **given):
        tree.wrapper()
        monkeypatch.chdir("out")
    assert published({"store": tmp_path / "store"}) == 1


def test_a_commit_by_hand_goes_where_the_restore_came_from(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"store": "store", "cache_root": "root", "gpu": GPU, "environment": ENVIRONMENT}
    kstore.restore(KEY, **given)
    tree.wrapper()
    monkeypatch.chdir("/")
    assert kstore.commit(KEY, **given).new_files == 1
    assert contents(tmp_path / "store")


def test_what_a_restore_was_given_a_later_commit_need_not_be_given_again(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kstore.restore(KEY, store="store", cache_root="root", gpu=GPU, environment=ENVIRONMENT)
    tree.wrapper()
    monkeypatch.chdir("/")
    report = kstore.commit(KEY)
    assert (report.new_files, report.gpu, report.environment) == (1, GPU, ENVIRONMENT)
    assert (report.store, report.cache_root) == (str(tmp_path / "store"), str(tmp_path / "root"))
    tree.wrapper("two")
    assert kstore.watch(KEY).stop().new_files == 1


def test_what_it_is_given_itself_comes_first(tree: Tree, tmp_path: Path) -> None:
    kstore.restore(KEY, store="store", cache_root="root", gpu=GPU, environment=ENVIRONMENT)
    tree.wrapper()
    assert kstore.commit(KEY, store=tmp_path / "other").new_files == 1
    assert [folder for folder in ("store", "other") if (tmp_path / folder).exists()] == ["other"]


def test_a_restore_that_is_given_nothing_begins_anew(tree: Tree, tmp_path: Path, settings: dict[str, Any]) -> None:
    kstore.restore(KEY, **settings, generation=None, seed=None)
    kstore.restore(KEY, store="another", cache_root=settings["cache_root"], gpu=GPU, environment=ENVIRONMENT)
    tree.wrapper()
    assert kstore.commit(KEY).store == str(tmp_path / "another")


def test_a_folder_that_has_been_removed_is_no_trouble(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir("gone")
    (tmp_path / "gone").rmdir()
    with kstore.synchronized(KEY, live=True, **settings):
        tree.wrapper()
    assert published(settings) == 1
    with pytest.raises(UsageError, match="relative, and the current folder has been removed"):
        kstore.restore(KEY, store="store")


@pytest.mark.parametrize("live", [False, True])
def test_a_relative_folder_of_the_users_is_where_it_was(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, live: bool
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "mine")
    (tmp_path / "out").mkdir()
    with kstore.synchronized(KEY, live=live, **settings):
        Tree(tmp_path).put("mine/aa/one.py", b"one")
        monkeypatch.chdir("out")
    assert published(settings) == 1


@pytest.mark.parametrize("live", [False, True])
def test_a_file_of_settings_that_the_job_writes_is_not_read(
    tree: Tree, tmp_path: Path, settings: dict[str, Any], live: bool
) -> None:
    with kstore.synchronized(KEY, live=live, **settings) as block:
        tree.wrapper()
        (tmp_path / "kstore.toml").write_text('name = "of the job"\n')
    assert block.committed.new_files == 1


# ---- Its end


@pytest.mark.parametrize("live", [False, True])
def test_what_the_body_raised_goes_on_though_the_commit_was_to_raise_too(
    tree: Tree, tmp_path: Path, settings: dict[str, Any], caplog: pytest.LogCaptureFixture, live: bool
) -> None:
    with pytest.raises(OutOfMemory), kstore.synchronized(KEY, live=live, strict=True, **settings) as block:
        tree.wrapper()
        (tmp_path / "store").write_text("no folder")
        raise OutOfMemory
    assert block.committed.status is CommitStatus.FAILED
    assert f"commit of {KEY} failed" in caplog.text


@pytest.mark.parametrize("live", [False, True])
def test_a_strict_commit_that_fails_raises_if_the_body_did_not(
    tree: Tree, tmp_path: Path, settings: dict[str, Any], live: bool
) -> None:
    with pytest.raises(kstore.StoreUnavailable), kstore.synchronized(KEY, live=live, strict=True, **settings):
        tree.wrapper()
        (tmp_path / "store").write_text("no folder")


def test_what_the_body_raised_goes_on_though_hits_were_required(
    tree: Tree, settings: dict[str, Any], tmp_path: Path
) -> None:
    tree.wrapper()
    kstore.commit(KEY, **settings)
    job = {**settings, "cache_root": tmp_path / "another", "strict_hits": True}
    with pytest.raises(OutOfMemory), kstore.synchronized(KEY, **job):
        raise OutOfMemory


def test_what_the_body_raised_goes_on_though_the_store_hangs_when_the_lease_is_given_up(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()
    monkeypatch.setattr(kstore.Store, "release", lambda *what: answer.wait(60))
    with pytest.raises(OutOfMemory), kstore.synchronized(KEY, on_error="discard", grace_period=0.1, **settings):
        raise OutOfMemory
    answer.set()


def test_a_job_that_goes_on_after_sigterm_hears_only_in_its_log_that_nothing_was_committed(
    tree: Tree, tmp_path: Path, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    try:
        with pytest.raises(OutOfMemory), kstore.synchronized(KEY, strict=True, **settings):
            tree.wrapper()
            (tmp_path / "store").write_text("no folder")
            signal.raise_signal(signal.SIGTERM)
            assert f"commit of {KEY} failed" in caplog.text
            raise OutOfMemory
    finally:
        signal.signal(signal.SIGTERM, before)
    assert told == [signal.SIGTERM]


def test_a_cache_root_that_hangs_does_not_hold_up_the_report_on_its_use(
    tree: Tree, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.wrapper()
    kstore.commit(KEY, **settings)
    answer = threading.Event()
    monkeypatch.setattr("kstore.job.usage_of", lambda *what: answer.wait(60))
    with kstore.synchronized(KEY, timeout=5, **{**settings, "cache_root": tmp_path / "another"}) as block:
        block._settings["timeout"] = 0.5
    answer.set()
    assert "reading the cache root" in block.usage.why_unknown


@pytest.mark.parametrize("live", [False, True])
def test_a_block_that_was_left_leaves_nothing_to_do_at_the_end_of_the_process(
    settings: dict[str, Any], live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave() -> None:
        with suppress(OutOfMemory), kstore.synchronized(KEY, live=live, **settings):
            assert len(left) < 2, "a watch has its own"
            raise OutOfMemory

    left: list[Callable[[], object]] = []
    leave()  # What is imported meanwhile may have something of its own to do.
    monkeypatch.setattr(atexit, "register", left.append)
    monkeypatch.setattr(atexit, "unregister", left.remove)
    leave()
    assert left == []


@pytest.mark.parametrize("live", [False, True])
def test_a_generator_that_is_closed_early_has_not_failed(tree: Tree, settings: dict[str, Any], live: bool) -> None:
    def batches() -> Generator[int]:
        with kstore.synchronized(KEY, live=live, on_error="discard", **settings):
            tree.wrapper()
            yield 1
            yield 2

    running = batches()
    assert next(running) == 1
    running.close()
    assert published(settings) == 1


def test_a_generator_that_is_closed_early_in_a_watch_has_not_failed(tree: Tree, settings: dict[str, Any]) -> None:
    def batches() -> Generator[int]:
        kstore.restore(KEY, **settings)
        with kstore.watch(KEY, on_error="discard", **settings):
            tree.wrapper()
            yield 1

    running = batches()
    next(running)
    running.close()
    assert published(settings) == 1


def test_a_job_that_requires_hits_hears_of_it_when_the_generator_is_closed(
    tree: Tree, settings: dict[str, Any], tmp_path: Path
) -> None:
    tree.wrapper()
    kstore.commit(KEY, **settings)

    def batches() -> Generator[int]:
        with kstore.synchronized(KEY, strict_hits=True, **{**settings, "cache_root": tmp_path / "another"}):
            yield 1

    running = batches()
    next(running)
    with pytest.raises(kstore.MissError, match="nothing of what was restored was used"):
        running.close()


@pytest.mark.parametrize("live", [False, True])
def test_a_strict_block_in_a_generator_that_is_closed_raises_a_failed_commit(
    tree: Tree, tmp_path: Path, settings: dict[str, Any], live: bool
) -> None:
    def batches() -> Generator[int]:
        with kstore.synchronized(KEY, live=live, strict=True, **settings):
            tree.wrapper()
            (tmp_path / "store").write_text("no folder")
            yield 1

    running = batches()
    next(running)
    with pytest.raises(kstore.StoreUnavailable):
        running.close()


def test_a_miss_with_strict_hits_says_what_was_looked_for(settings: dict[str, Any]) -> None:
    told = f"nothing is restored for {KEY} on {GPU}, {ENVIRONMENT}: nothing is published; leave out strict_hits"
    with pytest.raises(kstore.MissError, match=told), kstore.synchronized(KEY, strict_hits=True, **settings):
        pass


def test_damage_with_strict_hits_is_reported(tree: Tree, settings: dict[str, Any], tmp_path: Path) -> None:
    tree.wrapper()
    kstore.commit(KEY, **settings, layout="loose")
    for blob in Path(settings["store"]).glob("blobs/*/*"):
        if blob.stat().st_size < 4096:
            blob.unlink()
    another = {**settings, "cache_root": tmp_path / "another"}
    told = "none of the 1 file of generation 1 could be; leave out strict_hits"
    with pytest.raises(kstore.MissError, match=told), kstore.synchronized(KEY, strict_hits=True, **another):
        pass


def test_the_command_that_says_why_is_for_the_same_store_and_cache_root(
    tree: Tree, settings: dict[str, Any], tmp_path: Path
) -> None:
    tree.wrapper()
    kstore.commit(KEY, **settings)
    another = {**settings, "cache_root": tmp_path / "another"}
    where = f"--store {settings['store']} --cache-root {tmp_path}/another --gpu {GPU} --environment {ENVIRONMENT}"
    told = re.escape(f"`kstore why {KEY} {where}`")
    with pytest.raises(kstore.MissError, match=told), kstore.synchronized(KEY, strict_hits=True, **another):
        pass
