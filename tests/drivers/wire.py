"""The wire protocol with nothing but pyarrow.flight, json and urllib, without the client library.

A table is a pair ``(namespace, name)``. Errors are raised as pyarrow raises them.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

Table = tuple[str, str]
Json = dict[str, Any]

ARROW_AND_FLIGHT = (pa.ArrowException, fl.FlightError)


def path(table: Table) -> fl.FlightDescriptor:
    """Return the path descriptor of a table."""
    return fl.FlightDescriptor.for_path(*table)


def command(**fields: object) -> fl.FlightDescriptor:
    """Return a descriptor with a JSON command."""
    return fl.FlightDescriptor.for_command(json.dumps(fields).encode())


def writing(table: Table, origin: str | None = None) -> fl.FlightDescriptor:
    """Return the descriptor of a write, with an origin if given."""
    if origin is None:
        return path(table)
    return command(type="write", namespace=table[0], table=table[1], origin=origin)


class Stream:
    """One open DoPut call that sends batch by batch."""

    def __init__(
        self, client: fl.FlightClient, descriptor: fl.FlightDescriptor, schema: pa.Schema
    ) -> None:
        self.writer, self.reader = client.do_put(descriptor, schema)

    def send(self, batch: pa.RecordBatch, metadata: object = None) -> None:
        """Send a batch; ``metadata`` is encoded as JSON unless it is bytes."""
        if metadata is None:
            self.writer.write_batch(batch)
        else:
            raw = metadata if isinstance(metadata, bytes) else json.dumps(metadata).encode()
            self.writer.write_with_metadata(batch, raw)

    def answer(self) -> Json | None:
        """Return the next PutResult, or None after the last.

        After the last, closing the stream gives the reason. The server ends with an empty
        PutResult where it has to wake a waiting client.
        """
        raw = self.reader.read()
        return json.loads(raw.to_pybytes()) if raw else None

    def write(self, batch: pa.RecordBatch, metadata: object = None) -> Json:
        """Send a batch and wait for its answer."""
        self.send(batch, metadata)
        answer = self.answer()
        if answer is None:
            self.close()  # raises the error that ended the call
            raise AssertionError("the stream ended without an answer and without an error")
        return answer

    def rest(self) -> list[Json]:
        """Half-close the stream and read all remaining answers."""
        self.writer.done_writing()
        answers = []
        while (answer := self.answer()) is not None:
            answers.append(answer)
        return answers

    def close(self) -> None:
        """Close the call; raise the error that ended it."""
        self.writer.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            with suppress(*ARROW_AND_FLIGHT):
                self.close()


def put(
    client: fl.FlightClient,
    table: Table,
    *batches: pa.RecordBatch,
    origin: str | None = None,
    metadata: Sequence[object] | None = None,
) -> list[Json]:
    """Write batches of one schema in one stream, reading each answer before the next batch."""
    with Stream(client, writing(table, origin), batches[0].schema) as stream:
        answers = [
            stream.write(batch, metadata[index] if metadata else None)
            for index, batch in enumerate(batches)
        ]
        stream.writer.done_writing()
    return answers


def delete(
    client: fl.FlightClient,
    table: Table,
    *batches: pa.RecordBatch,
    origin: str | None = None,
    metadata: object = None,
) -> list[Json]:
    """Delete keys in one stream; each answer is read before the next batch is sent."""
    named = {} if origin is None else {"origin": origin}
    descriptor = command(type="delete", namespace=table[0], table=table[1], **named)
    with Stream(client, descriptor, batches[0].schema) as stream:
        return [stream.write(batch, metadata) for batch in batches]


def ticket(table: Table, **fields: object) -> fl.Ticket:
    """Return a DoGet ticket."""
    return fl.Ticket(json.dumps({"namespace": table[0], "table": table[1], **fields}).encode())


def query(client: fl.FlightClient, table: Table, **fields: object) -> pa.Table:
    """Return all rows of an answer."""
    return client.do_get(ticket(table, **fields)).read_all()


def chunks(client: fl.FlightClient, table: Table, **fields: object) -> Iterator[tuple[Any, Json]]:
    """Yield the answer's batches, each with its metadata."""
    reader = client.do_get(ticket(table, **fields))
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        yield chunk.data, json.loads(chunk.app_metadata.to_pybytes())


def rows(client: fl.FlightClient, table: Table, column: str = "i", **fields: object) -> list[Any]:
    """Return one column of an answer, sorted, nulls last."""
    values = query(client, table, columns=[column], **fields)[column].to_pylist()
    return sorted(values, key=lambda value: (value is None, value))


def act(client: fl.FlightClient, name: str, **body: object) -> list[Json]:
    """Return the JSON objects that an action returns."""
    results = client.do_action(fl.Action(name, json.dumps(body).encode()))
    return [json.loads(result.body.to_pybytes()) for result in results]


def create(client: fl.FlightClient, table: Table, schema: pa.Schema, **fields: object) -> Json:
    """Create a table and return its description."""
    encoded = base64.b64encode(schema.serialize().to_pybytes()).decode()
    (answer,) = act(
        client, "create_table", namespace=table[0], table=table[1], schema=encoded, **fields
    )
    return answer


def persist(client: fl.FlightClient, table: Table, **fields: object) -> int:
    """Flush a table and return the manifest version that contains all its rows."""
    (answer,) = act(client, "persist", namespace=table[0], table=table[1], **fields)
    version = answer["manifest_version"]
    assert isinstance(version, int)
    return version


def describe(client: fl.FlightClient, table: Table) -> Json:
    """Return the description of a table."""
    (answer,) = act(client, "describe_table", namespace=table[0], table=table[1])
    return answer


def origin_of(client: fl.FlightClient, name: str) -> Json:
    """Return what the action ``origins`` reports for one origin."""
    (found,) = act(client, "origins", origin=name)
    return found


def extra(error: BaseException) -> Json:
    """Return the extra info of a Flight error."""
    assert isinstance(error, fl.FlightError), repr(error)
    info: Json = json.loads(error.extra_info)
    return info


def http(url: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body for any status."""
    request = urllib.request.Request(url, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


def numbers(first: int, count: int, **columns: pa.Array) -> pa.RecordBatch:
    """A batch with ``i`` counting up from ``first``, and further columns."""
    return pa.record_batch({"i": pa.array(range(first, first + count), pa.int64()), **columns})


DAY_US = 86_400_000_000
NOON_US = 1_795_219_200_000_000
"""2026-11-21 12:00 UTC"""


def events(first: int, count: int, *, days: int = 1) -> pa.RecordBatch:
    """Rows whose ``time`` cycles through days, for daily partitions, the default."""
    numbered = range(first, first + count)
    times = [NOON_US + (i % days) * DAY_US + i for i in numbered]
    return pa.record_batch(
        {
            "time": pa.array(times, pa.timestamp("us", "UTC")),
            "host": pa.array([f"h{i % 7}" for i in numbered]),
            "v": pa.array([i / 2 for i in numbered]),
            "i": pa.array(numbered, pa.int64()),
        }
    )


def put_sequences(
    client: fl.FlightClient, table: Table, origin: str, first: int, last: int
) -> list[Json]:
    """Write batches ``first..last`` of an origin: ``n`` has sequence ``n`` and rows from ``10 n``.

    Each batch has ten rows in three partitions.
    """
    numbered = range(first, last + 1)
    batches = [events(n * 10, 10, days=3) for n in numbered]
    return put(client, table, *batches, origin=origin, metadata=[{"sequence": n} for n in numbered])
