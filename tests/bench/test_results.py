from __future__ import annotations

from pathlib import Path

import pytest

from tools.bench import report
from tools.bench.__main__ import PAGE, README
from tools.bench.results import Claim, Table, Unit, from_json


def table(ours: list[float], peers: list[float], limit: float, unit: Unit = Unit.SECONDS) -> Table:
    made = Table("race", "A race")
    for column, values in ("ours", ours), ("theirs", peers):
        for value in values:
            made.add("lap", column, value, unit)
    made.claims.append(Claim("lap", "ours", limit, "theirs"))
    return made


@pytest.mark.parametrize(("limit", "is_met"), [(0.25, True), (0.2, True), (0.1, False)])
def test_a_claim_compares_medians(limit: float, is_met: bool) -> None:
    made = table([1, 2, 900], [10, 10, 0.1], limit)
    verdict = made.verdict(made.claims[0])
    assert verdict is not None and (verdict.ratio, verdict.is_met) == (0.2, is_met)


def test_a_claim_without_a_peer_is_a_limit_in_the_unit_of_its_row() -> None:
    made = table([3], [1], 1)
    verdicts = [made.verdict(Claim("lap", "ours", limit)) for limit in (3, 2.9)]
    assert [verdict is not None and verdict.is_met for verdict in verdicts] == [True, False]


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    made = table([1], [], 0.5)
    assert made.verdict(made.claims[0]) is None
    assert "| ours: lap | theirs | ≤ 0.5 |  | not measured |" in report.summary([made])


def test_a_claim_against_a_peer_that_takes_no_time_is_not_met() -> None:
    """A peer that takes no time at all cannot be beaten by any factor."""
    made = table([1], [0], 2)
    verdict = made.verdict(made.claims[0])
    assert verdict is not None and not verdict.is_met


def test_a_missed_claim_is_marked() -> None:
    assert "| 1/5 | **missed** |" in report.summary([table([2], [10], 0.1)])


@pytest.mark.parametrize(
    ("floor", "mark"), [(1.5, "**missed**; bare alone: 1/6.67"), (0.9, "**missed**"), (0, "**missed**")]
)
def test_a_claim_that_the_floor_itself_would_miss_says_so(floor: float, mark: str) -> None:
    made = table([2], [10], 0.1)
    made.claims = [Claim("lap", "ours", 0.1, "theirs", floor="bare")]
    if floor:
        made.add("another lap", "bare", floor, Unit.SECONDS)
    assert f"| 1/5 | {mark} |" in report.summary([made])


def test_a_table_comes_back_from_its_json() -> None:
    made = table([1.5, 2.5], [4], 0.5, Unit.BYTES)
    made.conditions.append("a place")
    made.note("something")
    assert from_json(made.as_json()) == made


@pytest.fixture
def readme(tmp_path: Path) -> Path:
    path = tmp_path / "README.md"
    path.write_text("before\n<!-- begin: python -m tools.bench -->\nold\n<!-- end -->\nafter\n")
    return path


def compared(title: str, **values: float) -> Table:
    """A table with a target for laps."""
    made = Table("race", title)
    for column, value in values.items():
        for row in "warm-up", "lap":
            made.add(row, column, value, Unit.SECONDS)
    made.claims.append(Claim("lap", "kstore, packed", 0.5, "fal"))
    return made


def test_what_a_peer_does_too_goes_between_the_marks(readme: Path) -> None:
    race = compared("A race", **{"kstore, packed": 2, "fal": 10, "cp -al": 1})
    for _ in range(2):
        report.update_readme(readme, [table([2], [10], 0.5), race])
    lines = readme.read_text().splitlines()
    assert [line for line in lines if "[A race](docs/benchmarks/index.md#a-race)" in line] == [
        "| [A race](docs/benchmarks/index.md#a-race): lap |  | 2.00 s | 10.00 s |  |  | 1.00 s |  |  |"
    ]
    assert (lines[0], lines[-1]) == ("before", "after")
    assert "old" not in lines


def test_starts_have_a_table_of_their_own_with_what_is_between_cold_and_untouched(readme: Path) -> None:
    warm = {"kstore, packed": 2, "fal": 3, "mega-cache": 7, "untouched warm folder": 1.5}
    start = compared("A start", cold=9, **warm)
    report.update_readme(readme, [start, compared("A race", **{"kstore, packed": 2, "fal": 10})])
    sharing, starting = readme.read_text().split("\n\n")
    assert "A race" in sharing and "A start" not in sharing
    assert starting.splitlines()[0].endswith("mega-cache | untouched warm folder |")
    assert ": lap | 9.00 s |  | 2.00 s | 3.00 s |  | 7.00 s | 1.50 s |" in starting


def test_a_readme_without_marks_stays_as_it_is(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("mine\n")
    with pytest.raises(ValueError, match="no place for figures"):
        report.update_readme(readme, [])
    assert readme.read_text() == "mine\n"


def test_the_readme_has_the_figures_that_were_measured(readme: Path) -> None:
    readme.write_text(README.read_text())
    report.update_readme(readme, report.read(PAGE / "results.json").values())
    assert readme.read_text() == README.read_text()


def test_what_was_measured_with_a_gpu_has_a_page_of_its_own(tmp_path: Path) -> None:
    report.write(tmp_path / "nvidia-h100-sm90", [table([2], [1], 1)], "nvidia-h100-sm90")
    report.write(tmp_path, [])
    assert (tmp_path / "nvidia-h100-sm90/index.md").read_text().startswith("# Benchmarks on nvidia-h100-sm90\n")
    page = (tmp_path / "index.md").read_text()
    assert page.startswith("# Benchmarks\n") and "[nvidia-h100-sm90](nvidia-h100-sm90/index.md)" in page
