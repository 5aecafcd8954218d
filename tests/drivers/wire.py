"""The wire contract spoken with nothing but pyarrow.flight, json and urllib: no code of ours.

A table is a pair ``(namespace, name)``. What goes wrong is raised as pyarrow raises it.
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
    """The descriptor of a table by its path."""
    return fl.FlightDescriptor.for_path(*table)


def command(**fields: object) -> fl.FlightDescriptor:
    """A descriptor with a JSON command."""
    return fl.FlightDescriptor.for_command(json.dumps(fields).encode())


def writing(table: Table, origin: str | None = None) -> fl.FlightDescriptor:
    """The descriptor of a write, by an origin if there is one."""
    if origin is None:
        return path(table)
    return command(type="write", namespace=table[0], table=table[1], origin=origin)


class Stream:
    """One open DoPut call, batch by batch."""

    def __init__(
        self, client: fl.FlightClient, descriptor: fl.FlightDescriptor, schema: pa.Schema
    ) -> None:
        self.writer, self.reader = client.do_put(descriptor, schema)

    def send(self, batch: pa.RecordBatch, metadata: object = None) -> None:
        """Send a batch; ``metadata`` becomes JSON unless it is bytes."""
        if metadata is None:
            self.writer.write_batch(batch)
        else:
            raw = metadata if isinstance(metadata, bytes) else json.dumps(metadata).encode()
            self.writer.write_with_metadata(batch, raw)

    def answer(self) -> Json | None:
        """The next PutResult; None when none follows: closing the stream says why.

        The end is an empty PutResult where the server has to wake a client that waits for it.
        """
        raw = self.reader.read()
        return json.loads(raw.to_pybytes()) if raw else None

    def write(self, batch: pa.RecordBatch, metadata: object = None) -> Json:
        """Send a batch and wait for its answer."""
        self.send(batch, metadata)
        answer = self.answer()
        if answer is None:
            self.close()  # raises what the server has ended the call with
            raise AssertionError("the stream ended without an answer and without an error")
        return answer

    def rest(self) -> list[Json]:
        """Say that nothing more comes, and read all answers that are left."""
        self.writer.done_writing()
        answers = []
        while (answer := self.answer()) is not None:
            answers.append(answer)
        return answers

    def close(self) -> None:
        """End the call; raises what the server ended it with."""
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
    """Write batches of one schema in one stream, each answer read before the next is sent."""
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
    """Delete keys in one stream, each answer read before the next batch is sent."""
    named = {} if origin is None else {"origin": origin}
    descriptor = command(type="delete", namespace=table[0], table=table[1], **named)
    with Stream(client, descriptor, batches[0].schema) as stream:
        return [stream.write(batch, metadata) for batch in batches]


def ticket(table: Table, **fields: object) -> fl.Ticket:
    """A DoGet ticket."""
    return fl.Ticket(json.dumps({"namespace": table[0], "table": table[1], **fields}).encode())


def query(client: fl.FlightClient, table: Table, **fields: object) -> pa.Table:
    """All rows of an answer."""
    return client.do_get(ticket(table, **fields)).read_all()


def chunks(client: fl.FlightClient, table: Table, **fields: object) -> Iterator[tuple[Any, Json]]:
    """The answer's batches, each with its metadata."""
    reader = client.do_get(ticket(table, **fields))
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        yield chunk.data, json.loads(chunk.app_metadata.to_pybytes())


def rows(client: fl.FlightClient, table: Table, column: str = "i", **fields: object) -> list[Any]:
    """One column of an answer, sorted, nulls last."""
    values = query(client, table, columns=[column], **fields)[column].to_pylist()
    return sorted(values, key=lambda value: (value is None, value))


def act(client: fl.FlightClient, name: str, **body: object) -> list[Json]:
    """The JSON objects that an action answers with."""
    results = client.do_action(fl.Action(name, json.dumps(body).encode()))
    return [json.loads(result.body.to_pybytes()) for result in results]


def create(client: fl.FlightClient, table: Table, schema: pa.Schema, **fields: object) -> Json:
    """Create a table; its description."""
    encoded = base64.b64encode(schema.serialize().to_pybytes()).decode()
    (answer,) = act(
        client, "create_table", namespace=table[0], table=table[1], schema=encoded, **fields
    )
    return answer


def persist(client: fl.FlightClient, table: Table, **fields: object) -> int:
    """Persist a table; the manifest version that has everything."""
    (answer,) = act(client, "persist", namespace=table[0], table=table[1], **fields)
    version = answer["manifest_version"]
    assert isinstance(version, int)
    return version


def describe(client: fl.FlightClient, table: Table) -> Json:
    """The description of a table."""
    (answer,) = act(client, "describe_table", namespace=table[0], table=table[1])
    return answer


def origin_of(client: fl.FlightClient, name: str) -> Json:
    """What the action ``origins`` tells of one origin."""
    (found,) = act(client, "origins", origin=name)
    return found


def extra(error: BaseException) -> Json:
    """What a Flight error carries beside its message."""
    assert isinstance(error, fl.FlightError), repr(error)
    info: Json = json.loads(error.extra_info)
    return info


def http(url: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body, whatever the status is."""
    request = urllib.request.Request(url, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


def numbers(first: int, count: int, **columns: pa.Array) -> pa.RecordBatch:
    """``i`` from ``first`` on, and more columns."""
    return pa.record_batch({"i": pa.array(range(first, first + count), pa.int64()), **columns})


DAY_US = 86_400_000_000
NOON_US = 1_795_219_200_000_000
"""2026-11-21 12:00 UTC"""


def events(first: int, count: int, *, days: int = 1) -> pa.RecordBatch:
    """Rows with a ``time``, spread over days in turn: partitions of the default kind."""
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
    """Write batches ``first..last`` of an origin: ``n`` has sequence ``n``, rows from ``10 n`` on.

    Each has ten rows in three partitions.
    """
    numbered = range(first, last + 1)
    batches = [events(n * 10, 10, days=3) for n in numbered]
    return put(client, table, *batches, origin=origin, metadata=[{"sequence": n} for n in numbered])
