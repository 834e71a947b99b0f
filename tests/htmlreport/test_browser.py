"""The page in a real browser: Debian's chromium and chromium-driver, or another Chrome with its driver."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kstore.gc import Policy, collect
from kstore.htmlreport.facts import collect_facts
from kstore.htmlreport.page import make_page
from kstore.storage import Storage
from tests.htmlreport.stores import EVIL, full_store, hostile_store
from tests.stats.stores import A100, H100

PATIENCE = 20
"""Tenths of a second."""
DRAWN = {"ids", "x", "y", "z"}

pytest.importorskip("plotly", reason="plotly is not installed")
webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="no Chromium with its chromedriver is installed"),
]
DESKTOP, PHONE = (1440, 900), (390, 844)
CHARTS = ("treemap", "sharing", "growth", "slowest")
HARMLESS = ("file:", "data:", "blob:", "about:")


class Page:
    """A report as it is shown."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def open(self, storage: Storage, folder: Path, size: tuple[int, int] = DESKTOP, *, dark: bool = False) -> None:
        path = folder / "report.html"
        path.write_text(make_page(collect_facts(storage, collect(storage, Policy(), dry_run=True))), encoding="utf-8")
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self._driver.get("about:blank")
        self._logged("performance"), self._logged("browser")
        self._driver.get(path.as_uri())
        for _ in range(PATIENCE):
            if self.run("return document.readyState === 'complete' && !!document.getElementById('about')?.textContent"):
                break
            time.sleep(0.1)  # a busy machine's browser may report too early that the page is loaded

    def run(self, code: str, *arguments: Any) -> Any:
        return self._driver.execute_script(code, *arguments)

    def choose(self, **filters: str) -> None:
        """Choose from the lists and type, as a user does."""
        for name, value in filters.items():
            change = "const it = document.getElementById(arguments[0]); it.value = arguments[1];"
            self.run(f"{change} it.dispatchEvent(new Event('input', {{bubbles: true}}))", name, value)

    def trace(self, chart: str) -> dict[str, Any]:
        """What the first trace of a chart shows; empty if nothing is drawn."""
        code = "return JSON.parse(JSON.stringify((document.getElementById(arguments[0]).data || [{}])[0]))"
        for _ in range(PATIENCE):
            if DRAWN & (found := dict(self.run(code, chart))).keys():
                break
            time.sleep(0.1)  # it is drawn when the page has time for it
        return found

    def names(self, chart: str) -> list[str]:
        return list(self.run("return (document.getElementById(arguments[0]).data || []).map((t) => t.name)", chart))

    def rows(self, table: str) -> list[list[str]]:
        code = "return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)].map((r) => [...r.cells].map((c) => c.textContent))"  # noqa: E501
        return list(self.run(code, table))

    def text(self, name: str) -> str:
        return str(self.run("return document.getElementById(arguments[0]).textContent", name))

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self._logged("browser")]

    def requested(self) -> list[str]:
        events = [json.loads(entry["message"])["message"] for entry in self._logged("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    def _logged(self, kind: str) -> list[dict[str, Any]]:
        return list(self._driver.get_log(kind))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    profile = tmp_path_factory.mktemp("profile")
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", f"user-data-dir={profile}"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield made
    made.quit()


@pytest.fixture
def page(driver: Any) -> Page:
    return Page(driver)


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_part_is_drawn_and_nothing_complains(
    page: Page, tmp_path: Path, size: tuple[int, int], dark: bool
) -> None:
    page.open(full_store(tmp_path), tmp_path, size, dark=dark)
    assert page.complaints() == []
    for chart in CHARTS:
        box = page.run(
            "const box = document.querySelector(`#${arguments[0]} .main-svg`).getBoundingClientRect();"
            "return [box.width, box.height]", chart,
        )  # fmt: skip
        assert min(box) > 200
    assert len(page.rows("environments")) == 5
    assert page.run("return document.documentElement.scrollWidth") <= size[0]
    background = page.run("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 200) == dark
    save_screenshot(page, f"{'dark' if dark else 'light'}-{size[0]}.png")


def save_screenshot(page: Page, name: str) -> None:
    """For somebody who wants to look: KEEP_SCREENSHOTS names the folder."""
    if folder := os.environ.get("KEEP_SCREENSHOTS"):
        page._driver.save_screenshot(f"{folder}/{name}")


def test_nothing_is_asked_for_outside_the_file(page: Page, tmp_path: Path) -> None:
    page.open(full_store(tmp_path), tmp_path)
    page.choose(gpu=H100)
    requested = page.requested()
    assert [url for url in requested if not url.startswith(HARMLESS)] == []
    assert len([url for url in requested if url.startswith("file:")]) == 1


def test_the_filter_by_gpu_works_on_all_charts(page: Page, tmp_path: Path) -> None:
    page.open(full_store(tmp_path), tmp_path)
    assert {id.split("\n")[0] for id in page.trace("treemap")["ids"]} == {A100, H100}
    assert len(page.trace("sharing")["z"]) == 5
    assert len(page.names("growth")) == 5
    assert len(page.rows("slowest-table")) == 3

    page.choose(gpu=A100)
    assert {id.split("\n")[0] for id in page.trace("treemap")["ids"]} == {A100}
    assert len(page.trace("sharing")["z"]) == 2
    assert sorted(page.names("growth")) == ["flux/dev", "llama/v1"]
    assert page.trace("slowest")["x"] == [2.0]
    assert {row[1] for row in page.rows("environments")} == {A100}
    assert page.rows("candidates") == []
    assert page.text("matching") == "2 of 5 scopes"
    assert page.complaints() == []


def test_the_filter_by_key_works_on_all_charts(page: Page, tmp_path: Path) -> None:
    page.open(full_store(tmp_path), tmp_path)
    page.choose(key="LLAMA/v2")
    assert {id.split("\n")[1] for id in page.trace("treemap")["ids"] if "\n" in id} == {"llama/v2"}
    assert page.trace("sharing")["z"] == [[100]]
    assert page.names("growth") == ["llama/v2"]
    assert page.trace("slowest") == {} and "No restore" in page.text("slowest")
    assert [row[0] for row in page.rows("environments")] == ["llama/v2"]
    assert {row[0] for row in page.rows("candidates")} == {"llama/v2"}

    page.choose(key="nothing of that name")
    assert [page.trace(chart) for chart in CHARTS] == [{}] * 4
    page.choose(key="")
    assert len(page.rows("environments")) == 5
    assert page.complaints() == []


def test_the_filter_by_component_works_on_all_charts(page: Page, tmp_path: Path) -> None:
    storage = full_store(tmp_path)
    page.open(storage, tmp_path)
    everything, shared = page.trace("growth")["y"][-1], page.trace("sharing")["z"]
    page.choose(component="inductor")
    components = {id.split("\n")[2] for id in page.trace("treemap")["ids"] if id.count("\n") == 2}
    assert components == {"inductor"}
    assert 0 < page.trace("growth")["y"][-1] < everything
    assert page.trace("sharing")["z"] != shared
    page.run("document.querySelector('button[type=reset]').click()")
    assert (
        page.run("return new Promise((done) => setTimeout(() => done(document.getElementById('component').value)))")
        == ""
    )
    assert page.trace("growth")["y"][-1] == everything
    assert page.complaints() == []


def test_hostile_text_is_shown_and_never_run(page: Page, tmp_path: Path) -> None:
    page.open(hostile_store(tmp_path), tmp_path)
    for scenario in ({}, {"gpu": H100}, {"key": "model"}, {"component": "__proto__"}, {"component": "constructor"}):
        page.choose(**scenario)
        assert page.run("return window.hacked") is None
        assert page.run("return document.images.length") == 0
        assert page.run("return document.scripts.length") == 3
    assert EVIL in page.rows("environments")[0]
    assert EVIL in page.rows("slowest-table")[0]
    assert page.complaints() == []
    assert [url for url in page.requested() if not url.startswith(HARMLESS)] == []


def test_what_cannot_be_read_is_reported(page: Page, tmp_path: Path) -> None:
    storage = full_store(tmp_path)
    page.open(storage, tmp_path)
    assert "cannot be read" not in page.text("about")
    next((Path(storage.location) / "packs").iterdir()).unlink()
    page.open(storage, tmp_path)
    assert "generations or packs cannot be read" in page.text("about")
    assert page.complaints() == []


def test_an_empty_store_says_so(page: Page, tmp_path: Path) -> None:
    storage = Storage(tmp_path / "store")
    storage.create()
    page.open(storage, tmp_path)
    assert page.complaints() == []
    assert page.text("environments") == "Nothing matches this selection."
