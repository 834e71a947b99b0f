"""What ninja built is used only together with the sources and headers that it was built from."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kstore.digest import digest_of
from kstore.environment import Host
from kstore.local.inputs import for_inputs_here, nothing_comes, with_inputs
from kstore.report import CommitStatus
from tests.ninja import ENVIRON, needs
from tests.trees import HOUR, Node

FOLDER = "extensions/twice"
LOG = f"{FOLDER}/.ninja_log"
BUILD = """ninja_required_version = 1.3
rule compile
  command = cc -MMD -MF $out.d -fPIC -c $in -o $out
  depfile = $out.d
  deps = gcc
rule link
  command = cc -shared $in -o $out
build twice.o: compile SOURCE
build twice.so: link twice.o
default twice.so
"""
pytestmark = [pytest.mark.compiler, needs("cc")]


@pytest.fixture(autouse=True)
def known(host: Host) -> None:
    """A host that is known without running the compiler."""


def back_date(path: Path, seconds: float) -> None:
    then = path.stat().st_mtime_ns - int(seconds * 1e9)
    os.utime(path, ns=(then, then))


class Release:
    """The sources of one release of a program, unpacked from its image long before anything is built."""

    def __init__(self, folder: Path) -> None:
        self.source, self.header = folder / "src of it" / "twice.c", folder / "include" / "factor.h"
        for file in (self.source, self.header):
            file.parent.mkdir()
        self.say("2")

    def say(self, factor: str, *, age: float = HOUR) -> None:
        self.put(self.header, f"#define FACTOR {factor}\n", age)
        self.put(self.source, f'#include "{self.header}"\nint twice(int x) {{ return FACTOR * x; }}\n', age)

    def put(self, path: Path, text: str, age: float = HOUR) -> None:
        path.write_text(text)
        back_date(path, age)

    def build(self, node: Node) -> bool:
        """Returns whether ninja had anything to do; this is what torch does when it loads the extension."""
        folder = node.tree.root / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        text = BUILD.replace("SOURCE", str(self.source).replace(" ", "$ "))
        if not node.tree.has(f"{FOLDER}/build.ninja"):
            (folder / "build.ninja").write_text(text)
        command = ["ninja", "-v", "-C", str(folder)]
        done = subprocess.run(command, env=ENVIRON, capture_output=True, text=True, check=True)
        return "no work to do" not in done.stdout


@pytest.fixture
def release(tmp_path: Path) -> Release:
    return Release(tmp_path)


@pytest.fixture
def node(tmp_path: Path, release: Release, layout: str) -> Node:
    """A worker that has published what it built."""
    node = Node(tmp_path, layout=layout)
    assert release.build(node)
    for file in (node.tree.root / FOLDER).iterdir():  # The next commit reads new files once more.
        back_date(file, 60)
    assert node.commit().new_files == 5
    return node


@pytest.fixture
def other(node: Node, tmp_path: Path, layout: str) -> Node:
    return Node(tmp_path, "other", layout=layout)


def test_a_worker_with_the_same_sources_builds_nothing(release: Release, node: Node, other: Node) -> None:
    other.restore()
    assert other.tree.read(LOG) == node.tree.read(LOG)
    assert not release.build(other)
    assert other.commit().status is CommitStatus.UNCHANGED


@pytest.mark.parametrize("what", ["source", "header"])
def test_a_worker_with_other_ones_builds_anew_though_they_are_older(
    release: Release, node: Node, other: Node, tmp_path: Path, layout: str, what: str
) -> None:
    changed = release.source if what == "source" else release.header
    release.put(changed, changed.read_text() + "// of another release\n")
    other.restore()
    assert other.commit().status is CommitStatus.UNCHANGED  # Nothing was built yet.
    assert release.build(other)
    assert other.commit().status is CommitStatus.COMMITTED
    third = Node(tmp_path, "third", layout=layout)
    third.restore()
    assert not release.build(third)


def test_sources_are_known_also_where_the_compiler_tells_of_no_headers(
    tmp_path: Path, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch configures it for ROCm."""
    monkeypatch.setattr("tests.local.test_inputs.BUILD", BUILD.replace("  deps = gcc\n", ""))
    node, other = Node(tmp_path), Node(tmp_path, "other")
    release.build(node)
    node.commit()
    release.put(release.source, "int twice(int x) { return 3 * x; }\n")
    other.restore()
    assert other.tree.read(LOG) == b""
    assert release.build(other)


def test_a_worker_that_lacks_a_header_gets_an_empty_log(release: Release, node: Node, other: Node) -> None:
    release.header.unlink()
    other.restore()
    assert other.tree.read(LOG) == b""


def test_what_was_built_is_not_taken_for_that_of_sources_that_came_later(
    release: Release, node: Node, other: Node
) -> None:
    """A root may outlive the image that its worker started from."""
    release.say("3")
    (node.tree.root / FOLDER / "lock").touch()  # torch's lock; it changes the folder
    (node.tree.root / FOLDER / "lock").unlink()
    assert node.commit().status is CommitStatus.UNCHANGED
    other.restore()
    assert release.build(other)


def test_what_ninja_would_build_anew_waits(tmp_path: Path, release: Release) -> None:
    node = Node(tmp_path)
    release.build(node)
    release.say("3", age=-HOUR)
    report = node.commit()
    assert report.new_files == 0
    assert any("is newer than what was built from it" in skipped.reason for skipped in report.skipped)
    release.say("3")
    assert node.commit().new_files == 5


def test_a_log_that_grows_in_its_place_is_published(release: Release, node: Node, tmp_path: Path) -> None:
    log = node.tree.root / LOG
    with log.open("ab") as file:
        file.write(b"0\t1\t1\tanother.o\t0123456789abcdef\n")
    report = node.commit()
    assert (report.status, report.new_files) == (CommitStatus.COMMITTED, 5)


def test_a_log_of_a_form_that_is_not_known_waits(tmp_path: Path, release: Release) -> None:
    node = Node(tmp_path)
    release.build(node)
    deps = node.tree.root / FOLDER / ".ninja_deps"
    deps.write_bytes(b"# ninjadeps\n" + (99).to_bytes(4, "little"))
    assert node.commit().new_files == 0


@pytest.mark.parametrize("cut", [1, 5, 13])
def test_the_rest_of_a_log_that_is_cut_short_is_known(tmp_path: Path, release: Release, cut: int) -> None:
    node = Node(tmp_path)
    release.build(node)
    deps = node.tree.root / FOLDER / ".ninja_deps"
    deps.write_bytes(deps.read_bytes()[:-cut])
    stored = with_inputs(node.tree.read(LOG), "twice/.ninja_log", str(node.tree.root / "extensions"))
    assert str(release.source).encode() in stored  # which the build file names as well
    assert for_inputs_here(stored, "", nothing_comes) == node.tree.read(LOG)


@pytest.mark.parametrize(
    "inputs",
    [
        b"",
        b"[]",
        b"{",
        b'{"paths": 1, "digest": ""}',
        b'{"paths": ["/dev/zero", "\\u0000"], "digest": "00"}',
        b"[" * 9999,
    ],
)
def test_what_no_commit_wrote_is_no_log(inputs: bytes) -> None:
    assert for_inputs_here(b"log@kstore-inputs@" + inputs, "", nothing_comes) == b""


def test_a_pipe_in_the_place_of_a_source_holds_nobody_up(release: Release, node: Node, other: Node) -> None:
    release.source.unlink()
    os.mkfifo(release.source)
    other.restore()
    assert other.tree.read(LOG) == b""


def test_what_is_built_beside_its_source_is_used_also_where_a_link_leads_to_it(
    tmp_path: Path, release: Release
) -> None:
    """TVM FFI names its sources without resolving links."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    node = Node(tmp_path, "link/node")
    release.source = tmp_path / "disk/node" / FOLDER / "twice.c"
    release.source.parent.mkdir(parents=True)
    release.say("2")
    release.build(node)
    assert node.commit().new_files == 6
    shutil.rmtree(tmp_path / "disk/node")
    Node(tmp_path, "link/node").restore()
    assert not release.build(node)


def test_the_header_of_what_was_compiled_before_is_not_asked_for(tmp_path: Path, release: Release) -> None:
    node = Node(tmp_path)
    release.build(node)
    release.put(release.source, "int twice(int x) { return 2 * x; }\n", age=0)
    assert release.build(node)
    release.put(release.header, "", age=-HOUR)
    assert node.commit().new_files == 5


@pytest.mark.parametrize(
    "change", [("twice.o", "./twice.o"), ("twice.o", "${x}.o"), ("rule", "include more\nrule"), None]
)
def test_headers_of_what_the_build_file_names_otherwise_count(
    tmp_path: Path, release: Release, change: tuple[str, str] | None
) -> None:
    node = Node(tmp_path)
    release.build(node)
    build = node.tree.root / FOLDER / "build.ninja"
    if change:
        build.write_text(build.read_text().replace(*change))
    else:
        build.unlink()
    stored = with_inputs(node.tree.read(LOG), "twice/.ninja_log", str(node.tree.root / "extensions"))
    assert str(release.header).encode() in stored


def test_only_installed_headers_of_torch_are_known_by_its_version(tmp_path: Path, release: Release) -> None:
    node, other = Node(tmp_path), Node(tmp_path, "other")
    release.header = tmp_path / "vendor/torch/include/factor.h"
    release.header.parent.mkdir(parents=True)
    release.say("2")
    release.build(node)
    node.commit()
    release.say("3")
    other.restore()
    assert release.build(other)


def test_installed_headers_of_torch_are_not_read(tmp_path: Path, release: Release) -> None:
    """There are two thousand of them, and if they differ, so does the environment."""
    node = Node(tmp_path)
    release.header = tmp_path / "lib/python3.11/site-packages/torch/include/factor.h"
    release.header.parent.mkdir(parents=True)
    release.say("2")
    release.build(node)
    stored = with_inputs(node.tree.read(LOG), "twice/.ninja_log", str(node.tree.root / "extensions"))
    assert str(release.source).encode() in stored
    assert str(release.header).encode() not in stored


def test_an_empty_log_waits(tmp_path: Path, release: Release) -> None:
    """As a restore leaves it beside other sources: what is there was not built of these."""
    node = Node(tmp_path)
    release.build(node)
    node.tree.put(LOG, b"")
    report = node.commit()
    assert (report.new_files, report.ok) == (0, True)
    assert release.build(node)
    assert node.commit().new_files == 5


@pytest.mark.parametrize("record", [b"\x0d\0\0\x80" + bytes(13), b"\x10\0\0\x80" + bytes(12) + b"\xff\xff\0\0"])
def test_a_damaged_log_waits(tmp_path: Path, release: Release, record: bytes) -> None:
    node = Node(tmp_path)
    release.build(node)
    with (node.tree.root / FOLDER / ".ninja_deps").open("ab") as file:
        file.write(record)
    report = node.commit()
    assert (report.new_files, report.ok) == (0, True)


@pytest.mark.parametrize("inside", ["generated/twice.c", "twice.c"])
def test_a_source_that_is_restored_too_counts_as_it_will_be(tmp_path: Path, release: Release, inside: str) -> None:
    node = Node(tmp_path)
    release.source = node.tree.root / "extensions" / inside
    release.source.parent.mkdir(parents=True, exist_ok=True)
    release.say("2")
    release.build(node)
    node.commit()
    shutil.rmtree(node.tree.root)
    again = Node(tmp_path)
    again.restore()
    assert not release.build(again)


def test_a_source_that_is_restored_with_other_content_is_another(tmp_path: Path, release: Release) -> None:
    """One worker has published the source, and another what it built from its own source."""
    node = Node(tmp_path)
    release.source = node.tree.root / "extensions/generated/twice.c"
    release.source.parent.mkdir(parents=True)
    release.say("2")
    release.build(node)
    extensions, log = str(node.tree.root / "extensions"), node.tree.read(LOG)
    stored = with_inputs(log, "twice/.ninja_log", extensions)
    same, other = digest_of(release.source.read_bytes()), digest_of(b"other")
    assert for_inputs_here(stored, extensions, {"generated/twice.c": same}.get) == log
    assert for_inputs_here(stored, extensions, {"generated/twice.c": other}.get) == b""
    release.source.unlink()
    assert for_inputs_here(stored, extensions, {"generated/twice.c": same}.get) == log
    assert for_inputs_here(stored, extensions, {"generated/twice.c": other}.get) == b""


def test_what_was_built_of_a_source_that_is_gone_waits(tmp_path: Path, release: Release) -> None:
    """If a source is unpacked for each build and removed after it, nobody could tell whether it is another source."""
    node = Node(tmp_path)
    release.build(node)
    release.source.unlink()
    report = node.commit()
    assert report.new_files == 0
    assert any("is gone" in skipped.reason for skipped in report.skipped)


def test_a_source_that_was_renamed_is_not_missed(tmp_path: Path, release: Release) -> None:
    node = Node(tmp_path)
    release.build(node)
    release.source.rename(release.source.with_name("thrice.c"))
    release.source = release.source.with_name("thrice.c")
    build = node.tree.root / FOLDER / "build.ninja"
    build.write_text(build.read_text().replace("twice.o", "thrice.o").replace("twice.c", "thrice.c"))
    assert release.build(node)
    assert node.commit().new_files == 6
