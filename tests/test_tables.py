from __future__ import annotations

import ctypes
import errno
import os
import shlex
import shutil
import struct
import subprocess
import sys
import sysconfig
from pathlib import Path

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kstore.errors import IntegrityError, KstoreError
from tests import tablefiles

KEYS = st.binary(min_size=1, max_size=40) | st.binary(min_size=500, max_size=1500)
TABLES = st.dictionaries(
    st.text("abcdefgh/", min_size=1, max_size=20),
    st.dictionaries(KEYS, st.binary(max_size=300), max_size=30),
    max_size=4,
)


@settings(deadline=None, max_examples=60)
@given(content=TABLES)
def test_what_was_dumped_is_loaded(content: dict[str, dict[bytes, bytes]]) -> None:
    assert tablefiles.load(tablefiles.dump(content)) == content


@settings(deadline=None, max_examples=15)
@given(content=TABLES)
def test_the_same_tables_give_the_same_bytes(content: dict[str, dict[bytes, bytes]]) -> None:
    reordered = {name: dict(reversed(table.items())) for name, table in reversed(content.items())}
    assert tablefiles.dump(content) == tablefiles.dump(reordered)


LARGE_PAGES = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
long sysconf(int name) {
    return name == _SC_PAGESIZE ? 65536 : ((long (*)(int))dlsym(RTLD_NEXT, "sysconf"))(name);
}
"""
DUMPED = """
import os, sys
from kstore import tables
assert os.sysconf("SC_PAGE_SIZE") == 65536
sys.stdout.buffer.write(tables.dump({"t": [(b"%06d" % number, bytes(52)) for number in range(1000)]}, 58_000))
"""


def test_machines_with_larger_pages_give_the_same_bytes(tmp_path: Path) -> None:
    """As GH200's kernels have: pages of 64 KiB."""
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")
    if not shutil.which(compiler[0]):
        pytest.skip("needs a C compiler")
    library = str(tmp_path / "pages.so")
    command = [*compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", library, "-ldl"]
    subprocess.run(command, input=LARGE_PAGES, text=True, check=True)
    program = [sys.executable, "-c", DUMPED]
    there = subprocess.run(program, env=os.environ | {"LD_PRELOAD": library}, capture_output=True, check=True).stdout
    here = tablefiles.dump({"t": {b"%06d" % number: bytes(52) for number in range(1000)}})
    assert there == here
    assert struct.unpack_from("<I", here, 40) == (4096,)


@pytest.mark.parametrize("size", [1, 510, 511, 512, 4096, 100_000])
def test_keys_of_any_length_are_kept_whole(size: int) -> None:
    table = {b"k" * size: b"value", b"k" * size + b"2": b"other", b"\xff" * size: b"third"}
    assert tablefiles.load(tablefiles.dump({"t": table})) == {"t": table}


def test_a_key_that_looks_like_a_stored_long_key_is_kept() -> None:
    table = {b"\xff": b"", b"\xff" + b"d" * 32: b"value", b"\xff" * 33: b"other", b"x" * 600: b"long"}
    assert tablefiles.load(tablefiles.dump({"t": table})) == {"t": table}


def test_no_tables_and_empty_tables() -> None:
    assert tablefiles.load(tablefiles.dump({})) == {}
    assert tablefiles.load(tablefiles.dump({"empty": {}})) == {"empty": {}}


def test_a_python_that_lacks_memory_files_has_those_of_its_libc(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of uv and conda, which were built for an older libc."""
    monkeypatch.delattr(os, "memfd_create")
    table = {"t": {b"key": b"value"}}
    assert tablefiles.load(tablefiles.dump(table)) == table


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM])
def test_a_system_that_has_none_is_named(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refused(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "memfd_create", refused)
    with pytest.raises(KstoreError, match=f"{os.strerror(code)}$"):
        tablefiles.dump({"t": {}})


def test_so_is_one_that_has_none_whatever_its_python(monkeypatch: pytest.MonkeyPatch) -> None:
    class Libc:
        def __init__(self, *_: object, **__: object) -> None: ...

        def memfd_create(self, *_: object) -> int:
            ctypes.set_errno(errno.ENOSYS)
            return -1

    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(ctypes, "CDLL", Libc)
    with pytest.raises(KstoreError, match=f"{os.strerror(errno.ENOSYS)}$"):
        tablefiles.dump({"t": {}})


@pytest.mark.parametrize(
    ("error", "advises"),
    [(lmdb.MemoryError("x"), True), (OSError(errno.ENOMEM, "x"), True), (OSError(errno.EMFILE, "x"), False)],
)
def test_where_there_is_no_memory_it_is_said_what_to_look_at(
    monkeypatch: pytest.MonkeyPatch, error: Exception, advises: bool
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(lmdb, "open", refused)
    with pytest.raises(KstoreError) as found:
        tablefiles.dump({"t": {}})
    assert ("how much memory this process may take" in str(found.value)) is advises


@pytest.mark.parametrize("count", [10_000, 50_000])
def test_many_rows(count: int) -> None:
    table = {f"triton/{number:05}/k.json".encode(): bytes(52) for number in range(count)}
    data = tablefiles.dump({"files": table})
    assert tablefiles.load(data) == {"files": table}
    assert len(data) < count * 200


@pytest.mark.parametrize(
    "data", [b"", b"short", b"\0" * 4096, b"\0" * 65536, b"\xff" * 65536, b"SQLite format 3\0" * 512]
)
def test_data_that_is_not_a_table_file_is_refused(data: bytes) -> None:
    with pytest.raises(IntegrityError):
        tablefiles.load(data)


CUT = """
import sys
from kstore import tables
from kstore.errors import IntegrityError
data = open(sys.argv[1], "rb").read()
lengths = {*range(0, len(data), 512), *range(1, len(data), 4099), len(data) - 1}
for length in sorted(lengths):
    try:
        tables.load(data[:length], lambda name, rows: dict(rows))
    except IntegrityError:
        continue
    sys.exit(f"{length} of {len(data)} bytes were read as if whole")
"""


def test_a_file_cut_short_anywhere_is_an_error_and_never_a_signal(tmp_path: Path) -> None:
    path = tmp_path / "tables"
    path.write_bytes(tablefiles.dump({"t": {b"%d" % number: bytes(200) for number in range(2000)}, "u": {b"a": b"b"}}))
    done = subprocess.run([sys.executable, "-c", CUT, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_temporary_folder_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    assert tablefiles.load(tablefiles.dump({"t": {b"a": b"b"}})) == {"t": {b"a": b"b"}}


NO_ROOM = """
import resource
from kstore import tables
from kstore.errors import KstoreError
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
try:
    tables.dump({"t": [(b"%04d" % number, bytes(200)) for number in range(2000)]}, 408_000)
except KstoreError as error:
    print(error)
"""


def test_a_process_without_room_for_a_table_says_so() -> None:
    done = subprocess.run([sys.executable, "-c", NO_ROOM], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("cannot build a file of 408000 bytes of rows in memory: "), done.stderr


NO_DESCRIPTOR = """
import os, resource, sys
from kstore import tables
data = tables.dump({"t": [(b"a", b"b")]}, 2)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.dup(0))
except OSError:
    pass
print(tables.load(data, lambda name, rows: dict(rows)))
"""


def test_a_process_without_file_descriptors_reads_a_table_file() -> None:
    done = subprocess.run([sys.executable, "-c", NO_DESCRIPTOR], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str({"t": {b"a": b"b"}}), done.stderr


def test_nothing_is_left_open() -> None:
    before = os.listdir("/proc/self/fd")
    tablefiles.load(tablefiles.dump({"t": {b"a": b"b"}}))
    assert os.listdir("/proc/self/fd") == before
