"""The tables that tests of SQL clients ask for, with rows in files and in buffers."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pyarrow.flight as fl

from tests.drivers.wire import create, persist, put

ORDERS_SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("customer", pa.string()),
        pa.field("amount", pa.decimal128(10, 2)),
        pa.field("day", pa.date32()),
        pa.field("placed", pa.timestamp("us", "UTC")),
        pa.field("paid", pa.bool_()),
        pa.field("weight", pa.float64()),
    ]
)
_AT = dt.datetime(2026, 3, 1, 12, 30, tzinfo=dt.UTC)
ORDERS = pa.table(
    {
        "id": [1, 2, 3],
        "customer": ["ann", "bob", None],
        "amount": [Decimal("10.50"), Decimal("0.01"), Decimal("-7.00")],
        "day": [dt.date(2026, 3, 1), dt.date(1969, 12, 31), None],
        "placed": [_AT, _AT + dt.timedelta(microseconds=1), None],
        "paid": [True, False, None],
        "weight": [0.5, -0.0, None],
    },
    ORDERS_SCHEMA,
)
TABLES = {
    ("acme", "orders"),
    ("shop", "a_b"),
    ("shop", "axb"),
    ("shop", "odd.name-1"),
    ("shop", "orders"),
    ("shop", "regions"),
}
"""All tables of :func:`fill`, as namespace and name."""


def fill(client: fl.FlightClient) -> None:
    """Create the tables and write their rows; ``shop.orders`` has a primary key."""
    create(client, ("shop", "orders"), ORDERS_SCHEMA, primary_key=["id"])
    put(client, ("shop", "orders"), *ORDERS.slice(0, 2).to_batches())
    persist(client, ("shop", "orders"))
    put(client, ("shop", "orders"), *ORDERS.slice(2).to_batches())
    two = pa.record_batch({"Region": ["north", "south"], "customer": ["ann", "bob"]})
    put(client, ("shop", "regions"), two)
    one = pa.record_batch({"x": pa.array([1], pa.int64())})
    for table in sorted(TABLES - {("shop", "orders"), ("shop", "regions")}):
        put(client, table, one)
