"""Which stored graph should have hit, and what kept it from hitting."""

from __future__ import annotations

from kstore.why.differences import Difference, Explanation, Reason, code_difference, explain, folder_of
from kstore.why.graphs import Graph, read_graphs
from tests.why.entries import entry

FX, FX2 = "inductor/fxgraph/ab/fkey/one", "inductor/fxgraph/cd/fother/two"
AOT = "inductor/aotautograd/akey/one"


def graph(path: str = FX, code: str = "code", **attributes: str) -> Graph:
    (found,) = read_graphs(path, entry(code, **attributes))
    return found


def only(fresh: Graph, *stored: Graph) -> Explanation:
    (found,) = explain([(fresh.path, [fresh])], stored)
    return found


def test_what_differs_is_named_with_both_values() -> None:
    found = only(graph(FX2, inductor_config__max_autotune="True"), graph(inductor_config__max_autotune="False"))

    assert found == Explanation(FX2, Reason.DIFFERS, FX, (Difference("inductor_config.max_autotune", "False", "True"),))


def test_an_attribute_that_only_one_side_has_differs() -> None:
    found = only(graph(FX2, added="1"), graph(removed="2"))

    assert found.differences == (Difference("added", None, "1"), Difference("removed", "2", None))


def test_it_is_compared_with_the_graph_of_its_code_even_if_others_share_more() -> None:
    same_code = graph("a", "mine", x="1", y="1", z="1")
    alike = graph("b", "another", x="2", y="2", z="2")

    found = only(graph(FX2, "mine", x="2", y="2", z="2"), alike, same_code)
    assert (found.reason, found.closest) == (Reason.DIFFERS, "a")
    assert [difference.name for difference in found.differences] == ["x", "y", "z"]


def test_new_code_is_compared_with_what_is_most_like_it() -> None:
    found = only(graph(FX2, "new", x="2"), graph("a", "old", x="1"), graph("b", "older", x="2"))

    assert (found.reason, found.closest) == (Reason.NEW_CODE, "b")
    assert [difference.name for difference in found.differences] == ["gm"]


def test_another_answer_to_a_stored_key_was_compiled_for_its_guards() -> None:
    assert only(graph(FX, x="1"), graph(FX, x="1")).reason is Reason.GUARDS


def test_a_graph_that_only_an_aot_entry_has_lacked_its_own() -> None:
    """For example, its FX entry was left out of the restore."""
    assert only(graph(FX, x="1"), graph(AOT, x="1")).reason is Reason.MISSING


def test_what_is_stored_under_its_key_and_was_not_there_is_compared_with_no_other() -> None:
    lost = {folder_of(FX), folder_of(AOT)}
    entries = [(FX, [graph(FX, "a")]), (AOT, [graph(AOT, "a")])]

    assert explain(entries, [graph(FX2, "b")], lost) == [Explanation(FX, Reason.MISSING)]
    assert explain(entries[1:], [graph(FX, "a")], lost) == [Explanation(AOT, Reason.MISSING)]
    assert explain([(FX, [])], [], lost) == [Explanation(FX, Reason.MISSING)]


def test_an_aot_entry_whose_graphs_are_stored_has_a_key_of_its_own() -> None:
    assert only(graph(AOT, x="1"), graph(FX, x="1")).reason is Reason.AUTOGRAD


def test_a_graph_and_its_aot_entry_are_explained_once() -> None:
    fresh, stored = graph(FX2, x="2"), graph(FX, x="1")

    assert len(explain([(FX2, [fresh]), (AOT, [graph(AOT, x="2")])], [stored])) == 1


def test_of_an_aot_entry_only_the_graph_that_is_new_is_explained() -> None:
    forward, backward = graph(AOT, "forward"), graph(AOT, "backward", x="2")
    (found,) = explain([(AOT, [forward, backward])], [graph(FX, "forward"), graph(FX2, "backward", x="1")])

    assert (found.reason, found.closest, found.differences) == (Reason.DIFFERS, FX2, (Difference("x", "1", "2"),))


def test_without_stored_graphs_there_is_nothing_to_compare() -> None:
    assert only(graph()).reason is Reason.NOTHING


def test_an_entry_that_says_nothing_is_named() -> None:
    assert explain([(FX, [])], [graph()]) == [Explanation(FX, Reason.UNREADABLE)]


def test_an_entry_that_says_nothing_hides_no_other() -> None:
    found = explain([(FX, []), (FX2, [graph(FX2, x="2")])], [graph(x="1")])

    assert [(each.path, each.reason) for each in found] == [(FX, Reason.UNREADABLE), (FX2, Reason.DIFFERS)]


def test_of_an_entry_with_a_stored_graph_and_a_new_one_the_new_one_is_explained() -> None:
    stored, new = graph(AOT, "forward"), graph(AOT, "backward")
    (found,) = explain([(AOT, [stored, new])], [graph(FX, "forward")])

    assert found == Explanation(AOT, Reason.NEW_CODE, FX, (Difference("gm", "forward", "backward"),))


def test_code_is_shown_by_the_lines_that_differ() -> None:
    difference = Difference("gm", "a\nsame\nb\n", "a\nsame\nc\n")

    assert code_difference(difference) == ["-b", "+c"]


def test_a_difference_far_down_in_long_code_is_shown() -> None:
    """The graph of a large model has ten thousand lines."""
    same = "".join(f"add_{number} = mul_{number}\n" for number in range(10_000))

    assert code_difference(Difference("gm", f"{same}return b\n", f"{same}return c\n")) == ["-return b", "+return c"]


def test_of_much_code_that_differs_the_first_lines_are_shown() -> None:
    new = "".join(f"new {number}\n" for number in range(100))

    assert code_difference(Difference("gm", "", new)) == [f"+new {number}" for number in range(12)]


def test_code_that_only_one_graph_has_is_shown() -> None:
    assert code_difference(Difference("gm", None, "a\n")) == ["+a"]
    assert code_difference(Difference("gm", "a\n", None)) == ["-a"]
