"""A small Flight server that keeps rows in a list and fails on request.

It speaks the part of the wire contract that the client depends on, origins included, so that a
test can break a connection at an exact moment. It does not replace the daemon: other tests run
the same client with the real one.
"""

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyarrow import flight

# A fault runs before a batch is applied and may raise to refuse it.
Fault = Callable[[int], None]


def unavailable(code: str, retry_after_s: float | None = None) -> flight.FlightUnavailableError:
    """Return a refusal like the daemon's."""
    info: dict[str, Any] = {"code": code, "message": f"refused: {code}"}
    if retry_after_s is not None:
        info["retry_after_s"] = retry_after_s
    return flight.FlightUnavailableError(info["message"], json.dumps(info).encode())


class LostAnswer(flight.FlightUnavailableError):  # type: ignore[misc]
    """Ends the stream after a batch was applied and before its answer was sent."""


class SmallDaemon(flight.FlightServerBase):  # type: ignore[misc]
    """Tables in memory. ``before`` and ``after`` run around applying the n-th batch (from 1)."""

    def __init__(self, location: str = "grpc://127.0.0.1:0", **options: Any) -> None:
        super().__init__(location, **options)
        self.endpoint = f"grpc://127.0.0.1:{self.port}"
        self.rows: dict[tuple[str, str], list[pa.RecordBatch]] = {}
        self.sequences: dict[tuple[str, str, str], int] = {}
        self.commands: list[dict[str, Any]] = []
        self.metadata: list[dict[str, Any] | None] = []
        self.tickets: list[dict[str, Any]] = []
        self.actions: dict[str, Callable[[dict[str, Any]], list[dict[str, Any]]]] = {
            "origins": self._origins,
            "status": lambda body: [{"id": "small", "epoch": 1}],
        }
        self.before: Fault = lambda n: None
        self.after: Fault = lambda n: None
        self.on_get: Callable[[int], None] = lambda n: None
        self.also: dict[str, Any] = {}
        """Further fields of answers; without them, those of an earlier release."""
        self.seen = 0
        self.gets = 0
        self._lock = threading.Lock()

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        command = json.loads(descriptor.command)
        self.commands.append(command)
        answered: list[bytes] = []
        try:
            self._put(command, reader, writer, answered)
        except LostAnswer:
            raise
        except flight.FlightUnavailableError as exc:
            info = {**json.loads(exc.extra_info), "answered": len(answered)}
            raise flight.FlightUnavailableError(info["message"], json.dumps(info).encode()) from exc

    def _put(self, command: Any, reader: Any, writer: Any, answered: list[bytes]) -> None:
        for chunk in reader:
            raw = chunk.app_metadata
            metadata = json.loads(raw.to_pybytes()) if raw is not None else None
            with self._lock:
                self.metadata.append(metadata)
                self.seen += 1
                seen = self.seen
                self.before(seen)
                answer = self.apply(command, metadata, chunk.data)
            self.after(seen)
            answered.append(json.dumps(answer).encode())
            writer.write(answered[-1])

    def apply(self, command: dict[str, Any], metadata: dict[str, Any] | None, batch: Any) -> Any:
        key = (command["namespace"], command["table"])
        origin, sequence = command.get("origin"), (metadata or {}).get("sequence")
        known = self.sequences.get((*key, origin or ""), 0)
        duplicate = sequence is not None and sequence <= known
        if not duplicate:
            self.rows.setdefault(key, []).append(batch)
            if origin is not None and sequence is not None:
                self.sequences[(*key, origin)] = sequence
        return {
            "accepted": True,
            "sequence": len(self.rows[key]),
            "epoch": 1,
            "duplicate": duplicate,
            "memory_sequence": sequence,
            "durable_sequence": None,
            "first": known == 0,
            **self.also,
        }

    def _origins(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {"origin": origin, "memory_sequence": sequence, "durable_sequence": None, "open": False}
            for (_, _, origin), sequence in self.sequences.items()
            if body.get("origin") in (None, origin)
        ]

    def table(self, namespace: str, name: str) -> pa.Table:
        """Return everything applied to a table, in order."""
        return pa.Table.from_batches(self.rows[namespace, name])

    def do_get(self, context: Any, ticket: Any) -> Any:
        body = json.loads(ticket.ticket)
        self.tickets.append(body)
        self.gets += 1
        self.on_get(self.gets)
        key = (body["namespace"], body["table"])
        if key not in self.rows:
            raise pa.ArrowKeyError(f"no table {key[0]}.{key[1]}")
        batches = list(self.rows[key])
        schema = batches[0].schema.with_metadata({"epoch": "1", "snapshot_sequence": "7"})

        def answer() -> Iterator[Any]:
            for batch in batches:
                yield batch, json.dumps({"partition": "all", "source": "buffer"}).encode()

        return flight.GeneratorStream(schema, answer())

    def list_flights(self, context: Any, criteria: Any) -> Iterator[Any]:
        for (namespace, name), batches in self.rows.items():
            descriptor = flight.FlightDescriptor.for_path(namespace, name)
            rows = sum(batch.num_rows for batch in batches)
            yield flight.FlightInfo(batches[0].schema, descriptor, [], rows, -1)

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        namespace, name = (part.decode() for part in descriptor.path)
        return flight.FlightInfo(self.rows[namespace, name][0].schema, descriptor, [], -1, -1)

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        if action.type not in self.actions:
            raise pa.ArrowNotImplementedError(f"no action {action.type}")
        for result in self.actions[action.type](json.loads(action.body.to_pybytes())):
            yield json.dumps(result).encode()
