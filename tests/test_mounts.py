"""What is mounted where."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kstore.mounts import Mount, mounts


def test_a_mount_is_reported_with_its_device_and_kind() -> None:
    assert Mount("/proc", os.stat("/proc").st_dev, "proc") in mounts()


@pytest.mark.privileged
def test_a_blank_in_the_path_of_a_mount_is_read_as_a_blank(tmp_path: Path) -> None:
    folder = tmp_path / "with a blank"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        assert Mount(str(folder), folder.stat().st_dev, "tmpfs") in mounts()
    finally:
        subprocess.run(["umount", folder], check=True)
