"""After a restart, the manifest shows whether reported rows may have moved to another daemon."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from ingester.query.live_feed import may_have_moved
from persist.manifest import Manifest, OriginAction, Proposal, WriterAction, WriterIdentity, commit
from persist.manifest.actions import Action
from persist.partitioning import UNPARTITIONED
from persist.store.local import LocalStore
from persist.table import TableDefinition

HERE, THERE = WriterIdentity("here", "1" * 16, 1), WriterIdentity("there", "2" * 16, 1)


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """A table whose first version has two origins: "a" of this daemon and "b" of another one."""
    manifest = Manifest(LocalStore(tmp_path / "store"), "ns", "t")
    definition = TableDefinition(pa.schema({"n": pa.int64()}), UNPARTITIONED)
    commit(manifest, None, Proposal([*definition.actions(), opened(HERE)]), HERE)
    assert version(manifest, HERE, opened(THERE), owned("a", HERE), owned("b", THERE)) == 2
    return manifest


def opened(writer: WriterIdentity) -> WriterAction:
    return WriterAction(writer.ingester_id, writer.incarnation, writer.epoch, "open")


def owned(name: str, writer: WriterIdentity) -> OriginAction:
    return OriginAction(name, writer.ingester_id, writer.epoch, None, ())


def version(manifest: Manifest, writer: WriterIdentity, *actions: Action) -> int:
    """Commit these actions; returns the new version."""
    return commit(manifest, manifest.load(), Proposal(list(actions)), writer).version


def test_an_origin_that_stays_here_takes_nothing_along(manifest: Manifest) -> None:
    version(manifest, HERE, owned("a", HERE))
    newest = version(manifest, THERE, owned("b", THERE))
    assert not may_have_moved(manifest, "here", 2, newest)


def test_an_origin_that_went_elsewhere_may_have(manifest: Manifest) -> None:
    gone = version(manifest, THERE, owned("a", THERE))
    assert may_have_moved(manifest, "here", 2, gone)
    # A follower whose answer came after that version already knows.
    newest = version(manifest, THERE, owned("b", THERE))
    assert not may_have_moved(manifest, "here", gone, newest)


def test_an_origin_that_went_and_came_back_may_have(manifest: Manifest) -> None:
    version(manifest, THERE, owned("a", THERE))
    back = version(manifest, HERE, owned("a", HERE))
    assert may_have_moved(manifest, "here", 2, back)


def test_an_origin_that_came_and_went_may_have(manifest: Manifest) -> None:
    version(manifest, HERE, owned("b", HERE))
    gone = version(manifest, THERE, owned("b", THERE))
    assert may_have_moved(manifest, "here", 1, gone)
    assert not may_have_moved(manifest, "here", 1, gone - 2)


def test_where_it_cannot_be_known_it_may_have(manifest: Manifest) -> None:
    newest = version(manifest, HERE, owned("a", HERE))
    assert may_have_moved(manifest, "here", 0, newest)
