"""Where a blob's bytes are: loose files, packs, or both. A reader takes them from wherever they are."""

from kstore.blobs.blobstore import BlobStore, BlobWriter, Layout
from kstore.blobs.packreader import Part

__all__ = ["BlobStore", "BlobWriter", "Layout", "Part"]
