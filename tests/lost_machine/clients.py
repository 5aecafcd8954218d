"""The campaign's clients, a thread each, which write until they are stopped.

    RoamingWriter      the crash campaign's writer, at a daemon that moves; with an origin it sends
                       unanswered batches again, without one it sends each batch once
    SyncTransactions   transactions of several messages; an unanswered one is sent again
    SparkWriter        Spark's sink, one write after another, each under its own version
    DiskWriter         one origin, two tables: one at ``disk``, whose rows may be lost with their
                       machine, one at ``store``

What was acknowledged at ``store`` is in ledgers, whose rows must then be there for ever.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl

from tests.crash.history import History
from tests.crash.ledger import Note
from tests.crash.rows import NAMESPACE, batch_of
from tests.crash.session import CLIENT_TIMEOUT_S, ERRORS, Batch, Refused, Session, Unclear
from tests.crash.writer import Writer, name_of
from tests.drivers import syncing
from tests.drivers.wire import Json
from tests.lost_machine.advice import Advice
from tests.lost_machine.homes import Homes
from tests.lost_machine.spark_process import SparkProcess

SYNCED, BY_SPARK, AT_DISK = "synced", "by_spark", "at_disk"
STORED = "plain"
"""The table at the level ``store`` of the writer that has one at each level."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all clients of a campaign share."""

    folder: Path
    homes: Homes
    advice: Advice
    stop: threading.Event
    ack: str
    """The level that clients ask for."""
    rows_per_s: float
    """Of one client."""


class CheckedSession(Session):
    """A session whose refusals are judged."""

    def __init__(self, client: fl.FlightClient, origin: str | None, around: Surroundings) -> None:
        super().__init__(client, origin, gave_up=True, ack=around.ack)
        self._advice = around.advice

    def exchange(
        self, table: str, writer: int, batches: list[Batch]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """See `Session.exchange`."""
        try:
            yield from super().exchange(table, writer, batches)
        except (Refused, Unclear, *ERRORS) as exc:
            self._advice.judge(exc)
            raise


class RoamingWriter(Writer):
    """A writer of the crash campaign that follows one daemon from machine to machine."""

    most_pipelined = 16
    most_rows = 300
    longest_rest_s = 2.0

    def __init__(
        self, number: int, home: int, tables: tuple[str, ...], random: Random, around: Surroundings
    ) -> None:
        super().__init__(number, around.folder, random, around.rows_per_s, tables)
        self._home = home
        self._around = around

    def run(self) -> None:
        """Write until stopped, and until all batches that can be sent again are acknowledged."""
        around = self._around
        while not (around.stop.is_set() and self._unknown is None):
            endpoint = around.homes.wait(self._home)
            try:
                with fl.connect(endpoint) as client:
                    self._write(CheckedSession(client, self._origin, around), endpoint, around.stop)
            except (Unclear, *ERRORS):
                if self._origin is None:
                    self._unknown = None
                around.homes.rest(self._home, endpoint)

    def _check_answer(self, table: str, batch: Batch, answer: dict[str, Any]) -> None:
        super()._check_answer(table, batch, answer)
        if answer.get("ack") != self._around.ack:
            self.complain(f"{table}: {self._around.ack} was asked for, the answer is {answer}")


class SyncTransactions:
    """One transaction after the other, of one to four messages; each is a batch of the ledger."""

    def __init__(self, number: int, home: int, random: Random, around: Surroundings) -> None:
        self.name = name_of(number)
        self._number = number
        self._home = home
        self._random = random
        self._around = around
        history = History(around.folder / "history")
        self._note = Note(around.folder / f"{self.name}.ledger", number, history)
        self._open: list[range] = []
        """The messages of the transaction that is not acknowledged yet."""
        self._burst = 0
        self._next_row = 0
        self._sequence = 1
        """The sequence of the open or the next transaction."""

    def run(self) -> None:
        """Write until stopped; the last transaction is acknowledged before this returns."""
        around = self._around
        while not around.stop.is_set() or self._open:
            endpoint = around.homes.wait(self._home)
            try:
                with fl.connect(endpoint) as client:
                    self._work(client)
            except ERRORS as exc:
                around.advice.judge(exc)
                around.homes.rest(self._home, endpoint)

    def _work(self, client: fl.FlightClient) -> None:
        if self._open:
            nothing = pa.record_batch([], schema=pa.schema([]))
            position = self._call(client, [], nothing)["memory_sequence"] or 0
            if position >= self._sequence:
                self._acknowledged()
        while self._open or not self._around.stop.is_set():
            if not self._open:
                self._begin()
            if self._send(client):
                self._acknowledged()
                self._around.stop.wait(self._random.uniform(0.0, 0.3))

    def _begin(self) -> None:
        first = self._next_row
        for _ in range(self._random.randint(1, 4)):
            count = self._random.randint(1, 40)
            self._open.append(range(self._next_row, self._next_row + count))
            self._next_row += count
        whole = Batch(first, self._next_row - first, self._sequence)
        self._note.sent(SYNCED, self._burst, [whole])
        self._burst += 1

    def _send(self, client: fl.FlightClient) -> bool:
        """Send all messages; ``False`` after a refusal that changed nothing."""
        answer: Json = {}
        for index, rows in enumerate(self._open):
            columns, batch = message_of(self._number, rows)
            answer = self._call(
                client,
                columns,
                batch,
                begin=index == 0,
                sequence=self._sequence,
                last=index == len(self._open) - 1,
            )
            if not answer["accepted"]:
                self._around.advice.judge_answer(answer)
                self._around.stop.wait(min(0.3, answer.get("retry_after_s", 0.1)))
                return False
        level = self._around.ack
        if answer.get("ack") != level:
            self._note.complaint(f"{SYNCED}: {level} was asked for, the answer is {answer}")
        return True

    def _acknowledged(self) -> None:
        self._note.kept(SYNCED, self._open[0].start)
        self._sequence += 1
        self._open = []

    def _call(
        self, client: fl.FlightClient, columns: list[Json], batch: pa.RecordBatch, **fields: object
    ) -> Json:
        about = {"namespace": NAMESPACE, "table": SYNCED, "origin": self.name, "columns": columns}
        about["ack"] = self._around.ack
        return syncing.call(client, {**about, **fields}, batch, timeout_s=CLIENT_TIMEOUT_S)


KEY = ("host", "time", "writer")


def message_of(writer: int, rows: range) -> tuple[list[Json], pa.RecordBatch]:
    """The columns and the batch of a message that inserts rows of a writer."""
    batch = batch_of(writer, rows.start, len(rows))
    columns: list[Json] = []
    arrays: list[pa.Array] = []
    for name in KEY:
        columns += [{"role": "old_pk", "name": name}, {"role": "new_pk", "name": name}]
        arrays += [pa.nulls(len(rows), batch.schema.field(name).type), batch.column(name)]
    for name in ("n", "v"):
        columns += [{"role": "value", "name": name}, {"role": "changed", "name": name}]
        arrays += [batch.column(name), pa.array(np.ones(len(rows), bool))]
    return columns, pa.record_batch(arrays, names=[f"c{n}" for n in range(len(arrays))])


class SparkWriter:
    """One write of Spark's sink after another; each is a batch of the ledger."""

    def __init__(
        self, number: int, home: int, random: Random, around: Surroundings, spark: SparkProcess
    ) -> None:
        self.name = name_of(number)
        self._number = number
        self._random = random
        self._around = around
        self._spark = spark
        self._endpoint = around.homes.steady[home]
        history = History(around.folder / "history")
        self._note = Note(around.folder / f"{self.name}.ledger", number, history)
        self.failed_writes = 0
        """Writes that were tried again, under the same version."""

    def run(self) -> None:
        """Write until stopped; the last write is acknowledged before this returns."""
        start = version = 0
        while not self._around.stop.wait(self._random.uniform(0.0, 0.5)):
            batch = Batch(start, self._random.randint(1, 400), version)
            self._note.sent(BY_SPARK, version, [batch])
            while (error := self._append(batch)) is not None:
                self.failed_writes += 1
                if self.failed_writes > 20:
                    self._note.complaint(f"{BY_SPARK}: {error}")
                    return
                self._around.homes.rest(0, "", 0.5)
            self._note.kept(BY_SPARK, start)
            start, version = start + batch.count, version + 1

    def _append(self, batch: Batch) -> str | None:
        options = {"txn_app_id": self.name, "txn_version": str(batch.sequence)}
        options["ack"] = self._around.ack
        return self._spark.append(
            BY_SPARK, (self._number, batch.start, batch.count), self._endpoint, options
        )


@dataclass(slots=True)
class AtDisk:
    """Batches of the disk writer, and the process that acknowledged each, if one did."""

    starts: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    by: dict[int, str] = field(default_factory=dict)
    """The address of the process, by a batch's first row."""
    stored: set[int] = field(default_factory=set)
    """First rows of batches that were acknowledged at ``store`` nevertheless."""


class DiskWriter:
    """One origin with two tables: batches at the level ``disk``, and others at ``store``.

    Each is sent once. Those at ``store`` are in a ledger.
    """

    def __init__(self, number: int, home: int, random: Random, around: Surroundings) -> None:
        self.notes = AtDisk()
        self._number = number
        self._origin = name_of(number)
        self._home = home
        self._random = random
        self._around = around
        history = History(around.folder / "history")
        self._note = Note(around.folder / f"{self._origin}.ledger", number, history)
        self._next_stored = 0
        self._sequence = 0

    def run(self) -> None:
        """Write until stopped."""
        while not self._around.stop.wait(self._random.uniform(0.0, 0.1)):
            endpoint = self._around.homes.wait(self._home)
            write = self._write if self._random.random() < 0.7 else self._write_stored
            try:
                with fl.connect(endpoint) as client:
                    write(client, endpoint)
            except ERRORS as exc:
                self._around.advice.judge(exc)
                self._around.homes.rest(self._home, endpoint)

    def _write(self, client: fl.FlightClient, endpoint: str) -> None:
        notes, count = self.notes, self._random.randint(1, 50)
        start = notes.starts[-1] + notes.counts[-1] if notes.starts else 0
        notes.counts.append(count)
        notes.starts.append(start)
        if answer := self._send(client, AT_DISK, batch_of(self._number, start, count)):
            notes.by[start] = endpoint
            if answer.get("ack") == "store":
                notes.stored.add(start)

    def _write_stored(self, client: fl.FlightClient, _: str) -> None:
        batch = Batch(self._next_stored, self._random.randint(1, 50), self._sequence)
        self._next_stored += batch.count
        self._note.sent(STORED, batch.start, [batch])
        rows = batch_of(self._number, batch.start, batch.count)
        if answer := self._send(client, STORED, rows):
            self._note.kept(STORED, batch.start)
            if answer.get("ack") != "store":
                self._note.complaint(f"{STORED} is at store, the answer is {answer}")

    def _send(self, client: fl.FlightClient, table: str, rows: pa.RecordBatch) -> Json | None:
        """Send a batch under the next sequence; return the answer."""
        sequence, self._sequence = self._sequence, self._sequence + 1
        command = {"type": "write", "namespace": NAMESPACE, "table": table, "origin": self._origin}
        descriptor = fl.FlightDescriptor.for_command(json.dumps(command))
        options = fl.FlightCallOptions(timeout=CLIENT_TIMEOUT_S)
        out, answers = client.do_put(descriptor, rows.schema, options)
        with out:
            out.write_with_metadata(rows, json.dumps({"sequence": sequence}).encode())
            out.done_writing()
            answer = answers.read()
        return json.loads(answer.to_pybytes()) if answer else None


def thread_of(
    name: str, run: Callable[[], None], broken: Callable[[str], None]
) -> threading.Thread:
    """A thread that reports an exception instead of printing it."""

    def work() -> None:
        try:
            run()
        except BaseException as exc:
            broken(f"the client {name} itself failed: {exc!r}")

    return threading.Thread(target=work, name=name, daemon=True)
