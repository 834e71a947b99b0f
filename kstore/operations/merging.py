"""The merge of a commit: it makes a proposal from base, theirs and ours. The rules are those of `kstore.merge`."""

from __future__ import annotations

from collections.abc import Mapping

from kstore.components import method_of
from kstore.components.mergers import merge_files
from kstore.digest import digest_of
from kstore.errors import IntegrityError
from kstore.local.finished import Unfinished
from kstore.local.found import Skipped
from kstore.local.reading import read_finished
from kstore.local.state import State
from kstore.merge import Merged, merge, never_had, still_declined
from kstore.operations.proposal import Proposal, apart
from kstore.operations.theirs import Theirs
from kstore.published.layers import remembers
from kstore.published.leaning import fetch
from kstore.published.manifest import HOST, Entry, Files, Manifest, with_flags, without_flags
from kstore.published.ref import Ref
from kstore.published.snapshot import Snapshot
from kstore.worker import Worker


class Merging:
    """Merges for one commit, anew for each of its attempts to publish."""

    def __init__(self, worker: Worker, state: State, base: Snapshot | None, kept: Mapping[bytes, bytes]) -> None:
        """`base` is what the root grew from, even if a restore could not read it in the store: what it held is known.
        What `kept` holds, by digest, need not be read again.
        """
        self._worker = worker
        self._storage = worker.storage
        self._seen = state.seen
        self._missed = state.missed
        self._outdated = state.outdated
        self._base = base
        self._kept = kept
        self.declined = self._declined = state.declined
        """What ours had lost against before, as far as that still exists."""

    def propose(self, theirs: Theirs, ours: Files) -> Proposal:
        """Merge the portable files and, by themselves, those of this host."""
        base, self.declined = Manifest(), self._declined
        if self._base and self._grew_from_before(theirs):
            base = self._base.manifest
        else:
            self.declined = self._still_declined(theirs, ours)
        bound = with_flags(ours, HOST)
        portable = without_flags(ours, HOST) if bound else ours
        proposal = Proposal(theirs.manifest.files, dict(theirs.manifest.hosts))
        proposal.files = self._merge(proposal, theirs, base.files, portable)
        if bound:
            host = self._worker.host.fingerprint
            proposal.hosts[host] = self._merge(proposal, theirs, base.hosts.get(host, {}), bound, host)
        proposal.declined |= never_had(proposal.files, ours, self._missed)
        return proposal

    def _still_declined(self, theirs: Theirs, ours: Files) -> dict[str, bytes]:
        base, files_of = self._base, self._worker.files_of
        if not self._declined or not base or base.ref.scope != self._worker.scope:
            return {}
        return still_declined(self._declined, files_of(base.manifest), files_of(theirs.manifest), ours)

    def _grew_from_before(self, theirs: Theirs) -> bool:
        """Whether what base has and theirs lacks was taken out, and is not just of another key, or damaged."""
        if not self._base or not theirs.snapshot:
            return False
        base, newest = self._base.ref, theirs.snapshot.ref
        if base.scope != newest.scope:  # Base is a seed, since withdrawn as part of this key.
            return bool(newest.withdrawn) and not newest.depth and newest.generation > self._seen
        is_older = base.generation <= newest.generation or base.depth > newest.depth
        return is_older and remembers(theirs.snapshot, self._base)

    def _merge(self, proposal: Proposal, theirs: Theirs, base: Files, ours: Files, host: str = "") -> Files:
        """Merge the files of a host, or the portable ones."""
        published, beside = apart(proposal.files, proposal.hosts, host)
        merged = merge(base, published, ours, self.declined, beside, self._outdated)
        for path in merged.to_merge:
            assert theirs.snapshot  # It has the other version.
            self._merge_content(proposal, merged, ours, path, theirs.snapshot.ref)
        proposal.taken.update(merged.taken)
        proposal.declined |= merged.declined
        proposal.outdated |= merged.outdated
        return merged.files

    def _merge_content(self, proposal: Proposal, merged: Merged, ours: Files, path: str, newest: Ref) -> None:
        """Join two versions of a file by their meaning."""
        method = method_of(self._worker.table, "merge", path) or ""
        try:
            entry = merged.files[path]
            published = fetch(self._storage, entry, newest)
            local = self._read_scanned(path, ours[path])
        except IntegrityError:
            merged.files[path] = ours[path]
            merged.taken.add(path)
            return
        except Unfinished as reason:
            proposal.skipped.append(Skipped(path, str(reason)))
            return
        data = merge_files(method, published, local, prevails=path in merged.prevailing)
        if data != local:
            merged.declined[path] = ours[path].digest
            merged.outdated.add(path)  # All that ours has there is in what is published.
        if data != published:
            entry = ours[path]._replace(digest=digest_of(data), size=len(data))
            proposal.contents[entry.digest] = data
            merged.files[path] = entry
            merged.taken.add(path)

    def _read_scanned(self, path: str, entry: Entry) -> bytes:
        """What the scan found there. A later version of the file may list files that the scan has not found."""
        if kept := self._kept.get(entry.digest):
            return kept
        data, _, digest = read_finished(self._worker.root.local_path(path))
        if digest != entry.digest:
            raise Unfinished("it changed while it was merged")
        return data
