"""Whether a compressed stream is whole. Its end is found, if possible without decompressing anything."""

from __future__ import annotations

import zlib

_ZSTD = b"\x28\xb5\x2f\xfd"
_BLOCK_HEADER, _CHECKSUM = 3, 4
_RUN, _COMPRESSED, _RESERVED = 1, 2, 3
_DICTIONARY_BYTES, _LENGTH_BYTES = (0, 1, 2, 4), (0, 2, 4, 8)
_DEFLATE = 8
_TAKEN, _MADE = 1 << 16, 1 << 20
"""How many bytes are decompressed at once, and how many they may become at most."""


def is_whole(data: bytes) -> bool:
    """Whether it is one zstd frame or one zlib stream, to its end and nothing more. Data of another form, such as a
    later version's, counts as whole.
    """
    if data.startswith(_ZSTD) or _ZSTD.startswith(data):
        return _zstd_end(data) == len(data)
    if data[0] & 15 == _DEFLATE and (len(data) == 1 or int.from_bytes(data[:2]) % 31 == 0):
        return _is_whole_zlib(data)
    return True


def _zstd_end(data: bytes) -> int:
    """Where the frame ends (RFC 8878): each of its blocks says how long it is, and whether it is the last.

    Beyond the data if it is cut short, and -1 for what no writer leaves, such as zeros after a power failure.
    """
    if len(data) <= len(_ZSTD):
        return len(data) + 1
    descriptor = data[len(_ZSTD)]
    is_single, has_checksum = descriptor >> 5 & 1, descriptor >> 2 & 1
    length = _LENGTH_BYTES[descriptor >> 6] or is_single
    end, is_last = len(_ZSTD) + 1 + (1 - is_single) + _DICTIONARY_BYTES[descriptor & 3] + length, False
    while not is_last and end + _BLOCK_HEADER <= len(data):
        header = int.from_bytes(data[end : end + _BLOCK_HEADER], "little")
        is_last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        if kind == _RESERVED:
            return -1
        end += _BLOCK_HEADER + (1 if kind == _RUN else size)
        if kind == _COMPRESSED and data[end - 2 : end] == b"\0\0":  # Codes end with a set bit (section 4.1).
            return -1
    return end + _CHECKSUM * has_checksum if is_last else len(data) + 1


def _is_whole_zlib(data: bytes) -> bool:
    stream, view = zlib.decompressobj(), memoryview(data)
    try:
        for start in range(0, len(data), _TAKEN):
            left: bytes | memoryview = view[start : start + _TAKEN]
            while left and not stream.eof:
                stream.decompress(left, _MADE)
                left = stream.unconsumed_tail  # This copies: for a whole stream it would take hours.
            if stream.eof:
                return not stream.unused_data and start + _TAKEN >= len(data)
    except zlib.error:
        pass
    return False
