"""Play replicas of a Baseten deployment, with b10-transfer itself or with kstore in its place.

    python share_b10.py real|ours FOLDER < SCENES

SCENES is JSON: name → steps. A step is one of

    ["set", {VARIABLE: value or null}]   from here on
    ["replica", NAME]                    from here on this replica, with a home folder of its own
    ["write", PATH, TEXT]                what its compiler would leave in torch's cache folder
    ["break"]                            damage what is on the shared volume
    ["call", FUNCTION, ARGUMENT...]      one of the package's functions

In variables and arguments "{volume}" stands for the shared folder, and "{home}" for the replica's home folder. The last
line on stdout is JSON: name → what the calls returned, with statuses by their names.

Each scene has a folder of its own for the volume. The folders that the real package insists on (/cache, /app) are
taken to be below FOLDER: nothing else in the package is changed.
"""

from __future__ import annotations

import json
import os
import sys
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

FREE = {
    "BASETEN_FS_ENABLED": "1",
    "MIN_B10FS_SPACE_MB": "0",
    "MIN_LOCAL_SPACE_MB": "0",
    "MAX_CONCURRENT_SAVES": "1",
    "MAX_CACHE_SIZE_MB": "64",
}


def load_package(which: str, top: Path, app: str = "") -> Any:
    """The package, with its fixed folders moved below `top`; if `app` is given, /app is moved there instead."""
    folders = {"/app": app or f"{top}/app", "/cache": f"{top}/cache"}
    if which == "ours":
        import_module("kstore.integrations.b10.variables").VOLUME = str(top / "cache/model")  # type: ignore[attr-defined]
        return import_module("kstore.integrations.b10")
    package = import_module("b10_transfer")
    import_module("b10_transfer.config").REQUIRED_TORCH_CACHE_DIR_PREFIX = str(top / "cache/model")  # type: ignore[attr-defined]
    for name in ("config", "archive"):
        module: Any = import_module(f"b10_transfer.{name}")
        original = module.validate_path_security
        module.validate_path_security = lambda path, prefixes, *rest, original=original: original(
            path, [moved(prefix, folders) for prefix in prefixes], *rest
        )
    return package


def moved(prefix: str, folders: dict[str, str]) -> str:
    """Where a folder that the package insists on is taken to be."""
    for fixed, folder in folders.items():
        if prefix.startswith(fixed):
            return folder + prefix.removeprefix(fixed)
    return prefix


class Scene:
    """One deployment, and the replica that acts now."""

    def __init__(self, package: Any, top: Path, name: str) -> None:
        self.package = package
        self.folder = top / "scenes" / name
        self.volume = top / "cache/model" / name
        self.results: list[Any] = []
        self.variables: dict[str, str | None] = {**FREE, "B10FS_CACHE_DIR": str(self.volume)}
        self.variables["LOCAL_WORK_DIR"] = str(top / "app")
        self.home = self.folder

    def play(self, steps: list[list[Any]]) -> list[Any]:
        before = dict(os.environ)
        self.replica("first")
        for verb, *arguments in steps:
            getattr(self, {"break": "damage", "set": "change"}.get(verb, verb))(*arguments)
        os.environ.clear()
        os.environ.update(before)
        return self.results

    def replica(self, name: str) -> None:
        self.home = self.folder / name
        self.home.mkdir(parents=True, exist_ok=True)
        for variable in ("KSTORE_MANAGED", "TRITON_CACHE_DIR"):
            os.environ.pop(variable, None)
        os.environ["HOME"] = str(self.home)
        os.environ["KSTORE_CACHE_ROOT"] = str(self.home / "root")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(self.torch)
        self.change(self.variables)

    def change(self, variables: dict[str, str | None]) -> None:
        self.variables |= variables
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = self.filled(value)

    def write(self, path: str, text: str) -> None:
        target = self.torch / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def damage(self) -> None:
        for path in self.volume.rglob("*"):
            if path.is_file() and (path.name.endswith(".tar.gz") or "refs" in path.parts):
                path.chmod(0o644)
                path.write_bytes(path.read_bytes()[:-40])

    def call(self, function: str, *arguments: str) -> None:
        result = getattr(self.package, function)(*map(self.filled, arguments))
        self.results.append(result.name if isinstance(result, Enum) else result)

    @property
    def torch(self) -> Path:
        return self.home / ".cache/torchinductor"

    def filled(self, text: str) -> str:
        return text.format(volume=self.volume, home=self.home)


def main() -> None:
    which, folder = sys.argv[1:]
    top = Path(folder)
    for name in ("app", "cache/model"):
        (top / name).mkdir(parents=True, exist_ok=True)
    package = load_package(which, top)
    results = {name: Scene(package, top, name).play(steps) for name, steps in json.load(sys.stdin).items()}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
