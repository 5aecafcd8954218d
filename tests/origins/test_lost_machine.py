"""Origins after the loss of a machine, of which the log objects remain."""

from __future__ import annotations

import json
import shutil
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.syncing import Source
from tests.drivers.wire import (
    Json,
    Table,
    act,
    create,
    describe,
    extra,
    numbers,
    origin_of,
    persist,
    put,
    rows,
)

STORED, OTHER, LOCAL = ("ns", "stored"), ("ns", "other"), ("ns", "local")
KEYED = pa.schema({"id": pa.int64(), "v": pa.float64(), "s": pa.string()})


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with two tables at ``store`` and one at ``disk``."""
    with Daemon.start(
        tmp_path / "d",
        id="tested",
        store=f"file://{tmp_path / 'store'}",
        persist__max_age="1h",
        wal__store__interval="20ms",
    ) as started:
        with fl.connect(started.flight) as client:
            for table in (STORED, OTHER, LOCAL):
                ack = "disk" if table == LOCAL else "store"
                create(client, table, numbers(0, 0).schema, ack=ack)
        yield started


def lose(daemon: Daemon) -> Daemon:
    """Lose the machine, and start on another one."""
    daemon.kill()
    shutil.rmtree(daemon.data_dir)
    return daemon.again()


def send(client: fl.FlightClient, table: Table, *sequences: int, origin: str) -> list[Json]:
    """Write a row for each sequence, with its number."""
    batches = [numbers(sequence, 1) for sequence in sequences]
    said = [{"sequence": sequence} for sequence in sequences]
    return put(client, table, *batches, origin=origin, metadata=said)


def duplicates(answers: list[Json]) -> list[bool]:
    return [answer["duplicate"] for answer in answers]


def test_what_the_store_has_is_a_duplicate_and_what_the_disk_had_is_written(daemon: Daemon) -> None:
    with fl.connect(daemon.flight) as client:
        send(client, STORED, 1, 2, 3, origin="o")
        send(client, LOCAL, 1, 2, 3, origin="p")
        told = origin_of(client, "o")
        assert (told["memory_sequence"], told["durable_sequence"]) == (3, 3)
        assert told["files_sequence"] is None
        assert origin_of(client, "p")["durable_sequence"] is None
    with lose(daemon) as again, fl.connect(again.flight) as client:
        told = origin_of(client, "o")
        assert (told["memory_sequence"], told["durable_sequence"]) == (3, 3)
        assert told["files_sequence"] is None
        assert duplicates(send(client, STORED, 2, 3, 4, origin="o")) == [True, True, False]
        assert duplicates(send(client, LOCAL, 1, 2, 3, origin="p")) == [False, False, False]
        assert sorted(rows(client, STORED)) == [1, 2, 3, 4]
        assert sorted(rows(client, LOCAL)) == [1, 2, 3]
        persist(client, STORED)
        told = origin_of(client, "o")
        assert (told["durable_sequence"], told["files_sequence"]) == (4, 4)


def test_answers_say_what_the_store_has_beside_what_is_in_files(daemon: Daemon) -> None:
    with fl.connect(daemon.flight) as client:
        (first,) = send(client, STORED, 1, origin="o")
        assert first["files_sequence"] is None
        persist(client, STORED)
        (second,) = send(client, STORED, 2, origin="o")
        (third,) = send(client, STORED, 2, origin="o")
        assert (second["files_sequence"], third["files_sequence"]) == (1, 1)
        assert third["duplicate"]
        assert third["durable_sequence"] == 2


def test_the_tables_of_an_origin_ship_together_so_that_its_sequences_have_no_gap(
    daemon: Daemon,
) -> None:
    with fl.connect(daemon.flight) as client:
        send(client, LOCAL, 1, 2, origin="o")
        assert origin_of(client, "o")["durable_sequence"] is None
        send(client, STORED, 3, origin="o")
        # What only the disk had went into files before.
        told = origin_of(client, "o")
        assert (told["durable_sequence"], told["files_sequence"]) == (3, 2)
        send(client, LOCAL, 4, origin="o")
        assert origin_of(client, "o")["durable_sequence"] == 4
    with lose(daemon) as again, fl.connect(again.flight) as client:
        told = origin_of(client, "o")
        assert (told["memory_sequence"], told["durable_sequence"]) == (4, 4)
        assert duplicates(send(client, LOCAL, 1, 2, 4, origin="o")) == [True] * 3
        assert (sorted(rows(client, LOCAL)), rows(client, STORED)) == ([1, 2, 4], [3])


def test_sequences_in_files_that_a_buffer_of_another_table_holds_back_stay_known(
    daemon: Daemon,
) -> None:
    """The manifest tells of them by partition; the record of origins in the store tells exactly."""
    with fl.connect(daemon.flight) as client:
        send(client, OTHER, 1, origin="o")
        send(client, STORED, 2, 3, origin="o")
        persist(client, STORED)
    # With the log on disk, then without it: each start writes a record for the next one.
    daemon.kill()
    with daemon.again() as second:
        with fl.connect(second.flight) as client:
            send(client, OTHER, 4, origin="o")
            told = origin_of(client, "o")
            # What was in the buffers is flushed before the table ships again.
            assert (told["memory_sequence"], told["files_sequence"]) == (4, 3)
        with lose(second) as third, fl.connect(third.flight) as client:
            told = origin_of(client, "o")
            assert (told["memory_sequence"], told["durable_sequence"]) == (4, 4)
            assert duplicates(send(client, STORED, 2, 3, 5, origin="o")) == [True, True, False]


def test_what_another_daemon_took_over_meanwhile_does_not_come_back(
    daemon: Daemon, tmp_path: Path
) -> None:
    with fl.connect(daemon.flight) as client:
        send(client, STORED, 1, 2, 3, 4, origin="o")
    daemon.kill()
    shutil.rmtree(daemon.data_dir)
    store = f"file://{tmp_path / 'store'}"
    with Daemon.start(tmp_path / "other", id="other", store=store) as other:
        with fl.connect(other.flight) as client:
            # The client lost its answers to 3 and 4, and sends them to another daemon.
            assert duplicates(send(client, STORED, 3, 4, 5, origin="o")) == [False] * 3
            persist(client, STORED)
        with daemon.again() as again, fl.connect(again.flight) as client:
            assert sorted(rows(client, STORED)) == [1, 2, 3, 4, 5]
            assert duplicates(send(client, STORED, 1, 2, 3, 4, 5, 6, origin="o")) == (
                [True] * 5 + [False]
            )
            persist(client, STORED)
            assert sorted(rows(client, STORED)) == [1, 2, 3, 4, 5, 6]


def test_a_checkpoint_at_the_store_is_back(daemon: Daemon) -> None:
    def body(state: str) -> dict[str, object]:
        encoded = b64encode(state.encode()).decode()
        return {"namespace": "ns", "table": "stored", "partition": "p", "state": encoded}

    asked = {"namespace": "ns", "table": "stored", "partition": "p"}
    with fl.connect(daemon.flight) as client:
        for number in range(3):
            act(client, "checkpoint_put", **body(f"state {number}"))
    with lose(daemon) as again, fl.connect(again.flight) as client:
        (told,) = act(client, "checkpoint_get", **asked)
        assert told["state"] == body("state 2")["state"]
        act(client, "checkpoint_put", **body("state 3"))
        (told,) = act(client, "checkpoint_get", **asked)
        assert told["state"] == body("state 3")["state"]


@pytest.mark.parametrize("level", ["store", "disk"])
def test_the_rest_of_a_transaction_is_refused(daemon: Daemon, level: str) -> None:
    with fl.connect(daemon.flight) as client:
        create(client, ("ns", "keyed"), KEYED, primary_key=["id"], ack=level)
        # Something at the store, so that the start without the log is allowed.
        send(client, STORED, 1, origin="o")
        source = Source(client, "ns", "source")
        source.send("keyed", [(None, 1, {"v": 1.0})], begin=True, sequence=1, last=True)
        source.send("keyed", [(None, 2, {"v": 2.0})], begin=True)
    with lose(daemon) as again, fl.connect(again.flight) as client:
        source = Source(client, "ns", "source")
        refused = source.send("keyed", [(None, 3, {"v": 3.0})], sequence=2, last=True)
        assert not refused["accepted"]
        assert refused["first"]
        before = {1: (1.0, None)} if level == "store" else {}
        assert source.state("keyed") == before
        source.send("keyed", [(None, 2, {"v": 2.0})], begin=True)
        told = source.send("keyed", [(None, 3, {"v": 3.0})], sequence=2, last=True)
        assert told["accepted"]
        assert source.state("keyed") == {**before, 2: (2.0, None), 3: (3.0, None)}


def test_a_follower_loads_again_what_only_the_lost_disk_had(daemon: Daemon) -> None:
    with fl.connect(daemon.flight) as client:
        for table, origin in ((STORED, "o"), (LOCAL, "p")):
            send(client, table, 1, origin=origin)
            rows(client, table)
        position = _position(client, LOCAL)
        assert position["epoch"] == 1
    with lose(daemon) as again, fl.connect(again.flight) as client:
        for table in (STORED, LOCAL):
            with pytest.raises(fl.FlightUnavailableError) as stale:
                rows(client, table, scope="live", after=position, wait_s=0)
            assert extra(stale.value)["code"] == "stale"
            assert extra(stale.value)["anew"]
            assert _position(client, table)["epoch"] == 2
        assert describe(client, LOCAL)["buffered"]["rows"] == 0


def _position(client: fl.FlightClient, table: Table) -> Json:
    body = {"namespace": table[0], "table": table[1], "scope": "live", "wait_s": 0}
    reader = client.do_get(fl.Ticket(json.dumps(body)))
    said = json.loads(reader.schema.metadata[b"position"])
    reader.read_all()
    return dict(said)
