"""The level at which each kind of write is acknowledged, and what then survives a lost disk.

``Machine.lose`` kills the daemon, deletes its folder and starts it again on the same store.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as dbapi
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.syncing import Source
from tests.drivers.wire import (
    Json,
    Stream,
    Table,
    act,
    command,
    create,
    describe,
    http,
    numbers,
    persist,
    put,
    rows,
)

KEYED = pa.schema({"i": pa.int64(), "v": pa.float64()})


class Machine:
    """A daemon whose disk can be lost; its store is elsewhere."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self._folder = folder
        # Nothing is flushed by age, so that only the log has rows.
        variables = {f"INGESTER_{key.upper()}": value for key, value in settings.items()}
        self._environment = {"INGESTER_PERSIST__MAX_AGE": "1h", **variables}
        self._started = 0
        self._start()

    def _start(self) -> None:
        self._started += 1
        self.daemon = Daemon.start(
            self._folder / f"disk-{self._started}",
            environment=self._environment,
            id="one",
            store=f"file://{self._folder / 'store'}",
        )
        self.client = fl.connect(self.daemon.flight)

    def lose(self) -> None:
        """Lose the disk, and start elsewhere."""
        self.client.close()
        self.daemon.kill()
        shutil.rmtree(self.daemon.data_dir)
        self._start()

    def objects(self) -> int:
        """The number of log objects in the store."""
        return len(list((self._folder / "store" / "_log").rglob("*.wal")))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(
        tmp_path,
        namespaces='{"safe": {"ack": "store"}}',
        tables='{"safe/fast": {"ack": "disk"}}',
    )
    yield machine
    machine.client.close()
    machine.daemon.kill()


def written(
    client: fl.FlightClient,
    table: Table,
    batches: Sequence[pa.RecordBatch],
    metadata: Sequence[Any] | None = None,
    **fields: object,
) -> list[Json]:
    """Write batches by a command with these fields."""
    about = {"type": "write", "namespace": table[0], "table": table[1], **fields}
    with Stream(client, command(**about), batches[0].schema) as stream:
        return [
            stream.write(batch, None if metadata is None else metadata[number])
            for number, batch in enumerate(batches)
        ]


def levels(answers: Sequence[Json]) -> list[object]:
    return [answer.get("ack") for answer in answers]


def test_a_table_is_acknowledged_at_its_level_and_says_so(machine: Machine) -> None:
    client = machine.client
    assert create(client, ("n", "own"), KEYED, ack="store")["ack"] == "store"
    create(client, ("n", "own"), KEYED, ack="store")
    create(client, ("n", "own"), KEYED)
    with pytest.raises(pa.ArrowInvalid, match="exists and has ack 'store', not 'disk'"):
        create(client, ("n", "own"), KEYED, ack="disk")
    create(client, ("n", "unset"), KEYED)
    with pytest.raises(pa.ArrowInvalid, match="has no ack of its own, not 'store'"):
        create(client, ("n", "unset"), KEYED, ack="store")
    create(client, ("safe", "fast"), KEYED, ack="store")
    expected = {
        ("n", "own"): "store",
        ("n", "unset"): "disk",
        ("safe", "any"): "store",
        ("safe", "fast"): "disk",
    }
    for table, level in expected.items():
        assert levels(put(client, table, numbers(0, 1))) == [level], table
        assert describe(client, table)["ack"] == level
    (status,) = act(client, "status")
    shown = {(each["namespace"], each["table"]): each["ack"] for each in status["tables"]}
    assert shown == expected
    with pytest.raises(pa.ArrowInvalid, match="create_table: ack must be one of disk, store"):
        create(client, ("n", "other"), KEYED, ack="memory")


def test_a_stream_may_ask_for_more_than_its_table_and_a_refused_one_creates_nothing(
    machine: Machine,
) -> None:
    client, batch = machine.client, numbers(0, 1)
    assert levels(written(client, ("n", "low"), [batch], ack="disk")) == ["disk"]
    assert machine.objects() == 0, "a table at disk needs no object"
    assert levels(written(client, ("n", "low"), [batch], ack="store")) == ["store"]
    assert levels(written(client, ("n", "low"), [batch])) == ["store"], "one order for each table"
    with pytest.raises(pa.ArrowInvalid, match="table safe/new has level 'store'"):
        written(client, ("safe", "new"), [batch], ack="disk")
    with pytest.raises(pa.ArrowKeyError):
        describe(client, ("safe", "new"))
    with pytest.raises(pa.ArrowInvalid, match="descriptor: ack must be one of disk, store"):
        written(client, ("n", "low"), [batch], ack="memory")


def test_what_any_kind_of_write_acknowledged_at_store_survives_the_loss_of_the_disk(
    machine: Machine,
) -> None:
    client, state = machine.client, base64.b64encode(b"offset 7").decode()
    put(client, ("n", "disk"), numbers(0, 3))
    create(client, ("safe", "keyed"), KEYED, primary_key=["i"])
    both = pa.record_batch({"i": [1, 2, 3], "v": [1.0, 2.0, 3.0]}, schema=KEYED)
    assert levels(put(client, ("safe", "keyed"), both)) == ["store"]
    gone = command(type="delete", namespace="safe", table="keyed")
    with Stream(client, gone, pa.schema({"i": pa.int64()})) as stream:
        assert stream.write(numbers(2, 1))["ack"] == "store"
    act(
        client,
        "checkpoint_put",
        namespace="safe",
        table="keyed",
        partition="p",
        state=state,
    )
    with dbapi.connect(machine.daemon.flight, autocommit=True) as adbc, adbc.cursor() as cursor:
        cursor.adbc_ingest("bulk", pa.table(numbers(0, 4)), "create", db_schema_name="safe")
    source = Source(client, "safe", "db")
    first = source.send("synced", [(None, 1, {"v": 1.0})], begin=True)
    last = source.send("synced", [(None, 2, {"v": 2.0})], sequence=5)
    assert levels([first, last]) == [None, "store"]
    machine.lose()
    client = machine.client
    assert rows(client, ("safe", "keyed")) == [1, 3]
    assert rows(client, ("safe", "bulk")) == [0, 1, 2, 3]
    assert rows(client, ("safe", "synced"), "id") == [1, 2]
    (found,) = act(client, "checkpoint_get", namespace="safe", table="keyed", partition="p")
    assert found["state"] == state
    assert rows(client, ("n", "disk")) == []


def test_a_repeat_at_store_of_a_batch_at_disk_is_answered_when_the_store_has_it(
    machine: Machine,
) -> None:
    table, batches = ("n", "t"), [numbers(10 * n, 2) for n in range(3)]
    metadata = [{"sequence": n} for n in range(3)]
    low = written(machine.client, table, batches, metadata, origin="o")
    assert levels(low) == ["disk"] * 3
    again = written(machine.client, table, batches, metadata, origin="o")
    assert levels(again) == ["disk"] * 3
    safe = written(machine.client, table, batches, metadata, origin="o", ack="store")
    assert [(each["duplicate"], each["ack"]) for each in safe] == [(True, "store")] * 3
    machine.lose()
    assert rows(machine.client, table) == [0, 1, 10, 11, 20, 21]


def test_a_repeat_at_store_of_a_transaction_at_disk_is_answered_when_the_store_has_it(
    machine: Machine,
) -> None:
    source = Source(machine.client, "n", "db")
    source.send("a", [(None, 1, {"v": 1.0})])
    low = source.send("b", [(None, 1, {"v": 1.0})], sequence=5)
    assert low["ack"] == "disk"
    again = source.send("b", [(None, 1, {"v": 1.0})], sequence=5, ack="store", begin=True)
    assert (again["duplicate"], again["ack"]) == (True, "store")
    alone = source.end(5, "a", ack="store")
    assert (alone["duplicate"], alone["ack"]) == (True, "store")
    machine.lose()
    assert rows(machine.client, ("n", "a"), "id") == rows(machine.client, ("n", "b"), "id") == [1]


def test_a_transaction_has_the_highest_level_of_its_messages_and_tables(machine: Machine) -> None:
    source = Source(machine.client, "safe", "db")
    source.send("fast", [(None, 1, {"v": 1.0})], begin=True)
    assert source.send("fast", [(None, 2, {"v": 1.0})], sequence=1)["ack"] == "disk"
    source.send("any", [(None, 1, {"v": 1.0})], begin=True)
    assert source.send("fast", [(None, 3, {"v": 1.0})], sequence=2)["ack"] == "store"
    source.send("fresh", [(None, 1, {"v": 1.0})], begin=True)
    with pytest.raises(pa.ArrowInvalid, match="table safe/fresh has level 'store'"):
        source.send("fresh", [(None, 2, {"v": 1.0})], sequence=3, ack="disk")
    machine.lose()
    assert rows(machine.client, ("safe", "fast"), "id") == [1, 2, 3]


def test_a_transaction_that_was_open_when_the_disk_was_lost_is_sent_again_from_its_begin(
    machine: Machine,
) -> None:
    source = Source(machine.client, "safe", "db")
    source.send("t", [(None, 1, {"v": 1.0})], begin=True)
    machine.lose()
    source = Source(machine.client, "safe", "db")
    rest = source.send("t", [(None, 2, {"v": 2.0})], sequence=1)
    assert (rest["accepted"], rest.get("ack")) == (False, None)
    assert "was lost with the process" in rest["message"]


def test_without_a_log_on_the_disk_all_tables_are_at_store(tmp_path: Path) -> None:
    machine = Machine(tmp_path, wal__disk="off")
    try:
        client = machine.client
        assert levels(put(client, ("n", "t"), numbers(0, 2))) == ["store"]
        assert describe(client, ("n", "t"))["ack"] == "store"
        for refused in (
            lambda: written(client, ("n", "t"), [numbers(2, 1)], ack="disk"),
            lambda: create(client, ("n", "u"), KEYED, ack="disk"),
            lambda: Source(client, "n", "o").send("k", [(None, 1, {})], sequence=1, ack="disk"),
        ):
            with pytest.raises(pa.ArrowInvalid, match=r"wal\.disk is 'off': use 'store'"):
                refused()
        assert http(f"{machine.daemon.http}/api/status")[0] == 200
        machine.lose()
        assert rows(machine.client, ("n", "t")) == [0, 1]
        persist(machine.client, ("n", "t"))
        assert rows(machine.client, ("n", "t")) == [0, 1]
    finally:
        machine.client.close()
        machine.daemon.kill()


def test_a_repeat_at_store_of_a_batch_without_rows_waits_for_its_checkpoint_too(
    machine: Machine,
) -> None:
    state = base64.b64encode(b"offset 9").decode()
    batches = [numbers(0, 1), numbers(0, 0)]
    metadata = [{"sequence": 1}, {"sequence": 2, "checkpoint": {"partition": "p", "state": state}}]
    table = ("n", "t")
    assert levels(written(machine.client, table, batches, metadata, origin="o"))[1] == "disk"
    (last,) = written(machine.client, table, batches[1:], metadata[1:], origin="o", ack="store")
    assert (last["duplicate"], last["ack"]) == (True, "store")
    machine.lose()
    (found,) = act(machine.client, "checkpoint_get", namespace="n", table="t", partition="p")
    assert found["state"] == state
