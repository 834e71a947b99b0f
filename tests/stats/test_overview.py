"""What the restores and commits of a store's keys add up to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kstore.environment import Host
from kstore.published.ref import Effort, folder_of
from kstore.scope import Scope
from kstore.stats.overview import Shelf, overview
from kstore.stats.pages import add
from tests.stats.stores import A100, H100, busy_store, commit, sample
from tests.trees import ENVIRONMENT, publish

KEY = "model/v1"


def test_what_the_keys_have_adds_up_to_what_the_store_has(tmp_path: Path, host: Host) -> None:
    storage = busy_store(tmp_path)
    add(storage.backend, Scope(H100, "llama/v1", ENVIRONMENT), sample())
    add(storage.backend, Scope(A100, "never/published", ENVIRONMENT), sample("miss"))
    found = overview(storage)
    rows, whole = found.rows.values(), found.whole

    assert (whole.restores.hits, whole.restores.misses, whole.environments) == (1, 1, len(found.rows)) == (1, 1, 6)
    assert [(shelf.key, shelf.gpu) for shelf in found.rows] == sorted((shelf.key, shelf.gpu) for shelf in found.rows)
    assert (whole.commits.published, whole.commits.timed) == (7, 7)
    assert whole.commits.seconds == pytest.approx(sum(row.commits.seconds for row in rows))
    assert whole.commits.uploaded == sum(row.commits.uploaded for row in rows) > 0
    assert whole.commits.most == max(row.commits.most for row in rows)
    assert whole.commits.last == max(row.commits.last for row in rows)
    assert whole.held.generations == sum(row.held.generations for row in rows) == 7


def test_what_the_commits_of_a_key_took_adds_up(tmp_path: Path) -> None:
    storage = commit(tmp_path, KEY, "one").store.storage
    scope = Scope(H100, KEY, ENVIRONMENT)
    first = storage.refs.get(scope, 1)
    for number, effort in ((2, None), (4, Effort(2e6, 10**9, 1)), (5, Effort(1e6, 10**9, 1))):
        publish(storage.refs, replace(first, generation=number, effort=effort, created=first.created + 9 - number))
    found = overview(storage, KEY).rows[Shelf(H100, KEY)].commits
    effort = first.effort
    assert effort

    # The third has been removed since.
    assert (found.published, found.timed, found.most) == (5, 3, 2e6)
    assert found.seconds == pytest.approx(effort.seconds + 3e6)
    assert (found.uploaded, found.last) == (effort.uploaded + 2 * 10**9, first.created + 7)


def test_what_a_commit_that_failed_has_left_is_no_key(tmp_path: Path) -> None:
    storage = commit(tmp_path, KEY, "one").store.storage
    (tmp_path / "store" / folder_of(Scope(H100, "never/published", ENVIRONMENT))).mkdir(parents=True)

    assert (overview(storage).rows.keys(), overview(storage).whole.environments) == ({Shelf(H100, KEY)}, 1)
    assert not overview(storage, "never/published").rows


def test_a_ref_that_is_damaged_is_told_once_and_its_generation_was_published(tmp_path: Path) -> None:
    storage = commit(tmp_path, KEY, "one").store.storage
    commit(tmp_path, KEY, "two")
    ref = tmp_path / "store" / folder_of(Scope(H100, KEY, ENVIRONMENT)) / "2"
    ref.chmod(0o644)
    ref.write_text("damaged")
    found = overview(storage)

    assert (found.whole.commits.published, found.whole.commits.timed) == (2, 1)
    assert len(found.unreadable) == 1
