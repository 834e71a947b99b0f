"""What Inductor's entries say about their keys, read without loading a pickle."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from kstore.why.graphs import CODE, Attribute, read_graphs
from tests.why.entries import digest, line


def test_each_graph_of_an_entry_begins_with_its_code() -> None:
    data = pickle.dumps({"forward": [line("gm", "f"), line("default_dtype", "a")], "backward": [line("gm", "b")]})

    forward, backward = read_graphs("inductor/aotautograd/a/b", data)
    assert forward.attributes == {"gm": Attribute(digest("f"), "f"), "default_dtype": Attribute(digest("a"), "a")}
    assert backward.attributes[CODE].text == "b"


def test_attributes_have_the_names_that_people_know() -> None:
    versions = {"triton": "3.7.1", "cuda": "13.0"}
    lines = [line("gm", ""), line("inductor_config[cpp.cxx]", "g++"), line("system_info[version]", str(versions))]

    (graph,) = read_graphs("x", pickle.dumps(lines))
    assert graph.attributes["inductor_config.cpp.cxx"].text == "g++"
    assert graph.attributes["system_info.version.triton"] == Attribute("3.7.1", "3.7.1")


def test_code_has_many_lines_and_values_may_be_anything() -> None:
    code = "def forward(self, x):\n    return x: [1]\n"
    (graph,) = read_graphs("x", pickle.dumps([line("gm", code), line("inductor_config[a]", "{1, <object at 0x7f>}")]))

    assert graph.attributes[CODE].text == code
    assert graph.attributes["inductor_config.a"].text == "{1, <object at 0x7f>}"


@pytest.mark.parametrize(
    "value",
    [
        "{'a': 0x" + "f" * 9999 + "}",
        "{" * 9999,
        "{" + "-" * 60000 + "1: 2}",
        "{[]: 1}",
        "{'a': " + "1+" * 9999,
        "{1, 2}",
    ],
)
def test_values_that_are_not_dictionaries_are_taken_as_they_are(value: str) -> None:
    (graph,) = read_graphs("x", pickle.dumps([line("gm", ""), line("system_info[version]", value)]))

    assert graph.attributes["system_info.version"].text == value


def test_code_that_looks_like_a_dictionary_is_code() -> None:
    (graph,) = read_graphs("x", pickle.dumps([line("gm", "{'a': 1}")]))

    assert graph.attributes == {CODE: Attribute(digest("{'a': 1}"), "{'a': 1}")}


def test_a_dictionary_of_a_size_that_torch_never_writes_is_not_taken_apart() -> None:
    value = str({"a": "x" * 100_000})
    (graph,) = read_graphs("x", pickle.dumps([line("gm", ""), line("system_info[version]", value)]))

    assert graph.attributes["system_info.version"].text == value


class Bomb:
    """An object that makes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_reading_runs_nothing(tmp_path: Path) -> None:
    data = pickle.dumps([Bomb(tmp_path / "ran"), line("gm", "code")])

    assert [graph.attributes[CODE].text for graph in read_graphs("x", data)] == ["code"]
    assert not (tmp_path / "ran").exists()
    pickle.loads(data)
    assert (tmp_path / "ran").exists()  # it would have


@pytest.mark.parametrize(
    "data", [b"", b"no pickle", pickle.dumps([line("gm", "x")])[:-9], b"\x80\x04L" + b"9" * 9999 + b"\n.", b"\xff" * 99]
)
def test_data_that_is_not_an_entry_has_no_graphs_or_those_before_the_damage(data: bytes) -> None:
    assert len(read_graphs("x", data)) <= 1


def test_lines_before_any_code_belong_to_no_graph() -> None:
    assert read_graphs("x", pickle.dumps([line("default_dtype", "a")])) == []
