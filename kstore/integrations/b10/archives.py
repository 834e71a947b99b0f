"""What b10-transfer itself saved: one archive for each kind of GPU and CUDA version."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kstore.deadline import Abandoned
from kstore.errors import reason_of
from kstore.integrations.archives import adopt, settled
from kstore.integrations.b10.hardware import archive_key
from kstore.integrations.b10.space import check_free
from kstore.integrations.b10.status import log
from kstore.integrations.b10.variables import Variables
from kstore.store import Store

_PREFIX, _SUFFIX = "cache_", ".latest.tar.gz"


@dataclass(frozen=True, slots=True)
class Archives:
    """The archives in the folder of a deployment, and what is known about them."""

    variables: Variables
    component: str
    """What they are archives of: `inductor` or `vllm`."""
    built_under: Path
    """Where that component was when they were made, and is again now."""

    def adopt(self, store: Store, key: str) -> bool:
        """Publish the contents of the archive for this replica's hardware, if nothing was ever published. Returns
        whether something is published now.

        An archive that cannot be read is logged and left alone: the replica compiles.
        """
        if (is_there := settled(store, key)) is not None:  # Has another replica imported it just now?
            return is_there
        if not (archive := own_archive(self.variables.volume)):
            return False
        try:
            check_free(Path(tempfile.gettempdir()), self.variables.free_to_unpack_mb(archive), "unpacking it")
            report = adopt(store, key, archive, component=self.component, built_under=self.built_under)
        except Abandoned:
            raise
        except Exception as error:
            log.warning("kstore: %s is not imported: %s", archive, reason_of(error))
            log.debug("kstore: %s is not imported", archive, exc_info=error)
            return False
        if report.ok:
            log.info("kstore: imported %d files of %s", report.new_files, archive)
        return report.ok


def find_archives(folder: Path) -> Iterator[Path]:
    """Every archive in `folder`, by name."""
    yield from sorted(folder.glob(f"{_PREFIX}*{_SUFFIX}"))


def own_archive(folder: Path) -> Path | None:
    """The archive in `folder` for the hardware of this process, which is determined only if there are archives."""
    found = {key_in(path.name): path for path in find_archives(folder)}
    return found.get(archive_key() or "") if found else None


def key_in(name: str) -> str:
    """The hexadecimal digits in an archive's name."""
    return name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
