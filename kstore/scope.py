"""A scope says what may share kernels: one GPU model, one key, one software environment."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kstore.errors import UsageError

MAX_KEY_LENGTH = 200
_SHOWN = 8
"""Scopes that a message names: a key may have any number."""
_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_TAG = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._+-]*")


def check_key(key: str) -> str:
    """Return `key` if it is well formed: parts of `[A-Za-z0-9._-]` joined by "/", none starting with ".".

    Raises:
        UsageError: it is not.
    """
    if not isinstance(key, str):
        raise UsageError(f'key {key!r} is not text, such as "my-model/v1"')
    if len(key) > MAX_KEY_LENGTH:
        raise UsageError(f"key {key!r} has more than {MAX_KEY_LENGTH} characters; use a shorter one")
    if not all(_PART.fullmatch(part) for part in key.split("/")):
        raise UsageError(
            f"key {key!r} is not made of parts of letters, digits, '.', '_' and '-' joined by '/', "
            "none starting with '.'; for example 'my-model/v1'"
        )
    return key


def check_generation(generation: int | None) -> None:
    """None leaves the choice to the operation.

    Raises:
        UsageError: it is not the number of a generation.
    """
    if generation is None:
        return
    if not isinstance(generation, int) or isinstance(generation, bool) or generation < 1:
        raise UsageError(f"generation={generation!r} is not a whole number from 1 on; `kstore show KEY` lists them")


def _check_tag(kind: str, tag: str) -> None:
    if not _TAG.fullmatch(tag) or len(tag) > MAX_KEY_LENGTH:
        raise UsageError(
            f"{kind} {tag!r} is not made of letters, digits, '.', '_', '+' and '-'; see --{kind.lower()} and "
            f"KSTORE_{kind.upper()}, and `kstore ls --json` for those in use"
        )


@dataclass(frozen=True, slots=True, order=True)
class Scope:
    """What may share kernels."""

    gpu: str
    """Slug of the full device name and its architecture, such as `nvidia-h100-80gb-hbm3-sm90`."""
    key: str
    """The name that the user gave, such as `my-model/v1`."""
    environment: str
    """Tag of the software that decides whether an entry can hit."""

    def __post_init__(self) -> None:
        check_key(self.key)
        _check_tag("GPU", self.gpu)
        _check_tag("environment", self.environment)

    @property
    def path(self) -> str:
        """The scope's folder below `refs` and others. "@" keeps an environment apart from a longer key's next part."""
        return f"{self.gpu}/{self.key}/@{self.environment}"

    def is_of(self, gpu: str | None, environment: str | None) -> bool:
        """Whether it is of these; None stands for any."""
        return gpu in (None, self.gpu) and environment in (None, self.environment)

    def describe(self) -> dict[str, str]:
        """For machines."""
        return {"key": self.key, "gpu": self.gpu, "environment": self.environment}

    def __str__(self) -> str:
        return f"{self.key} ({self.gpu}, {self.environment})"


def choices(scopes: Sequence[Scope], suffix: str = "", most: int = _SHOWN) -> str:
    """The first of the scopes as the command line takes them, in options that end in `suffix`."""
    named = [f"--gpu{suffix} {scope.gpu} --environment{suffix} {scope.environment}" for scope in scopes[:most]]
    return "; ".join(named) + (f"; and {len(scopes) - most} more" if len(scopes) > most else "")
