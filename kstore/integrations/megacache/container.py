"""The bytes of a mega-cache, read and written by torch's own serialiser: a checksum, a version, then sections.

A section has a kind and any number of (key, content). Torch writes one section for each kind whenever
`save_cache_artifacts` is called. If there are several of one kind, its own loader keeps only the last
(`CacheArtifactManager.deserialize` makes a dict of them). Here all are read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kstore.errors import IntegrityError, PackageMissing
from kstore.integrations.megacache.entries import Artifact

if TYPE_CHECKING:
    from torch.utils._appending_byte_serializer import AppendingByteSerializer, BytesReader, BytesWriter

    Section = tuple[str, list[Artifact]]

_DAMAGED = (AssertionError, RuntimeError, ValueError)
"""What torch raises for bytes that are not a mega-cache."""


def check_torch() -> None:
    """Find out whether a mega-cache can be read and written here.

    Raises:
        PackageMissing: torch is not installed, or it has no such serialiser.
    """
    _serialiser()


def read(data: bytes, source: str = "") -> list[Artifact]:
    """All entries of the data, in the order in which they were recorded. Nothing is unpickled. `source` is for errors.

    Raises:
        IntegrityError: the bytes are damaged, or not a mega-cache.
        PackageMissing: torch is not installed.
    """
    serialiser = _serialiser()
    try:
        sections = serialiser.to_list(data, deserialize_fn=_read_section)
    except _DAMAGED as error:
        import torch

        # Older versions write it without a checksum, under the same number of a version.
        raise IntegrityError(
            f"{source and f'{source}: '}{len(data)} bytes are not a mega-cache of "
            f"torch.compiler.save_cache_artifacts, or are damaged, or of another version than torch "
            f"{torch.__version__}, which is installed here: {error}"
        ) from error
    return [artifact for _, artifacts in sections for artifact in artifacts]


def write(artifacts: Iterable[Artifact]) -> bytes:
    """The bytes that `torch.compiler.load_cache_artifacts` takes.

    Raises:
        PackageMissing: torch is not installed.
    """
    sections: dict[str, list[Artifact]] = {}
    for artifact in artifacts:
        sections.setdefault(artifact.kind, []).append(artifact)
    serialiser = _serialiser()(serialize_fn=_write_section)
    serialiser.extend(sections.items())
    return serialiser.to_bytes()


def _serialiser() -> type[AppendingByteSerializer[Section]]:
    try:
        from torch.utils._appending_byte_serializer import AppendingByteSerializer
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise PackageMissing(
                "a mega-cache is read and written by torch, which is not installed here: pip install torch"
            ) from error
        raise PackageMissing(f"the torch that is installed here writes mega-caches in another form: {error}") from error
    return AppendingByteSerializer


def _read_section(reader: BytesReader) -> Section:
    """As `_deserialize_single_cache` in torch.compiler._cache, which imports the whole compiler to do this."""
    kind = _text(reader)
    return kind, [Artifact(kind, _text(reader), reader.read_bytes()) for _ in range(reader.read_uint64())]


def _text(reader: BytesReader) -> str:
    """Read a text. An empty one is an error: past the end of the data, every read returns one, for ever."""
    text = reader.read_str()
    if not text:
        raise ValueError("it ends too early")
    return text


def _write_section(writer: BytesWriter, section: Section) -> None:
    """As `_serialize_single_cache` in torch.compiler._cache."""
    kind, artifacts = section
    writer.write_str(kind)
    writer.write_uint64(len(artifacts))
    for artifact in artifacts:
        writer.write_str(artifact.key)
        writer.write_bytes(artifact.content)
