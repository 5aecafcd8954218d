"""The demo's queries notice missing rows and rows that were never sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from ingester.client import Client
from ingester.demo.source import flights_file, read_flights
from ingester.demo.streaming import NAMESPACE, Meter, WritesNotSeen, look
from tests.drivers.daemon import Daemon

FLIGHTS = read_flights(flights_file(), 1_000)
BATCH = FLIGHTS.to_batches()[0]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder: Path = tmp_path_factory.mktemp("looking") / "data"
    with Daemon.start(folder) as daemon, Client(daemon.flight) as client:
        client.write(NAMESPACE, "flights", BATCH)
        yield client


def acknowledged(*batches: pa.RecordBatch) -> Meter:
    """Return a meter that counts ``batches`` as sent and acknowledged."""
    meter = Meter()
    for batch in batches:
        with meter.writing(batch):
            pass
    return meter


def test_acknowledged_rows_are_seen_in_the_buffer(client: Client) -> None:
    seen = look(client, "flights", acknowledged(BATCH))
    assert (seen.acknowledged_before, seen.seen, seen.from_buffer) == (1_000, 1_000, 1_000)


def test_a_row_too_few_is_noticed(client: Client) -> None:
    meter = acknowledged(BATCH, BATCH.slice(0, 1))
    with pytest.raises(WritesNotSeen, match=r"1001 rows were acknowledged .* it returned 1000"):
        look(client, "flights", meter)


def test_a_row_too_many_is_noticed(client: Client) -> None:
    meter = acknowledged(BATCH.slice(0, 999))
    with pytest.raises(WritesNotSeen, match="it returned 1000, and 999 were sent"):
        look(client, "flights", meter)


def test_another_row_in_place_of_the_newest_is_noticed(client: Client) -> None:
    strange = FLIGHTS.set_column(
        FLIGHTS.schema.get_field_index("distance"), "distance", pa.array([-1] * 1_000)
    )
    with pytest.raises(WritesNotSeen, match="acknowledged last"):
        look(client, "flights", acknowledged(*strange.to_batches()))
