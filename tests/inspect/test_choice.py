from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

import kstore
from kstore.errors import AmbiguousScopeError, MissError, UsageError
from kstore.inspect import choice
from kstore.inspect.choice import Wanted, choose_one, choose_two
from kstore.scope import Scope
from tests.trees import Node


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def commit(folder: Path, key: str, gpu: str, environment: str = "torch-1", *names: str) -> None:
    for name in names or ("one",):
        node = Node(folder, f"{key}-{gpu}-{environment}".replace("/", "-"), gpu=gpu, environment=environment)
        node.tree.wrapper(name)
        node.commit(key)


def store(folder: Path, gpu: str = "own", environment: str = "torch-1") -> kstore.Store:
    return Node(folder, "reader", gpu=gpu, environment=environment).store


def chosen(folder: Path, left: Wanted, right: Wanted, gpu: str = "own") -> tuple[Scope, Scope]:
    one, other = choose_two(store(folder, gpu), left, right)
    return one.scope, other.scope


@pytest.mark.parametrize(
    ("text", "key", "generation"), [("my/v1", "my/v1", None), ("my/v1@3", "my/v1", 3), ("m@12", "m", 12)]
)
def test_a_generation_is_named_behind_its_key(text: str, key: str, generation: int | None) -> None:
    assert Wanted.parse(text) == Wanted(key, generation)


@pytest.mark.parametrize(
    "text", ["", "@3", "my/v1@", "m@0", "m@-1", "m@two", "m@1@2", "m@³", "m@٣", f"m@1{'0' * 9}", "/m@1"]
)
def test_anything_else_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        Wanted.parse(text)


def test_the_newest_generation_is_meant_unless_one_is_named(folder: Path) -> None:
    commit(folder, "m", "a", "torch-1", "one", "two", "three")

    assert choose_one(store(folder), Wanted("m")).generation == 3
    assert choose_one(store(folder), Wanted("m", 2)).generation == 2


def test_an_only_scope_is_meant_whoever_asks(folder: Path) -> None:
    commit(folder, "m", "a")

    assert choose_one(store(folder), Wanted("m")).scope.gpu == "a"


def test_where_there_is_one_nobody_asks_which_gpu_this_worker_has(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That may take seconds, or fail."""
    commit(folder, "m", "a")
    commit(folder, "n", "a", "torch-2")
    asked: list[str] = []
    monkeypatch.setattr(kstore.Store, "gpu", property(lambda self: asked.append("GPU")))

    assert choose_one(store(folder), Wanted("m")).scope.gpu == "a"
    assert chosen(folder, Wanted("m"), Wanted("n"))[1].environment == "torch-2"
    assert asked == []


def test_this_workers_own_scope_is_meant(folder: Path) -> None:
    commit(folder, "m", "a")
    commit(folder, "m", "own")

    assert choose_one(store(folder), Wanted("m")).scope.gpu == "own"


def test_several_foreign_scopes_are_listed_as_options(folder: Path) -> None:
    commit(folder, "m", "a")
    commit(folder, "m", "b")
    with pytest.raises(AmbiguousScopeError, match="--gpu a --environment torch-1; --gpu b --environment torch-1"):
        choose_one(store(folder), Wanted("m"))

    assert choose_one(store(folder), Wanted("m", gpu="b")).scope.gpu == "b"


def test_of_very_many_scopes_only_some_are_listed(folder: Path) -> None:
    for number in range(10):
        commit(folder, "m", f"gpu{number}")
    with pytest.raises(AmbiguousScopeError, match=r"--gpu gpu7 --environment torch-1; and 2 more$"):
        choose_one(store(folder), Wanted("m"))
    with pytest.raises(MissError, match=r"--gpu gpu7 --environment torch-1; and 2 more$"):
        choose_one(store(folder), Wanted("m", gpu="x"))


def forget(folder: Path, key: str, gpu: str) -> None:
    store(folder, gpu).forget(key)


def test_a_scope_that_was_forgotten_cannot_be_chosen(folder: Path) -> None:
    commit(folder, "m", "a")
    commit(folder, "m", "own")
    forget(folder, "m", "own")

    assert choose_one(store(folder), Wanted("m")).scope.gpu == "a"
    assert chosen(folder, Wanted("m"), Wanted("m"))[1].gpu == "a"


def test_a_generation_of_a_forgotten_key_can_be_named(folder: Path) -> None:
    commit(folder, "m", "own")
    forget(folder, "m", "own")
    with pytest.raises(MissError, match=r"m was forgotten; name a generation that `kstore show m`"):
        choose_one(store(folder), Wanted("m"))

    assert choose_one(store(folder), Wanted("m", 1)).files == 1


def test_two_keys_are_compared_where_both_are(folder: Path) -> None:
    commit(folder, "m/v1", "a")
    commit(folder, "m/v1", "b")
    commit(folder, "m/v2", "b")
    one, other = chosen(folder, Wanted("m/v1"), Wanted("m/v2"))

    assert (one.gpu, other.gpu) == ("b", "b")


def test_where_nothing_has_both_the_nearest_are_compared(folder: Path) -> None:
    commit(folder, "m/v1", "a", "torch-1")
    commit(folder, "m/v1", "b", "torch-1")
    commit(folder, "m/v2", "b", "torch-2")
    one, other = chosen(folder, Wanted("m/v1"), Wanted("m/v2"))

    assert (one.gpu, other.gpu) == ("b", "b")
    assert (one.environment, other.environment) == ("torch-1", "torch-2")


def test_of_several_environments_of_one_gpu_the_common_one_is_compared(folder: Path) -> None:
    commit(folder, "m/v1", "a", "torch-1")
    commit(folder, "m/v1", "a", "torch-2")
    commit(folder, "m/v2", "a", "torch-2")
    one, other = chosen(folder, Wanted("m/v1"), Wanted("m/v2"))

    assert (one.environment, other.environment) == ("torch-2", "torch-2")


def test_where_no_gpu_has_both_those_of_one_environment_are_compared(folder: Path) -> None:
    commit(folder, "m/v1", "a", "torch-1")
    commit(folder, "m/v1", "b", "torch-2")
    commit(folder, "m/v2", "c", "torch-2")
    one, other = chosen(folder, Wanted("m/v1"), Wanted("m/v2"))

    assert (one.gpu, other.gpu) == ("b", "c")


def test_where_neither_gpu_nor_environment_is_common_the_only_two_are_compared(folder: Path) -> None:
    commit(folder, "m/v1", "a", "torch-1")
    commit(folder, "m/v2", "b", "torch-2")
    one, other = chosen(folder, Wanted("m/v1"), Wanted("m/v2"))

    assert (one.gpu, other.gpu) == ("a", "b")


def test_one_key_is_compared_across_gpus(folder: Path) -> None:
    commit(folder, "m", "a")
    commit(folder, "m", "b")
    one, other = chosen(folder, Wanted("m", gpu="a"), Wanted("m", gpu="b"))

    assert (one.gpu, other.gpu) == ("a", "b")


def test_this_workers_own_pair_is_compared(folder: Path) -> None:
    for key in ("m/v1", "m/v2"):
        for gpu in ("a", "own"):
            commit(folder, key, gpu)
    one, other = chosen(folder, Wanted("m/v1"), Wanted("m/v2"))

    assert (one.gpu, other.gpu) == ("own", "own")


def test_a_pair_of_which_one_side_is_this_workers_is_compared(folder: Path) -> None:
    commit(folder, "m/v1", "a")
    commit(folder, "m/v1", "own")
    commit(folder, "m/v2", "b")
    one, other = chosen(folder, Wanted("m/v1"), Wanted("m/v2"))

    assert (one.gpu, other.gpu) == ("own", "b")


def test_several_pairs_are_listed_with_an_option_for_each_side(folder: Path) -> None:
    for key in ("m/v1", "m/v2"):
        for gpu in ("a", "b"):
            commit(folder, key, gpu)
    with pytest.raises(AmbiguousScopeError, match=r"m/v1 choose: --gpu1 a .*m/v2 choose: --gpu2 a ") as error:
        chosen(folder, Wanted("m/v1", suffix="1"), Wanted("m/v2", suffix="2"))

    assert error.value.exit_code == 2


def test_two_keys_of_very_many_scopes_are_compared_without_listing_every_pair(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = {key: [Scope("a", key, f"{key}-{number}") for number in range(1000)] for key in ("m", "n")}
    monkeypatch.setattr(choice, "scopes_of", lambda storage, key, *options: published[key])
    monkeypatch.setattr(choice, "unforgotten", lambda storage, scopes: scopes)
    tracemalloc.start()
    try:
        with pytest.raises(AmbiguousScopeError, match=r"and 992 more; for n choose: .* and 992 more$"):
            chosen(folder, Wanted("m"), Wanted("n"))
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_a_scope_without_the_generation_cannot_be_chosen(folder: Path) -> None:
    commit(folder, "m", "a", "torch-1", "one")
    commit(folder, "m", "b", "torch-1", "one", "two")

    assert choose_one(store(folder), Wanted("m", 2)).scope.gpu == "b"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (Wanted("n"), "nothing is published for n in"),
        (Wanted("m", 7), "m has no generation 7; `kstore show m`"),
        (Wanted("m", 2, gpu="a"), "m has no generation 2 for a; `kstore show m`"),
        (Wanted("m", 2, "a", "torch-1"), "m has no generation 2 for a and torch-1; `kstore show m`"),
        (Wanted("m", gpu="x"), "m is not published for x; choose: --gpu a .*--gpu b "),
    ],
)
def test_what_is_not_there_is_a_miss_that_says_what_is(folder: Path, wanted: Wanted, message: str) -> None:
    commit(folder, "m", "a")
    commit(folder, "m", "b", "torch-1", "one", "two")
    with pytest.raises(MissError, match=message):
        choose_one(store(folder), wanted)
