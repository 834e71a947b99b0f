"""Any sequence of commits, restores, forgets, gcs and verifies behaves as a few Python sets do."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kstore.local.index import Index
from kstore.local.scan import scan
from kstore.report import CommitStatus, RestoreStatus
from tests.gc.stores import collect, pass_time
from tests.trees import Node, contents

NAMES = [f"k{number}" for number in range(6)]
names = st.sampled_from(NAMES)
workers = st.integers(0, 2)
layouts = st.sampled_from(["loose", "packed"])


@dataclass
class Model:
    """A worker: which kernels it has, which it grew from, and which it was told to leave out."""

    node: Node
    local: set[str] = field(default_factory=set)
    base: set[str] = field(default_factory=set)
    declined: set[str] = field(default_factory=set)

    def see(self, published: set[str]) -> None:
        """What was taken out of the key since this worker's base, and is still in its cache root, stays out."""
        self.declined |= (self.base & self.local) - published
        self.declined &= self.local
        self.base = set(published)


class Fleet(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(prefix="kstore-model-")
        self.folder = Path(self._folder.name)
        self.published: set[str] = set()
        self.generation = 0
        self.fresh = 0
        self.workers = [Model(Node(self.folder, f"worker-{number}")) for number in range(3)]
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr("kstore.gc.repack.MANY", 2)  # packs are merged into one

    def teardown(self) -> None:
        self._patch.undo()
        self._folder.cleanup()

    @rule(number=workers, name=names)
    def compile(self, number: int, name: str) -> None:
        worker = self.workers[number]
        worker.node.tree.kernel(name)
        worker.local.add(name)

    @rule(number=workers, name=names)
    def lose(self, number: int, name: str) -> None:
        """Somebody cleans up the cache root."""
        worker = self.workers[number]
        if name in worker.local - worker.declined - (worker.base - self.published):
            shutil.rmtree(worker.node.tree.root / worker.node.tree.kernel(name))
            worker.local.discard(name)

    @rule(number=workers, layout=layouts)
    def commit(self, number: int, layout: str) -> None:
        worker = self.workers[number]
        store = Node(self.folder, f"worker-{number}", layout=layout).store
        known = worker.declined | ((worker.base & worker.local) - self.published)
        news = worker.local - self.published - known if self.generation else set(worker.local)
        status = store.commit("model/v1").status
        assert status is (CommitStatus.COMMITTED if news else CommitStatus.UNCHANGED)
        self.published |= news
        self.generation += bool(news)
        if self.generation:
            worker.see(self.published)

    @rule(number=workers, is_new=st.booleans())
    def restore(self, number: int, is_new: bool) -> None:
        """A new container knows nothing and has nothing."""
        worker = self.workers[number]
        if is_new:
            shutil.rmtree(worker.node.tree.root, ignore_errors=True)
            worker = self.workers[number] = Model(worker.node)
        report = worker.node.restore()
        assert (report.status is RestoreStatus.MISS) == (not self.published)
        if self.published:
            worker.see(self.published)
            worker.local |= self.published
        assert report.skipped == ()

    @precondition(lambda self: self.generation)
    @rule()
    def forget(self) -> None:
        self.workers[0].node.store.forget("model/v1")
        self.published = set()
        self.generation += 1

    @rule(seconds=st.sampled_from([0.0, 7200.0]), keep=st.integers(1, 3))
    def gc(self, seconds: float, keep: int) -> None:
        if (self.folder / "store").exists():
            pass_time(self.workers[0].node, seconds)
            report = collect(self.workers[0].node, keep=keep)
            assert report.unreadable == []
            self.generation += bool(report.rewritten)

    @precondition(lambda self: self.generation)
    @rule()
    def verify(self) -> None:
        assert self.workers[0].node.store.verify().ok

    @invariant()
    def a_fresh_worker_gets_what_is_published(self) -> None:
        self.fresh += 1
        node = Node(self.folder, f"fresh-{self.fresh}")
        report = node.restore()
        assert report.skipped == () and report.generation == (self.generation if self.published else 0)
        files = contents(node.tree.root)
        assert len(files) == 8 * len(self.published)

    @invariant()
    def every_worker_has_its_kernels(self) -> None:
        for worker in self.workers:
            assert len(contents(worker.node.tree.root)) == 8 * len(worker.local)

    @invariant()
    def what_is_remembered_of_a_root_is_there(self) -> None:
        for model in self.workers:
            worker = model.node.store.worker("model/v1", before_import=False)
            remembered = worker.scan(worker.state.load()).files
            read = scan(worker.root, worker.table, Index(), dict).files
            assert {p: e.digest for p, e in remembered.items()} == {p: e.digest for p, e in read.items()}


TestFleet = Fleet.TestCase
TestFleet.settings = settings(
    max_examples=20, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
TestFleet.pytestmark = [pytest.mark.slow]
