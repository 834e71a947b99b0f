"""Puts artifacts into a cache root: all are built in a staging folder and then moved, so that each appears whole.

What is moved is the highest folder that does not exist yet: in a fresh root that is each component, with one rename.
A group's folder is always moved whole. A file that goes into an existing folder is moved by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from kstore.blobs import BlobStore
from kstore.deadline import Waiting
from kstore.errors import CacheRootError
from kstore.local.cacheroot import CacheRoot
from kstore.local.fill import Source
from kstore.local.found import Skipped
from kstore.local.headstart import Begun
from kstore.local.link import Linker
from kstore.local.move import Mover
from kstore.local.names import refused_names
from kstore.local.placed import Placed
from kstore.local.stages import cannot_write, find_elsewhere, open_stages
from kstore.local.staging import Staging
from kstore.local.state import StateFolder
from kstore.progress import Progress
from kstore.published.manifest import Files, compacted, folders_of, in_components, nearest_folders


class _Plan(NamedTuple):
    """What can be placed, and where it is built."""

    wanted: Files
    folders: Sequence[str]
    """All folders that they are in, each after those above it."""
    bare: Set[str]
    """Those of them that hold nothing but folders."""
    stages: dict[str, str]
    """Component → its staging folder."""
    elsewhere: set[str]
    """Components that are outside the cache root, or in a mount of their own."""
    begun: Begun | None
    """What staging continues from."""
    unusable: list[Skipped]
    """Components that cannot be written."""
    refused: dict[str, str]
    """Artifacts that cannot have their names here, and why."""


class Placer:
    """Places artifacts into one cache root."""

    def __init__(
        self,
        root: CacheRoot,
        state: StateFolder,
        blobs: BlobStore,
        linker: Linker,
        progress: Progress,
        waiting: Waiting,
        lists: Callable[[str], bool],
        below: Callable[[], Sequence[BlobStore]],
        begun: Begun | None,
    ) -> None:
        """`lists` tells whether an artifact is a list of those around it, none of which may be missing.

        `below` gives the blobs of other stores; each is asked for what those before it lack. Staging continues from
        what was `begun`, all of which is wanted.
        """
        self._progress = progress
        self._waiting = waiting
        self._root = root
        self._state = state
        self._lists = lists
        self._sources = [Source(blobs, linker)]
        self._below = below
        self._begun = begun

    @property
    def link_why(self) -> str:
        """Why no better way worked."""
        return "; ".join(dict.fromkeys(source.linker.why for source in self._sources if source.linker.why))

    def place(
        self,
        wanted: Files,
        packs: Sequence[str],
        folders: Collection[str],
        before_move: Callable[[], None],
        *,
        since: float,
        marks: bool,
    ) -> Placed:
        """Place `wanted`, but not where somebody has written `since`, by `time.monotonic`.

        `folders` are the folders that exist already, as artifact paths.
        `before_move` is called when everything is staged and nothing is in its place; if it raises, nothing is moved.
        With `marks`, folders that nobody has touched will be known by their time: see `untouched`.
        A blob that is missing or damaged costs its group, or itself if it is in none.

        Raises:
            CacheRootError: the cache root cannot be written.
            Abandoned: nobody waits any more; nothing was placed.
        """
        if not wanted:
            before_move()
            return Placed()
        with self._telling(), ExitStack() as stack:
            plan = self._plan(wanted, stack)
            staging = Staging(self._root, plan.stages, plan.wanted, plan.folders, plan.begun, since)
            marks = marks and not plan.refused
            try:
                placed = staging.fill(self._sources[0], packs, self._others, self._progress, marks=marks)
            finally:
                for source in self._sources:
                    source.blobs.close()
            staging.drop_incomplete(placed, self._lists, plan.refused)
            before_move()
            mover = Mover(staging.staged, self._root.local_path, plan.wanted, staging.is_since)
            with self._waiting.visible():
                mover.move(placed, {*folders, *plan.elsewhere}, _components(plan.folders))
            placed.forget(mover.occupied, mover.refused)
            placed.bare = plan.bare
        if len(plan.wanted) < len(wanted):
            placed.wanted, placed.lacking = wanted, placed.lacking | (wanted.keys() - plan.wanted.keys())
        placed.skipped += plan.unusable
        placed.skipped += (Skipped(path, reason) for path, reason in sorted(plan.refused.items()))
        return placed

    def _plan(self, wanted: Files, stack: ExitStack) -> _Plan:
        """What of `wanted` can be placed, and where it is built; `stack` removes those folders."""
        components = _components(needed := folders_of(wanted))
        elsewhere = find_elsewhere(self._root, components)
        begun = self._begun if self._begun and not elsewhere else None
        stage = begun.stage if begun else stack.enter_context(self._state.staging())
        stages, unusable = open_stages(self._root, self._state, components, elsewhere, stage, stack)
        if unusable:
            wanted = in_components(wanted, stages)
        refused = refused_names(wanted, stages)
        if refused:
            wanted = compacted(wanted).without(refused)
            if begun:
                begun.drop()
                begun, stages = None, dict.fromkeys(stages, stack.enter_context(self._state.staging()))
        if unusable or refused:
            needed = folders_of(wanted)
        bare = needed - nearest_folders(wanted)
        return _Plan(wanted, sorted(needed), bare, stages, elsewhere, begun, unusable, refused)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Turn an operating system's error into one that says what to do about the cache root."""
        try:
            yield
        except OSError as error:
            raise CacheRootError(cannot_write(self._root, error)) from error

    def _others(self) -> list[Source]:
        if len(self._sources) == 1:
            self._sources += [Source(blobs, Linker()) for blobs in self._below()]
        return self._sources[1:]


def _components(folders: Iterable[str]) -> set[str]:
    """The topmost of these folders."""
    return {folder for folder in folders if "/" not in folder}
