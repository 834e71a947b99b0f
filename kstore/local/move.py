"""Moves what was built in a staging folder to its place, each piece with one rename."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Collection, Set
from contextlib import suppress
from itertools import chain

from kstore.folders import make_folder
from kstore.lazy import cached_property
from kstore.local.placed import Placed
from kstore.published.manifest import NEVER_IN_PLACE, Files, group_of, groups_in

_OCCUPIED = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR}
_TAKEN = "something else is in its place"
_WRITTEN = "it was written while this was restored"
_OF_ONE_PLACE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EXDEV, errno.ENOENT}
"""Errors of one folder that say nothing about others: it is somebody else's, a mount of its own, or gone just now."""


class Mover:
    """Moves artifacts from where they were staged to where they belong."""

    def __init__(
        self,
        staged: Callable[[str], str],
        local: Callable[[str], str],
        files: Files,
        is_new: Callable[[str, int], bool],
    ) -> None:
        """`staged` and `local` say where an artifact path, of a file or folder, is built and where it belongs.

        `is_new` says whether what is in its place, with that time in nanoseconds, is newer than the look at the root.
        """
        self._staged = staged
        self._local = local
        self._is_new_time = is_new
        self._files = files
        self.occupied: dict[str, str] = {}
        """Paths in whose place something else stays, and why. What was staged for them is dropped."""
        self.refused: dict[str, OSError] = {}
        """Paths that cannot be put in their place, and why."""

    def move(self, placed: Placed, folders: Collection[str], among: Set[str]) -> None:
        """Move what has arrived of the artifacts whose components are `among`.

        `folders` are the folders that exist already, as artifact paths.

        Raises:
            OSError: the cache root cannot be written.
        """
        components = {path.partition("/")[0] for path in placed.paths} if placed.lacking else among
        is_fresh = components.isdisjoint(folders)  # As most roots are: only the components need to be moved.
        tops = components if is_fresh else {self._top(path, folders) for path in placed.paths}
        for top in tops:
            try:
                self._move(top, folders)
            except OSError as error:
                if error.errno not in _OF_ONE_PLACE:
                    raise
                self.refused[top] = error
        if is_fresh and tops and self.refused.keys() == tops:
            raise next(iter(self.refused.values()))

    def _move(self, top: str, folders: Collection[str]) -> None:
        is_file = top in self._files
        if not is_file and top not in folders:
            self._move_folder(top)
        elif self._is_new(top) or (not is_file and self._has_new(top)):
            self.occupied[top] = _WRITTEN
        elif is_file:
            self._move_file(top)
        else:
            self._swap_group(top)

    def _top(self, path: str, folders: Collection[str]) -> str:
        """What to move to bring `path`: the highest missing folder, its group's folder, or the file itself."""
        unit = group_of(path, self._files[path])
        end = path.find("/")
        while 0 < end <= len(unit):
            if path[:end] not in folders:
                return path[:end]
            end = path.find("/", end + 1)
        return unit

    def _move_file(self, path: str) -> None:
        try:
            os.rename(self._staged(path), self._local(path))
        except OSError as error:
            if error.errno not in _OCCUPIED:
                raise
            self.occupied[path] = _TAKEN

    def _swap_group(self, path: str) -> None:
        """Replace an existing group: for an instant it is absent, but it is never mixed."""
        try:
            self._put_aside(path)
            self._move_or_put_back(path)
        except OSError as error:
            if error.errno in _OCCUPIED:
                self.occupied[path] = _TAKEN
            else:
                self.refused[path] = error  # What is there is as it was: the next restore tries again.

    def _is_new(self, path: str) -> bool:
        """Whether a compiler has written there meanwhile: what it made may exist nowhere else."""
        try:
            mtime_ns = os.lstat(self._local(path)).st_mtime_ns
        except OSError:
            return False
        return self._is_new_time(path, mtime_ns)

    def _has_new(self, group: str) -> bool:
        """Whether that is so of a folder in a group, or a file changed in place, of which no folder's time tells."""
        below = self._local(group)
        every = ((group + folder[len(below) :], chain(*names)) for folder, *names in os.walk(below))
        paths = (f"{folder}/{name}" for folder, names in every for name in names)
        return any(self._is_new(path) for path in paths if not self._is_only_replaced(path))

    def _is_only_replaced(self, path: str) -> bool:
        """Whether it is an artifact that is never changed in place. A link to a blob has a time that says nothing."""
        entry = self._files.get(path)
        return entry is not None and entry.flags in NEVER_IN_PLACE

    def _put_aside(self, path: str) -> None:
        try:
            os.rename(self._local(path), f"{self._staged(path)}.old")
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            shutil.rmtree(self._local(path))  # a container's overlay cannot move a folder that came with its image

    def _move_or_put_back(self, path: str) -> None:
        try:
            os.rename(self._staged(path), self._local(path))
        except OSError:
            with suppress(OSError):  # somebody has made another one meanwhile
                os.rename(f"{self._staged(path)}.old", self._local(path))
            raise

    def _move_folder(self, path: str) -> None:
        """Move a folder to where none was. If a compiler has made one since, its files stay and ours fill the gaps."""
        source, target = self._staged(path), self._local(path)
        make_folder(os.path.dirname(target))
        try:
            os.rename(source, target)
        except OSError as error:
            if error.errno not in _OCCUPIED:
                raise
            self._fill_folder(path)

    def _fill_folder(self, path: str) -> None:
        source, target = self._staged(path), self._local(path)
        if path in self._groups or os.path.islink(target) or not os.path.isdir(target):
            self.occupied[path] = _TAKEN
            return
        for name in os.listdir(source):
            if f"{path}/{name}" in self._files:
                self._link_file(f"{source}/{name}", f"{target}/{name}", f"{path}/{name}")
            else:
                self._move_folder(f"{path}/{name}")

    @cached_property
    def _groups(self) -> set[str]:
        """The folders of the groups; the files of one may all be in folders within it."""
        return groups_in(self._files.items())

    def _link_file(self, source: str, target: str, path: str) -> None:
        """Put a file where none is."""
        try:
            os.link(source, target)
        except FileExistsError:
            self.occupied[path] = _TAKEN
