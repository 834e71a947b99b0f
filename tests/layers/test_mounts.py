"""An image's store on real mounts: read-only, of another filesystem, another user's, in a container's overlay."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import kstore
from kstore.local.link import LinkMode
from kstore.report import CommitStatus, RestoreStatus
from tests.filesystems.volumes import Volumes, remount
from tests.layers.images import Fleet, Worker, fill, fingerprint, has
from tests.trees import ENVIRONMENT, GPU, KEY

pytestmark = pytest.mark.privileged

OTHER_USER = 12345


@pytest.fixture
def volumes(tmp_path: Path) -> Iterator[Volumes]:
    with ExitStack() as finalizers:
        yield Volumes(tmp_path, finalizers)


def read_only(volumes: Volumes, kind: str, fleet: Fleet) -> Path:
    """The image's store on a filesystem of its own that nobody can write to."""
    volume = volumes.make(kind)
    base = fleet.bake("one", base=volume / "base")
    remount(volume, "ro")
    with pytest.raises(OSError, match="Read-only"):
        (base / "probe").touch()
    return base


@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_a_store_on_a_read_only_filesystem(volumes: Volumes, kind: str, fleet: Fleet) -> None:
    base = read_only(volumes, kind, fleet)
    before = fingerprint(base)
    worker = fleet.worker("worker", base)
    report = worker.restore(wait=10)
    assert (report.status, report.left_out, report.link_mode) == (RestoreStatus.RESTORED, 0, LinkMode.COPY)
    fill(worker, "two")
    assert worker.commit().status is CommitStatus.COMMITTED
    again = fleet.worker("again", base)
    assert again.restore().left_out == 0
    assert has(again) == {"one", "two"}
    assert fingerprint(base) == before


def test_each_store_is_linked_in_its_own_way(volumes: Volumes, tmp_path: Path) -> None:
    """The cache root is on the image's filesystem, which can clone, and the shared store is on another filesystem."""
    xfs, tmpfs = volumes.make("xfs"), volumes.make("tmpfs")
    fleet = Fleet(tmp_path, "loose", "loose")
    base = fleet.bake("one", base=xfs / "base")
    local = Fleet(xfs, "loose", "loose")
    first = Worker(local.folder, "first", tmpfs / "store", base, layout="loose")
    first.restore()
    fill(first, "two")
    first.commit()
    report = Worker(local.folder, "second", tmpfs / "store", base, layout="loose").restore()
    assert (report.left_out, report.link_mode) == (0, LinkMode.REFLINK)
    modes = report.used_modes or {}
    assert modes[LinkMode.REFLINK] > 0 and modes[LinkMode.COPY] >= modes[LinkMode.REFLINK]
    assert "cross-device" in report.link_why.lower()


def test_the_layers_of_a_container_stay_as_they_are(volumes: Volumes, tmp_path: Path, layout: str) -> None:
    """In an overlay a hard link works, but copies the blob up: the image's own layer never changes."""
    below = volumes.make("ext4")
    image, upper, work = (below / name for name in ("image", "upper", "work"))
    for folder in (image, upper, work):
        folder.mkdir()
    fleet = Fleet(tmp_path, layout, layout)
    fleet.bake("one", base=image / "base")
    before = fingerprint(image)
    options = f"lowerdir={image},upperdir={upper},workdir={work}"
    container = volumes.mount("-t", "overlay", "-o", options, "overlay")
    worker = Worker(container, "worker", fleet.shared, container / "base", layout=layout)
    assert worker.restore().left_out == 0
    fill(worker, "two")
    worker.commit()
    again = Worker(container, "again", fleet.shared, container / "base", layout=layout)
    again.restore()
    assert has(again) == {"one", "two"}
    assert fingerprint(image) == before


def test_another_users_store_is_read(volumes: Volumes, fleet: Fleet) -> None:
    """Built by root, as images are, and used by a user who may not write to it."""
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    volume = volumes.make("ext4")
    fleet.bake("one", base=volume / "base")
    before = fingerprint(volume / "base")
    mine = volume / "mine"
    mine.mkdir()
    os.chown(mine, OTHER_USER, OTHER_USER)
    code = (
        "import json, sys, kstore\n"
        "here, key, settings = sys.argv[1:]\n"
        "stores, root = f'{here}/mine/store:{here}/base', f'{here}/mine/root'\n"
        "settings = dict(json.loads(settings), store=stores, cache_root=root)\n"
        "restored = kstore.restore(key, strict=True, **settings)\n"
        "open(f'{root}/inductor/new.cu', 'w').write('new')\n"
        "committed = kstore.commit(key, strict=True, **settings)\n"
        "print(json.dumps([restored.as_json(), committed.as_json()]))"
    )
    directory = os.open(volume, os.O_RDONLY)
    settings = json.dumps({"gpu": GPU, "environment": ENVIRONMENT, "layout": fleet.layout})
    pass_through = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    who = ("setpriv", f"--reuid={OTHER_USER}", f"--regid={OTHER_USER}", "--clear-groups", *pass_through, "--")
    command = [*who, sys.executable, "-c", code, f"/proc/self/fd/{directory}", KEY, settings]
    environ = os.environ | {"PYTHONPATH": str(Path(kstore.__file__).parents[1])}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd="/", pass_fds=(directory,), env=environ
    )
    os.close(directory)
    assert done.returncode == 0, done.stderr
    restored, committed = json.loads(done.stdout)
    assert (restored["status"], restored["left_out"]) == ("restored", 0)
    assert (committed["status"], committed["new_files"]) == ("committed", 1)
    assert fingerprint(volume / "base") == before
