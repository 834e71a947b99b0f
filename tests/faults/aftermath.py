"""What must hold after an operation in which a call failed. Every check yields what is wrong, in words."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping

from kstore.backends import PosixBackend
from kstore.blobs.packreader import PackReader
from kstore.digest import digest_of
from kstore.errors import IntegrityError, KstoreError
from kstore.report import CommitReport, CommitStatus, RestoreStatus
from kstore.storage import Storage
from tests.faults.operations import Report, Scene
from tests.trees import Tree, contents

_REMEMBERED = re.compile(
    r"clock|lock|index-[0-9a-f]{8}|still-[0-9a-f]{8}|base|sync\.json|begun|restored|restored\.json"
)


def told_truly(scene: Scene, report: Report, records: list[logging.LogRecord]) -> Iterator[str]:
    """The status says what happened, and trouble is one line."""
    lines = [record for record in records if record.name == "kstore" and record.levelno >= logging.WARNING]
    failed = report.status in (CommitStatus.FAILED, RestoreStatus.FAILED)
    left_out = report.skipped if isinstance(report, CommitReport) else report.left_out
    if len(lines) != (failed or bool(left_out)):
        yield f"{report.status} comes with {len(lines)} log lines"
    if failed and report.error.partition(":")[0] not in _error_names():
        yield f"an error without a type of its own: {report.error}"
    if report.ok and not report.skipped:
        yield from _did_it(scene, report)


def _did_it(scene: Scene, report: Report) -> Iterator[str]:
    if isinstance(report, CommitReport):
        scene.restore("witness")
        yield from _differences("a witness", Tree(scene.folder / "witness"), portable(scene.tree))
    else:
        yield from _differences("the root", scene.tree, everything(scene))


def store_is_whole(scene: Scene) -> Iterator[str]:
    """What has a published name is complete, and each generation names what it needs."""
    backend = PosixBackend(scene.store)
    loose = {path.name: path for path in scene.store.glob("blobs/*/*")}
    yield from (f"blob {name} is damaged" for name, path in loose.items() if digest_of(path.read_bytes()).hex() != name)
    packs: dict[str, set[bytes]] = {}
    for path in scene.store.glob("packs/*"):
        try:
            reader = PackReader(backend, path.name)
            packs[path.name] = {digest for digest, _ in reader.fetch(reader.index.sizes_by_digest())}
        except (IntegrityError, OSError) as error:
            yield f"pack {path.name} is damaged: {error}"
        if digest_of(path.read_bytes()).hex() != path.name:
            yield f"pack {path.name} is not what its name says"
    storage = Storage(scene.store)
    for scope in storage.refs.scopes():
        for generation in storage.refs.generations(scope):
            ref = storage.refs.get(scope, generation)
            within = set[bytes]().union(*(packs.get(pack, ()) for pack in ref.packs))
            needed = {*ref.stored, *(entry.digest for entry in storage.snapshot(ref).manifest.entries())}
            lost = {digest.hex() for digest in needed - within} - set(loose)
            if lost:
                yield f"generation {generation} does not say where {len(lost)} of {len(needed)} blobs are"


def root_is_sound(scene: Scene) -> Iterator[str]:
    """Each file is whole, old or new, and each group is of one piece or absent."""
    news = everything(scene)
    there, before = portable(scene.tree), scene.before
    yield from (
        f"{path} is half-written" for path, data in there.items() if data not in (news.get(path), before.get(path))
    )
    for group in {path.rpartition("/")[0] for path in news if path.startswith("triton/")}:
        if _group(there, group) not in ({}, _group(news, group), _group(before, group)):
            yield f"{group} is mixed"


def nothing_is_lost(scene: Scene, *, may_leave_staged: bool) -> Iterator[str]:
    """Without the fault the worker goes on, and a fresh one gets everything."""
    whole = everything(scene)
    committed = scene.commit()
    if not committed.ok:
        yield f"a new commit: {committed.status} {committed.error}"
    if scene.published:
        restored = scene.restore()
        if not restored.ok:
            yield f"a new restore: {restored.status} {restored.error}"
    yield from (f"the worker has no {path}" for path in sorted(whole.keys() - portable(scene.tree).keys()))
    scene.restore("fresh")
    yield from _differences("a fresh worker", Tree(scene.folder / "fresh"), whole)
    yield from _leftovers(scene, may_leave_staged)
    yield from store_is_whole(scene)


def everything(scene: Scene) -> dict[str, bytes]:
    return portable(scene.published or scene.tree)


def portable(tree: Tree) -> dict[str, bytes]:
    """What is in a root, except for its own path."""
    return {path: data.replace(bytes(tree.root), b"ROOT") for path, data in contents(tree.root).items()}


def _group(files: Mapping[str, bytes], folder: str) -> dict[str, bytes]:
    return {path: data for path, data in files.items() if path.startswith(f"{folder}/")}


def _differences(who: str, tree: Tree, expected: Mapping[str, bytes]) -> Iterator[str]:
    found = portable(tree)
    for path in sorted(found.keys() | expected.keys()):
        if found.get(path) != expected.get(path):
            kind = "other bytes in" if path in found and path in expected else "not" if path in expected else "extra"
            yield f"{who} has {kind} {path}"


def _leftovers(scene: Scene, may_leave_staged: bool) -> Iterator[str]:
    for name in sorted(path.name for path in (scene.tree.root / ".kstore").iterdir()):
        # What is about to take a file's place has a name of its own, always the same one.
        if not _REMEMBERED.fullmatch(name.removesuffix(".new") if may_leave_staged else name):
            yield f".kstore/{name} is left over"
    if not may_leave_staged:
        staged = list((scene.store / "tmp").iterdir()) if (scene.store / "tmp").exists() else []
        yield from (f"tmp/{path.name} is left over" for path in staged)


def _error_names(kind: type[KstoreError] = KstoreError) -> set[str]:
    return {kind.__name__}.union(*map(_error_names, kind.__subclasses__()))
