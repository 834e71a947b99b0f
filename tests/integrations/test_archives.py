"""What other tools have archived is taken over as a commit would take it, and can do no harm."""

from __future__ import annotations

import errno
import gzip
import io
import os
import re
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from kstore.deadline import Abandoned
from kstore.errors import ArchiveError, FileError, KstoreError
from kstore.integrations import archives
from kstore.integrations.archives import adopt, settled
from kstore.integrations.members import members
from kstore.integrations.unpacked import temporary_root
from kstore.published.generations import publish_loss
from kstore.report import CommitReport, CommitStatus, RestoreStatus
from tests.trees import KEY, Node, Tree, contents, shared_object

pytestmark = pytest.mark.usefixtures("host")


class Builder:
    """A worker of another tool: an Inductor cache folder, with Triton's kernels in `triton/<device>/` inside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "builder" / "inductor"
        self.tree = Tree(self.folder.parent)
        self.graph = self.tree.graph()
        self.wrapper = self.tree.wrapper()
        self.tree.kernel("one", below="inductor/triton/0")

    def archive(self, format: str = "zip") -> Path:
        return Path(shutil.make_archive(str(self.folder.parent / "archive"), format, self.folder))


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where archives are unpacked."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return Builder(tmp_path)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def take(node: Node, builder: Builder, format: str = "zip") -> CommitReport:
    return adopt(node.store, KEY, builder.archive(format), built_under=builder.folder)


def skipped(report: CommitReport) -> dict[str, str]:
    return {skip.path: skip.reason for skip in report.skipped}


@pytest.mark.parametrize("format", ["zip", "tar", "gztar"])
def test_an_archive_is_restored_as_if_kstore_had_committed_it(node: Node, builder: Builder, format: str) -> None:
    report = take(node, builder, format)

    assert report.status is CommitStatus.COMMITTED
    assert skipped(report) == {}
    assert node.restore().status is RestoreStatus.RESTORED
    kernel = builder.tree.kernel("one", below="elsewhere").removeprefix("elsewhere/")
    there = set(contents(node.tree.root))
    assert {builder.graph, builder.wrapper, f"triton/{kernel}/k.cubin"} <= there
    assert not any("triton/0" in path for path in there)


def test_a_kernel_s_list_of_files_names_the_folder_that_it_is_restored_to(node: Node, builder: Builder) -> None:
    take(node, builder)
    node.restore()
    (listed,) = (node.tree.root / "triton").glob("*/__grp__k.json")

    assert f"{listed.parent}/k.cubin" in listed.read_text()
    assert str(builder.folder) not in listed.read_text()


def test_the_manifest_names_the_folder_that_it_was_built_under(node: Node, builder: Builder) -> None:
    take(node, builder)
    meta = node.store.snapshot(node.newest()).manifest.meta

    assert meta["cache_root"] == str(builder.folder)
    assert meta["folders"] == {"inductor": str(builder.folder)}


def test_an_archive_is_merged_into_what_is_published(node: Node, builder: Builder) -> None:
    kept = node.tree.graph("fone", "another answer")
    other = node.tree.wrapper("another module")
    node.commit()

    assert take(node, builder).status is CommitStatus.COMMITTED
    paths = set(node.published())
    assert {kept, other, builder.wrapper} <= paths
    assert builder.graph not in paths  # it answers a key that already has an answer
    assert take(node, builder).status is CommitStatus.UNCHANGED


def test_a_little_that_would_wait_for_other_news_is_taken(node: Node, builder: Builder) -> None:
    """There is no next commit of an archive."""
    take(node, builder)
    modules = [f"inductor/ab/c{number:051}.py" for number in range(100)]
    for module in modules[:-1]:
        node.tree.put(module, b"many")
    node.commit()
    builder.tree.put(modules[-1], b"a little")

    assert take(node, builder).status is CommitStatus.COMMITTED
    assert modules[-1] in node.published()


def test_what_was_taken_back_stays_so_and_what_was_lost_does_not(node: Node) -> None:
    assert settled(node.store, KEY) is None
    node.tree.wrapper()
    node.commit()
    assert settled(node.store, KEY) is True
    node.store.quarantine(KEY)
    assert settled(node.store, KEY) is False
    publish_loss(node.store.storage, node.newest().scope, upon=node.newest().generation)
    assert settled(node.store, KEY) is None


def test_the_files_of_two_devices_kernels_do_not_mix(node: Node, builder: Builder) -> None:
    folder = builder.tree.kernel("one", "of the second device", below="inductor/triton/1")
    builder.tree.kernel("two", below="inductor/triton/1")
    take(node, builder)

    node.restore()
    kernels = list((node.tree.root / "triton").iterdir())
    assert len(kernels) == 2
    files = [path.read_bytes() for path in (node.tree.root / "triton" / Path(folder).name).glob("k.*")]
    assert len({b"second" in data for data in files}) == 1


def test_a_whole_kernel_goes_before_half_of_another_device_s(node: Node, tmp_path: Path) -> None:
    kernel = node.tree.kernel("one", below="half/triton/0")
    whole = node.tree.kernel("one", "of the second device", below="half/triton/1")
    (node.tree.root / kernel / "__grp__k.json").unlink()
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        for file in sorted((node.tree.root / "half").rglob("*/*/*/*")):
            archive.write(file, file.relative_to(node.tree.root / "half"))
    report = adopt(node.store, KEY, tmp_path / "archive.zip", built_under=tmp_path)

    assert skipped(report) == {}
    assert {path.rpartition("/")[2] for path in node.published()} == {
        file.name for file in (node.tree.root / whole).iterdir()
    }


@pytest.mark.parametrize(("kind", "mode"), [("gztar", 0o755), ("zip", 0o644)])
def test_a_file_has_the_mode_that_unpacking_would_give_it(node: Node, tmp_path: Path, kind: str, mode: int) -> None:
    """As with `tar -x`, with which b10-transfer unpacks. Python's zipfile leaves modes out."""
    (tmp_path / "made/ab").mkdir(parents=True)
    for name, made in (("run", 0o4755), ("data", 0o666)):
        (tmp_path / "made/ab" / name).write_text(name)
        (tmp_path / "made/ab" / name).chmod(made)
    archive = Path(shutil.make_archive(str(tmp_path / "a"), kind, tmp_path / "made"))
    adopt(node.store, KEY, archive, built_under=tmp_path)

    modes = {path.rpartition("/")[2]: entry.mode for path, entry in node.published().items()}
    assert modes == {"run": mode, "data": 0o644}


def test_objects_of_an_unknown_host_are_left_behind_and_named_once(node: Node, builder: Builder) -> None:
    path = builder.tree.put("inductor/ab/cab.main.so", shared_object())
    for device in "01":
        builder.tree.put(f"inductor/triton/{device}/K/__triton_launcher.so", shared_object())

    report, why = take(node, builder), "nobody knows which host it was built on"
    assert skipped(report) == {path: why, "triton/K/__triton_launcher.so": why}
    assert len(report.skipped) == 2
    assert path not in node.published()


def test_what_a_component_ignores_is_not_even_unpacked(node: Node, builder: Builder) -> None:
    builder.tree.put("inductor/locks/a.lock", b"")
    builder.tree.put("inductor/triton/0/ABC/tmp.pid_1_2/k.cubin", b"half")
    builder.tree.put("inductor/.kstore/base", b"another tool's business")
    builder.tree.put("inductor/torch_cutlass/cutlass.py", b"a link's target")
    root = node.tree.root
    root.mkdir(parents=True)
    left = archives.unpack(builder.archive(), root, "inductor", lambda: None)
    files = {path for path in contents(root) if not path.startswith("triton")}

    assert (left, files) == ([], {builder.graph, builder.wrapper})
    assert len(list((root / "triton").iterdir())) == 1
    assert skipped(take(node, builder)) == {}


def test_what_a_commit_leaves_out_is_named_too(node: Node, builder: Builder) -> None:
    path = builder.tree.put("inductor/ab/cempty.py", b"")
    report = take(node, builder)

    assert skipped(report) == {path: "it is empty"}
    assert report.cache_root == ""  # It is gone.


def test_kernels_may_be_in_triton_s_folder_without_a_device(temporary: Path) -> None:
    names = ["triton/K/k.cubin", "triton/K/__grp__k.json", "triton/alone"]
    archives.unpack(zipped(temporary.parent, *names), temporary, "inductor", lambda: None)

    assert set(contents(temporary)) == {"triton/K/k.cubin", "triton/K/__grp__k.json", "inductor/triton/alone"}


def test_only_inductor_keeps_kernels_of_devices(temporary: Path) -> None:
    path = "torch_compile_cache/torch_aot_compile/h/rank_0_0/model"
    archives.unpack(zipped(temporary.parent, path, f"triton/0/{path}"), temporary, "vllm", lambda: None)

    assert set(contents(temporary)) == {f"vllm/{path}", f"vllm/triton/0/{path}"}


def test_a_link_is_left_out_and_nothing_is_written_through_it(node: Node, builder: Builder, tmp_path: Path) -> None:
    (builder.folder / "zz").symlink_to(tmp_path / "outside")
    archive = tmp_path / "archive.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(builder.folder, ".")
    report = adopt(node.store, KEY, archive, built_under=builder.folder)

    assert skipped(report) == {"inductor/zz": "it is not a regular file"}
    assert not (tmp_path / "outside").exists()


def test_a_file_that_tar_has_under_a_second_name_is_taken_under_both(
    node: Node, builder: Builder, tmp_path: Path
) -> None:
    """As b10-transfer and tar pack files that a restore has linked to one blob."""
    kernel = builder.tree.kernel("two", below="inductor/triton/0")
    first, second = (builder.tree.root / kernel / name for name in ("k.ttir", "k.ttgir"))
    second.unlink()
    os.link(first, second)
    archive = tmp_path / "archive.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(builder.folder, ".")
        assert sum(member.islnk() for member in tar.getmembers()) == 1
    report = adopt(node.store, KEY, archive, built_under=builder.folder)

    assert skipped(report) == {}
    published = {
        path.rpartition("/")[2]: entry for path, entry in node.published().items() if Path(kernel).name in path
    }
    assert published["k.ttir"].digest == published["k.ttgir"].digest


@pytest.mark.parametrize("first", ["ab/nothing.py", "triton/1/K/k.ttir", ".kstore/base"])
def test_a_second_name_has_no_bytes_if_the_first_was_not_taken(node: Node, tmp_path: Path, first: str) -> None:
    archive = tmp_path / "archive.tar"
    with tarfile.open(archive, "w") as tar:
        file = tarfile.TarInfo("ab/cone.py")
        tar.addfile(file)
        link = tarfile.TarInfo("ab/ctwo.py")
        link.type, link.linkname = tarfile.LNKTYPE, first
        tar.addfile(link)
    left = skipped(adopt(node.store, KEY, archive, built_under=tmp_path))
    assert left["inductor/ab/ctwo.py"] == "it is not a regular file"


def test_the_temporary_folder_is_gone_afterwards(node: Node, builder: Builder, temporary: Path) -> None:
    take(node, builder)
    broken = builder.archive().with_name("broken.zip")
    broken.write_bytes(builder.archive().read_bytes()[:-40])
    with pytest.raises(ArchiveError):
        adopt(node.store, KEY, broken, built_under=builder.folder)

    assert list(temporary.iterdir()) == []


def test_what_a_killed_import_has_left_is_removed_a_day_later(node: Node, builder: Builder, temporary: Path) -> None:
    with temporary_root("an archive") as made:
        old, young, others = Path(made), temporary / "kstore-unpacked-young", temporary / "others"
    for folder in (old, young, others):
        (folder / "inductor").mkdir(parents=True)
    pipe = temporary / "kstore-unpacked-pipe"
    os.mkfifo(pipe)
    for path in (old, others, pipe):
        os.utime(path, (0, 0))
    take(node, builder)

    assert sorted(temporary.iterdir()) == [pipe, young, others]


def test_a_worker_that_has_given_up_unpacks_no_further(node: Node, builder: Builder, temporary: Path) -> None:
    archive = builder.archive()
    node.store.waiting.give_up()
    with pytest.raises(Abandoned):
        adopt(node.store, KEY, archive, built_under=builder.folder)

    assert list(temporary.iterdir()) == []
    assert not node.location.exists()


def test_nor_does_it_write_the_rest_of_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_READ", 2)
    looks = iter(range(3))  # one before the file, and then one for each part of it

    def check() -> None:
        if next(looks, None) is None:
            raise Abandoned

    with pytest.raises(Abandoned):
        archives.unpack(zipped(tmp_path, "ab/c.py"), tmp_path, "inductor", check)
    assert (tmp_path / "inductor/ab/c.py").read_bytes() == b"cont"


def test_a_worker_that_may_only_read_takes_nothing(tmp_path: Path, builder: Builder) -> None:
    node = Node(tmp_path, mode="read")

    assert take(node, builder).status is CommitStatus.READ_ONLY
    assert not node.location.exists()


def zipped(folder: Path, *names: str) -> Path:
    path = folder / "hostile.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"content")
    return path


def tarred(folder: Path, member: tarfile.TarInfo, data: bytes = b"") -> Path:
    path = folder / "hostile.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(member, io.BytesIO(data))
    return path


def link_of_zip(folder: Path) -> Path:
    path = folder / "hostile.zip"
    info = zipfile.ZipInfo("ab")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(info, str(folder / "outside"))
        archive.writestr("ab/c.py", b"content")
    return path


def with_number(path: Path, record: bytes, offset: int, number: int) -> Path:
    """The zip with another number there in a record of its directory."""
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, data.index(record) + offset, number)
    path.write_bytes(data)
    return path


def lying_zip(folder: Path) -> Path:
    """The directory says 7 bytes, and a megabyte comes out."""
    path = folder / "hostile.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ab/c.py", bytes(1 << 20))
    return with_number(path, b"PK\x01\x02", 24, 7)


def boasting_zip(folder: Path) -> Path:
    """The directory says a megabyte, and 7 bytes come out, with the right checksum."""
    return with_number(zipped(folder, "ab/c.py"), b"PK\x01\x02", 24, 1 << 20)


def long_header(folder: Path) -> Path:
    """A name for which tarfile would need a gigabyte of memory; compressed it is small."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 30
    path = folder / "hostile.tar.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(32):
            file.write(bytes(1 << 20))
    return path


def headers_for_ever(folder: Path) -> Path:
    """Each header applies to all members that follow and takes another megabyte of memory; none is a member."""
    path = folder / "hostile.tar.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(three()[:1024])
        for number in range(32):
            value = b"%d k%d=" % ((1 << 20) + 100, number)
            info = tarfile.TarInfo("global")
            info.type, info.size = tarfile.XGLTYPE, (1 << 20) + 100
            file.write(info.tobuf(tarfile.GNU_FORMAT) + value.ljust(info.size - 1, b"v") + b"\n")
            file.write(bytes(-info.size % tarfile.BLOCKSIZE))
    return path


def sparse_for_ever(folder: Path) -> Path:
    """GNU's old form: each block says that another one follows."""
    path = folder / "hostile.tar.gz"
    info = tarfile.TarInfo("ab/c.py")
    info.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[482] = 1
    header[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(header))[0]
    with gzip.open(path, "wb", 1) as file:
        file.write(header)
        for _ in range(64):
            file.write((bytes(504) + b"\1" + bytes(7)) * 1024)
    return path


def nameless(folder: Path) -> Path:
    path = zipped(folder, "ab/c.py")
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 46] = 0
    path.write_bytes(data)
    return path


def no_such_place(folder: Path) -> Path:
    """The archive's directory would be before the archive's beginning."""
    return with_number(zipped(folder, "ab/c.py"), b"PK\x05\x06", 16, 1 << 30)


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe.zip")
    return folder / "pipe.zip"


def endless_tar(folder: Path) -> Path:
    """More bytes than there is room for, in something that is no member."""
    path = folder / "hostile.tar.gz"
    info = tarfile.TarInfo("ab/c.py")
    info.size = 1 << 50
    with gzip.open(path, "wb") as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT))
    return path


def negative_size(folder: Path) -> Path:
    """Its size would make room for others, and send tarfile back to where it was."""
    info = tarfile.TarInfo("ab/c.py")
    info.size = -512
    path = folder / "hostile.tar"
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(4096))
    return path


def sparse(size: int, real_size: bytes) -> bytes:
    """The header of GNU's old form of a sparse file, which has two sizes: in the archive, and outside."""
    info = tarfile.TarInfo("ab/sparse")
    info.type, info.size = tarfile.GNUTYPE_SPARSE, size
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[483:495] = real_size
    header[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(header))[0]
    return bytes(header)


def leading_back(folder: Path) -> Path:
    """What follows the file is where its header begins."""
    return tar_of(folder, three()[:1024] + sparse(-512, b"00000000007\0") + bytes(1024))


def endless_directory(folder: Path) -> Path:
    """A zip that is nothing but its directory; on the disk it takes no room."""
    path = folder / "hostile.zip"
    size = 129 << 20
    with path.open("wb") as file:
        file.write(b"PK\x03\x04")
        file.seek(4 + size)
        file.write(struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 1, 1, size, 4, 0))
    return path


def encrypted(folder: Path) -> Path:
    path = zipped(folder, "ab/c.py")
    data = bytearray(path.read_bytes())
    for at in (6, data.index(b"PK\x01\x02") + 8):
        data[at] |= 1
    path.write_bytes(data)
    return path


def second_name_of(folder: Path, first: str) -> Path:
    info = tarfile.TarInfo("ab/c.py")
    info.type, info.linkname = tarfile.LNKTYPE, first
    return tarred(folder, info)


def cut(folder: Path) -> Path:
    path = zipped(folder, "ab/c.py")
    path.write_bytes(path.read_bytes()[:-5])
    return path


def flipped(folder: Path) -> Path:
    path = zipped(folder, "ab/c.py")
    path.write_bytes(path.read_bytes().replace(b"content", b"CONTENT"))
    return path


def three() -> bytes:
    """A tar of three files, each a header and a block long."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in "abc":
            info = tarfile.TarInfo(f"ab/{name}.py")
            info.size = 7
            archive.addfile(info, io.BytesIO(b"content"))
    return stream.getvalue()


def tar_of(folder: Path, data: bytes) -> Path:
    path = folder / "hostile.tar"
    path.write_bytes(data)
    return path


def in_lzma(folder: Path) -> Path:
    path = folder / "hostile.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("ab/c.py", b"content" * 100)
    return path


def flipped_in_gzip(folder: Path) -> Path:
    """As in a gzip that could not make the content shorter."""
    info, data = tarfile.TarInfo("ab/c.py"), b"content"
    info.size = len(data)
    packed = gzip.compress(tarred(folder, info, data).read_bytes(), compresslevel=0)
    path = folder / "flipped.tar.gz"
    path.write_bytes(packed.replace(data, b"CONTENT"))
    return path


HOSTILE: dict[str, Callable[[Path], Path]] = {
    "a name that climbs": lambda folder: zipped(folder, "../outside"),
    "a name that climbs later": lambda folder: zipped(folder, "ab/../../outside"),
    "an absolute name": lambda folder: zipped(folder, f"{folder}/outside"),
    "an absolute name in a tar": lambda folder: tarred(folder, tarfile.TarInfo(f"{folder}/outside")),
    "a name that climbs in a tar": lambda folder: tarred(folder, tarfile.TarInfo("../outside")),
    "a file that is also a folder": lambda folder: zipped(folder, "ab", "ab/c.py"),
    "a name twice": lambda folder: zipped(folder, "ab/c.py", "ab/./c.py"),
    "a name too long": lambda folder: zipped(folder, f"ab/{'c' * 300}.py"),
    "a size that is not declared": lying_zip,
    "a size that it does not have": boasting_zip,
    "a header without end": long_header,
    "a file without end": endless_tar,
    "a name that is none": nameless,
    "a place that is none": no_such_place,
    "a pipe": pipe,
    "a size below nothing": negative_size,
    "a second name of what is outside": lambda folder: second_name_of(folder, "../outside"),
    "a size that leads back": leading_back,
    "another size below nothing": lambda folder: tar_of(folder, sparse(0, b"\xff" * 12) + three()),
    "a directory without end": endless_directory,
    "a zip with a password": encrypted,
    "a folder too deep": lambda folder: zipped(folder, "a/" * 500 + "c.py"),
    "a name that is no text": lambda folder: tarred(folder, tarfile.TarInfo("ab/\udcff.py")),
    "cut short": cut,
    "a flipped byte": flipped,
    "a flipped byte in a compressed tar": flipped_in_gzip,
    "a flipped byte in a tar's header": lambda folder: tar_of(folder, three()[:1024] + b"A" + three()[1025:]),
    "a tar cut short in a header": lambda folder: tar_of(folder, three()[:1100]),
    "a tar cut short after a file": lambda folder: tar_of(folder, three()[:1024]),
    "a zip that is not deflated": in_lzma,
    "a compressed tar cut short": lambda folder: tar_of(folder, gzip.compress(three())[:-20]),
    "a compressed tar that is not compressed": lambda folder: tar_of(folder, gzip.compress(b"")[:10] + b"\xff" * 64),
    "no archive": lambda folder: Path(__file__),
    "an empty file": lambda folder: Path(os.devnull),
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_archive_is_refused_and_nothing_is_written(
    node: Node, tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    archive = make(tmp_path)
    with pytest.raises(ArchiveError, match=f"^{re.escape(str(archive))} "):
        adopt(node.store, KEY, archive, built_under=tmp_path)

    assert not (tmp_path / "outside").exists()
    assert not node.location.exists()
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (leading_back, "leads back"),
        (endless_directory, "its directory is too long"),
        (long_header, "a header in it is too long"),
        (lambda folder: tar_of(folder, sparse(1 << 32, b"00000000007\0") + bytes(1024)), "what it declares is more"),
        (lambda folder: tar_of(folder, gzip.compress(three() + bytes(8 << 20))), "it is longer"),
    ],
)
def test_what_would_take_for_ever_or_all_the_memory_is_refused_at_once(
    node: Node, tmp_path: Path, make: Callable[[Path], Path], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "_MAX_FILES", 100)
    monkeypatch.setattr(archives, "free_bytes", lambda path: 2 << 20)
    with pytest.raises(ArchiveError, match=why):
        adopt(node.store, KEY, make(tmp_path), built_under=tmp_path)


@pytest.mark.parametrize("length", [1024, 1025])
def test_a_name_that_is_too_long_is_neither_kept_nor_told(node: Node, tmp_path: Path, length: int) -> None:
    info = tarfile.TarInfo("ab/".ljust(length, "c"))
    info.type = tarfile.SYMTYPE
    if length == 1024:
        report = adopt(node.store, KEY, tarred(tmp_path, info), built_under=tmp_path)
        assert list(skipped(report)) == [f"inductor/{info.name}"]
        return
    with pytest.raises(ArchiveError, match="a name of 1025 characters") as raised:
        adopt(node.store, KEY, tarred(tmp_path, info), built_under=tmp_path)
    assert "c" * 16 not in str(raised.value)


def test_a_file_may_be_longer_than_headers(node: Node, tmp_path: Path) -> None:
    info = tarfile.TarInfo("ab/c.py")
    info.size = 5 << 20

    assert adopt(node.store, KEY, tarred(tmp_path, info, bytes(info.size)), built_under=tmp_path).files == 1


def test_a_zip_may_be_empty(node: Node, tmp_path: Path) -> None:
    assert adopt(node.store, KEY, zipped(tmp_path), built_under=tmp_path).status is CommitStatus.UNCHANGED


@pytest.mark.parametrize("make", [headers_for_ever, sparse_for_ever])
def test_no_more_of_a_member_s_headers_is_read_than_one_may_have(
    node: Node, tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    with pytest.raises(ArchiveError, match="headers are too long"):
        adopt(node.store, KEY, make(tmp_path), built_under=tmp_path)


def test_what_was_said_of_all_members_is_not_kept(node: Node, tmp_path: Path) -> None:
    archive = tmp_path / "hostile.tar.gz"
    with tarfile.open(archive, "w:gz", format=tarfile.PAX_FORMAT) as file:
        for number in range(3):
            file.fileobj.write(tarfile.TarInfo.create_pax_global_header({f"k{number}": "v" * 1000}))  # type: ignore[union-attr]
            file.addfile(tarfile.TarInfo(f"ab/c{number}.py"))
    with ExitStack() as stack:
        for member in members(archive, stack, 1 << 20):
            tar = member.open.args[0]  # type: ignore[attr-defined]
            assert (tar.members, tar.pax_headers) == ([], {})
    assert member.name == "ab/c2.py"


@pytest.mark.parametrize(
    "type", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.SYMTYPE, tarfile.GNUTYPE_SPARSE, b"V"]
)
def test_what_is_no_regular_file_is_left_out_and_named(node: Node, tmp_path: Path, type: bytes) -> None:
    info = tarfile.TarInfo("ab/odd")
    info.type, info.linkname = type, "/etc/passwd"
    with tarfile.open(tarred(tmp_path, info), "a") as archive:
        regular = tarfile.TarInfo("ab/c.py")
        regular.size = 7
        archive.addfile(regular, io.BytesIO(b"content"))
    report = adopt(node.store, KEY, tmp_path / "hostile.tar", built_under=tmp_path)

    assert skipped(report) == {"inductor/ab/odd": "it is not a regular file"}
    assert set(node.published()) == {"inductor/ab/c.py"}


def test_names_that_differ_in_case_are_two(node: Node, tmp_path: Path) -> None:
    adopt(node.store, KEY, zipped(tmp_path, "ab/c.py", "ab/C.py", "AB/c.py"), built_under=tmp_path)

    assert set(node.published()) == {"inductor/ab/c.py", "inductor/ab/C.py", "inductor/AB/c.py"}


def test_a_tar_that_holds_a_zip_at_its_end_is_a_tar(node: Node, tmp_path: Path) -> None:
    inner = zipped(tmp_path, "ab/inside.py")
    with tarfile.open(tmp_path / "outer.tar", "w") as archive:
        archive.add(inner, "ab/model.pt2")
    adopt(node.store, KEY, tmp_path / "outer.tar", built_under=tmp_path)

    assert set(node.published()) == {"inductor/ab/model.pt2"}


def test_a_link_in_a_zip_is_no_folder_to_write_through(node: Node, tmp_path: Path) -> None:
    report = adopt(node.store, KEY, link_of_zip(tmp_path), built_under=tmp_path)

    assert skipped(report)["inductor/ab"] == "it is not a regular file"
    assert not (tmp_path / "outside").exists()
    assert set(node.published()) == {"inductor/ab/c.py"}


def test_an_archive_takes_no_more_than_half_of_the_free_space(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made/large").write_bytes(bytes(1 << 20))
    archive = Path(shutil.make_archive(str(tmp_path / "archive"), "zip", tmp_path / "made"))
    monkeypatch.setattr(archives, "free_bytes", lambda path: 2 << 20)

    with pytest.raises(ArchiveError, match="half of the free space"):
        adopt(node.store, KEY, archive, built_under=tmp_path)
    monkeypatch.setattr(archives, "free_bytes", lambda path: 3 << 20)
    assert adopt(node.store, KEY, archive, built_under=tmp_path).files == 1


@pytest.mark.parametrize("kind", ["zip", "gztar"])
def test_on_a_filesystem_without_a_size_an_archive_is_taken_unless_it_is_a_bomb(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """As on ramfs, a tmpfs with size=0, and some mounts of FUSE."""
    (tmp_path / "made").mkdir()
    (tmp_path / "made/large").write_bytes(bytes(1 << 20))
    archive = Path(shutil.make_archive(str(tmp_path / "archive"), kind, tmp_path / "made"))
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_blocks=0, f_bavail=0, f_frsize=4096, f_flag=0))

    with monkeypatch.context() as small:
        small.setattr(archives, "_MOST_BYTES", 1 << 20)
        with pytest.raises(ArchiveError, match="8 GiB where a filesystem has no size"):
            adopt(node.store, KEY, archive, built_under=tmp_path)
    assert adopt(node.store, KEY, archive, built_under=tmp_path).files == 1


def test_folders_count_too(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_MAX_FILES", 3)
    for number in range(4):
        (tmp_path / "folders" / str(number)).mkdir(parents=True)
    archive = Path(shutil.make_archive(str(tmp_path / "archive"), "tar", tmp_path / "folders"))

    with pytest.raises(ArchiveError, match="million"):
        adopt(node.store, KEY, archive, built_under=tmp_path)


@pytest.mark.parametrize("most", [4, 5])
def test_folders_that_have_no_member_of_their_own_count_too(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(archives, "_MAX_FILES", most)
    archive = zipped(tmp_path, "ab/cd/e.py", "ab/cd/f.py")  # Inductor's own folder is the fifth.
    if most == 4:
        with pytest.raises(ArchiveError, match="million"):
            adopt(node.store, KEY, archive, built_under=tmp_path)
    else:
        assert adopt(node.store, KEY, archive, built_under=tmp_path).files == 2


def test_a_file_takes_room_however_short_it_is(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{number}.py" for number in range(100)]
    monkeypatch.setattr(archives, "free_bytes", lambda path: 1 << 18)

    with pytest.raises(ArchiveError, match="half of the free space"):
        adopt(node.store, KEY, zipped(tmp_path, *names), built_under=tmp_path)


def test_an_archive_holds_no_more_than_a_million_files(
    node: Node, builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "_MAX_FILES", 3)

    with pytest.raises(ArchiveError, match="million"):
        take(node, builder)


@pytest.mark.parametrize(
    "trouble", ["no archive", "no room", "no temporary folder", "no descriptor", "no temporary folder any more"]
)
def test_trouble_that_is_not_the_archive_s_fault_is_reported_as_such(
    node: Node, builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    def full(path: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    archive = tmp_path / "missing.zip" if trouble == "no archive" else builder.archive()
    if trouble == "no room":
        monkeypatch.setattr("kstore.integrations.archives.make_folder", full)
    elif trouble == "no temporary folder":
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    elif trouble == "no descriptor":
        monkeypatch.setattr("kstore.integrations.unpacked.held", full)
    elif trouble == "no temporary folder any more":
        monkeypatch.setattr(archives, "free_bytes", full)
    with pytest.raises(FileError, match="set TMPDIR"):
        adopt(node.store, KEY, archive, built_under=tmp_path)

    assert not node.location.exists()


def test_no_room_for_what_a_commit_keeps_beside_the_files_is_no_surprise(
    node: Node, builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str, mode: int = 0) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    archive = builder.archive()
    monkeypatch.setattr(archives.os, "makedirs", full)
    with pytest.raises(KstoreError, match="No space left"):
        adopt(node.store, KEY, archive, built_under=builder.folder)
