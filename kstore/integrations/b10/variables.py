"""The environment variables of b10-transfer: their defaults, caps, and the folders that they may name.

Each is read when it is needed, so a malformed one fails only what depends on it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kstore.components import load_table
from kstore.components.variables import default_folder
from kstore.integrations.b10.space import MIB
from kstore.integrations.b10.status import CacheValidationError, log
from kstore.settings import Settings, load_settings

TORCH_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
VLLM_VARIABLE = "VLLM_CACHE_ROOT"
VOLUME = "/cache/model"
"""Where Baseten mounts the volume that the replicas of a deployment share."""
MAX_CONCURRENT_SAVES_CAP = 100

_SWITCH = {"": False, "0": False, "false": False, "False": False, "1": True, "true": True, "True": True}

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Variables:
    """What the environment says. Every property raises `CacheValidationError` if its variable is malformed."""

    environ: Mapping[str, str]

    @property
    def enabled(self) -> bool:
        """Whether the volume may be used (BASETEN_FS_ENABLED)."""
        text = self.environ.get("BASETEN_FS_ENABLED", "0")
        if text not in _SWITCH:
            raise CacheValidationError(f"BASETEN_FS_ENABLED is {text!r}; it must be one of 0, 1, false, true")
        return _SWITCH[text]

    def check_enabled(self) -> None:
        """Check that the volume may be used.

        Raises:
            CacheValidationError: it may not.
        """
        if not self.enabled:
            raise CacheValidationError("BASETEN_FS_ENABLED is not 1: there is no volume to share kernels on")

    @property
    def torch_cache_dir(self) -> Path:
        """The folder that torch compiles into on this replica."""
        return self._folder(TORCH_VARIABLE, default_torch_cache_dir(), _local_prefixes())

    @property
    def vllm_cache_root(self) -> Path:
        """Where vLLM has its cache on this replica; the bounds are those of `torch_cache_dir`."""
        default = default_folder(load_table()["vllm"])
        chosen = os.path.expanduser(self.environ.get(VLLM_VARIABLE) or default)
        return check_folder(VLLM_VARIABLE, chosen, _local_prefixes())

    @property
    def volume(self) -> Path:
        """The folder of this deployment on the shared volume (B10FS_CACHE_DIR)."""
        return self._folder("B10FS_CACHE_DIR", f"{VOLUME}/compile_cache", [VOLUME])

    @property
    def max_save_mb(self) -> int:
        """What one save may add, compressed, in MiB (MAX_CACHE_SIZE_MB, at most MAX_CACHE_SIZE_CAP_MB)."""
        cap = self._number("MAX_CACHE_SIZE_CAP_MB", 1024, int)
        return _capped("MAX_CACHE_SIZE_MB", self._number("MAX_CACHE_SIZE_MB", 1024, int), cap)

    @property
    def max_saves(self) -> int:
        """How many saves at a time the volume must have room for (MAX_CONCURRENT_SAVES)."""
        return _capped("MAX_CONCURRENT_SAVES", self._number("MAX_CONCURRENT_SAVES", 50, int), MAX_CONCURRENT_SAVES_CAP)

    @property
    def free_volume_mb(self) -> int:
        """MiB that must be free on the volume before anything is added to it (at least MIN_B10FS_SPACE_MB)."""
        return max(self.max_saves * self.max_save_mb, self._number("MIN_B10FS_SPACE_MB", 100_000, int))

    @property
    def free_local_mb(self) -> int:
        """MiB that must be free on the replica's disk before anything is written to it (MIN_LOCAL_SPACE_MB)."""
        return self._number("MIN_LOCAL_SPACE_MB", 4096, int)

    def free_to_unpack_mb(self, archive: Path) -> float:
        """MiB that must be free on the replica's disk for an archive: its contents are assumed to be this many times
        larger (LOCAL_SPACE_ARCHIVE_MULTIPLIER).
        """
        ratio = self._number("LOCAL_SPACE_ARCHIVE_MULTIPLIER", 5.0, float)
        return max(archive.stat().st_size / MIB * ratio, self.free_local_mb)

    def _folder(self, name: str, default: str, prefixes: Sequence[str]) -> Path:
        return check_folder(name, self.environ.get(name, default), prefixes)

    def _number(self, name: str, default: Number, parse: Callable[[str], Number]) -> Number:
        text = self.environ.get(name)
        try:
            return default if text is None else parse(text)
        except ValueError:
            raise CacheValidationError(f"{name} is {text!r}, which is not a number") from None


def store_location(volume: Path, settings: Settings | None = None) -> str:
    """The store named by kstore's own settings, by default those of this process now; else one beside the archives."""
    chosen = (settings or load_settings()).store
    is_chosen = os.environ.get("KSTORE_ROOT") or chosen != Settings().store
    return ":".join(chosen) if is_chosen else str(volume / "kstore")


def key_of(volume: Path) -> str:
    """`b10/`, then the path of the deployment's folder on its volume."""
    folder = volume.relative_to(VOLUME) if volume.is_relative_to(VOLUME) else Path(volume.name)
    parts = ("".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in part) for part in folder.parts)
    return "/".join(["b10", *(part.lstrip(".") or "-" for part in parts)])


def default_torch_cache_dir() -> str:
    """Always below /tmp, unlike torch's own default, which follows TMPDIR."""
    return f"/tmp/{Path(default_folder(load_table()['inductor'])).name}"


def check_folder(name: str, path: str, prefixes: Sequence[str]) -> Path:
    """The absolute path, if it is below one of `prefixes` after all links are followed.

    Raises:
        CacheValidationError: it is not, or it has "..".
    """
    if not path or path != path.strip() or ".." in Path(path).parts:
        raise CacheValidationError(f"{name} is {path!r}; it must be a folder, without '..'")
    try:
        real = Path(path).resolve()
        is_below = any(real.is_relative_to(Path(prefix).resolve()) for prefix in prefixes)
    except (OSError, ValueError, RuntimeError) as error:  # Before Python 3.13 a link to itself is a RuntimeError.
        raise CacheValidationError(f"{name} is {path!r}, which leads nowhere: {error}") from error
    if not is_below:
        raise CacheValidationError(f"{name} is {path!r}; it must be below {' or '.join(prefixes)}")
    return Path(os.path.abspath(path))


def check_own(folder: str, saved: Iterable[Path]) -> None:
    """Check that nothing but a compiler's cache is in a folder, as far as its name tells.

    Raises:
        CacheValidationError: it is one that every program may keep a folder in, or one of `saved` is in it.
    """
    real = Path(folder).resolve()
    if any(path.resolve().is_relative_to(real) for path in saved):
        raise CacheValidationError(f"{folder} holds what replicas have saved; set {TORCH_VARIABLE} to another folder")
    if real in (Path(prefix).resolve() for prefix in _local_prefixes()):
        raise CacheValidationError(f"{folder} is not only torch's; set {TORCH_VARIABLE} to a folder in it")


def _local_prefixes() -> list[str]:
    return ["/tmp/", "/cache/", os.path.expanduser("~/.cache"), "/bdn/cache/"]


def _capped(name: str, value: int, cap: int) -> int:
    if value > cap:
        log.warning("kstore: %s is %d; %d is the most that is allowed", name, value, cap)
    return min(value, cap)
