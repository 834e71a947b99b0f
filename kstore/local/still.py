"""Whether anything in a cache root can have changed since all of it was known: asks for times, reads no file, and
lists only folders that something has touched, and those of components that had none, or an empty one.

A folder's status-change time moves with every name that comes or goes in it, and nobody can set it back. So while those
of all folders stand, each file is the one that was scanned. For files that are changed in place, their own must stand.

What a restore has just placed is too young for that: a change within the same tick of the clock leaves the same time.
But the restore gave its folders, and the files that are changed in place, modification times that no change leaves. So
these times are to stand, and no status may have changed since everything was in its place. A folder that only holds
folders may have gained something that is ignored: a job that loads what was restored makes lock files. For a commit it
is enough that nothing came; for a restore, nothing may be gone either.
"""

from __future__ import annotations

import io
import os
from array import array
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, NamedTuple, Self

from kstore.calls import times_below
from kstore.components.table import KSTORE_FOLDER
from kstore.digest import digest_of_parts
from kstore.local.cacheroot import CacheRoot
from kstore.local.found import Scan
from kstore.local.index import is_settled
from kstore.local.placed import Placed
from kstore.local.untouched import UNMARKED, Mark
from kstore.published.manifest import changed_in_place


class Times(NamedTuple):
    """When some paths last changed."""

    paths: bytes
    """Relative to a component's folder, "." for the folder itself, separated by NULs."""
    digest: str
    """Hexadecimal, of the paths and of their times that are to stand. Empty for folders that bear a mark."""


class Still(NamedTuple):
    """A cache root in which nothing moves."""

    components: dict[str, str]
    """Where each component is."""
    folders: dict[str, Times]
    """Component → all of its folders. A component that is missing here has no folder, or an empty one."""
    files: dict[str, Times]
    """Component → those of its files that are changed in place."""
    bare: dict[str, bytes]
    """Component → those of its folders in which a restore has placed no file, in the form of `Times.paths`."""
    mark: Mark = UNMARKED
    """The mark of the folders, if a restore has just placed all of them: it and the files' modification times are to
    stand. Otherwise the status-change times are.
    """

    def dump(self) -> tuple[dict[str, Any], bytes]:
        """The fields for JSON, and all paths beside them: thousands of paths need not be parsed."""
        kinds = {"folders": self.folders, "files": self.files}
        fields = {kind: {name: [len(t.paths), t.digest] for name, t in times.items()} for kind, times in kinds.items()}
        paths = b"".join([*(t.paths for times in kinds.values() for t in times.values()), *self.bare.values()])
        bare = {name: len(folders) for name, folders in self.bare.items()}
        return {"components": self.components, "mark": self.mark, "bare": bare, **fields}, paths

    @classmethod
    def load(cls, content: Any, paths: bytes) -> Self:
        """What `dump` returned.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: it is damaged.
        """
        left = io.BytesIO(paths)

        def take(size: int) -> bytes:
            taken = left.read(min(size, len(paths)))
            if len(taken) != size:
                raise ValueError("it is cut short")
            return taken

        folders, files = (
            {name: Times(take(size), digest) for name, (size, digest) in content[kind].items()}
            for kind in ("folders", "files")
        )
        bare = {name: take(size) for name, size in content["bare"].items()}
        return cls(dict(content["components"]), folders, files, bare, Mark(*map(int, content["mark"])))

    def has_all(self, root: CacheRoot, ignores: Callable[[str], bool]) -> bool:
        """Whether everything that a restore has placed is in its place, and nothing has changed since."""
        return self.mark != UNMARKED and self.holds(root, ignores, keeps=True)

    def holds(self, root: CacheRoot, ignores: Callable[[str], bool], *, keeps: bool = False) -> bool:
        """Whether nothing has changed since; with `keeps`, nothing may be gone either.

        `ignores` tells which artifact paths are never stored; it is given folders with a final "/".
        """
        if self.components != dict(root.folders):
            return False
        if not all(name in self.folders or _has_nothing(folder) for name, folder in root.folders.items()):
            return False
        try:
            return self._is_as_scanned(root) if self.mark == UNMARKED else self._is_as_placed(root, ignores, keeps)
        except (OSError, KeyError, TypeError, ValueError):  # What is remembered may be damaged.
            return False

    def _is_as_scanned(self, root: CacheRoot) -> bool:
        def stands(component: str, known: Times, *, follows: bool) -> bool:
            found = _ask(root, component, known.paths, follows=follows)
            return found is not None and _digest(known.paths, found[1::2]) == known.digest

        folders = all(stands(component, known, follows=True) for component, known in self.folders.items())
        return folders and all(stands(component, known, follows=False) for component, known in self.files.items())

    def _is_as_placed(self, root: CacheRoot, ignores: Callable[[str], bool], keeps: bool) -> bool:
        folders = all(self._folders_stand(root, component, ignores, keeps) for component in self.folders)
        return folders and all(self._files_stand(root, component) for component in self.files)

    def _folders_stand(self, root: CacheRoot, component: str, ignores: Callable[[str], bool], keeps: bool) -> bool:
        known = self.folders[component]
        found = _ask(root, component, known.paths, follows=True)
        if found is None:
            return False
        folders = _paths(component, known.paths)
        times = zip(folders, found[::2], found[1::2], strict=True)
        touched = [folder for folder, *changes in times if not self.mark.stands(*changes)]
        if keeps and not {*_paths(component, self.bare[component])}.issuperset(touched):
            return False
        every = {*folders} if touched else set()
        return all(_has_only(root.local_path(folder), folder, every, ignores) for folder in touched)

    def _files_stand(self, root: CacheRoot, component: str) -> bool:
        known = self.files[component]
        found = _ask(root, component, known.paths, follows=False)
        if found is None or max(found[1::2]) > self.mark.placed_ns:
            return False
        return _digest(known.paths, found[::2]) == known.digest


def _has_only(local: str, path: str, folders: Set[str], ignores: Callable[[str], bool]) -> bool:
    """Whether a folder holds only some of these `folders`, and what is kstore's or ignored."""

    def is_known(entry: os.DirEntry[str]) -> bool:
        below, is_folder = f"{path}/{entry.name}", entry.is_dir(follow_symlinks=False)
        return (is_folder and below in folders) or ignores(f"{below}/" if is_folder else below)

    with os.scandir(local) as entries:
        return all(entry.name == KSTORE_FOLDER or is_known(entry) for entry in entries)


def _has_nothing(folder: str) -> bool:
    """Whether the folder does not exist, or holds nothing but what is kstore's."""
    try:
        return {KSTORE_FOLDER}.issuperset(os.listdir(folder))
    except OSError:
        return not os.path.lexists(folder)


def still_since(root: CacheRoot, found: Scan) -> Still | None:
    """What is to stand from now on. None if something may have changed since the scan `found` began, or is unfinished:
    a later scan may then find it otherwise though nothing changes.
    """
    # What is displaced is looked at again only for a restore, which puts it right.
    if found.skipped or found.unsettled.difference(found.displaced):
        return None
    in_place = changed_in_place(found.files)
    try:
        folders = _settled(root, found.folders, found.clocks, follows=True)
        files = _settled(root, in_place, found.clocks, follows=False)
    except OSError:
        return None
    return Still(dict(root.folders), folders, files, {}) if folders is not None and files is not None else None


def _settled(
    root: CacheRoot, paths: Iterable[str], clocks: Mapping[str, int], *, follows: bool
) -> dict[str, Times] | None:
    """Component → the times of its paths; None if one of them might not show a change since the time in `clocks`."""
    settled = {}
    for component, those in _by_component(paths).items():
        names = _names(those)
        found = _ask(root, component, names, follows=follows)
        if found is None or not all(is_settled(moment, clocks[component]) for moment in found[1::2]):
            return None
        settled[component] = Times(names, _digest(names, found[1::2]))
    return settled


def still_since_placed(root: CacheRoot, placed: Placed, in_place: Mapping[str, int], mark: Mark) -> Still:
    """What is to stand of everything that a restore has just placed.

    These are its folders, which bear the mark if they are new, and the files that are changed in place, with the times
    that the restore gave them, in nanoseconds.
    """
    folders, bare = _by_component(placed.folders), _by_component(placed.bare)
    marked = {component: Times(_names(paths), "") for component, paths in folders.items()}
    files = {}
    for component, paths in _by_component(in_place).items():
        names, moments = _names(paths), memoryview(array("q", map(in_place.__getitem__, paths)))
        files[component] = Times(names, _digest(names, moments))
    holding_none = {component: _names(bare.get(component, ())) for component in folders}
    return Still(dict(root.folders), marked, files, holding_none, mark)


def _by_component(paths: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in paths:
        found.setdefault(path.partition("/")[0], []).append(path)
    return found


def _names(paths: Iterable[str]) -> bytes:
    """The names of one component's folders or files, relative to its own folder."""
    return os.fsencode("\0".join(path.partition("/")[2] or "." for path in paths))


def _paths(component: str, names: bytes) -> list[str]:
    """The reverse of `_names`."""
    return [f"{component}/{name}" if name != "." else component for name in os.fsdecode(names).split("\0")]


def _digest(paths: bytes, times: memoryview) -> str:
    return digest_of_parts((paths, times.tobytes())).hex()


def _ask(root: CacheRoot, component: str, paths: bytes, *, follows: bool) -> memoryview | None:
    """The times of these paths. There are thousands: the kernel walks the component's own path only once."""
    fd = os.open(root.folders[component], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return times_below(paths, fd, follows=follows)
    finally:
        os.close(fd)
