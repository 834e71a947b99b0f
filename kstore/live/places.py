"""Where live commits look: folders, and their device and inode, because another folder may take the place of one."""

from __future__ import annotations

import os

from kstore.local.watch import outermost
from kstore.store import Store

Identity = tuple[int, int]
"""Device and inode."""


def watched_folders(store: Store, key: str) -> list[str]:
    """Where a commit of `key` looks: the cache root, and the folders of components elsewhere.

    Raises:
        KstoreError: the cache root cannot be used.
    """
    root = store.worker(key, before_import=False).root
    return outermost((root.path, *root.folders.values()))


class Places:
    """The folders of one key."""

    def __init__(self) -> None:
        self.folders: list[str] = []
        """Empty until they are found."""
        self._identities: dict[str, Identity | None] = {}

    def find(self, store: Store, key: str) -> bool:
        """Look anew. Returns whether any is another one than before. An engine may have set a component's variable
        since, and a link may lead elsewhere.

        Raises:
            KstoreError: the cache root cannot be used.
        """
        folders, before = watched_folders(store, key), self._identities
        self._identities = {folder: _identity(folder) for folder in folders}
        # One that did not exist may exist by now: nobody has looked into another one in its place.
        is_same = all(before.get(folder) in (None, found) for folder, found in self._identities.items())
        is_other = folders != self.folders or not is_same
        self.folders = folders
        return is_other


def _identity(folder: str) -> Identity | None:
    try:
        found = os.stat(folder)
    except OSError:
        return None
    return found.st_dev, found.st_ino
