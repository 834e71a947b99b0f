"""Numbers, times and names as people read them."""

from __future__ import annotations

import re
import shlex
import time

from kstore.progress import Awaited

_SIZES = ("B", "kB", "MB", "GB", "TB", "PB")
_TAIL = 8
"""Characters: as long as the digest at the end of an environment's tag."""
_PREFIXES = ("", "K", "M", "G", "T", "P")
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([KMGTP])?(I)?B?")
_DURATION = re.compile(r"(\d+(?:\.\d+)?) *(s|m|min|h|d|w)?")
_LONGEST = 36500 * 86400
_LARGEST = 10**18
_SHOWN = 40
"""Characters shown of what is refused."""
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}


def size(count: float) -> str:
    """Bytes, such as "2.3 MB": a megabyte is a million."""
    for unit in _SIZES:
        if count < 999.5 or unit == _SIZES[-1]:
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" or count >= 9.95 else f"{count:.1f} {unit}"


def duration(seconds: float) -> str:
    """Such as "3 ms", "0.14 s", "14.2 s", "3 min", "1.5 h" or "5 d"."""
    if seconds < 9.995:
        return f"{seconds:.2f} s" if seconds >= 0.01 else f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    return long_duration(round(seconds))


def long_duration(seconds: int) -> str:
    """Whole seconds, such as "14 s", "3 min", "1.5 h" or "5 d"."""
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min"
    hours = seconds / 3600
    if hours < 48:
        return f"{hours:.1f} h".replace(".0 ", " ") if hours < 9.95 else f"{hours:.0f} h"
    return f"{hours / 24:.0f} d"


def age(created: float) -> str:
    """How long ago; clocks differ between hosts, so the future is now."""
    return long_duration(round(max(0.0, time.time() - created)))


def waiting(awaited: Awaited) -> str:
    """Who is waited for, for how long they have been at it, and what there is so far."""
    published = f"generation {awaited.generation} is published" if awaited.generation else "nothing is published"
    if not awaited.holder:
        return f"waiting for somebody to compile; {published} so far"
    since = long_duration(round(max(0.0, time.monotonic() - awaited.since)))
    return f"waiting for {awaited.holder}, who has been compiling for {since}; {published} so far"


def moment(seconds: float) -> str:
    """Local time, such as "2026-03-01 14:05"."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def parse_duration(text: str) -> int:
    """Seconds in "90s", "15m", "1h", "30d" or "2w"; a bare number is seconds.

    Raises:
        ValueError: it is no duration, or none at all.
    """
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * _SECONDS[found[2] or "s"] if found else 0.0
    if seconds > _LONGEST:
        raise ValueError(f"{shorten(text, _SHOWN)!r} is too long; 36500d, a hundred years, is the limit")
    if found and round(seconds) < 1:
        raise ValueError(f"{text!r} is too short; 1s is the least")
    if not found:
        raise ValueError(f"{text!r} is not a duration such as 90s, 15m, 1h or 30d")
    return round(seconds)


def parse_size(text: str) -> int:
    """Bytes in "500M", "50 GB" or "2TiB"; a bare number is bytes.

    Raises:
        ValueError: it is no size, or nothing at all.
    """
    found = _SIZE.fullmatch(text.strip().upper())
    base = 1024 if found and found[3] else 1000
    count = float(found[1]) * base ** _PREFIXES.index(found[2] or "") if found else 0.0
    if count > _LARGEST:
        raise ValueError(f"{shorten(text, _SHOWN)!r} is too large; 1000P is the limit")
    if round(count) < 1:
        raise ValueError(f"{text!r} is not a size such as 500M, 50G or 2TiB")
    return round(count)


def files(count: int, kind: str = "") -> str:
    """Such as "1 file"."""
    return plural(count, f"{kind}file")


def plural(count: int, noun: str, many: str = "") -> str:
    """Such as "3 packs"; `many` for a noun that takes no "s"."""
    return f"{count} {noun}" if count == 1 else f"{count} {many or noun + 's'}"


def amount(count: int, total: int) -> str:
    """Such as "928 files, 2.3 MB"."""
    return f"{files(count)}, {size(total)}"


def shorten(text: str, width: int) -> str:
    """Cut out the middle: the end tells a name from others."""
    if len(text) <= width:
        return text
    tail = min(_TAIL, max(width - 3, (width - 1) // 2))
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def printable(text: str) -> str:
    """Without what could steer a terminal: anybody may choose names in a store."""
    return "".join(character if character.isprintable() or character == "\n" else "\ufffd" for character in text)


def in_line(text: str) -> str:
    """As `printable`, in one line: a name must not look like two."""
    return printable(text).replace("\n", "\ufffd")


def command_line(command: str, key: str, *words: str) -> str:
    """A command, to be copied. A KEY that looks like an option comes last, behind "--"."""
    placed = (*words, "--", key) if key.startswith("-") else (*((key,) if key else ()), *words)
    return shlex.join(["kstore", command, *placed])
