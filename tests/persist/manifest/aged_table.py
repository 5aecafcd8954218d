"""A table with real data files and a history of many hours, as input for garbage collection.

There is a version each hour: most flush one operation, each fifth replaces the two newest files
by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import msgspec
import pytest

from persist.manifest import (
    Action,
    Add,
    Manifest,
    Proposal,
    Remove,
    Retention,
    TableState,
    VersionNotKept,
    WriterIdentity,
    write_snapshot,
)
from persist.manifest.files import encode_changelog, encode_snapshot
from persist.manifest.paths import changelog_path, snapshot_path
from tests.persist.manifest.samples import (
    DAY,
    DEFINITION,
    ME,
    add,
    applied,
    fresh,
    grown_in_memory,
    persist,
    put_in,
)
from tests.persist.manifest.store_copy import StoreCopy
from tests.persist.manifest.stores import ClockedStore

# With a version each hour, the last 15 versions are kept, and at least 10.
HALF_A_DAY = Retention(retain_s=14.5 * 3600, orphan_grace_s=3600)


def upload(
    manifest: Manifest,
    name: str,
    seq: int,
    *,
    kind: str = "persist",
    writer: WriterIdentity = ME,
) -> Add:
    """A file in the store that no version lists yet."""
    path = f"data/time_day=2026-11-21/{name}.parquet"
    info = manifest.store.put(manifest.object_path(path), name.encode())
    return msgspec.structs.replace(
        add(path, seq, kind=kind, writer=writer), bytes=info.bytes, at=info.at.isoformat()
    )


@dataclass
class AgedTable:
    """The table, its store, and the state of each version when it was the newest."""

    store: ClockedStore
    manifest: Manifest
    states: list[TableState] = field(default_factory=list)

    @property
    def head(self) -> TableState:
        """The newest version."""
        return self.states[-1]

    def commit(self, *actions: Action, writer: WriterIdentity = ME) -> TableState:
        """One more version, an hour later."""
        self.store.advance(hours=1)
        base = self.head if self.states else None
        self.states.append(put_in(self.manifest, base, Proposal(actions), writer))
        return self.head

    def persist(self) -> TableState:
        """One more version with one more file."""
        seq = max(self.head.applied_to(ME.ingester_id, ME.epoch, 1, DAY), 0) + 1
        return self.commit(upload(self.manifest, f"p{seq}", seq), applied(seq))

    def rewrite(self) -> TableState:
        """One more version, in which a file replaces the two newest."""
        newest = sorted(self.head.files.values(), key=lambda one: one.last_seq)[-2:]
        merged = upload(self.manifest, f"r{self.head.version}", 1, kind="rewrite")
        return self.commit(*(Remove(one.path, "merged") for one in newest), merged)

    def live(self, versions: int, snapshots: tuple[int, ...] = ()) -> None:
        """Commit up to ``versions`` versions, with snapshots of the given ones."""
        if not self.states:
            self.commit(*DEFINITION)
        while self.head.version < versions:
            if self.head.version % 5 == 0:
                self.rewrite()
            else:
                self.persist()
            if self.head.version in snapshots:
                self.states[-1] = write_snapshot(self.manifest, self.head)

    def plant_strays(self, uids: tuple[str, ...] = ("00000000", "ffffffff")) -> None:
        """Leave a changelog, a snapshot and a data file of losing writers at every version."""
        for state in self.states:
            for uid in uids:
                lineage = (*state.lineage[:-1], (state.version, uid))
                at = (state.version, uid)
                log = encode_changelog(lineage, persist(999))
                self.store.put(changelog_path(self.manifest.folder, *at), log)
                lie = losing_state(state, uid)
                self.store.put(snapshot_path(self.manifest.folder, *at), encode_snapshot(lie))
                upload(self.manifest, f"stray-{state.version}-{uid}", 999)

    def contents(self) -> dict[str, bytes]:
        """Every object of the table, for :meth:`back_to`."""
        return {path: self.store.get(path) for path in self.names("")}

    def back_to(self, before: dict[str, bytes]) -> None:
        """Restore deleted objects with their old times, and remove new ones."""
        there = set(self.names(""))
        for path in there - set(before):
            self.store.delete(path)
        for path in set(before) - there:
            self.store.restore(path, before[path])

    def names(self, kind: str) -> list[str]:
        """The names of the objects with that ending, anywhere in the table."""
        root = self.manifest.root + "/"
        return [i.path for i in self.store.list(root) if i.path.endswith(kind)]

    def versions_of(self, kind: str) -> list[int]:
        """The versions of such manifest files."""
        return [int(name.rpartition("/")[2][:20]) for name in self.names(kind)]

    def check_kept(self, oldest: int, *, none_below: bool = True) -> None:
        """All versions from ``oldest`` are unchanged, with all of their files; none exists below.

        The first kept version is read from the store, and all of them from a copy of its
        content.
        """
        kept = [state for state in self.states if state.version >= oldest]
        assert fresh(self.manifest).load(kept[0].version) == kept[0]
        store = StoreCopy.of(self.store, self.manifest.root + "/", without=".parquet")
        copy = Manifest(store, self.manifest.namespace, self.manifest.table)
        stored = {info.path for info in store.list("") if info.path.endswith(".parquet")}
        for state in kept:
            assert fresh(copy).load(state.version) == state
            assert {copy.object_path(path) for path in state.files} <= stored
        for state in self.states if none_below else ():
            if state.version < oldest:
                with pytest.raises(VersionNotKept):
                    fresh(copy).load(state.version)


def losing_state(state: TableState, uid: str) -> TableState:
    """The state that a writer that lost the version would have had."""
    return replace(grown_in_memory(state), uid=uid)
