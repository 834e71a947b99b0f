"""What compilers' artifacts have in common, so that not every pack holds it: a small model takes half the bytes.

Each frame says by number which dictionary it was compressed with (RFC 8878, section 3.1.1.1.3). The dictionaries belong
to this package. A store outlives a version of it, so a dictionary that was ever used is never changed or removed, and
another one gets another number. A version that writes with another one must raise `kstore.published.ref.FORMAT`, and
comes after a version that can read it. `tools.dictionary` makes the dictionaries.
"""

from __future__ import annotations

from functools import cache

import zstandard

from kstore.errors import IntegrityError, PackageMissing
from kstore.packaged import read_packaged

NONE = 0
NEWEST = 0x6B730001
"""One of the numbers that the RFC leaves free for everybody."""
_KNOWN = (NEWEST,)


@cache
def dictionary(number: int) -> zstandard.ZstdCompressionDict | None:
    """The dictionary of that number; None for `NONE`.

    Raises:
        IntegrityError: there is no such dictionary.
        PackageMissing: its file is not as it was installed.
    """
    if number == NONE:
        return None
    if number not in _KNOWN:
        raise IntegrityError(f"a pack needs dictionary {number:08x}, which is unknown: it is damaged")
    file = f"dictionaries/{number:08x}.zst"
    try:
        found = zstandard.ZstdCompressionDict(zstandard.decompress(read_packaged(__package__, file)))
    except (OSError, zstandard.ZstdError) as error:
        raise PackageMissing(f"{file} cannot be read, reinstall kstore: {error}") from error
    if found.dict_id() != number:
        raise PackageMissing(f"{file} is damaged: reinstall kstore")
    return found
