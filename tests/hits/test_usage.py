"""What the files of a cache root, and torch's counters, tell about the use of what was restored."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from kstore.errors import WaitTimeout
from kstore.hits import Usage, UsageReport, unknowable, usage_of
from kstore.hits.counters import Counters
from kstore.hits.evidence import CHANGED_IN_PLACE, NO_ACCESS_TIMES, READ_BEFORE, usage_in
from kstore.hits.lastrun import last_run
from kstore.local.finished import Unfinished
from kstore.local.reading import read_finished
from kstore.report import CommitReport, CommitStatus, RestoreReport, RestoreStatus
from tests.trees import KEY, Node, before_each_read, failing_to_read, shared_object

OTHER = "other/v1"

pytestmark = pytest.mark.usefixtures("host")


def let_the_clock_move(node: Node) -> None:
    """Filesystems stamp by a clock that moves every few milliseconds: a restore and a read must not share a tick."""
    probe = node.tree.root / ".kstore" / "probe"
    probe.touch()
    first = probe.stat().st_mtime_ns
    while probe.stat().st_mtime_ns == first:
        time.sleep(0.001)
        os.utime(probe)
    probe.unlink()


@pytest.fixture(params=["loose", "packed"])
def published(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A store with two Inductor graphs and two Triton kernels."""
    node = Node(tmp_path, "builder", layout=request.param)
    for name in ("one", "two"):
        node.tree.wrapper(name)
        node.tree.graph(f"f{name}")
        node.tree.kernel(name)
    node.commit()
    return tmp_path


@pytest.fixture
def node(published: Path) -> Node:
    """A worker that has just restored it."""
    node = Node(published, layout=None)
    assert node.restore().status is RestoreStatus.RESTORED
    let_the_clock_move(node)
    return node


def read(node: Node, pattern: str) -> None:
    for path in node.tree.root.glob(pattern):
        path.read_bytes()


def read_all(node: Node) -> None:
    read(node, "inductor/fxgraph/*/*/*")
    read(node, "triton/*/*")


def usage(node: Node) -> UsageReport:
    return usage_of(node.store, KEY)


def test_what_is_read_hits(node: Node) -> None:
    read(node, "inductor/fxgraph/*/fone/*")
    read(node, "triton/*/k.cubin")

    assert usage(node).components == {"inductor": Usage(2, 1), "triton": Usage(2, 2)}
    assert usage(node).generation == 1


def test_what_nobody_reads_is_unused(node: Node) -> None:
    found = usage(node)

    assert found.components == {"inductor": Usage(2, 0), "triton": Usage(2, 0)}
    assert found.unused == ("inductor", "triton")
    assert found.missed == 0


def test_what_the_cuda_driver_keeps_is_no_reason_to_call_the_rest_used(published: Path) -> None:
    builder = Node(published, "builder", layout=None)
    builder.tree.put("cuda/3/7/4cf0818fcafde6", b"machine code")
    builder.commit()
    node = Node(published, "later", layout=None)
    node.restore()
    let_the_clock_move(node)
    node.tree.put("cuda/b/c/f5818c0b0a8ec1", b"machine code")

    found = usage(node)
    assert found.unused == ("inductor", "triton")
    assert found.has_failed


def test_a_component_that_nobody_asked_for_is_not_called_unused_where_another_was_used(node: Node) -> None:
    """Torch may find everything it needs in its graphs, and then it asks for no Triton kernel."""
    read(node, "inductor/fxgraph/*/*/*")

    assert usage(node).unused == ()


def test_a_component_that_had_to_compile_counts_as_unused(node: Node) -> None:
    read(node, "inductor/fxgraph/*/*/*")
    node.tree.kernel("three")

    found = usage(node)
    assert found.components["triton"] == Usage(2, 0, misses=1, compiled=8)
    assert (found.unused, found.missed) == (("triton",), 1)


def test_a_commit_in_between_changes_nothing(node: Node) -> None:
    read(node, "inductor/fxgraph/*/fone/*")
    node.tree.graph("fthree")
    before = usage(node)
    node.commit()

    assert usage(node) == before
    assert before.components["inductor"] == Usage(2, 1, misses=1, compiled=1)


def test_a_store_that_cannot_be_read_meanwhile_is_not_asked(node: Node, published: Path) -> None:
    read(node, "inductor/fxgraph/*/fone/*")
    node.location.rename(published / "away")
    node.location.write_text("no folder")

    assert usage(Node(published)).components == {"inductor": Usage(2, 1), "triton": Usage(2, 0)}


def test_a_second_answer_to_a_key_is_a_miss(node: Node) -> None:
    node.tree.graph("fone", "for another guard")

    assert usage(node).components["inductor"].misses == 1


@pytest.mark.parametrize("is_read", [False, True])
def test_a_graph_that_is_copied_over_the_one_that_was_restored_was_not_compiled(node: Node, is_read: bool) -> None:
    """As torch does when it loads a mega-cache that holds the same graphs."""
    for path in node.tree.root.glob("inductor/fxgraph/*/*/*"):
        copy = path.with_name("copy")
        copy.write_bytes(path.read_bytes())
        copy.replace(path)
    let_the_clock_move(node)
    if is_read:
        read_all(node)

    report = usage(node)

    assert report.components["inductor"] == Usage(restored=2, hits=2 if is_read else 0)
    assert not report.missed


def test_an_entry_that_is_compiled_again_under_its_name_is_a_miss(tmp_path: Path) -> None:
    """AOT entries have the same name each time, and other bytes."""
    builder, node = Node(tmp_path, "builder"), Node(tmp_path)
    builder.tree.put("inductor/aotautograd/aone/entry", b"backward")
    builder.commit()
    node.restore()
    let_the_clock_move(node)
    node.tree.put("inductor/aotautograd/aone/entry", b"backward, compiled later")

    assert usage(node).components["inductor"] == Usage(restored=1, hits=0, misses=1, compiled=1)


def test_after_a_miss_all_is_compiled_anew(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.restore().status is RestoreStatus.MISS
    let_the_clock_move(node)
    node.tree.graph()
    node.tree.kernel()

    found = usage(node)
    assert found.components == {"inductor": Usage(0, 0, 1, 1), "triton": Usage(0, 0, 1, 8)}
    assert (found.generation, found.unused) == (0, ())


def test_the_sources_beside_graphs_are_no_entries(node: Node, published: Path) -> None:
    assert usage(node).components["inductor"].restored == 2

    cold = Node(published, "cold", layout=None)
    assert cold.restore(OTHER).status is RestoreStatus.MISS
    let_the_clock_move(cold)
    cold.tree.wrapper()
    cold.tree.graph()
    assert usage_of(cold.store, OTHER).components["inductor"] == Usage(0, 0, misses=1, compiled=2)


def test_leftovers_of_an_earlier_run_are_not_new(published: Path) -> None:
    node = Node(published, layout=None)
    node.tree.graph("fleft")
    let_the_clock_move_in(node)
    node.restore()

    assert usage(node).components["inductor"].compiled == 0


def let_the_clock_move_in(node: Node) -> None:
    (node.tree.root / ".kstore").mkdir(exist_ok=True)
    let_the_clock_move(node)


def test_nobody_can_tell_whether_what_was_read_before_a_second_restore_was_used(node: Node) -> None:
    read(node, "inductor/fxgraph/*/fone/*")
    let_the_clock_move(node)
    assert node.restore().status is RestoreStatus.CURRENT
    let_the_clock_move(node)
    read(node, "inductor/fxgraph/*/fone/*")

    found = usage(node)
    assert found.components["inductor"].hits in (None, 1)
    assert (found.why_unknown == READ_BEFORE) == (found.components["inductor"].hits is None)
    assert "inductor" not in found.unused


def test_nor_if_only_one_of_an_entrys_files_had_been_read(node: Node) -> None:
    for path in node.tree.root.glob("triton/*/k.*"):
        status = path.stat()  # A stamp may be later than now, within this second: then the next read is noted too.
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns - 2 * 10**9))
    let_the_clock_move(node)
    for path in node.tree.root.glob("triton/*"):
        min(path.glob("k.*")).read_bytes()
    let_the_clock_move(node)
    node.restore()

    found = usage(node)
    assert (found.components["triton"].hits, found.why_unknown) == (None, READ_BEFORE)


@pytest.mark.parametrize(("hours", "hits"), [(23, None), (25, 0)])
def test_a_file_that_was_read_more_than_a_day_ago_tells_of_the_next_read(
    node: Node, monkeypatch: pytest.MonkeyPatch, hours: int, hits: int | None
) -> None:
    """Linux then notes it, even if mounted relatime."""
    for path in node.tree.root.glob("inductor/fxgraph/*/*/*"):
        modified_ns = path.stat().st_mtime_ns - 10**10  # with its stamp, and not ahead of the clock
        os.utime(path, ns=(modified_ns, modified_ns))
    let_the_clock_move(node)
    read(node, "inductor/fxgraph/*/*/*")
    let_the_clock_move(node)
    node.restore()
    later_ns = time.time_ns() + hours * 3600 * 10**9
    monkeypatch.setattr("kstore.hits.evidence.time", SimpleNamespace(time_ns=lambda: later_ns))

    assert usage(node).components["inductor"].hits == hits


@pytest.mark.parametrize("published", ["loose"], indirect=True)
def test_a_file_whose_status_has_changed_since_it_was_read_tells_of_the_next_read(node: Node, tmp_path: Path) -> None:
    """For example, because another worker has linked it."""
    read(node, "triton/*/*")
    let_the_clock_move(node)
    for number, path in enumerate(node.tree.root.glob("triton/*/k.*")):
        os.link(path, tmp_path / str(number))
    node.restore()

    assert usage(node).components["triton"].hits == 0


def test_a_file_that_is_gone_before_it_is_looked_at_was_not_used(node: Node) -> None:
    worker = node.store.worker(KEY, before_import=False)
    run = last_run(worker)
    assert run
    read(node, "triton/*/*")
    shutil.rmtree(node.tree.root / "inductor" / "fxgraph")

    assert usage_in(worker, run).components == {"inductor": Usage(2, 0), "triton": Usage(2, 2)}


def test_what_kstore_itself_reads_was_not_used(node: Node) -> None:
    """The store's blobs are the same files, and a commit that heals reads the cache root."""
    assert node.store.verify(KEY).ok
    for path in node.tree.root.glob("triton/*/*"):
        read_finished(str(path))

    assert usage(node).components["triton"].hits == 0


def test_what_is_compiled_over_a_restored_kernel_is_a_miss(node: Node) -> None:
    """As with TRITON_ALWAYS_COMPILE: the same files, with the same bytes, written by the compiler."""
    folder = node.tree.kernel("one")
    read(node, "triton/*/k.cubin")

    found = usage(node).components["triton"]
    assert found == Usage(2, 1, misses=1, compiled=7)  # the list of the files is changed in place
    assert node.tree.has(f"{folder}/__grp__k.json")


@pytest.mark.parametrize("layout", ["loose", "packed"])
def test_an_object_that_is_built_again_is_a_miss(tmp_path: Path, layout: str) -> None:
    """For example, a torch extension in another cache root: the same file, which ninja writes in place."""
    builder, node = Node(tmp_path, "builder", layout=layout), Node(tmp_path, layout=None)
    for name in ("ext.o", "ext.so"):
        builder.tree.put(f"extensions/ext/{name}", shared_object())
    builder.commit()
    node.restore()
    let_the_clock_move(node)
    assert usage(node).components["extensions"].misses == 0

    (node.tree.root / "extensions/ext/ext.so").write_bytes(shared_object())
    assert usage(node).components["extensions"].misses == 1
    assert usage(node).has_failed


def test_a_kernel_that_is_written_in_place_is_a_miss_though_its_folder_is_as_it_was(tmp_path: Path) -> None:
    """As older QuACK does, straight to the kernel's name. It is a copy: nobody could tell it of a linked one."""
    builder, node = Node(tmp_path, "builder", layout="packed"), Node(tmp_path, layout=None)
    for name in ("one", "two"):
        builder.tree.put(f"quack/sources/{name}.o", shared_object())
    builder.commit()
    node.restore()
    let_the_clock_move(node)
    read(node, "quack/sources/two.o")
    (node.tree.root / "quack/sources/one.o").write_bytes(shared_object())

    assert usage(node).components["quack"] == Usage(restored=2, hits=1, misses=1, compiled=1)
    assert usage(node).has_failed


def test_what_is_not_there_was_not_restored(node: Node) -> None:
    for path in node.tree.root.glob("inductor/fxgraph/*/fone/*"):
        path.unlink()

    assert usage(node).components["inductor"].restored == 1


def test_a_job_that_requires_hits_fails_where_nothing_is_left_of_what_was_restored(node: Node) -> None:
    read(node, "inductor/fxgraph/*/*/*")
    shutil.rmtree(node.tree.root / "triton")
    assert (usage(node).is_gone, usage(node).has_failed) == (False, False)

    shutil.rmtree(node.tree.root / "inductor")
    found = usage(node)
    assert (found.generation, found.components) == (1, {})
    assert (found.is_gone, found.has_failed) == (True, True)


def test_what_torch_counted_was_used_whatever_is_left_of_it(node: Node) -> None:
    for component in ("inductor", "triton"):
        shutil.rmtree(node.tree.root / component)

    assert not usage_of(node.store, KEY, Counters(hits=2)).has_failed


def test_a_kernel_that_is_not_finished_was_compiled_all_the_same(node: Node) -> None:
    read_all(node)
    node.tree.put("triton/HALF/k.ttir", b"ttir", age=0)

    found = usage(node)
    assert found.components == {"inductor": Usage(2, 2), "triton": Usage(2, 2, misses=1, compiled=1)}
    assert found.has_failed


def test_a_kernel_that_is_not_finished_is_named_where_nothing_else_is(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.restore()
    let_the_clock_move(node)
    node.tree.put("triton/HALF/k.ttir", b"ttir", age=0)

    assert usage(node).components == {"triton": Usage(misses=1, compiled=1)}


def test_an_object_whose_compiler_holds_its_lock_was_compiled_all_the_same(node: Node) -> None:
    read_all(node)
    node.tree.put("inductor/ab/cab.main.so", shared_object(), age=0)
    lock = node.tree.root / "inductor" / "locks" / "cab.lock"
    lock.parent.mkdir()
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        found = usage(node)

    assert found.components["inductor"] == Usage(2, 2, misses=0, compiled=1)
    assert found.has_failed


@pytest.fixture
def resumed(published: Path) -> Node:
    """A worker whose earlier run left half a kernel, and which has used all that was restored since."""
    node = Node(published, layout=None)
    node.tree.put("triton/HALF/k.ttir", b"ttir", age=0)
    let_the_clock_move_in(node)
    node.restore()
    let_the_clock_move(node)
    read_all(node)
    return node


def test_what_an_earlier_run_left_unfinished_is_not_new(resumed: Node) -> None:
    assert usage(resumed).missed == 0


def test_what_an_earlier_run_left_unfinished_and_this_one_went_on_with_was_compiled(resumed: Node) -> None:
    resumed.tree.put("triton/HALF/k.llir", b"llir", age=0)

    assert usage(resumed).components["triton"] == Usage(2, 2, misses=1, compiled=1)


def test_what_no_compiler_builds_is_not_unfinished(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe of the job's, and what the job is writing about its shapes just now."""
    failing_to_read(monkeypatch, "/dynamo/", Unfinished("it changed while it was read"))
    read_all(node)
    os.mkfifo(node.tree.root / "inductor" / "pipe")
    node.tree.put("inductor/dynamo/code_state_job2_0_default.pkl", b"learnt")

    assert usage(node).missed == 0


def test_a_list_that_is_changed_in_place_does_not_indicate_a_compiler(node: Node) -> None:
    read_all(node)
    folder = next(node.tree.root.glob("triton/*/k.cubin")).parent
    (folder / "k.cubin").unlink()
    (folder / "__grp__k.json").write_bytes((folder / "__grp__k.json").read_bytes())

    assert usage(node).missed == 0


def test_a_kernel_that_is_being_compiled_over_a_restored_one_was_compiled(node: Node) -> None:
    read_all(node)
    folder = next(node.tree.root.glob("triton/*/k.cubin")).parent
    (folder / "k.cubin").unlink()
    node.tree.put(f"triton/{folder.name}/k.ttir", b"ttir", age=0)

    assert usage(node).components["triton"] == Usage(1, 1, misses=1, compiled=1)


def test_what_is_removed_while_the_root_is_read_was_not_compiled(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    read_all(node)
    path = node.tree.wrapper("three")
    before_each_read(monkeypatch, lambda _: (node.tree.root / path).unlink(missing_ok=True))

    assert usage(node).missed == 0


def test_a_kernel_of_which_a_file_was_removed_is_not_new(node: Node) -> None:
    next(node.tree.root.glob("triton/*/k.cubin")).unlink()
    read_all(node)

    found = usage(node)
    assert found.components["triton"] == Usage(1, 1)


def test_another_workers_links_make_nothing_new(published: Path) -> None:
    """A link to a blob changes the file's time in every cache root that has it."""
    node = Node(published, layout=None)
    node.restore()
    (node.tree.root / ".kstore" / "sync.json").unlink()  # what was restored are leftovers now, of no generation
    node.store.forget(KEY)
    node.restore()
    let_the_clock_move(node)
    for path in node.tree.root.glob("inductor/fxgraph/*/*/*"):
        os.link(path, published / path.name)

    assert usage(node).components == {}


@pytest.mark.parametrize("published", ["loose"], indirect=True)
def test_what_was_linked_is_not_new_once_the_store_has_removed_its_link(node: Node) -> None:
    """That, too, changes the file's time, as when gc collects what was withdrawn."""
    shutil.rmtree(node.location / "blobs")

    assert {path.stat().st_nlink for path in node.tree.root.glob("triton/*/k.cubin")} == {1}
    assert usage(node).missed == 0


@pytest.mark.parametrize("published", ["loose"], indirect=True)
def test_a_link_is_known_where_the_filesystem_has_no_room_for_its_stamp(node: Node) -> None:
    for path in node.tree.root.glob("triton/*/k.cubin"):
        seconds = int(path.stat().st_mtime)
        os.utime(path, (seconds, seconds))

    assert usage(node).missed == 0


@pytest.mark.parametrize("path", ["inductor/dynamo/code_state_job2_0_default.pkl", "cuda/3/7/4cf0818fcafde6"])
def test_a_components_file_that_every_job_writes_anew_is_not_compiled(node: Node, path: str) -> None:
    node.tree.put(path, b"learnt")

    assert usage(node).missed == 0


def test_a_model_of_a_serving_engine_is_asked_for_instead_of_its_graphs(tmp_path: Path) -> None:
    folder = "vllm/torch_compile_cache/torch_aot_compile/abc"
    builder = Node(tmp_path, "builder")
    builder.tree.put(f"{folder}/rank_0_0/model", b"model")
    builder.tree.put(f"{folder}/inductor_cache/fxgraph/on/fone/entry", b"graph")
    builder.tree.put(f"{folder}/computation_graph.py", b"for people")
    builder.commit()
    node = Node(tmp_path)
    node.restore()
    let_the_clock_move(node)
    read(node, f"{folder}/*/model")

    assert usage(node).components == {"vllm": Usage(2, 1)}
    assert usage(node).unused == ()


def test_nobody_can_tell_whether_files_changed_in_place_were_used(tmp_path: Path) -> None:
    builder = Node(tmp_path, "builder")
    builder.tree.put("flashinfer/.cache/flashinfer/x/build.ninja", b"rules")
    builder.commit()
    node = Node(tmp_path)
    node.restore()
    let_the_clock_move(node)

    found = usage(node)
    assert found.components["flashinfer"].hits is None
    assert (found.why_unknown, found.unused) == (CHANGED_IN_PLACE, ())


def test_the_report_notices_that_reads_leave_no_trace(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on some network and FUSE filesystems, whatever their mount options."""
    monkeypatch.setattr("kstore.local.lastrestore.read_noticed", read_without_a_trace)

    found = usage(node)
    assert found.components["inductor"].hits is None
    assert (found.why_unknown, found.unused) == (NO_ACCESS_TIMES, ())


def read_without_a_trace(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOATIME)
    with open(descriptor, "rb") as file:
        return file.read()


def test_a_worker_that_waits_for_the_cache_root_does_not_wait_long(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstore.hits.lastrun._PATIENCE", 0.1)
    with node.tree.state().locked(), pytest.raises(WaitTimeout):
        usage(node)


def test_the_root_tells_nothing_of_a_restore_or_commit_that_failed() -> None:
    fine, committed = RestoreReport(RestoreStatus.CURRENT, KEY), CommitReport(CommitStatus.UNCHANGED, KEY)

    assert unknowable(fine, committed) == ""
    assert unknowable(RestoreReport(RestoreStatus.FAILED, KEY), committed) == "the restore failed"
    assert unknowable(fine, CommitReport(CommitStatus.TIMEOUT, KEY)) == "the commit hangs"


def test_a_job_that_requires_hits_fails_where_nothing_was_used(node: Node) -> None:
    assert usage(node).has_failed
    read(node, "inductor/fxgraph/*/fone/*")
    assert not usage(node).has_failed


def test_without_access_times_nobody_can_tell(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOATIME))
    node.tree.graph("fthree")

    found = usage(node)
    assert found.components["inductor"] == Usage(2, None, misses=1, compiled=1)
    assert (found.why_unknown, found.unused) == (NO_ACCESS_TIMES, ())


def test_a_root_that_nobody_restored_into_tells_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.tree.graph()
    node.commit()

    assert "nothing was restored" in usage(node).why_unknown
    assert usage(node).components == {}


def test_other_processes_of_the_job_are_counted_by_their_files(node: Node) -> None:
    node.tree.graph("fthree")

    assert usage_of(node.store, KEY, Counters(hits=5)).components["inductor"].misses == 1


def test_what_both_torch_and_the_files_tell_of_is_one_miss(node: Node) -> None:
    node.tree.graph("fthree")

    assert usage_of(node.store, KEY, Counters(hits=5, misses=1)).missed == 1


def test_the_files_tell_about_objects_in_a_graph_that_torch_cannot_cache(node: Node) -> None:
    read(node, "inductor/fxgraph/*/*/*")
    found = usage_of(node.store, KEY, Counters(misses=1, bypassed=1))

    assert found.components["inductor"].hits == usage(node).components["inductor"].hits == 2
    assert (found.unused, found.missed) == ((), 1)


def test_torch_knows_whether_a_graph_that_it_could_cache_hit(node: Node) -> None:
    """Whoever has read its entry: torch reads one too if its guards do not hold then."""
    read(node, "inductor/fxgraph/*/*/*")

    assert usage_of(node.store, KEY, Counters(misses=1)).components["inductor"].hits == 0
    assert usage_of(node.store, KEY, Counters(hits=5, misses=1, bypassed=1)).components["inductor"].hits == 5


def test_torchs_counters_know_better(node: Node) -> None:
    found = usage_of(node.store, KEY, Counters(hits=5, misses=1))

    assert found.components["inductor"] == Usage(2, 5, misses=1, counted=True)
    assert found.missed == 1


def test_the_files_tell_if_torch_has_counted_nothing(node: Node) -> None:
    read(node, "inductor/fxgraph/*/*/*")

    assert usage_of(node.store, KEY, Counters()) == usage(node)
    assert usage(node).components["inductor"].hits == 2


def test_counters_are_read_without_adding_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = {"inductor": Counter(fxgraph_cache_hit=3, fxgraph_cache_bypass=1)}
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(counters=counters))

    assert Counters.now() == Counters(3, 1, 1)
    assert Counters.now().since(Counters(1, 1, 1)) == Counters(2, 0, 0)
    assert list(counters) == ["inductor"] and len(counters["inductor"]) == 2


def test_a_graph_and_its_aot_entry_are_one_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = {"inductor": Counter(fxgraph_cache_miss=1), "aot_autograd": Counter(autograd_cache_saved=2)}
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(counters=counters))

    assert Counters.now() == Counters(misses=2)


@pytest.mark.parametrize("before", [Counters(7, 2), Counters(7, 0), Counters(0, 2)])
def test_counters_that_were_set_back_count_from_there(before: Counters) -> None:
    assert Counters(1, 1).since(before) == Counters(1, 1)


def test_what_was_counted_before_does_not_count() -> None:
    assert Counters(5, 3, 1).since(Counters(5, 3, 1)) == Counters()
    assert Counters(5, 3, 2).since(Counters(4, 1, 1)) == Counters(1, 2, 1)
