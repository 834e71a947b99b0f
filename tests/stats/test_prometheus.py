"""What Prometheus would read, according to its own client's parser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from kstore.environment import Host
from kstore.scope import Scope
from kstore.stats.overview import Commits, Overview, Row, Shelf, overview
from kstore.stats.pages import add
from kstore.stats.prometheus import as_prometheus
from kstore.stats.space import Held
from kstore.stats.totals import Totals
from tests.stats.stores import A100, H100, busy_store, sample
from tests.trees import ENVIRONMENT

Labels = frozenset[tuple[str, str]]


def samples_of(text: str) -> dict[tuple[str, Labels], float]:
    return {(s.name, frozenset(s.labels.items())): s.value for family in parse(text) for s in family.samples}


def labels(gpu: str, key: str, **more: str) -> Labels:
    return frozenset({"gpu": gpu, "key": key, **more}.items())


@pytest.fixture
def found(tmp_path: Path, host: Host) -> Overview:
    storage = busy_store(tmp_path)
    llama = Scope(H100, "llama/v1", ENVIRONMENT)
    for status, seconds in (("restored", 0.25), ("restored", 0.5), ("current", 0.1), ("miss", 0.0), ("seeded", 1.0)):
        add(storage.backend, llama, sample(status, seconds))
    return overview(storage)


def test_every_figure_can_be_read(found: Overview) -> None:
    samples = samples_of(as_prometheus(found))
    own = labels(H100, "llama/v1")
    assert samples["kstore_restores_total", own | {("result", "hit")}] == 3
    assert samples["kstore_restores_total", own | {("result", "miss")}] == 1
    assert samples["kstore_restores_total", own | {("result", "seeded")}] == 1
    assert samples["kstore_restore_seconds_sum", own] == 0.75
    assert samples["kstore_restore_seconds_count", own] == 2
    assert samples["kstore_generations", own] == 2
    assert samples["kstore_commit_seconds_count", own] == 2
    assert samples["kstore_restores_total", labels(A100, "llama/v1", result="hit")] == 0
    assert samples["kstore_store_stored_bytes", frozenset()] == found.whole.held.stored


def test_each_figure_is_what_its_name_says() -> None:
    restores = Totals(placed=1, left_out=2, waited=3.5)
    commits = Commits(published=4, timed=5, seconds=6.5, most=7.5, uploaded=8, last=9.5)
    row = Row(restores, commits, Held(generations=10, live=11, artifacts=12, unique=13, manifests=14, stored=15))
    whole = Row(held=Held(artifacts=16, unique=17, stored=18))
    samples = samples_of(as_prometheus(Overview("", None, {Shelf(H100, "key"): row}, whole, [])))

    assert {name: value for (name, _), value in samples.items() if not name.startswith("kstore_restore")} == {
        "kstore_left_out_files_total": 2, "kstore_waited_seconds_total": 3.5, "kstore_published_generations_total": 4,
        "kstore_commit_seconds_count": 5, "kstore_commit_seconds_sum": 6.5, "kstore_uploaded_bytes": 8,
        "kstore_generations": 10, "kstore_artifact_bytes": 12, "kstore_unique_bytes": 13, "kstore_stored_bytes": 15,
        "kstore_store_artifact_bytes": 16, "kstore_store_unique_bytes": 17, "kstore_store_stored_bytes": 18,
    }  # fmt: skip
    assert samples["kstore_restored_files_total", labels(H100, "key")] == 1


def test_the_whole_store_is_not_told_with_one_key(found: Overview) -> None:
    samples = samples_of(as_prometheus(replace(found, key="llama/v1")))
    assert ("kstore_generations", labels(H100, "llama/v1")) in samples
    assert [name for name, _ in samples if name.startswith("kstore_store_")] == []


def test_each_family_has_its_help_and_type_once(found: Overview) -> None:
    text = as_prometheus(found)
    families = list(parse(text))
    assert len({family.name for family in families}) == len(families) == text.count("# TYPE ")
    assert all(family.documentation and family.type in ("counter", "gauge", "summary") for family in families)
    assert all(family.samples for family in families)


def test_each_sample_is_there_once(found: Overview) -> None:
    lines = [line for line in as_prometheus(found).splitlines() if not line.startswith("#")]
    assert len(samples_of(as_prometheus(found))) == len(lines)


def test_what_must_be_escaped_is() -> None:
    hostile = 'a"b\\c\nd{}'
    found = Overview("", None, {Shelf(hostile, "key"): Row()}, Row(), [])
    assert ("kstore_generations", labels(hostile, "key")) in samples_of(as_prometheus(found))


def test_an_empty_store_has_figures_too() -> None:
    assert samples_of(as_prometheus(Overview("", None, {}, Row(), [])))["kstore_store_stored_bytes", frozenset()] == 0
