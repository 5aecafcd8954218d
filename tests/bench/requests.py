"""Requests to a daemon other than writes and scans: actions, metrics, filled tables.

Plain Flight and HTTP with the daemon's unmodified answers; this module measures nothing.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from typing import Any
from urllib.request import urlopen

import pyarrow as pa
import pyarrow.flight as fl

from tests.bench.rows import SCHEMA, batches_of
from tests.drivers.daemon import Daemon

NAMESPACE = "bench"
_PERSIST_WITHIN_S = 280


def ask(flight: str, action: str, table: str, **body: Any) -> dict[str, Any]:
    """Return the answer to an action about a table of :data:`NAMESPACE`."""
    request = json.dumps({"namespace": NAMESPACE, "table": table, **body}).encode()
    with fl.connect(flight) as client:
        (answer,) = client.do_action(fl.Action(action, request))
    found: dict[str, Any] = json.loads(answer.body.to_pybytes())
    return found


def create_table(
    flight: str,
    table: str,
    *,
    schema: pa.Schema = SCHEMA,
    partition_by: Sequence[str] = (),
    primary_key: Sequence[str] = (),
) -> None:
    """Create a table with these partitions unless it exists."""
    ask(
        flight,
        "create_table",
        table,
        schema=base64.b64encode(schema.serialize().to_pybytes()).decode(),
        partition_by=list(partition_by),
        primary_key=list(primary_key),
    )


def persist(daemon: Daemon, table: str) -> dict[str, Any]:
    """Flush the table, return when its rows are committed, with the daemon's report."""
    return ask(daemon.flight, "persist", table, timeout_s=_PERSIST_WITHIN_S)


def fill(daemon: Daemon, table: str, rows: int, batch_rows: int) -> int:
    """Write the rows in batches down one stream and return their number."""
    return send(daemon.flight, table, batches_of(rows, batch_rows, seed=0))


def send(flight: str, table: str, batches: Sequence[pa.RecordBatch]) -> int:
    """Write the batches down one stream, each after the previous answer; return their rows."""
    with fl.connect(flight) as client:
        path = fl.FlightDescriptor.for_path(NAMESPACE, table)
        writer, answers = client.do_put(path, batches[0].schema)
        for batch in batches:
            writer.write_batch(batch)
            if answers.read() is None:
                writer.close()
                raise AssertionError("the server ended the stream")
        writer.done_writing()
        writer.close()
    return sum(batch.num_rows for batch in batches)


def ticket(table: str, **wanted: Any) -> bytes:
    """Return the ticket of a query: ``columns``, ``filter``, ``scope`` as in docs/protocol.md."""
    return json.dumps({"namespace": NAMESPACE, "table": table, **wanted}).encode()


def metric(daemon: Daemon, name: str) -> float:
    """Return the sum of a metric over its labels, from ``/metrics``; 0 if it does not exist yet."""
    with urlopen(f"{daemon.http}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    values = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    if not values and f"# TYPE {name} " not in text:
        raise AssertionError(f"the daemon has no metric {name}")
    return sum(map(float, values))
