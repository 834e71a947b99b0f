"""Where a blob's bytes are: loose files, packs, or both. A reader takes them from wherever they are."""

from kstore.blobs.blobstore import BlobStore
from kstore.blobs.packreader import Part
from kstore.blobs.writers import BlobWriter, Layout

__all__ = ["BlobStore", "BlobWriter", "Layout", "Part"]
