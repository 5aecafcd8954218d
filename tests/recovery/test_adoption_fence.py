"""An adoption's fence never overwrites the successor's entry."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pyarrow as pa

from ingester.recovery.adopt_table import if_older
from persist.manifest import Manifest, Proposal, TableState, WriterAction, WriterIdentity, commit
from persist.partitioning import UNPARTITIONED
from persist.store.local import LocalStore
from persist.table import TableDefinition

OLD = WriterIdentity("ingester-a", "0" * 16, 1)
UNLESS_NEWER = if_older(OLD.ingester_id, OLD.epoch)
SUCCESSOR = WriterIdentity("ingester-a", "1" * 16, 2)


def said(who: WriterIdentity, state: Literal["open", "closed"]) -> Proposal:
    return Proposal([WriterAction(who.ingester_id, who.incarnation, who.epoch, state)])


def table_of(folder: Path) -> tuple[Manifest, TableState]:
    manifest = Manifest(LocalStore(folder), "ns", "t")
    definition = TableDefinition(pa.schema({"n": pa.int64()}), UNPARTITIONED)
    actions = [*definition.actions(), *said(OLD, "open").actions]
    return manifest, commit(manifest, None, Proposal(actions), OLD)


def test_a_successor_that_has_opened_the_table_meanwhile_stays_open(tmp_path: Path) -> None:
    manifest, seen = table_of(tmp_path)
    commit(manifest, seen, said(SUCCESSOR, "open"), SUCCESSOR)
    after = commit(manifest, seen, said(SUCCESSOR, "closed"), SUCCESSOR, UNLESS_NEWER)
    assert (after.writers["ingester-a"].epoch, after.writers["ingester-a"].state) == (2, "open")


def test_where_the_old_one_was_the_last_it_is_fenced(tmp_path: Path) -> None:
    manifest, seen = table_of(tmp_path)
    after = commit(manifest, seen, said(SUCCESSOR, "closed"), SUCCESSOR, UNLESS_NEWER)
    assert (after.writers["ingester-a"].epoch, after.writers["ingester-a"].state) == (2, "closed")
