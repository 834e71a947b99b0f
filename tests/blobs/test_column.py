from __future__ import annotations

import pytest

from kstore.blobs.column import Digests
from kstore.digest import digest_of

THREE = [digest_of(name) for name in (b"a", b"b", b"c")]


def test_digests_are_a_list() -> None:
    digests = Digests()
    digests.append(THREE[0])
    digests.extend(THREE[1:])
    assert list(digests) == THREE
    assert digests == THREE
    assert len(digests) == 3
    assert (digests[0], digests[-1], digests[1:], digests[5:9]) == (THREE[0], THREE[-1], THREE[1:], [])
    assert digests != THREE[:2]


def test_there_is_none_beyond_the_end() -> None:
    with pytest.raises(IndexError):
        Digests(b"".join(THREE))[3]


def test_each_takes_no_more_than_its_bytes() -> None:
    assert Digests(b"".join(THREE)).data == b"".join(THREE)
