"""The files that follow a version of a keyed table are reported only by the table's owner."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from ingester.errors import StoreUnreachable
from ingester.query.snapshot import Snapshot
from ingester.query.version_tail import VersionTail
from persist.manifest import Manifest, Owner, Proposal, WriterAction, WriterIdentity, commit
from persist.store.contract import StoreUnavailable
from persist.store.local import LocalStore
from tests.drivers.stage import KEYED, KEYS, Stage

OTHER = WriterIdentity("other", "2" * 16, 1)


class AwayStore(LocalStore):
    """A store that is unreachable while ``away`` is set."""

    away = False

    def get(self, path: str) -> bytes:
        """Raises `StoreUnavailable` while the store is away."""
        if self.away:
            raise StoreUnavailable("away")
        return super().get(path)


def claim(store: LocalStore) -> None:
    """Make another daemon the owner of the table."""
    writer = WriterAction(OTHER.ingester_id, OTHER.incarnation, OTHER.epoch, "open")
    owner = Owner(OTHER.ingester_id, OTHER.epoch)
    commit(Manifest(store, "ns", "t"), None, Proposal([writer, owner]), OTHER)


def files_told(snapshot: Snapshot) -> int:
    """The number of files after the version whose rows the answer has."""
    told = sum(len(view.files) for view in snapshot.partitions())
    snapshot.close()
    return told


def test_another_owner_is_seen_though_a_commit_is_under_way(tmp_path: Path) -> None:
    store = AwayStore(tmp_path / "store")
    stage = Stage(tmp_path, KEYED, store)
    versions = VersionTail(stage.catalog, stage.tree, retain_s=3600.0)
    told: list[int] = []

    async def ask(version: int) -> None:
        told.append(files_told(await versions.buffered(stage.table, version)))

    async def work() -> None:
        async with stage.running():
            before = stage.table.state.version
            stage.write(KEYS)
            await stage.persist()
            await ask(before)
            assert told.pop() > 0, "nobody owns it: whoever is asked tells"
            async with trio.open_nursery() as asking, stage.catalog.commits.held(stage.table.key):
                # This daemon has not seen the claim, and a commit is in progress.
                claim(store)
                asking.start_soon(ask, before)
                await trio.testing.wait_all_tasks_blocked()
                assert not told, "answered without a look"
            assert told == [0]

    trio.run(work)


def test_nothing_is_told_by_who_cannot_know_the_owner(tmp_path: Path) -> None:
    store = AwayStore(tmp_path / "store")
    stage = Stage(tmp_path, KEYED, store)
    versions = VersionTail(stage.catalog, stage.tree, retain_s=3600.0)

    async def work() -> None:
        async with stage.running():
            stage.write(KEYS)
            await stage.persist()
            claim(store)
            store.away = True
            # Refused even for the newest known version, as a newer one may exist.
            with pytest.raises(StoreUnreachable, match="the manifest cannot be read"):
                await versions.buffered(stage.table, stage.table.state.version)

    trio.run(work)
