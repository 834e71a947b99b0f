from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kstore.digest import digest_of
from kstore.published.manifest import Entry
from kstore.similarity import by_similarity, sorted_by_similarity

NAMES = st.sampled_from(["a.py", "b.py", "k.cubin", "none", "k.json", "dot.", ".so"])
PATHS = st.builds("triton/{}/{}".format, st.sampled_from("AB"), NAMES)
FILES = st.dictionaries(PATHS, st.builds(lambda size: Entry(digest_of(b""), size, 0, 0o644, 0, 0), st.integers(0, 3)))


@given(FILES)
def test_both_ways_to_sort_give_one_order(files: dict[str, Entry]) -> None:
    assert sorted_by_similarity(files, files) == [path for path, _ in sorted(files.items(), key=by_similarity)]
