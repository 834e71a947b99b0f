"""What can be said about the page without a browser: it is one file, whole, and holds no text that could be run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kstore.digest import digest_of
from kstore.environment import Host
from kstore.errors import KstoreError
from kstore.gc import Policy, collect
from kstore.htmlreport import page
from kstore.htmlreport.facts import COMPARED, collect_facts
from kstore.htmlreport.page import make_page
from kstore.packaged import read_packaged
from kstore.published.manifest import Entry, Manifest
from kstore.scope import Scope
from kstore.stats.accounts import OTHER
from kstore.storage import Storage
from tests.htmlreport.stores import EVIL, EVIL_COMPONENT, full_store, hostile_store, publish_manifest
from tests.stats.stores import A100, H100, commit
from tests.trees import ENVIRONMENT, shared_object

pytest.importorskip("plotly", reason="plotly is not installed")


@pytest.fixture(autouse=True)
def fixed_host(host: Host) -> None:
    """Nothing here is bound to a host."""


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text of the scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._in_script = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._in_script = tag == "script"
        self.scripts += [""] if tag == "script" else []

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data


def facts_of(storage: Storage) -> dict[str, Any]:
    return collect_facts(storage, collect(storage, Policy(), dry_run=True))


def test_the_page_refers_to_nothing_outside_it(tmp_path: Path) -> None:
    elements = Elements(make_page(facts_of(full_store(tmp_path))))
    linked = [(tag, name, value) for tag, attributes in elements.found for name, value in attributes.items()
              if name in ("src", "href", "srcset", "action", "data")]  # fmt: skip
    assert linked == [("link", "href", "data:,")]


def test_the_browser_may_run_the_two_scripts_and_no_other(tmp_path: Path) -> None:
    elements = Elements(make_page(facts_of(full_store(tmp_path))))
    (policy,) = (a["content"] for tag, a in elements.found if a.get("http-equiv") == "Content-Security-Policy")
    assert policy
    allowed = re.findall(r"'sha256-([^']+)'", unescape(policy))
    facts, *scripts = elements.scripts
    assert allowed == [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    assert "default-src 'none'" in policy
    assert json.loads(facts)["store"] == str(tmp_path / "store")


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    text = make_page(facts_of(hostile_store(tmp_path)))
    elements = Elements(text)
    assert len(elements.scripts) == 3
    assert [tag for tag, _ in elements.found if tag == "img"] == []
    assert EVIL not in text and EVIL_COMPONENT not in text
    facts = json.loads(elements.scripts[0])
    (scope,) = facts["scopes"]
    assert scope["generations"][0]["creator"] == EVIL
    assert EVIL_COMPONENT in scope["generations"][0]["components"]
    assert scope["facts"] == {"torch": EVIL, EVIL: EVIL}


def test_a_location_that_is_hostile_is_escaped_in_the_title(tmp_path: Path) -> None:
    facts = facts_of(full_store(tmp_path)) | {"store": "/data/</title><script>"}
    assert len(Elements(make_page(facts)).scripts) == 3


def test_the_facts_are_those_of_the_store(tmp_path: Path) -> None:
    facts = facts_of(full_store(tmp_path))
    assert {(key["gpu"], key["key"]) for key in facts["keys"]} == {
        (H100, "llama/v1"), (A100, "llama/v1"), (H100, "llama/v2"), (H100, "flux/dev"), (A100, "flux/dev")
    }  # fmt: skip
    assert [restore["seconds"] for restore in facts["restores"]] == [3.0, 2.0, 1.0]
    assert {row["key"] for row in facts["gc"]["rows"]} == {"llama/v2"}
    assert all(len(scope["generations"]) for scope in facts["scopes"])


def test_the_hosts_that_files_of_the_newest_generation_are_bound_to_are_counted(tmp_path: Path) -> None:
    node = commit(tmp_path, "model/v1", "any")
    assert [scope["hosts"] for scope in facts_of(node.store.storage)["scopes"]] == [0]
    node.tree.put("inductor/ab/cone.main.so", shared_object())
    assert node.commit("model/v1").ok
    assert [scope["hosts"] for scope in facts_of(node.store.storage)["scopes"]] == [1]


def test_whatever_the_page_shows_of_a_scope_is_in_the_facts(tmp_path: Path) -> None:
    facts = facts_of(full_store(tmp_path))
    shown = set(re.findall(r"\bscope\.(\w+)", read_packaged("kstore.htmlreport", "report.js").decode()))
    assert "environment" in shown
    assert [shown - scope.keys() for scope in facts["scopes"]] == [set()] * 5


def test_what_two_keys_share_is_what_both_have(tmp_path: Path) -> None:
    one = commit(tmp_path, "model/v1", "same")
    commit(tmp_path, "model/v2", "same", "more")
    facts = facts_of(one.store.storage)
    keys = [key["key"] for key in facts["sharing"]["keys"]]
    pairs = {(keys[row], keys[column], component): size for row, column, component, size in facts["sharing"]["pairs"]}
    # The folder's list of files holds its own path, and no two folders have the same one.
    kernel = sum(entry.size for path, entry in one.published("model/v1").items() if path.startswith("triton/"))
    assert pairs["model/v2", "model/v1", "triton"] == pairs["model/v1", "model/v1", "triton"] == kernel
    assert ("model/v2", "model/v1", "inductor") not in pairs


def test_only_the_largest_keys_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstore.htmlreport.facts.COMPARED", 2)
    facts = facts_of(full_store(tmp_path))
    assert len(facts["sharing"]["keys"]) == 2 < COMPARED
    assert {row for row, _, _, _ in facts["sharing"]["pairs"]} <= {0, 1}


def test_of_very_many_components_the_largest_are_named(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "store")
    storage.create()
    sizes = {f"component-{number}": 1000 + number for number in range(500)} | {f"{EVIL * 20}{n}": 10**6 for n in (1, 2)}
    files = {f"{name}/file": Entry(digest_of(name.encode()), size, 0, 0o644, 0, 0) for name, size in sizes.items()}
    publish_manifest(storage, Scope(H100, "model/v1", ENVIRONMENT), 1, Manifest(files))
    facts = facts_of(storage)
    components = facts["scopes"][0]["generations"][0]["components"]
    shared = {component: size for _, _, component, size in facts["sharing"]["pairs"]}

    assert components["component-499"] == [1, 1499]
    assert [count for name, count in components.items() if name not in sizes and name != OTHER] == [[2, 2 * 10**6]]
    assert sum(files for files, _ in components.values()) == len(sizes)
    assert sum(size for _, size in components.values()) == sum(shared.values()) == sum(sizes.values())
    assert len(shared) < 100 and len(components) < 100


def test_an_empty_store_has_a_page_too(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "store")
    storage.create()
    assert Elements(make_page(facts_of(storage))).scripts


def test_without_plotly_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(page, "import_module", missing)
    with pytest.raises(KstoreError, match=r"pip install plotly$"):
        make_page({"store": "/data"})
