"""How new blobs are stored, loose or packed: what can be linked from the store is found out by trying."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from kstore.blobs import Layout
from kstore.local.link import Linker, LinkMode, probe

if TYPE_CHECKING:
    from kstore.upload.uploader import Committer


def choose_layout(committer: Committer) -> Layout:
    """Loose where the cache root can link or clone from the store, else packed."""
    if committer.layout:
        return committer.layout
    with suppress(OSError):  # A full cache root is read all the same; writing to the store tells what is wrong with it.
        return Layout.PACKED if probe_link(committer).mode is LinkMode.COPY else Layout.LOOSE
    return Layout.PACKED


def probe_link(committer: Committer) -> Linker:
    """The best way from the store to the cache root, found by trying.

    Raises:
        OSError: the store or the cache root cannot be written.
    """
    os.makedirs(committer.links_into, mode=0o700, exist_ok=True)
    source = committer.storage.backend.staging_path()
    committer.storage.backend.make_folder(os.path.dirname(source))
    try:
        with open(source, "xb") as file:
            file.write(b"probe")
        return probe(source, os.path.join(committer.links_into, os.path.basename(source)))
    finally:
        with suppress(FileNotFoundError):
            os.unlink(source)
