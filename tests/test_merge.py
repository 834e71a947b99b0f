from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kstore.merge import MAX_VARIANTS, NOT_TAKEN, Merged, merge, never_had, still_declined
from kstore.published.manifest import Entry, Files, Flag, unit_of
from tests.trees import count_folders_written_anew, entry, grouped

A, B, C = entry("a"), entry("b"), entry("c")


def variant(content: str, mtime_ns: int = 0) -> Entry:
    return entry(content, Flag.SLOT, 2, mtime_ns=mtime_ns)


def merged_by_meaning(content: str) -> Entry:
    return entry(content, Flag.MERGE)


def kernel(name: str, writer: str, *files: str) -> Files:
    return {f"triton/{name}/{file}": grouped(f"{file} by {writer}") for file in files or ("ptx", "cubin")}


def has_news(merged: Merged) -> bool:
    return bool(merged.taken or merged.to_merge)


# ---- Files


def test_what_either_side_added_is_kept() -> None:
    merged = merge({}, {"theirs": A}, {"ours": B}, {})
    assert merged.files == {"theirs": A, "ours": B}
    assert merged.taken == {"ours"}


def test_what_ours_lacks_is_kept() -> None:
    merged = merge({"x": A}, {"x": A}, {}, {})
    assert merged.files == {"x": A}
    assert not has_news(merged)


def test_what_theirs_took_out_stays_gone() -> None:
    merged = merge({"x": A}, {}, {"x": A}, {})
    assert merged.files == {}
    assert not has_news(merged)
    assert merged.declined == {"x": A.digest}


def test_what_theirs_took_out_and_ours_changed_comes_back() -> None:
    merged = merge({"x": A}, {}, {"x": B}, {})
    assert merged.files == {"x": B}
    assert merged.taken == {"x"}


def test_what_only_ours_changed_is_taken() -> None:
    assert merge({"x": A}, {"x": A}, {"x": B}, {}).files == {"x": B}


def test_what_stayed_in_the_place_of_bases_is_no_change_of_it() -> None:
    merged = merge({"x": A}, {"x": A}, {"x": B}, {"x": NOT_TAKEN})
    assert merged.files == {"x": A}
    assert merged.declined == {"x": B.digest}


def test_where_one_file_stayed_in_the_place_of_bases_the_others_are_still_bases() -> None:
    base = {"taken out": A, "changed": A, "stayed": A}
    theirs = {"changed": A, "stayed": A}
    merged = merge(base, theirs, {"taken out": A, "changed": B, "stayed": C}, {"stayed": NOT_TAKEN})
    assert merged.files == {"changed": B, "stayed": A}


def test_a_kernel_that_stayed_in_the_place_of_bases_is_no_change_of_it() -> None:
    published, stayed = kernel("K", "theirs"), kernel("K", "ours")
    merged = merge(published, published, stayed, dict.fromkeys(published, NOT_TAKEN))
    assert merged.files == published
    assert not has_news(merged)


def test_measurements_that_stayed_in_the_place_of_bases_are_merged() -> None:
    published, stayed = merged_by_meaning("published"), merged_by_meaning("stayed")
    assert merge({"x": published}, {"x": published}, {"x": stayed}, {"x": NOT_TAKEN}).to_merge == ["x"]


def test_what_only_theirs_changed_stays() -> None:
    merged = merge({"x": A}, {"x": B}, {"x": A}, {})
    assert merged.files == {"x": B}
    assert not has_news(merged)


def test_the_same_change_on_both_sides_is_no_news() -> None:
    assert not has_news(merge({}, {"x": A}, {"x": A}, {}))
    assert not has_news(merge({"x": A}, {"x": B}, {"x": B}, {}))


def test_a_conflict_keeps_the_published_file() -> None:
    for base in ({}, {"x": C}):
        merged = merge(base, {"x": A}, {"x": B}, {})
        assert merged.files == {"x": A}
        assert not has_news(merged)
        assert merged.declined == {"x": B.digest}


def test_other_modes_and_times_are_no_news() -> None:
    assert not has_news(merge({}, {"x": A}, {"x": A._replace(mtime_ns=5, mode=0o600)}, {}))


# ---- What was declined is not offered again


def test_what_was_declined_is_not_offered_again() -> None:
    first = merge({}, {"x": A}, {"x": B}, {})
    again = merge(first.files, first.files, {"x": B}, first.declined)
    assert not has_news(again)
    assert again.declined == first.declined


def test_what_changed_since_it_was_declined_is_offered() -> None:
    declined = merge({}, {"x": A}, {"x": B}, {}).declined
    merged = merge({"x": A}, {"x": A}, {"x": C}, declined)
    assert merged.files == {"x": C}
    assert merged.declined == {}


def test_what_is_published_by_now_is_no_longer_declined() -> None:
    declined = merge({"x": A}, {}, {"x": A}, {}).declined
    assert declined == {"x": A.digest}  # It was taken out,
    assert merge({}, {"x": A}, {"x": A}, declined).declined == {}  # and is back.


def test_what_is_gone_here_is_no_longer_declined() -> None:
    assert merge({"x": A}, {"x": A}, {}, {"x": B.digest}).declined == {}


def test_what_only_theirs_changed_is_not_undone_by_the_next_merge() -> None:
    """The cache root still has the old file, which its new base does not explain."""
    merged = merge({"x": A}, {"x": B}, {"x": A}, {})
    assert not has_news(merge(merged.files, merged.files, {"x": A}, merged.declined))


def test_where_base_was_lost_paths_on_which_it_agrees_with_theirs_stay_declined() -> None:
    slot = "inductor/slot"
    ours = {
        "taken out": B,
        "replaced": B,
        "won by what is lost": B,
        "folder": B,
        "file/below": B,
        f"{slot}/ours": variant("ours"),
        **kernel("K", "ours"),
        "another by now": C,
    }
    declined = {path: B.digest if path == "another by now" else entry.digest for path, entry in ours.items()}
    base = {"replaced": A, "won by what is lost": A, "folder/x": A, "file": A, f"{slot}/theirs": variant("theirs")}
    base |= kernel("K", "theirs", "ptx")
    assert still_declined(declined, base, {"replaced": A, "new": A}, ours).keys() == {"taken out", "replaced"}
    assert still_declined(declined, base, base, ours).keys() == ours.keys() - {"another by now"}
    assert still_declined(declined, base, base, {}) == {}


def test_what_ours_never_changed_is_told_from_what_it_offered() -> None:
    merged = merge({"x": A, "y": A, "same": A}, {"x": B, "y": B, "same": A}, {"x": A, "y": C, "same": A}, {})
    assert merged.declined == {"x": A.digest, "y": C.digest}
    assert merged.outdated == {"x"}


def test_what_was_outdated_remains_so_as_long_as_ours_keeps_it() -> None:
    ours = {"x": A, "changed since": C, "published by now": B}
    outdated = {"x": A.digest, "changed since": A.digest, "published by now": B.digest}
    published = dict.fromkeys(ours, B)
    assert merge(published, published, ours, outdated, outdated=outdated.keys()).outdated == {"x"}
    assert merge(published, published, ours, outdated).outdated == set()


# ---- Groups


def test_a_group_that_both_added_keeps_the_published_one_whole() -> None:
    theirs, ours = kernel("K", "them", "ptx", "cubin"), kernel("K", "us", "ptx", "cubin", "launcher")
    merged = merge({}, theirs, ours, {})
    assert merged.files == theirs
    assert not has_news(merged)
    assert merged.declined == {path: found.digest for path, found in ours.items()}


def test_what_another_version_published_file_by_file_keeps_a_group_out() -> None:
    """And vice versa: files that ours has outside of any group do not come into a published group."""
    groups, files = kernel("K", "one"), by_other_rules(kernel("K", "two", "ptx", "sass"))
    for theirs, ours in ((groups, files), (files, groups)):
        merged = merge({}, theirs, ours, {})
        assert merged.files == theirs
        assert merged.declined == {path: found.digest for path, found in ours.items()}


def test_what_was_added_to_a_group_by_other_rules_comes_with_all_of_it() -> None:
    base = kernel("K", "them")
    ours = by_other_rules(base | kernel("K", "us", "launcher"))
    assert merge(base, base, ours, {}).files == ours


def test_a_group_that_only_ours_changed_is_replaced_whole() -> None:
    base, ours = kernel("K", "them", "ptx", "cubin", "old"), kernel("K", "us", "ptx", "cubin")
    merged = merge(base, base, ours, {})
    assert merged.files == ours
    assert sorted(merged.taken) == sorted(ours)


def test_a_group_comes_whole_though_most_of_it_was_declined() -> None:
    """As after its key was forgotten, when nothing is published any more."""
    ours = kernel("K", "ours")
    declined = {path: entry.digest for path, entry in ours.items()}
    assert not has_news(merge({}, {}, ours, declined))
    changed = ours | {"triton/K/ptx": grouped("compiled anew")}
    merged = merge({}, {}, changed, declined)
    assert merged.files == changed
    assert set(merged.taken) == set(changed)


def test_of_what_is_all_new_a_slot_takes_no_more_than_its_variants_and_a_group_all_its_files() -> None:
    slot = {f"fxgraph/k/{number}": variant(str(number), number) for number in range(MAX_VARIANTS + 2)}
    group = kernel("K", "ours", *map(str, range(MAX_VARIANTS + 2)))
    merged = merge({}, {}, {"file": A, **slot, **group}, {})
    assert set(merged.taken) == {"file", *[*slot][:MAX_VARIANTS], *group} == merged.files.keys()
    assert merged.declined.keys() == {*[*slot][MAX_VARIANTS:]}


def test_which_variants_of_the_same_time_a_slot_takes_does_not_depend_on_the_order_in_which_they_were_found() -> None:
    """A disk with coarse times may give all of them the same."""
    slot = {f"fxgraph/k/{number}": variant(str(number)) for number in range(MAX_VARIANTS + 2)}
    assert merge({}, {}, dict(reversed(slot.items())), {}).files == merge({}, {}, slot, {}).files


def test_a_file_added_to_a_group_brings_the_whole_group() -> None:
    base = kernel("K", "them")
    ours = base | kernel("K", "us", "launcher")
    merged = merge(base, base, ours, {})
    assert merged.files == ours


def test_a_group_that_theirs_took_out_stays_gone_unless_ours_changed_it() -> None:
    base = kernel("K", "them")
    assert merge(base, {}, base, {}).files == {}
    ours = kernel("K", "us")
    assert merge(base, {}, ours, {}).files == ours


def test_groups_do_not_disturb_each_other() -> None:
    theirs, ours = kernel("K", "them") | kernel("L", "them"), kernel("K", "us") | kernel("M", "us")
    merged = merge({}, theirs, ours, {})
    assert merged.files == theirs | kernel("M", "us")


# ---- Slots


def test_a_slot_that_both_added_keeps_the_published_one() -> None:
    merged = merge({}, {"i/S/one": variant("one")}, {"i/S/two": variant("two")}, {})
    assert set(merged.files) == {"i/S/one"}
    assert set(merged.declined) == {"i/S/two"}


def test_a_new_answer_in_a_slot_of_base_is_a_variant_and_kept() -> None:
    base = {"i/S/one": variant("one")}
    for ours in ({"i/S/two": variant("two")}, base | {"i/S/two": variant("two")}):
        assert set(merge(base, base, ours, {}).files) == {"i/S/one", "i/S/two"}


def test_variants_of_both_sides_are_kept() -> None:
    base = {"i/S/one": variant("one")}
    merged = merge(base, base | {"i/S/two": variant("two")}, base | {"i/S/three": variant("three")}, {})
    assert set(merged.files) == {"i/S/one", "i/S/two", "i/S/three"}


def test_a_new_answer_beside_one_that_is_published_is_a_variant_whatever_base_is() -> None:
    """The root was seeded from another key, or its base is no longer known."""
    seed = {"i/S/one": variant("one")}
    merged = merge({}, seed | {"i/S/two": variant("two")}, seed | {"i/S/three": variant("three")}, {})
    assert set(merged.files) == {"i/S/one", "i/S/two", "i/S/three"}
    assert merged.declined == {}


def test_a_slot_that_only_ours_added_is_kept_with_its_variants() -> None:
    ours = {f"i/S/{number}": variant(str(number)) for number in range(3)}
    assert merge({}, {}, ours, {}).files == ours


def test_a_slot_has_room_for_eight_the_oldest_first() -> None:
    ours = {f"i/S/{number}": variant(str(number), mtime_ns=-number) for number in range(12)}
    merged = merge({}, {}, ours, {})
    assert set(merged.files) == {f"i/S/{number}" for number in range(4, 12)}
    assert set(merged.declined) == {f"i/S/{number}" for number in range(4)}
    full = merge(merged.files, merged.files, {"i/S/late": variant("late")}, {})
    assert not has_news(full)


def test_a_slot_that_holds_more_than_eight_has_no_room() -> None:
    theirs = {f"triton/slot/{number}": variant(f"{number}") for number in range(MAX_VARIANTS + 2)}
    ours = {f"triton/slot/ours {number}": variant(f"ours {number}") for number in range(3)}
    merged = merge(theirs, theirs, ours, {})
    assert merged.files == theirs and merged.declined.keys() == ours.keys()
    assert not merged.taken


def test_what_is_in_one_slot_takes_no_room_in_another_that_is_deeper_or_less_deep() -> None:
    half = MAX_VARIANTS // 2
    base = {f"i/S/{number}": variant(str(number)) for number in range(half)}
    new = {f"i/S/new {number}": variant(f"new {number}") for number in range(half)}
    deeper = {"i/S/T/U/one": entry("one", Flag.SLOT, 4)}
    assert merge(base, base, base | new | deeper, {}).files == base | new | deeper


def test_the_first_answer_to_a_key_that_ours_never_had_is_no_variant_and_those_after_it_are() -> None:
    """As of a worker that commits while it compiles what another one has published meanwhile."""
    base = {"i/S/one": variant("one"), "i/T/one": variant("one", 1)}
    ours = {"i/T/one": base["i/T/one"]}
    declined = never_had(base, ours)
    assert declined == {"i/S/one": NOT_TAKEN}
    ours |= {"i/S/two": variant("two"), "i/T/two": variant("two", 1)}
    merged = merge(base, base, ours, declined)
    assert merged.taken == {"i/T/two"}
    assert merged.declined == {"i/S/two": ours["i/S/two"].digest}
    assert never_had(merged.files, ours) == {}
    after = merge(merged.files, merged.files, ours | {"i/S/three": variant("three")}, merged.declined)
    assert after.taken == {"i/S/three"}


# ---- Files that are merged by meaning


def test_what_both_sides_changed_is_handed_to_the_merger() -> None:
    theirs, ours = {"x": merged_by_meaning("a")}, {"x": merged_by_meaning("b")}
    for base in ({}, {"x": merged_by_meaning("c")}):
        merged = merge(base, theirs, ours, {})
        assert merged.to_merge == ["x"]
        assert merged.prevailing == set()
        assert merged.files == theirs
        assert has_news(merged)


def test_what_only_one_side_merges_by_meaning_is_a_conflict() -> None:
    """Versions of kstore may differ in what they have a merger for."""
    for theirs, ours in ((merged_by_meaning("a"), B), (A, merged_by_meaning("b"))):
        merged = merge({}, {"x": theirs}, {"x": ours}, {})
        assert (merged.to_merge, merged.declined) == ([], {"x": ours.digest})


def test_what_only_ours_changed_is_joined_and_prevails() -> None:
    base, ours = {"x": merged_by_meaning("a")}, {"x": merged_by_meaning("b")}
    merged = merge(base, base, ours, {})
    assert (merged.files, merged.to_merge, merged.prevailing) == (base, ["x"], {"x"})
    for declined in (NOT_TAKEN, C.digest):  # Ours was never base's file.
        assert merge(base, base, ours, {"x": declined}).prevailing == set()


def test_what_ours_lacks_is_remembered_if_it_is_merged_by_meaning() -> None:
    published = {"lacked": merged_by_meaning("a"), "there": merged_by_meaning("a"), "file": A}
    assert never_had(published, {"there": merged_by_meaning("b")}) == {"lacked": NOT_TAKEN}


def test_what_only_theirs_changed_needs_no_merger() -> None:
    base, theirs = {"x": merged_by_meaning("a")}, {"x": merged_by_meaning("b")}
    merged = merge(base, theirs, base, {})
    assert (merged.files, merged.to_merge) == (theirs, [])


# ---- Properties: whatever the three sides are

SHAPES = {
    "i/file": (0, 0),
    "i/other": (0, 0),
    "i/cache": (Flag.MERGE, 0),
    **{f"t/K/{name}": (Flag.GROUP, 2) for name in ("ptx", "cubin", "json")},
    **{f"t/L/{name}": (Flag.GROUP, 2) for name in ("ptx", "json")},
    **{f"i/S/{number:02}": (Flag.SLOT, 2) for number in range(12)},
}


@st.composite
def sides(draw: st.DrawFn) -> Files:
    found = {}
    for path in draw(st.sets(st.sampled_from(sorted(SHAPES)))):
        flags, unit = SHAPES[path]
        # A slot's files are named by their content.
        content = path if flags is Flag.SLOT else draw(st.sampled_from("abc"))
        found[path] = entry(content, flags, unit, mtime_ns=draw(st.integers(0, 3)))
    return found


def digests(files: Files, unit: str) -> set[tuple[str, bytes]]:
    return {(path, found.digest) for path, found in files.items() if unit_of(path, found) == unit}


def changed(files: Files, base: Files, path: str) -> bool:
    return (files[path].digest if path in files else None) != (base[path].digest if path in base else None)


@settings(max_examples=300, deadline=None)
@given(base=sides(), theirs=sides(), ours=sides())
def test_nothing_published_is_lost(base: Files, theirs: Files, ours: Files) -> None:
    """What others published since base is in the result as they published it."""
    merged = merge(base, theirs, ours, {})
    for path, published in theirs.items():
        unit = unit_of(path, published)
        if path in merged.taken or merged.files.get(path) != published:
            assert digests(theirs, unit) == digests(base, unit)
            assert published.flags & Flag.GROUP or path in merged.taken
    assert all(path in theirs or path in merged.taken for path in merged.files)


@settings(max_examples=300, deadline=None)
@given(base=sides(), theirs=sides(), ours=sides())
def test_what_was_taken_out_does_not_come_back_unchanged(base: Files, theirs: Files, ours: Files) -> None:
    merged = merge(base, theirs, ours, {})
    for path in base.keys() - theirs.keys():
        if path in merged.files and not changed(ours, base, path):
            unit = unit_of(path, base[path])
            assert base[path].flags & Flag.GROUP
            assert digests(ours, unit) != digests(base, unit)


@settings(max_examples=300, deadline=None)
@given(base=sides(), theirs=sides(), ours=sides())
def test_everything_of_ours_is_published_declined_or_to_be_merged(base: Files, theirs: Files, ours: Files) -> None:
    merged = merge(base, theirs, ours, {})
    for path, mine in ours.items():
        is_published = merged.files.get(path) is not None and merged.files[path].digest == mine.digest
        is_older = not changed(ours, base, path)
        assert is_published or is_older or path in merged.to_merge or merged.declined.get(path) == mine.digest


def merge_again(merged: Merged, ours: Files) -> Merged:
    declined = merged.declined | {path: ours[path].digest for path in merged.to_merge}
    return merge(merged.files, merged.files, ours, declined)


@settings(max_examples=300, deadline=None)
@given(base=sides(), theirs=sides(), ours=sides())
def test_merging_the_result_again_has_no_news(base: Files, theirs: Files, ours: Files) -> None:
    merged = merge(base, theirs, ours, {})
    again = merge_again(merged, ours)
    assert not has_news(again)
    assert again.files == merged.files


@settings(max_examples=300, deadline=None)
@given(base=sides(), theirs=sides(), ours=sides(), declined=sides())
def test_a_group_never_mixes_two_writers(base: Files, theirs: Files, ours: Files, declined: Files) -> None:
    merged = merge(base, theirs, ours, {path: found.digest for path, found in declined.items()})
    for group in ("t/K", "t/L"):
        assert digests(merged.files, group) in (digests(theirs, group), digests(ours, group))


def by_other_rules(files: Files) -> Files:
    """As from a version of kstore that does not treat folders as groups."""
    return {
        path: found._replace(flags=0, unit=0) if found.flags & Flag.GROUP else found for path, found in files.items()
    }


@settings(max_examples=300, deadline=None)
@given(base=sides(), theirs=sides(), ours=sides(), is_ours=st.booleans(), is_bases=st.booleans())
def test_a_group_never_mixes_two_writers_of_other_rules(
    base: Files, theirs: Files, ours: Files, is_ours: bool, is_bases: bool
) -> None:
    theirs, ours = (theirs, by_other_rules(ours)) if is_ours else (by_other_rules(theirs), ours)
    merged = merge(by_other_rules(base) if is_bases else base, theirs, ours, {})
    for group in ("t/K", "t/L"):
        assert digests(merged.files, group) in (digests(theirs, group), digests(ours, group))


@settings(max_examples=300, deadline=None)
@given(base=sides(), theirs=sides(), ours=sides())
def test_a_slot_never_grows_over_its_cap(base: Files, theirs: Files, ours: Files) -> None:
    merged = merge(base, theirs, ours, {})
    assert len(digests(merged.files, "i/S")) <= max(MAX_VARIANTS, len(digests(theirs, "i/S")))


@settings(max_examples=200, deadline=None)
@given(base=sides(), theirs=sides(), ours=sides())
def test_merging_changes_none_of_its_arguments(base: Files, theirs: Files, ours: Files) -> None:
    copies = [dict(files) for files in (base, theirs, ours)]
    merge(base, theirs, ours, {})
    assert [base, theirs, ours] == copies


# ---- A file here, a folder there


def test_where_a_file_is_published_ours_may_have_no_folder() -> None:
    merged = merge({}, {"x/a": A}, {"x/a/b": B, "x/a/c/d": B, "y": C}, {})
    assert merged.files == {"x/a": A, "y": C}
    assert merged.taken == {"y"}
    assert merged.declined == {"x/a/b": B.digest, "x/a/c/d": B.digest}


def test_where_a_folder_is_published_ours_may_have_no_file() -> None:
    merged = merge({}, {"x/a/b/c": A}, {"x/a": B}, {})
    assert merged.files == {"x/a/b/c": A}
    assert merged.declined == {"x/a": B.digest}
    assert not has_news(merged)


def test_paths_of_other_hosts_count_too() -> None:
    merged = merge({}, {}, {"x/a": B, "y/b/c": B}, {}, [{"x/a/b": A}, {"y/b": A}])
    assert merged.files == {}
    assert merged.declined.keys() == {"x/a", "y/b/c"}


def test_a_group_in_the_place_of_a_file_is_left_out_whole() -> None:
    ours = kernel("K", "ours", "ptx", "below/cubin")
    merged = merge({}, {"triton/K/below": A}, ours, {})
    assert merged.files == {"triton/K/below": A}
    assert merged.declined.keys() == ours.keys()


def test_a_group_that_cannot_be_replaced_stays() -> None:
    base, ours = kernel("K", "base"), kernel("K", "ours", "ptx/file")
    merged = merge(base, base | {"triton/K/ptx/file/below": A}, ours, {})
    assert merged.files == base | {"triton/K/ptx/file/below": A}
    assert not merged.taken


def test_a_group_stays_where_what_would_replace_it_contradicts_another_host() -> None:
    base, ours = kernel("K", "base", "cubin"), kernel("K", "ours", "ptx")
    merged = merge(base | {"x": A}, base | {"x": A}, ours | {"x": B}, {}, [{"triton/K/ptx/file": A}])
    assert merged.files == base | {"x": B}
    assert (merged.taken, merged.declined.keys()) == ({"x"}, ours.keys())


def test_what_ours_replaced_by_a_folder_or_a_file_is_taken() -> None:
    base = {"x/a": A, "y/b/c": A, "z": C}
    merged = merge(base, base, {"x/a/b": B, "y/b": B, "z": C}, {})
    assert merged.files == {"x/a/b": B, "y/b": B, "z": C}
    assert merged.declined == {}
    base, ours = kernel("K", "base", "below"), kernel("K", "ours", "below/cubin")
    assert merge(base, base, ours, {}).files == ours


def test_what_both_replaced_stays_as_it_was_published() -> None:
    merged = merge({"x": A}, {"x": C}, {"x/a": B}, {})
    assert merged.files == {"x": C}
    assert merged.declined == {"x/a": B.digest}


MANY = range(100)
FLAT = {f"x/{number}": A for number in MANY}
GROUP = kernel("K", "them", *map(str, MANY))


@pytest.mark.parametrize(
    ("base", "ours", "beside"),
    [(FLAT, {"x": B}, []), (GROUP, kernel("K", "us"), []), ({}, FLAT, [{"x": B}])],
    ids=["a file instead of their folder", "a group that is replaced", "a file on another host"],
)
def test_files_of_one_folder_go_at_once(
    base: Files, ours: Files, beside: list[Files], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be fifty thousand, and the folder is written anew for each time that any goes."""
    written = count_folders_written_anew(monkeypatch)
    merged = merge(base, base, ours, {}, beside)
    assert merged.files == ({} if beside else ours)
    assert 0 < len(written) <= len([merged.files, merged.taken])


NAMES = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4).map("/".join)


def consistent(files: Files) -> bool:
    return not any(path.startswith(f"{other}/") for path in files for other in files)


TREES = st.dictionaries(NAMES, st.sampled_from([A, B, C]), max_size=5).filter(consistent)


@given(TREES, TREES, TREES, TREES)
def test_what_is_published_never_contradicts_itself(base: Files, theirs: Files, ours: Files, other: Files) -> None:
    beside = {path: entry for path, entry in other.items() if consistent(theirs | {path: entry})}
    merged = merge(base, theirs, ours, {}, [beside])
    assert consistent({**merged.files, **beside})
    assert all(path in merged.files or path in merged.declined or _is_base(base, theirs, ours, path) for path in ours)


def _is_base(base: Files, theirs: Files, ours: Files, path: str) -> bool:
    """Theirs took it out."""
    return base.get(path) == ours[path] and path not in theirs
