"""An archive holds the files of a generation where programs that know nothing of kstore find them in place."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from kstore.blobs.loose import blob_name
from kstore.bundles import archives
from kstore.environment import Host
from kstore.errors import IntegrityError, UsageError
from kstore.local.relocate import PLACEHOLDER
from kstore.report import Written
from tests.bundles.carrying import fill, other_store
from tests.trees import Node, contents, shared_object, without_relocated

Unpack = Callable[[bytes], dict[str, bytes]]


def from_tar(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


def from_compressed_tar(data: bytes) -> dict[str, bytes]:
    return from_tar(zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read())


def from_zip(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


FORMATS = {
    "tar": (archives.export_tar, from_tar),
    "tar.zst": (archives.export_compressed_tar, from_compressed_tar),
    "zip": (archives.export_zip, from_zip),
}
EACH = pytest.mark.parametrize(("export", "unpack"), FORMATS.values(), ids=FORMATS.keys())
Export = Callable[..., Written]


@pytest.fixture
def node(tmp_path: Path, layout: str) -> Node:
    return fill(other_store(tmp_path / "source", layout), "one", "two")


def exported(node: Node, export: Export, **options: str) -> bytes:
    stream = io.BytesIO()
    assert export(node.store, node.newest(), stream, **options).other_hosts == ()
    return stream.getvalue()


@EACH
def test_it_holds_every_file(node: Node, export: Export, unpack: Unpack) -> None:
    found = unpack(exported(node, export))
    assert without_relocated(found) == without_relocated(contents(node.tree.root))
    assert found.keys() == contents(node.tree.root).keys()


@EACH
def test_a_cache_that_is_a_part_of_its_folder_is_where_a_restore_puts_it(
    tmp_path: Path, export: Export, unpack: Unpack
) -> None:
    node = other_store(tmp_path / "source")
    path = node.tree.put("flashinfer/.cache/flashinfer/0.3/90a/generated/module.cu", b"code")
    node.commit()
    assert unpack(exported(node, export)) == {path: b"code"}


@EACH
def test_paths_within_files_are_those_of_the_cache_root_they_were_built_in(
    node: Node, export: Export, unpack: Unpack
) -> None:
    for path, data in unpack(exported(node, export)).items():
        assert PLACEHOLDER.encode() not in data
        if "__grp__" in path:
            assert json.loads(data) == json.loads(node.tree.read(path))


@EACH
def test_paths_within_files_are_below_the_folder_that_is_named(
    node: Node, export: Export, unpack: Unpack, tmp_path: Path
) -> None:
    unpacked = tmp_path / 'an "odd" place'
    found = unpack(exported(node, export, under=str(unpacked)))
    for path, data in found.items():
        (unpacked / path).parent.mkdir(parents=True, exist_ok=True)
        (unpacked / path).write_bytes(data)
    groups = [path for path in found if "__grp__" in path]
    assert len(groups) == 2
    for path in groups:
        children = json.loads(found[path])["child_paths"]
        assert len(children) == 7
        assert all(Path(child).read_bytes() == found[os.path.relpath(child, unpacked)] for child in children.values())


@EACH
def test_the_same_generation_is_the_same_file(node: Node, export: Export, unpack: Unpack, tmp_path: Path) -> None:
    assert exported(Node(tmp_path / "source", "another"), export) == exported(node, export)


def test_a_folder_that_depends_on_who_reads_it_is_refused(node: Node) -> None:
    with pytest.raises(UsageError, match="absolute"):
        archives.export_tar(node.store, node.newest(), io.BytesIO(), under="cache")


def test_modes_and_times_are_kept(tmp_path: Path) -> None:
    node = other_store(tmp_path / "source")
    node.tree.put("inductor/ab/run.py", b"#!/bin/sh\n", mode=0o755)
    node.commit()
    (entry,) = node.published().values()
    with tarfile.open(fileobj=io.BytesIO(exported(node, archives.export_tar))) as archive:
        (member,) = archive
    assert (member.mode, member.mtime) == (entry.mode, entry.mtime_ns // 10**9)
    assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")
    assert member.mode & 0o111
    with zipfile.ZipFile(io.BytesIO(exported(node, archives.export_zip))) as zipped:
        (info,) = zipped.infolist()
    assert info.external_attr >> 16 & 0o777 == entry.mode
    assert info.date_time == time.gmtime(entry.mtime_ns // 10**9 // 2 * 2)[:6]  # A zip file counts every other second.


def test_a_zip_file_is_compressed_and_does_not_say_where_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = other_store(tmp_path / "source")
    node.tree.put("inductor/ab/cone.py", b"#" * 100_000)
    node.commit()
    monkeypatch.setattr("sys.platform", "win32")
    data = exported(node, archives.export_zip)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert [info.create_system for info in archive.infolist()] == [3]
    assert len(data) < 10_000


def test_a_file_of_gigabytes_goes_into_a_zip_file(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 2)
    data = exported(node, archives.export_zip)
    assert from_zip(data).keys() == contents(node.tree.root).keys()
    assert data[28] == 20  # Bytes of a header that leave eight for a size.


@pytest.mark.parametrize("age", [0, 9 * 10**9])
def test_a_time_that_zip_does_not_know_is_no_trouble(tmp_path: Path, age: int) -> None:
    node = other_store(tmp_path / "source")
    path = node.tree.root / node.tree.wrapper()
    os.utime(path, (age, age))
    node.commit()
    assert len(from_zip(exported(node, archives.export_zip))) == 1


def test_a_name_that_is_not_text_goes_into_a_tar_and_not_into_a_zip(tmp_path: Path) -> None:
    node = other_store(tmp_path / "source")
    name = node.tree.put("inductor/ab/\udcff.py", b"# no text\n")
    node.commit()
    (path,) = from_tar(exported(node, archives.export_tar))
    assert path == name
    with pytest.raises(UsageError, match="export a tar"):
        exported(node, archives.export_zip)


def test_equal_files_are_each_there(tmp_path: Path) -> None:
    node = other_store(tmp_path / "source", "packed")
    for name in ("a/z.py", "b/y.py", "c/x.py"):
        node.tree.put(f"inductor/{name}", b"the same\n")
    node.commit()
    assert from_tar(exported(node, archives.export_tar)) == contents(node.tree.root)


def test_a_long_path_is_kept(tmp_path: Path) -> None:
    node = other_store(tmp_path / "source")
    node.tree.put("inductor/" + "/".join(["n" * 150] * 4) + "/x.py", b"deep")
    node.commit()
    for export, unpack in FORMATS.values():
        assert unpack(exported(node, export)) == contents(node.tree.root)


def test_host_bound_files_are_those_of_the_host_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate("ab"):
        monkeypatch.setattr("kstore.environment.ownhost.detect_host", lambda _, name=name: Host(name * 16, {}))
        node = other_store(tmp_path / "source", name=name)
        node.tree.wrapper(name)
        node.tree.put("inductor/ab/same.so", shared_object() + bytes([number]))
        node.commit()
    stream = io.BytesIO()
    written = archives.export_tar(node.store, node.newest(), stream)
    assert (written.held.files, written.other_hosts) == (2, ("inductor/ab/same.so",))
    assert "inductor/ab/same.so" not in from_tar(stream.getvalue())
    for export, unpack in FORMATS.values():
        assert unpack(exported(node, export, host="a" * 5))["inductor/ab/same.so"] == shared_object() + b"\0"
    for host in ("c", "aab"):
        with pytest.raises(UsageError, match="a" * 16):
            archives.export_tar(node.store, node.newest(), io.BytesIO(), host=host)


@EACH
def test_a_damaged_blob_is_an_error(node: Node, export: Export, unpack: Unpack, tmp_path: Path) -> None:
    ref = node.newest()
    manifest = ref.manifest.hex()
    for path in [*(node.location / "blobs").rglob("*"), *(node.location / "packs").rglob("*")]:
        if path.is_file() and path.name != manifest:
            path.chmod(0o644)
            data = bytearray(path.read_bytes())
            data[20] ^= 1
            path.write_bytes(data)
    with pytest.raises(IntegrityError):
        export(Node(tmp_path / "source").store, ref, io.BytesIO())


@pytest.mark.parametrize("format", ["tar", "tar.zst", "zip"])
def test_an_archive_that_is_cut_short_has_no_end(tmp_path: Path, format: str) -> None:
    """It may have gone into a pipe, whose other end does not see the exit code."""
    export, unpack = FORMATS[format]
    node = other_store(tmp_path / "source", "loose")
    for name in ("one", "two"):
        node.tree.put(f"inductor/ab/c{name}.py", os.urandom(9 << 20))
    node.commit()
    (node.location / blob_name(node.published()["inductor/ab/ctwo.py"].digest)).unlink()
    stream = io.BytesIO()
    with pytest.raises(IntegrityError):
        export(node.store, node.newest(), stream)
    assert len(stream.getvalue()) > 8 << 20
    with pytest.raises((tarfile.ReadError, zstandard.ZstdError, zipfile.BadZipFile)):
        unpack(stream.getvalue())


def test_other_programs_unpack_it(node: Node, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(exported(node, archives.export_tar))
    (tmp_path / "out").mkdir()
    subprocess.run(["tar", "-xf", tmp_path / "x.tar", "-C", tmp_path / "out"], check=True)
    assert without_relocated(contents(tmp_path / "out")) == without_relocated(contents(node.tree.root))
