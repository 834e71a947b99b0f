"""JAX's persistent cache: entries that are written in place and that nobody replaces."""

from __future__ import annotations

import random
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kstore.environment import Host
from kstore.local import streams
from kstore.local.streams import is_whole
from kstore.redirect import redirecting
from kstore.store import Store
from tests.compilers.programs import Container, run_program, worker
from tests.trees import Node, contents

NAME = "jit_f-14ac577cdb2ef6d986078b4054cc9893a9a14a16dbb0d8f37b89167c1f1aacdf"
ENTRY, TIME = f"jax/{NAME}-cache", f"jax/{NAME}-atime"
RANDOM = random.Random(0)
EXECUTABLES = [b"", b"code", RANDOM.randbytes(300_000), bytes(400_000), RANDOM.randbytes(200_000) + bytes(200_000)]
"""Of no, one and several blocks, raw ones and runs among them."""
CODE = b"".join(b"%d calls %d; " % (number, number * 7919 % 1009) for number in range(3000))
"""What a compressor makes one block of, and that a short one."""
COMPRESSORS = {
    "zstd": zstandard.ZstdCompressor().compress,
    "with a checksum": zstandard.ZstdCompressor(write_checksum=True).compress,
    "of unknown size": zstandard.ZstdCompressor(write_content_size=False).compress,
    "in pieces": lambda data: (stream := zstandard.ZstdCompressor().compressobj()).compress(data) + stream.flush(),
    "zlib": zlib.compress,
}
needs_jax = pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed")


def time_of(ns: int) -> bytes:
    return ns.to_bytes(8, "little")


# ---- What counts as whole


@pytest.mark.parametrize("compress", COMPRESSORS.values(), ids=COMPRESSORS)
@given(executable=st.sampled_from(EXECUTABLES), data=st.data())
def test_a_stream_is_whole_at_its_end_and_nowhere_else(compress: Any, executable: bytes, data: st.DataObject) -> None:
    whole = compress(executable)
    assert is_whole(whole)
    assert not is_whole(whole[: data.draw(st.integers(0, len(whole) - 1))])
    assert not is_whole(whole + b"\0")


@pytest.mark.parametrize("compress", COMPRESSORS.values(), ids=COMPRESSORS)
def test_a_stream_that_ends_in_zeros_is_not_whole(compress: Any) -> None:
    """As after a power failure: the length is right, but the bytes are missing."""
    for executable in (EXECUTABLES[2], CODE):
        whole = compress(executable)
        kept = len(whole) * 2 // 3
        assert is_whole(whole)
        assert not is_whole(whole[:kept] + bytes(len(whole) - kept))


@pytest.mark.parametrize("descriptor", range(4), ids=lambda size: f"dictionary {size}")
def test_a_frame_that_names_its_dictionary_is_whole_at_its_end_too(descriptor: int) -> None:
    """In as many bytes as its header says: a window, the dictionary, and one last block of four raw bytes."""
    named = bytes((0, 1, 2, 4)[descriptor])
    whole = b"\x28\xb5\x2f\xfd" + bytes([descriptor, 0]) + named + (4 << 3 | 1).to_bytes(3, "little") + b"code"
    assert is_whole(whole)
    assert not is_whole(whole[:-1])
    assert not is_whole(whole + b"\0")


def test_a_frame_with_a_block_of_no_kind_is_not_whole() -> None:
    """Its length may be right all the same."""
    assert not is_whole(b"\x28\xb5\x2f\xfd\0\0" + (4 << 3 | 3 << 1 | 1).to_bytes(3, "little") + b"code")


@given(st.binary(max_size=40))
def test_whatever_follows_on_the_first_bytes_is_judged(data: bytes) -> None:
    for begins in (b"", b"\x28\xb5\x2f\xfd", b"\x78\x9c"):
        is_whole(begins + data)


def test_each_part_of_a_long_zlib_stream_is_read_only_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """The unread input is copied at each step: if it were all the rest, a commit would take minutes for 100 MB."""
    given: list[int] = []

    class Counted:
        def __init__(self) -> None:
            self._stream = decompressobj()

        def decompress(self, data: bytes, most: int) -> bytes:
            given.append(len(data))
            return self._stream.decompress(data, most)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

    decompressobj = zlib.decompressobj
    whole = zlib.compress((RANDOM.randbytes(1 << 15) + bytes(1 << 19)) * 64, 1)
    monkeypatch.setattr(zlib, "decompressobj", Counted)
    assert is_whole(whole)
    assert len(whole) <= sum(given) < 8 * len(whole)
    assert not is_whole(whole[:-1])


def test_a_zlib_stream_that_ends_with_what_is_read_at_once_is_whole_and_nothing_may_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = zlib.compress(b"code")
    monkeypatch.setattr(streams, "_TAKEN", len(whole))
    assert is_whole(whole)
    assert not is_whole(whole + b"\0")


def test_an_entry_in_another_form_counts_as_whole() -> None:
    assert is_whole(b"\x93 another form")


# ---- What is published


@pytest.mark.parametrize("compress", [COMPRESSORS["zstd"], zlib.compress])
def test_an_entry_that_is_cut_short_is_never_published(tmp_path: Path, layout: str, compress: Any) -> None:
    whole = compress(EXECUTABLES[2])
    node, other = Node(tmp_path, layout=layout), Node(tmp_path, "other", layout=layout)
    for size in (0, 1, 1000, len(whole) - 1):
        node.tree.put(ENTRY, whole[:size])
        report = node.commit()
        assert report.new_files == 0
        assert [skipped.path for skipped in report.skipped] == [ENTRY]
    node.tree.put(ENTRY, whole)
    assert node.commit().new_files == 1
    other.tree.put(ENTRY, whole[:1000])
    other.restore()
    assert other.tree.read(ENTRY) == whole  # which JAX would never have replaced


def test_entries_are_linked_and_any_host_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their names tell which processor they are for."""
    node, other = Node(tmp_path), Node(tmp_path, "other")
    monkeypatch.setattr("kstore.environment.ownhost.detect_host", lambda _: Host("a" * 16, {"cpu": "a"}))
    node.tree.put(ENTRY, zstandard.compress(b"code"))
    node.commit()
    monkeypatch.setattr("kstore.environment.ownhost.detect_host", lambda _: Host("b" * 16, {"cpu": "b"}))
    other.restore()
    assert contents(other.tree.root) == contents(node.tree.root)
    assert (other.tree.root / ENTRY).stat().st_nlink > 1


def test_reading_entries_leaves_nothing_to_publish(tmp_path: Path) -> None:
    node, other = Node(tmp_path), Node(tmp_path, "other")
    node.tree.put(ENTRY, zstandard.compress(b"code"))
    node.tree.put(TIME, time_of(255))
    assert node.commit().new_files == 2
    for reader in (node, other, Node(tmp_path, "third")):
        reader.restore()
        assert (reader.tree.root / TIME).stat().st_nlink == 1  # JAX writes it in place
        (reader.tree.root / TIME).write_bytes(time_of(256))
        assert reader.commit().new_files == 0
    assert node.newest().generation == 1


def test_what_xla_keeps_there_by_itself_is_ignored(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for path in ("xla_gpu_per_fusion_autotune_cache_dir/tmp/x.textproto", "xla_gpu_kernel_cache_file", ".lockfile"):
        node.tree.put(f"jax/{path}", b"x")
    assert node.commit().new_files == 0


def test_the_variables_that_jax_needs(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.restore()
    assert node.environ["JAX_COMPILATION_CACHE_DIR"] == str(node.tree.root / "jax")
    assert node.environ["JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"] == "none"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("JAX_COORDINATOR_ADDRESS", "host-1:1234"),
        ("WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("PMI_SIZE", "2"),
        ("SLURM_STEP_NUM_TASKS", "2"),
    ],
)
def test_a_job_of_several_processes_compiles_as_it_would_without_kstore(tmp_path: Path, name: str, value: str) -> None:
    """However it was started: the others would wait for ever for one that hits."""
    node = Node(tmp_path)
    node.environ[name] = value
    node.restore()
    assert not [variable for variable in node.environ if variable.startswith("JAX_") and variable != name]


def test_two_roots_are_not_taken_for_one_because_both_have_the_same_setting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, another = Node(tmp_path), Node(tmp_path, "another")
    with redirecting("one/v1", one.environ, commits=True):
        one.restore("one/v1")
    another.restore("another/v1")
    assert "is in use for" not in caplog.text


# ---- Against JAX


class Fleet:
    """Workers with JAX, each with a cache root of its own."""

    def __init__(self, folder: Path, layout: str) -> None:
        self.folder = folder
        self.layout = layout

    def run(self, name: str, depth: int = 3, **variables: str) -> tuple[dict[str, Any], Store]:
        """Returns what the program says, and the worker's store, to which everything is committed."""
        environ = Container(self.folder).environ() | {"JAX_PLATFORMS": "cpu"} | variables
        environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        node = worker(self.folder / "store", self.folder / name, environ, self.layout)
        node.restore("k")
        report = run_program("compile_jax", "--depth", depth, environ=environ)
        self.committed = node.commit("k")
        return report, node


@pytest.fixture
def fleet(tmp_path: Path, layout: str) -> Fleet:
    return Fleet(tmp_path, layout)


@needs_jax
@pytest.mark.compiler
def test_another_cache_root_hits_and_compiles_only_what_is_new(fleet: Fleet) -> None:
    cold, _ = fleet.run("a")
    assert not cold["hits"] and cold["misses"] == fleet.committed.new_files > 0
    warm, _ = fleet.run("b")
    assert warm == {"result": cold["result"], "hits": cold["misses"], "misses": 0}
    assert fleet.committed.new_files == 0
    deeper, _ = fleet.run("c", depth=4)
    assert deeper["misses"] == fleet.committed.new_files == 1


@needs_jax
@pytest.mark.compiler
def test_a_bounded_cache_is_still_written_after_a_restore(fleet: Fleet) -> None:
    bounded = {"JAX_COMPILATION_CACHE_MAX_SIZE": str(1 << 30)}
    fleet.run("a", **bounded)
    deeper, _ = fleet.run("b", depth=4, **bounded)
    assert deeper["misses"] == 1
    assert fleet.committed.new_files == 2
    warm, _ = fleet.run("c", depth=4, **bounded)
    assert not warm["misses"]
    assert fleet.committed.new_files == 0


@needs_jax
@pytest.mark.compiler
def test_an_entry_that_a_killed_process_left_is_replaced_by_the_published_one(fleet: Fleet) -> None:
    fleet.run("a")
    left = fleet.folder / "b" / "jax"
    left.mkdir(parents=True)
    for entry in (fleet.folder / "a" / "jax").glob("*-cache"):
        (left / entry.name).write_bytes(entry.read_bytes()[:-1])
    warm, _ = fleet.run("b")
    assert not warm["misses"]


@needs_jax
@pytest.mark.compiler
def test_jax_keeps_what_a_killed_process_left_so_that_must_not_be_published(tmp_path: Path) -> None:
    """Otherwise no worker of the fleet would ever have that entry."""
    fleet = Fleet(tmp_path, "loose")
    fleet.run("a")
    entries = {path: path.read_bytes() for path in (tmp_path / "a" / "jax").glob("*-cache")}
    (path := max(entries, key=lambda path: path.stat().st_size)).unlink()
    path.write_bytes(entries[path][:-1])
    environ = Container(tmp_path).environ() | {
        "JAX_PLATFORMS": "cpu",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "a" / "jax"),
    }
    assert run_program("compile_jax", environ=environ)["hits"] == len(entries) - 1
    assert path.read_bytes() == entries[path][:-1]
