"""A FUSE filesystem that shows a folder read-only, and hangs from the first read of one of its files on.

    serve_fuse.py FOLDER MOUNT TEXT

TEXT is part of that file's path. The program says "ready" once the filesystem is mounted, and "hangs" when it hangs;
whoever asks it for something then waits until this process is killed. The protocol is that of the kernel's
include/uapi/linux/fuse.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import struct
import sys

HEADER = struct.Struct("=IIQQIIII")
"""Length, operation, unique, node, and the caller."""
ANSWER = struct.Struct("=IiQ")
ATTRIBUTES = struct.Struct("=QQQQQQIIIIIIIIII")
ENTRY = struct.Struct("=QQQQII")
LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE, FLUSH, INIT = 1, 2, 3, 14, 15, 18, 25, 26
OPENDIR, READDIR, RELEASEDIR, ACCESS, INTERRUPT, BATCH_FORGET = 27, 28, 29, 34, 36, 42
SILENT = {FORGET, INTERRUPT, BATCH_FORGET}
"""These get no answer."""
LONG = 3600


class Server:
    def __init__(self, folder: str, text: str) -> None:
        self.paths = {1: folder}
        self.nodes = {folder: 1}
        self.text = text

    def attributes(self, node: int) -> bytes:
        found = os.lstat(self.paths[node])
        times = (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)
        return ATTRIBUTES.pack(
            node, found.st_size, found.st_blocks, *(time // 10**9 for time in times), *(time % 10**9 for time in times),
            found.st_mode, found.st_nlink, found.st_uid, found.st_gid, 0, 4096, 0,
        )  # fmt: skip

    def lookup(self, node: int, body: bytes) -> bytes:
        path = os.path.join(self.paths[node], os.fsdecode(body.rstrip(b"\0")))
        os.lstat(path)
        found = self.nodes.setdefault(path, len(self.nodes) + 1)
        self.paths[found] = path
        return ENTRY.pack(found, 0, LONG, LONG, 0, 0) + self.attributes(found)

    def read(self, node: int, body: bytes) -> bytes:
        if self.text in self.paths[node]:
            print("hangs", flush=True)
            signal.pause()
        _, offset, size = struct.unpack_from("=QQI", body)
        with open(self.paths[node], "rb") as file:
            file.seek(offset)
            return file.read(size)

    def readdir(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("=QQI", body)
        entries = b""
        for number, name in enumerate(sorted(os.listdir(self.paths[node])), 1):
            kind = stat.S_IFMT(os.lstat(os.path.join(self.paths[node], name)).st_mode) >> 12
            entry = struct.pack("=QQII", number, number, len(os.fsencode(name)), kind) + os.fsencode(name)
            entry += bytes(-len(entry) % 8)
            if number > offset and len(entries) + len(entry) <= size:
                entries += entry
        return entries

    def answer(self, operation: int, node: int, body: bytes) -> bytes:
        if operation == INIT:
            return struct.pack("=IIIIHHIIHHI", 7, 31, 1 << 17, 0, 12, 9, 1 << 17, 1, 0, 0, 0) + bytes(28)
        if operation == LOOKUP:
            return self.lookup(node, body)
        if operation == GETATTR:
            return struct.pack("=QII", LONG, 0, 0) + self.attributes(node)
        if operation in (OPEN, OPENDIR):
            return struct.pack("=QII", 0, 0, 0)
        if operation == READ:
            return self.read(node, body)
        if operation == READDIR:
            return self.readdir(node, body)
        if operation in (FLUSH, RELEASE, RELEASEDIR, ACCESS):
            return b""
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    def serve(self, device: int) -> None:
        while True:
            request = os.read(device, 1 << 20)
            _, operation, unique, node, *_ = HEADER.unpack_from(request)
            if operation in SILENT:
                continue
            try:
                data, code = self.answer(operation, node, request[HEADER.size :]), 0
            except OSError as error:
                data, code = b"", error.errno or errno.EIO
            os.write(device, ANSWER.pack(ANSWER.size + len(data), -code, unique) + data)


def main(folder: str, target: str, text: str) -> None:
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"kstore-test", os.fsencode(target), b"fuse", 0, options.encode()):
        raise OSError(ctypes.get_errno(), "cannot mount")
    print("ready", flush=True)
    Server(folder, text).serve(device)


if __name__ == "__main__":
    main(*sys.argv[1:])
