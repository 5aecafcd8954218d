"""A table's own age of buffers: it is flushed earlier than others, and can change."""

from __future__ import annotations

from pathlib import Path

import pyarrow.flight as fl
import pytest

from ingester.buffer import Aging
from ingester.flush.freeze_policy import FreezeAges
from persist.manifest import (
    MAX_AGE,
    Manifest,
    Properties,
    Proposal,
    WriterIdentity,
    commit,
)
from persist.store import open_store
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.drivers.wire import Table, act, create, describe, numbers, put, rows

SCHEMA = numbers(0, 1).schema
OTHER = WriterIdentity("another", "0" * 16, 1)


def set_property(daemon: Daemon, table: Table, name: str, value: object) -> None:
    """Change a property in the manifest, as another process does."""
    store = open_store(f"file://{daemon.data_dir / 'store'}")
    manifest = Manifest(store, *table)
    state = manifest.load()
    values = {**state.properties, name: value}
    commit(manifest, state, Proposal((Properties(values=values),)), OTHER)


def in_files(client: fl.FlightClient, table: Table, count: int) -> None:
    """Wait until a table has this many rows in files, and none in buffers."""

    def flushed() -> bool:
        found = describe(client, table)
        return (found["persisted"]["rows"], found["buffered"]["rows"]) == (count, 0)

    until(flushed, f"{count} rows in files")


def test_a_table_with_its_own_age_is_flushed_before_the_others(
    client: fl.FlightClient, table: Table
) -> None:
    slow, quick = (table[0], table[1] + "_slow"), table
    create(client, quick, SCHEMA, max_age_s=0.2)
    put(client, slow, numbers(0, 5))
    for first in (0, 5, 10):
        put(client, quick, numbers(first, 5))
        in_files(client, quick, first + 5)
    assert describe(client, slow)["buffered"]["rows"] == 5
    assert rows(client, quick) == list(range(15))


def test_a_checkpoint_without_rows_is_committed_at_the_tables_own_age(
    client: fl.FlightClient, table: Table
) -> None:
    create(client, table, SCHEMA, max_age_s=0.2)
    where = {"namespace": table[0], "table": table[1], "partition": "p"}
    act(client, "checkpoint_put", **where, state="AAAA")
    until(lambda: act(client, "checkpoint_get", **where)[0]["durable"], "the checkpoint in files")


def test_a_changed_age_holds_for_later_rows_without_a_restart(tmp_path: Path) -> None:
    table = ("it", "changed")
    with (
        Daemon.start(tmp_path / "data", manifest__refresh="50ms") as daemon,
        fl.connect(daemon.flight) as client,
    ):
        put(client, table, numbers(0, 5))
        set_property(daemon, table, MAX_AGE, 0.1)
        until(lambda: describe(client, table)["max_age_s"] == 0.1, "the change to be seen")
        put(client, table, numbers(5, 5))
        in_files(client, table, 10)
        set_property(daemon, table, MAX_AGE, None)
        until(lambda: describe(client, table)["max_age_s"] is None, "the change to be seen")
        put(client, table, numbers(10, 5))
        assert describe(client, table)["buffered"]["rows"] == 5
        assert rows(client, table) == list(range(15))


@pytest.mark.parametrize(
    ("aging", "age_s"),
    [
        (Aging(None, replicated=False), 300.0),
        (Aging(None, replicated=True), 600.0),
        (Aging(5.0, replicated=False), 5.0),
        (Aging(5.0, replicated=True), 5.0),
        (Aging(400.0, replicated=False), 300.0),
        (Aging(400.0, replicated=True), 400.0),
    ],
)
def test_a_tables_own_age_only_lowers_that_of_the_daemon(aging: Aging, age_s: float) -> None:
    assert FreezeAges(max_age_s=300.0, max_lag_s=600.0).of(aging) == age_s
