"""A replication stream to a daemon of an earlier release."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import flight

from ingester.client import Client, SyncColumn
from ingester.errors import BadRequest
from ingester.write.metadata import decode_object


class Command(msgspec.Struct, forbid_unknown_fields=True):
    """The command of a message before messages named the epoch."""

    type: str
    namespace: str
    table: str
    origin: str
    begin: bool = False
    sequence: int | None = None
    transaction: str | None = None
    columns: list[Any] = []


class OlderDaemon(flight.FlightServerBase):  # type: ignore[misc]
    """Accepts the messages of its release."""

    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.epoch = 1
        self.memory: int | None = None
        self.refused = 0
        self.also: dict[str, Any] = {}

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        try:
            decode = msgspec.json.Decoder(Command).decode
            command = decode_object("command", descriptor.command, decode)
        except BadRequest as exc:
            self.refused += 1
            raise pa.ArrowInvalid(str(exc)) from exc
        for _ in reader:
            pass
        self.memory = self.memory if command.sequence is None else command.sequence
        answer = {"accepted": True, "epoch": self.epoch, "memory_sequence": self.memory}
        writer.write(json.dumps(answer | self.also).encode())


def test_no_epoch_is_sent_to_an_older_daemon() -> None:
    columns = [SyncColumn("old_pk", "id"), SyncColumn("new_pk", "id")]
    row = pa.record_batch([pa.nulls(1, pa.int64()), pa.array([1])], names=["0", "1"])
    with OlderDaemon() as daemon, Client(f"grpc://127.0.0.1:{daemon.port}") as client:
        stream = client.sync("ns", "A")
        stream.standing()
        for sequence in (1, 2, 3):
            assert stream.send("t", columns, row, begin=True, sequence=sequence).accepted
            assert stream.standing().memory_sequence == sequence
        assert daemon.refused == 1
        daemon.epoch = 2  # another process, perhaps of this release
        assert stream.standing().memory_sequence == 3
        assert stream.send("t", columns, row, begin=True, sequence=4).accepted
        assert daemon.refused == 2


def test_a_message_that_makes_nothing_durable_has_no_level() -> None:
    columns = [SyncColumn("old_pk", "id"), SyncColumn("new_pk", "id")]
    row = pa.record_batch([pa.nulls(1, pa.int64()), pa.array([1])], names=["0", "1"])
    with OlderDaemon() as daemon, Client(f"grpc://127.0.0.1:{daemon.port}") as client:
        stream = client.sync("ns", "A")
        for daemon.also in ({}, {"ack": None}):
            assert stream.send("t", columns, row, begin=True).ack is None
        daemon.also = {"ack": "store", "files_sequence": 3}
        answer = stream.send("t", columns, row, sequence=4)
        assert (answer.ack, answer.files_sequence) == ("store", 3)
