from __future__ import annotations

import time

import pytest

from kstore.words import age, amount, duration, long_duration, parse_duration, parse_size, printable, shorten, size


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (9949, "9.9 kB"), (9950, "10 kB"), (999_499, "999 kB"),
        (999_500, "1.0 MB"), (2_345_678, "2.3 MB"), (80_000_000, "80 MB"), (5 * 10**18, "5000 PB"),
    ],
)  # fmt: skip
def test_sizes_have_two_or_three_digits(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0031, "3 ms"), (0.14, "0.14 s"), (9.99, "9.99 s"), (14.23, "14.2 s"), (59.99, "1 min"), (200, "3 min"),
        (3600, "1 h"), (5400, "1.5 h"), (43_200, "12 h"), (172_800, "2 d"),
    ],
)  # fmt: skip
def test_durations_are_given_in_the_unit_that_suits_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_whole_seconds_have_no_fraction() -> None:
    assert long_duration(7) == "7 s"


def test_an_age_from_the_future_is_zero() -> None:
    assert age(time.time() + 1000) == "0 s"


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("1.5 h", 5400), ("30d", 2_592_000), ("2w", 1_209_600)]
)
def test_durations_are_read(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "5x", "-3h", "1h30m", "nan"])
def test_text_that_is_not_a_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["0", "0s", "0.2"])
def test_a_duration_of_no_time_is_refused_as_too_short(text: str) -> None:
    with pytest.raises(ValueError, match="too short; 1s is the least"):
        parse_duration(text)


def test_durations_and_sizes_beyond_the_limit_are_refused_with_the_limit() -> None:
    for text in ("9" * 400, "36501d"):
        with pytest.raises(ValueError, match="36500d, a hundred years, is the limit"):
            parse_duration(text)
    for text in ("9" * 400, "1001P"):
        with pytest.raises(ValueError, match="1000P is the limit"):
            parse_size(text)


def test_one_file_is_not_plural() -> None:
    assert amount(1, 5) == "1 file, 5 B"
    assert amount(2, 5) == "2 files, 5 B"


def test_shortening_cuts_out_the_middle() -> None:
    assert shorten("torch2.13.0-cp312-x86_64-3f2a9c1e", 20) == "torch2.13.0…3f2a9c1e"
    assert shorten("torch2.13.0-cp312-x86_64-3f2a9c1e", 11) == "to…3f2a9c1e"
    assert shorten("short", 5) == "short"
    assert shorten("longer", 5) == "lo…er"


def test_characters_that_steer_a_terminal_are_replaced() -> None:
    assert printable("a\x1b[31mb\x07\udc80é\n") == "a\ufffd[31mb\ufffd\ufffdé\n"
