"""Refs publish generations: `refs/<gpu>/<key>/@<environment>/<n>`, each a file that is never overwritten.

Beside a ref, `<n>.pin` keeps its generation, and `<n>.dropped` is a ref on its way out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from kstore.backends import Backend, Upload
from kstore.backends.base import NEAR, Child, numbers_in
from kstore.blobs import loose, packindex
from kstore.errors import IntegrityError, MissError, UsageError, reason_of
from kstore.far import ask_each
from kstore.files import CORRUPT, NO_FILE
from kstore.published.ref import REFS, Ref, folder_of, load_ref, ref_name
from kstore.scope import MAX_KEY_LENGTH, Scope
from kstore.threads import begin

_PIN, _DROPPED = ".pin", ".dropped"
_EVERY_GPU = "every GPU"
_ATTEMPTS = 3
_MOST_BYTES = 4 << 20
"""The most bytes of a ref, with the names of sixty thousand packs: a sparse file can have any size."""
Look = Callable[[str], Iterator[Child]]
"""Lists a folder."""


class Unlisted(NamedTuple):
    """A folder of keys that cannot be listed."""

    gpu: str
    key: str
    """What all of its keys begin with."""
    error: OSError

    def __str__(self) -> str:
        return f"{self.key or 'every key'} ({self.gpu})"

    @property
    def trouble(self) -> str:
        """Which folder it is, and why."""
        return f"{self}: {reason_of(self.error)}"

    def may_have(self, prefix: str) -> bool:
        """Whether a key with this prefix may be in it."""
        return not self.key or self.key.startswith(prefix) or prefix.startswith(f"{self.key}/")


PassOver = Callable[[Unlisted], None]
"""Takes note of a folder of keys that cannot be listed, or raises its error."""


class Refs:
    """The refs of one store."""

    def __init__(self, backend: Backend, depth: int = 0) -> None:
        self._backend = backend
        self._depth = depth
        self._ahead: dict[Scope, tuple[int, Future[bytes]]] = {}
        """Refs that are being read before anybody has asked for them, each for the next read of its scope."""

    def generations(self, scope: Scope) -> list[int]:
        """Published generations, oldest first: one directory read."""
        return sorted(self._listed(scope))

    def _listed(self, scope: Scope) -> Iterator[int]:
        return _generations_in(self._backend.list(folder_of(scope)))

    def generations_ahead(self, scope: Scope) -> list[int]:
        """The same, for a caller that reads the newest next. Over a network, the first one listed is read before the
        listing ends: there is seldom another.
        """
        began, found = time.monotonic(), list[int]()
        ahead: tuple[int, Future[bytes]] | None = None
        for number in self._listed(scope):
            if not found and time.monotonic() - began > NEAR:
                ahead = number, begin(self._get, scope, number)
            found.append(number)
        if ahead:
            self._ahead[scope] = ahead
        return sorted(found)

    def get(self, scope: Scope, generation: int) -> Ref:
        """One generation.

        Raises:
            MissError: there is no such generation.
            IntegrityError: its ref is damaged.
            StoreFormatError: a newer kstore wrote it. Unlike damage, that is never passed over.
        """
        try:
            ref = load_ref(scope, generation, self._read(scope, generation))
        except IntegrityError:  # or only a read that was cut short
            ref = load_ref(scope, generation, self._read(scope, generation))
        return replace(ref, depth=self._depth) if self._depth else ref

    def _read(self, scope: Scope, generation: int) -> bytes:
        number, ahead = self._ahead.pop(scope, (0, None))  # Only for this read: later the ref may be gone.
        try:
            return ahead.result() if ahead and number == generation else self._get(scope, generation)
        except FileNotFoundError:
            raise _no_generation(scope, generation) from None
        except OSError as error:
            if error.errno not in NO_FILE | CORRUPT:
                raise
            ail = "is corrupt on its filesystem" if error.errno in CORRUPT else "is not a file"
            what = f"generation {generation} of {scope} {ail} ({error.strerror})"
            raise IntegrityError(f"{what}: it is damaged; see `kstore verify {scope.key}`") from error

    def _get(self, scope: Scope, generation: int) -> bytes:
        return self._backend.get(ref_name(scope, generation), 0, _MOST_BYTES)

    def newest(self, scope: Scope) -> Ref | None:
        """The newest generation, even an empty one; None if nothing is published.

        Raises:
            MissError: it is listed again and again and is never there.
            IntegrityError, StoreFormatError: as `get`.
        """
        for _ in range(_ATTEMPTS):
            generations = self.generations_ahead(scope)
            if not generations:
                return None
            with suppress(MissError):  # it was superseded, and gc removed it, since it was listed
                return self.get(scope, generations[-1])
        raise MissError(f"{scope} lists a generation {generations[-1]} that does not exist")

    def exists(self, scope: Scope, generation: int) -> bool:
        """Whether a generation with this number is published now."""
        try:
            self._backend.stat(ref_name(scope, generation))
        except FileNotFoundError:
            return False
        return True

    def is_kept(self, ref: Ref) -> bool:
        """Whether this very generation is still published: a crash may have lost it, and another taken its number."""
        with suppress(MissError, IntegrityError):
            return self.get(ref.scope, ref.generation).manifest == ref.manifest
        return False

    def expect(self, scope: Scope) -> Callable[[], None]:
        """Expect the first generation of a scope to be published soon. Returns what waits until there is a folder."""
        return self._backend.make_ahead(folder_of(scope))

    def reserve(self) -> AbstractContextManager[Upload]:
        """Begin a commit with the file that is to become its ref. gc can prevent that; see `kstore.condemned`."""
        return self._backend.upload()

    def publish(self, ref: Ref, reserved: Upload) -> bool:
        """Publish `ref` as its generation. False if another writer was faster; theirs stays.

        Raises:
            StagingLost: it took so long that gc no longer waits for it.
        """
        reserved.write(ref.dump())
        return reserved.publish(ref.name)

    def is_newest(self, ref: Ref) -> bool:
        """Whether no later generation is listed."""
        return self.generations(ref.scope)[-1:] == [ref.generation]

    def published_at(self, scope: Scope, generation: int) -> int:
        """When a generation was published: by the store's clock, in nanoseconds."""
        return self._backend.stat(ref_name(scope, generation)).mtime_ns

    def pins(self, scope: Scope) -> set[int]:
        """The generations that are kept whatever gc is told."""
        return set(self._marked(scope, _PIN))

    def pin(self, scope: Scope, generation: int) -> None:
        """Keep a generation.

        The ref is looked for after the pin was made; `drop` does it the other way round. It is looked for before as
        well, so that a mistaken number writes nothing. A pin stays, whatever is found: somebody else may have been told
        that the generation is pinned, and the pin of one that is gone means nothing.

        Raises:
            MissError: there is no such generation, or it is being removed.
        """
        self._check_there(scope, generation)
        self._backend.put_if_absent(ref_name(scope, generation) + _PIN, b"")
        self._check_there(scope, generation)

    def _check_there(self, scope: Scope, generation: int) -> None:
        try:
            self._backend.stat(ref_name(scope, generation))
        except FileNotFoundError:
            raise _no_generation(scope, generation) from None

    def unpin(self, scope: Scope, generation: int) -> None:
        """Let gc decide about a generation again."""
        self._backend.delete(f"{ref_name(scope, generation)}{_PIN}")

    def drop(self, scope: Scope, generation: int) -> bool:
        """Remove a generation that is not the newest. False if it is pinned, or gone already."""
        name = ref_name(scope, generation)
        try:
            self._backend.move(name, name + _DROPPED)
        except FileNotFoundError:
            return False
        return self._finish_drop(scope, generation)

    def finish_drops(self, scope: Scope) -> None:
        """Finish what a killed gc began."""
        for generation in self._marked(scope, _DROPPED):
            self._finish_drop(scope, generation)

    def _finish_drop(self, scope: Scope, generation: int) -> bool:
        name = ref_name(scope, generation)
        if generation not in _numbers_with(_PIN, self._backend.list_made(folder_of(scope))):
            self._backend.delete(name + _DROPPED)
            return True
        with suppress(FileNotFoundError):
            self._backend.move(name + _DROPPED, name)
        return False

    def _marked(self, scope: Scope, suffix: str) -> list[int]:
        return _numbers_with(suffix, self._backend.list(folder_of(scope)))

    def gpus(self) -> list[str]:
        """Every GPU that has refs."""
        return _folders_in(self._backend.list(REFS))

    def parts(self, gpu: str, under: str) -> list[str]:
        """The next parts of keys below `under`, a key prefix such as `my-model`."""
        return [name for name in _parts(self._backend.list, REFS, gpu, under) if not name.startswith("@")]

    def scopes(self, under: str = "", pass_over: PassOver | None = None) -> Iterator[Scope]:
        """Every scope with a folder, in order; `under` is a key prefix such as `my-model`.

        A folder that cannot be listed is an error, unless somebody passes over it: then it hides only what is in it.
        """
        gpus = self.gpus()
        if pass_over and not gpus and self._is_begun(self._backend.list):
            gpus = _or_pass_over(lambda: _folders_in(self._backend.list_made(REFS)), _EVERY_GPU, "", pass_over)
        for gpu in gpus:
            yield from walk_scopes(self._backend.list, REFS, gpu, under, pass_over)

    def scopes_of(self, key: str | None, pass_over: PassOver | None = None) -> Iterator[Scope]:
        """The same of one key, whether or not the folders of longer keys can be listed; of all without a key."""
        if key is None:
            yield from self.scopes(pass_over=pass_over)
            return
        gpus = self.gpus()
        if pass_over and not gpus and self._is_begun(self._backend.list):
            gpus = _folders_in(self._backend.list_made(REFS))  # Without it there is nothing to go on with.
        for gpu in gpus:
            for name in _parts(self._backend.list, REFS, gpu, key, pass_over):
                if name.startswith("@"):
                    yield from _scope(gpu, key, name[1:])

    def all_scopes(self) -> Iterator[Scope]:
        """The same for whoever deletes what no generation needs: what a server denies while it heals must not look like
        nothing.

        Raises:
            OSError: not all of them can be listed.
        """
        look = self._backend.list_made
        for gpu in _folders_in(look(REFS)) if self._is_begun(look) else ():
            yield from walk_scopes(look, REFS, gpu)

    def are_lost(self) -> bool:
        """Whether there must be `refs/`, and is not."""
        return REFS not in _folders_in(self._backend.list("")) and self._is_begun(self._backend.list)

    def _is_begun(self, look: Look) -> bool:
        """Whether there must be `refs/`: a first commit makes it before anything is in the folders that it makes beside
        it.
        """
        folders = _folders_in(look(""))
        stored = {packindex.FOLDER, loose.FOLDER}.intersection(folders)
        return REFS in folders or any(child for folder in stored for child in look(folder))

    def all_generations(self, scope: Scope) -> list[int]:
        """`generations` of one of all scopes.

        Raises:
            OSError: they cannot be listed.
        """
        return sorted(_generations_in(self._backend.list_made(folder_of(scope))))


def _no_generation(scope: Scope, generation: int) -> MissError:
    return MissError(f"{scope} has no generation {generation}; `kstore show {scope.key}` lists them")


def _folders_in(children: Iterable[Child]) -> list[str]:
    return sorted(child.name for child in children if child.is_folder)


def _generations_in(children: Iterable[Child]) -> Iterator[int]:
    for child in children:
        if not child.is_folder:
            yield from numbers_in([child.name])


def _numbers_with(suffix: str, children: Iterable[Child]) -> list[int]:
    return numbers_in(child.name.removesuffix(suffix) for child in children if child.name.endswith(suffix))


def walk_scopes(look: Look, folder: str, gpu: str, key: str = "", pass_over: PassOver | None = None) -> Iterator[Scope]:
    """Every scope of one GPU that has a folder below `folder`, in order; `key` is a prefix such as `my-model`."""
    yield from _walk(look, folder, gpu, key, partial(_folders, look, folder, gpu, key), pass_over)


def _walk(
    look: Look, folder: str, gpu: str, key: str, list_folders: Callable[[], list[str]], pass_over: PassOver | None
) -> Iterator[Scope]:
    """The same, if `list_folders` lists the folders of `key`."""
    names = _or_pass_over(list_folders, gpu, key, pass_over)
    longer = (f"{key}/{name}" if key else name for name in names if not name.startswith("@"))
    listed = ask_each(partial(_folders, look, folder, gpu), longer)
    for name in names:
        if name.startswith("@"):
            yield from _scope(gpu, key, name[1:])
        else:
            yield from _walk(look, folder, gpu, *next(listed), pass_over)


def _parts(look: Look, folder: str, gpu: str, key: str, pass_over: PassOver | None = None) -> list[str]:
    return _or_pass_over(partial(_folders, look, folder, gpu, key), gpu, key, pass_over)


def _folders(look: Look, folder: str, gpu: str, key: str) -> list[str]:
    """The folders there, in order: the next parts of longer keys, and environments. None are deeper than a key can be:
    otherwise a link that leads to a folder above it would have no end.
    """
    return [] if len(key) > MAX_KEY_LENGTH else _folders_in(look("/".join(filter(None, (folder, gpu, key)))))


def _or_pass_over(list_folders: Callable[[], list[str]], gpu: str, key: str, pass_over: PassOver | None) -> list[str]:
    try:
        return list_folders()
    except OSError as error:
        if pass_over is None:
            raise
        pass_over(Unlisted(gpu, key, error))
        return []


def _scope(gpu: str, key: str, environment: str) -> Iterator[Scope]:
    """The scope, unless the folder is a file server's own, such as `@eaDir`."""
    try:
        yield Scope(gpu, key, environment)
    except UsageError:
        return
