"""SQL by a ticket of DoGet, with nothing but pyarrow.flight and json."""

from __future__ import annotations

import base64
import contextlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl


def sql_ticket(
    text: str, namespace: str | None = None, parameters: pa.RecordBatch | None = None
) -> fl.Ticket:
    """Return the ticket of a statement."""
    body: dict[str, object] = {"sql": text}
    if namespace is not None:
        body["namespace"] = namespace
    if parameters is not None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, parameters.schema) as writer:
            writer.write_batch(parameters)
        body["parameters"] = base64.b64encode(sink.getvalue().to_pybytes()).decode()
    return fl.Ticket(json.dumps(body).encode())


def ask(
    client: fl.FlightClient,
    text: str,
    namespace: str | None = None,
    parameters: pa.RecordBatch | None = None,
    options: fl.FlightCallOptions | None = None,
) -> pa.Table:
    """Return the whole answer to a statement."""
    ticket = sql_ticket(text, namespace, parameters)
    return client.do_get(ticket, options or fl.FlightCallOptions()).read_all()


def rows(
    client: fl.FlightClient, text: str, namespace: str | None = None
) -> list[tuple[object, ...]]:
    """Return the rows of an answer as tuples."""
    table = ask(client, text, namespace)
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def workers_of(pid: int) -> list[int]:
    """Return the process ids of a daemon's SQL workers."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        # Threads and processes may end meanwhile.
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                with contextlib.suppress(OSError):
                    if b"ingester.sql.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                        found.append(int(child))
    return found
