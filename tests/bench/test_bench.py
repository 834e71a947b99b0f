"""The command behind the benchmarks runs; how fast anything is, is not tested."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trees import Tree, contents
from tools.bench import floor, peers, places, worker
from tools.bench.__main__ import main
from tools.bench.measures import MEASURES
from tools.bench.processes import Step
from tools.bench.race import bad_statuses

Bench = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def handler_kept() -> Iterator[None]:
    """The command has a handler of its own, which other tests must not find."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A few kernels and modules, as compilers leave them."""
    tree = Tree(tmp_path / "corpus")
    for name in "one", "two", "three", "four":
        tree.kernel(name)
        tree.wrapper(name)
    return tree.root


@pytest.fixture
def bench(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Runs the command for some measures. Returns the tables in its results, by name."""
    work, out = tmp_path / "not/there/yet", tmp_path / "out"
    # A loop device for each round takes longer than everything else, and needs root.
    monkeypatch.setattr(places, "_why_no_loop", lambda kind, work: "this is a test")
    # Its processes import torch, which takes seconds.
    monkeypatch.setattr(peers.B10, "absent", staticmethod(lambda: "it is slow"))

    def run(*names: str) -> dict[str, Any]:
        arguments = ["--quick", "--corpus", str(corpus), "--work", str(work), "--out", str(out), "--only", *names]
        monkeypatch.setattr(sys, "argv", ["tools.bench", *arguments])
        main()
        assert list(work.iterdir()) == []
        return {table["name"]: table for table in json.loads((out / "results.json").read_text())["tables"]}

    return run


def test_a_quick_run_writes_a_page_samples_and_plots(tmp_path: Path, bench: Bench) -> None:
    found = bench("restore-link", "one-kernel")
    assert found["restore-link"]["samples"]["restore, page cache warm"]["kstore, loose"][0] > 0
    assert found["one-kernel"]["samples"]["bytes written"]["kstore, packed"][0] > 0
    page = (tmp_path / "out/index.md").read_text()
    assert "## A restore by link" in page and "## A commit that adds one kernel" in page
    if importlib.util.find_spec("matplotlib"):
        assert "<svg" in (tmp_path / "out/restore-link.svg").read_text()
    else:
        assert "No plots: matplotlib is not installed" in page


def test_missing_peers_are_named(tmp_path: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for way in peers.Fal, peers.CopyFloor:
        monkeypatch.setattr(way, "absent", staticmethod(lambda: "it is elsewhere"))
    monkeypatch.setattr("tools.bench.plots.importlib.util.find_spec", lambda name: None)
    table = bench("restore-link")["restore-link"]
    assert "fal is not measured: it is elsewhere." in table["notes"]
    assert set(table["samples"]["restore, page cache warm"]) == {"kstore, loose", "cp -al"}
    page = (tmp_path / "out/index.md").read_text()
    assert "kstore, loose: restore, page cache warm | fal | ≤ 1/25 |  | not measured |" in page
    assert "No plots: matplotlib is not installed" in page


@pytest.mark.skipif(not shutil.which("cc"), reason="cc is not installed")
def test_the_floor_of_a_restore_links_what_is_linked_and_writes_the_rest(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "tree")
    tree.put(".kstore/state", b"kstore's own")
    for number in range(20):
        path = tree.root / tree.put(f"ab/{number % 7}/c{number}.py", b"%d" % number * number)
        if number % 2:
            os.link(path, tmp_path / f"blob{number}")
    assert floor.run("link", tree.root, tmp_path / "restored") > 0
    assert contents(tmp_path / "restored") == contents(tree.root)
    for path in contents(tree.root):
        is_linked = (tree.root / path).stat().st_nlink > 1
        assert os.path.samefile(tree.root / path, tmp_path / "restored" / path) == is_linked


@pytest.mark.skipif(not shutil.which("cc"), reason="cc is not installed")
def test_the_floor_of_a_commit_makes_a_file_of_each(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "tree")
    for number in range(300):
        tree.put(f"ab/{number % 7}/c{number}.py", b"%d" % number * number)
    assert floor.run("store", tree.root, tmp_path / "store") > 0
    assert sorted(contents(tmp_path / "store").values()) == sorted(contents(tree.root).values())
    assert len(list((tmp_path / "store").iterdir())) == 256


def test_missing_places_are_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "GLUSTER", Path("/bin/false"))
    monkeypatch.setattr(places, "_gluster_version", lambda: "GlusterFS")
    for name, table in bench("distributed", "far").items():
        assert table["samples"] == {} and "Not measured: /bin/false up" in table["notes"][-2], name


def test_what_needs_a_gpu_is_left_out_where_there_is_none(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kstore.environment.gpu.nvidia_slug", lambda environ: None)
    assert list(bench("start-cuda", "commands")) == ["commands"]
    assert "start-cuda cannot be measured here: there is no NVIDIA GPU" in capsys.readouterr().err


def test_only_replaces_single_tables(bench: Bench) -> None:
    first = bench("commands", "one-kernel")
    second = bench("one-kernel")
    assert list(second) == ["one-kernel", "commands"]
    assert second["commands"] == first["commands"]
    assert second["one-kernel"] != first["one-kernel"]


def test_a_measure_that_fails_keeps_no_other_from_its_table(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: object) -> None:
        Path("/nowhere/at/all").read_text()

    monkeypatch.setitem(MEASURES, "one-kernel", broken)
    with pytest.raises(SystemExit, match=r"failed: one-kernel with FileNotFoundError: .* '/nowhere/at/all'"):
        bench("one-kernel", "commands")
    told = capsys.readouterr()
    assert "'/nowhere/at/all'" in told.err and "The start of kstore itself" in told.out


def test_writers_lose_no_kernel_and_every_host_finds_them(bench: Bench) -> None:
    samples = bench("writers")["writers"]["samples"]["kernels lost"]
    assert samples["kstore, packed"] == samples["kstore, loose"] == [0]


def test_a_worker_that_fal_makes_fail_is_counted_and_ends_no_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of workers that find no cache folder at the same moment, all but one fail to make it."""
    theirs = SimpleNamespace(sync_inductor_cache=lambda key, known: tmp_path.mkdir())
    monkeypatch.setattr(worker, "_program", lambda name: SimpleNamespace(theirs=lambda tmp, data: theirs))
    steps = [Step(0.0, worker.Fal("theirs", "tmp", "data").publish()), Step(0.0, "synced"), Step(0.0, "current")]
    assert bad_statuses(steps, ["current"]) == "failed: File exists"


@pytest.mark.exhaustive
@pytest.mark.compiler
@pytest.mark.timeout(1800)
def test_everything_can_be_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a corpus of its own, from the real compilers, and on all filesystems that are available."""
    monkeypatch.setenv("KSTORE_CORPUS", str(tmp_path / "corpora/small"))
    monkeypatch.setattr(
        sys, "argv", ["tools.bench", "--quick", "--work", str(tmp_path), "--out", str(tmp_path / "out")]
    )
    main()
    tables = json.loads((tmp_path / "out/results.json").read_text())["tables"]
    needs_gpu = set() if places.nvidia_gpu() else {"start-cuda"}
    assert [table["name"] for table in tables] == [name for name in MEASURES if name not in needs_gpu]
    # Only GlusterFS goes beyond what every machine has.
    empty = [table["name"] for table in tables if not table["samples"]]
    assert empty in ([], ["distributed", "far"])
