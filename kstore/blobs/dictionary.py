"""What compilers' artifacts have in common, so that not every pack holds it: a small model takes half the bytes.

Each frame says by number which dictionary it was compressed with (RFC 8878, section 3.1.1.1.3). They belong to this
package, for a store outlives a version of it: one that was ever used is never changed or removed, and another one gets
another number, and comes a version before anybody writes with it. `tools.dictionary` makes them.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

import zstandard

from kstore.errors import IntegrityError

NONE = 0
NEWEST = 0x6B730001
"""Of the numbers that the RFC leaves to everybody."""
FOLDER = resources.files(__package__).joinpath("dictionaries")


@cache
def dictionary(number: int) -> zstandard.ZstdCompressionDict | None:
    """The dictionary of that number; None for `NONE`.

    Raises:
        IntegrityError: there is none.
    """
    if number == NONE:
        return None
    try:
        packed = FOLDER.joinpath(f"{number:08x}.zst").read_bytes()
    except FileNotFoundError as error:
        why = "it is damaged, or a newer kstore wrote it"
        raise IntegrityError(f"a pack needs dictionary {number:08x}, which is unknown: {why}") from error
    return zstandard.ZstdCompressionDict(zstandard.decompress(packed))
