from collections.abc import Sequence

MOST_LANES: int
"""As many as this processor has: 16 or 8."""

def digest_each(contents: Sequence[bytes | bytearray | memoryview], lanes: int) -> bytes: ...
