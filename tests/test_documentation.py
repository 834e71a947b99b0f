"""The documentation names only what exists, and leaves out nothing that a user can set or must know."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.cli.imports import SOURCES
from kstore.cli.program import COMMANDS
from kstore.components import load_table
from kstore.components.variables import MANAGED
from kstore.errors import KstoreError
from kstore.redirect import EXEC_KEY
from kstore.settings import _VARIABLES

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
COMPONENT_TABLE = ROOT / "kstore/components/components.toml"
PATTERN_RULES = ("ignore", "busy", "group", "complete", "slot", "merge", "immutable", "mutable")
PATTERN_RULES += ("relocate", "host_bound", "mtime", "lock", "holds", "lists", "stream")

PUBLIC = {name: getattr(kstore, name) for name in kstore.__all__}
ERRORS = [error for error in PUBLIC.values() if isinstance(error, type) and issubclass(error, KstoreError)]

FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def code_in(text: str) -> list[str]:
    """Fenced blocks, and code within lines."""
    return FENCE.findall(text) + CODE.findall(FENCE.sub("", text))


def sections(page: Path, level: str) -> dict[str, str]:
    """Heading → what is below it, for the headings of one level."""
    parts = re.split(rf"^{level} +(.+)$", page.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def anchor_of(heading: str) -> str:
    """As GitHub and mkdocs make an anchor of a heading without special characters."""
    return re.sub(r"[^\w\s-]", "", heading.lower()).strip().replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_that_is_named_exists(page: Path) -> None:
    named = {name for code in code_in(page.read_text()) for name in re.findall(r"(?<![\w/])kstore ([a-z]+)\b", code)}
    assert named <= COMMANDS.keys()


def test_every_command_has_its_section() -> None:
    assert set(sections(DOCS / "cli.md", "##")) >= {f"kstore {name}" for name in COMMANDS}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_that_is_named_exists(name: str) -> None:
    text = sections(DOCS / "cli.md", "##")[f"kstore {name}"]
    modules = [f"imports.{source}" for source in SOURCES] if name == "import" else [name]
    commands = [import_module(f"kstore.cli.{module}").command for module in modules]
    options = {option for command in commands for parameter in command.params for option in parameter.opts}
    named = {option for code in code_in(text) for option in re.findall(r"(?<!\S|`)--?[a-z][a-z-]*", code.strip("`"))}
    assert named <= options | {"--help"}


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_on_a_page(name: str) -> None:
    assert any(re.search(rf"\bkstore\.{name}\b", page.read_text()) for page in PAGES)


@pytest.mark.parametrize("error", [error for error in ERRORS if error is not KstoreError])
def test_an_error_is_in_the_table_of_errors_with_its_exit_code(error: type[KstoreError]) -> None:
    rows = (DOCS / "getting-started.md").read_text().splitlines()
    found = [row for row in rows if row.startswith(f"| `kstore.{error.__name__}` |")]
    assert [row.endswith(f" | {error.exit_code} |") for row in found] == [True]


@pytest.mark.parametrize("status", [*kstore.RestoreStatus, *kstore.CommitStatus])
def test_a_status_of_a_report_is_in_a_table(status: str) -> None:
    rows = [line.split("|")[1] for line in (DOCS / "getting-started.md").read_text().splitlines() if line[:1] == "|"]
    assert any(f"`{status}`" in row for row in rows)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_variable_that_is_named_is_known(page: Path) -> None:
    named = set(re.findall(r"\bKSTORE_[A-Z_]+", page.read_text()))
    assert named <= {*_VARIABLES.values(), MANAGED, EXEC_KEY}


@pytest.mark.parametrize(("setting", "variable"), _VARIABLES.items())
def test_every_setting_is_in_the_table_of_settings(setting: str, variable: str) -> None:
    rows = [line for line in (DOCS / "settings.md").read_text().splitlines() if line.startswith("|")]
    assert any(f"`{setting}`" in row and f"`{variable}`" in row for row in rows)


@pytest.mark.parametrize("variable", [MANAGED, EXEC_KEY])
def test_a_variable_that_kstore_sets_itself_is_explained(variable: str) -> None:
    assert f"`{variable}`" in (DOCS / "settings.md").read_text()


@pytest.mark.parametrize("name", load_table())
def test_every_component_is_on_a_page_with_its_variable_and_folder(name: str) -> None:
    component = load_table()[name]
    text = component_section(component.title)
    assert f"`{component.variable}`" in text
    assert f"`<cache root>/{name}`" in text


@pytest.mark.parametrize("name", load_table())
def test_every_pattern_of_a_component_is_on_its_page(name: str) -> None:
    text = component_section(load_table()[name].title)
    patterns = patterns_of(tomllib.loads(COMPONENT_TABLE.read_text())[name])
    assert patterns
    assert [pattern for pattern in patterns if f"`{pattern}`" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_internal_link_resolves(page: Path) -> None:
    links = LINK.findall(CODE.sub("", FENCE.sub("", page.read_text())))
    internal = [link for link in links if not re.match(r"[a-z]+:", link)]
    assert [link for link in internal if not resolves(page, link)] == []


@pytest.mark.parametrize("page", PAGES[1:], ids=name_of)
def test_a_page_of_the_site_links_only_to_pages_of_the_site(page: Path) -> None:
    paths = (link.partition("#")[0] for link in LINK.findall(FENCE.sub("", page.read_text())) if ":" not in link)
    assert all((page.parent / path).resolve().is_relative_to(DOCS) for path in paths)


def component_section(title: str) -> str:
    """What the pages on components say under the title of one component."""
    found = [text for page in DOCS.glob("components/*.md") for text in [sections_or_page(page).get(title)] if text]
    assert len(found) == 1
    return found[0]


def sections_or_page(page: Path) -> dict[str, str]:
    """On a page on one component its title is the page's; a page on several components has a section for each."""
    return sections(page, "#") | sections(page, "##")


def patterns_of(entry: dict[str, Any]) -> list[str]:
    return [pattern for rule in PATTERN_RULES for pattern in entry.get(rule, ())]


def resolves(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    if not target.exists():
        return False
    return not anchor or anchor in {anchor_of(heading) for heading in HEADING.findall(target.read_text())}
