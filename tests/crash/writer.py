"""A process of writers, one thread each: ``python -m tests.crash.writer FOLDER SEED PACE WRITER…``.

    stdin:   {"endpoint": "grpc://…", "round": 3}     go on, there
             {"pause": 3}                             finish what is on the way, then wait
    stdout:  {"idle": 7, "round": 3, "at": 12.5, "error": "…"}   writer 7 waits; why, since when

Law of this file: a note is written before a batch leaves and after its answer came, never otherwise
(:mod:`tests.crash.ledger`). Even writers have an origin: after a crash they send again what has no
answer, and now and then what has one. Odd writers send each batch once, many before the first
answer.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from tests.crash.ledger import Note
from tests.crash.rows import NAMESPACE, SCHEMA, TABLES, batch_of

RETRYABLE = {"memory", "saturated", "disk_full", "limit"}
MAX_PIPELINED = 64

Said = queue.SimpleQueue[dict[str, Any] | None]


class Refused(Exception):
    """The daemon said no for now; nothing of what has no answer was applied."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows ``start .. start + count`` of this writer in one table."""

    start: int
    count: int
    sequence: int


class Turns:
    """What the campaign wants of all writers of this process: where to write, or nowhere."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._round = 0
        self._endpoint: str | None = None
        self.paused = threading.Event()
        self.ended = False

    def go(self, endpoint: str, round_: int) -> None:
        """Write there."""
        with self._changed:
            self.paused.clear()
            self._round, self._endpoint = round_, endpoint
            self._changed.notify_all()

    def end(self) -> None:
        """Write no more."""
        with self._changed:
            self.ended = True
            self.paused.set()
            self._changed.notify_all()

    def after(self, round_: int) -> tuple[int, str] | None:
        """The next round and its endpoint, when it has begun; ``None`` at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self.ended or self._round > round_)
            return None if self.ended or self._endpoint is None else (self._round, self._endpoint)


class Writer:
    """One writer over all rounds."""

    def __init__(self, number: int, folder: Path, random: Random, rows_per_s: float) -> None:
        self.number = number
        self._random = random
        self._rows_per_s = rows_per_s
        self._origin = f"writer-{number}" if number % 2 == 0 else None
        self._note = Note(folder / f"writer-{number}.ledger")
        self._next = {table.name: 0 for table in TABLES}
        self._sequence = 0
        self._burst = 0
        self._unknown: tuple[str, list[Batch]] | None = None
        self._recent: dict[str, list[Batch]] = {table.name: [] for table in TABLES}

    def write(self, endpoint: str, paused: threading.Event) -> str | None:
        """Write until paused (``None``) or until the daemon is gone (what was seen of that)."""
        client = fl.connect(endpoint)
        try:
            session = Session(client, self._origin)
            if self._unknown is not None:
                self._send_again(session)
            while not paused.is_set():
                rows = self._send_burst(session)
                paused.wait(rows / self._rows_per_s * self._random.uniform(0.5, 1.5))
        except (fl.FlightError, pa.ArrowException, OSError) as exc:
            return f"{type(exc).__name__}: {exc}"[:300]
        finally:
            client.close()
        return None

    def complain(self, text: str) -> None:
        """Note something that should not happen."""
        self._note.lines([f"X {' '.join(text.split())}"])

    def _send_burst(self, session: Session) -> int:
        random = self._random
        table = random.choice(TABLES).name
        burst, self._burst = self._burst, self._burst + 1
        batches = []
        for _ in range(random.choice((1, 1, 1, random.randint(2, 8), MAX_PIPELINED))):
            count = max(1, min(4000, int(random.lognormvariate(2.5, 1.6))))
            batches.append(Batch(self._next[table], count, self._sequence))
            self._next[table] += count
            self._sequence += 1
        self._note.lines([f"S {table} {burst} {b.start} {b.count} {b.sequence}" for b in batches])
        self._deliver(session, table, batches)
        if random.random() < 0.1:
            session.finish(table)
        return sum(batch.count for batch in batches)

    def _send_again(self, session: Session) -> None:
        """What has no answer, after a few that have one: those must be known as duplicates."""
        assert self._unknown is not None
        table, batches = self._unknown
        if self._origin is None:
            self._unknown = None
            return
        recent = self._recent[table][-self._random.randint(0, 5) :] if self._recent[table] else []
        for index, answer in session.exchange(table, self.number, recent):
            if not answer["duplicate"]:
                self.complain(
                    f"{table}: sequence {recent[index].sequence} was acknowledged before and is not"
                    f" taken for a duplicate: {answer}"
                )
        self._deliver(session, table, batches)

    def _deliver(self, session: Session, table: str, batches: list[Batch]) -> None:
        """Send, and note every answer as it comes."""
        answered = 0
        self._unknown = (table, batches)
        try:
            for index, answer in session.exchange(table, self.number, batches):
                batch = batches[index]
                self._note.lines([f"A {table} {batch.start}"])
                answered = index + 1
                self._unknown = (table, batches[answered:])
                self._recent[table] = [*self._recent[table][-8:], batch]
                self._check_answer(table, batch, answer)
        except Refused:
            left = batches[answered:]
            if self._origin is None:
                self._note.lines([f"R {table} {batch.start}" for batch in left])
                self._unknown = None
            else:
                self._send_again(session)
            return
        self._unknown = None

    def _check_answer(self, table: str, batch: Batch, answer: dict[str, Any]) -> None:
        if answer["accepted"] is not True:
            self.complain(f"{table}: answer {answer} to batch {batch}")
        if self._origin is not None:
            memory, durable = answer["memory_sequence"], answer["durable_sequence"]
            if memory is None or memory < batch.sequence or (durable or 0) > memory:
                self.complain(f"{table}: sequences of {answer} to batch {batch}")


class Session:
    """The streams of one connection, one per table."""

    def __init__(self, client: fl.FlightClient, origin: str | None) -> None:
        self._client = client
        self._origin = origin
        self._streams: dict[str, tuple[Any, Any]] = {}

    def exchange(self, table: str, writer: int, batches: list[Batch]) -> Any:
        """Send all batches, then yield (index, answer) in order.

        Raises:
            Refused: one of them was refused for now; the stream has ended.
            FlightError, ArrowException: the daemon is gone, or does not like what was sent.
        """
        out, answers = self._streams.get(table) or self._open(table)
        try:
            self._send(out, writer, batches)
            for index in range(len(batches)):
                answer = answers.read()
                if not answer:
                    raise OSError("the stream ended without an answer")
                yield index, json.loads(answer.to_pybytes())
        except (fl.FlightError, pa.ArrowException, OSError) as exc:
            self._streams.pop(table, None)
            reason = _reason_of(out, exc)
            extra = json.loads(getattr(reason, "extra_info", None) or b"{}")
            if extra.get("code") not in RETRYABLE:
                raise reason from exc
            time.sleep(extra.get("retry_after_s", 0.1))
            raise Refused from exc

    def _send(self, out: Any, writer: int, batches: list[Batch]) -> None:
        for batch in batches:
            rows = batch_of(writer, batch.start, batch.count)
            if self._origin is None:
                out.write_batch(rows)
            else:
                out.write_with_metadata(rows, json.dumps({"sequence": batch.sequence}).encode())

    def finish(self, table: str) -> None:
        """Close a stream in an orderly way."""
        stream = self._streams.pop(table, None)
        if stream is not None:
            stream[0].done_writing()
            stream[0].close()

    def _open(self, table: str) -> tuple[Any, Any]:
        if self._origin is None:
            descriptor = fl.FlightDescriptor.for_path(NAMESPACE, table)
        else:
            command = {
                "type": "write",
                "namespace": NAMESPACE,
                "table": table,
                "origin": self._origin,
            }
            descriptor = fl.FlightDescriptor.for_command(json.dumps(command))
        stream: tuple[Any, Any] = self._client.do_put(descriptor, SCHEMA)
        self._streams[table] = stream
        return stream


def _reason_of(out: Any, first: Exception) -> Exception:
    """What the daemon gave as the reason: it may come only with the close of the stream."""
    if getattr(first, "extra_info", None):
        return first
    try:
        out.close()
    except (fl.FlightError, pa.ArrowException, OSError) as exc:
        return exc
    return first


def run_writer(writer: Writer, turns: Turns, said: Said) -> None:
    """A writer's thread."""
    round_ = 0
    while (turn := turns.after(round_)) is not None:
        round_, endpoint = turn
        try:
            error = writer.write(endpoint, turns.paused)
        except BaseException as exc:
            writer.complain(f"the writer itself failed: {exc!r}")
            error = repr(exc)
        said.put({"idle": writer.number, "round": round_, "at": time.monotonic(), "error": error})


def main(arguments: list[str]) -> None:
    """Write as told until standard input ends."""
    folder, seed, rows_per_s, numbers = arguments[0], arguments[1], arguments[2], arguments[3:]
    turns, said = Turns(), Said()
    threads = []
    for number in map(int, numbers):
        random = Random(f"{seed}/{number}")
        writer = Writer(number, Path(folder), random, float(rows_per_s))
        threads.append(threading.Thread(target=run_writer, args=(writer, turns, said)))
    speaker = threading.Thread(target=_speak, args=(said,))
    for thread in (*threads, speaker):
        thread.start()
    for line in sys.stdin:
        order = json.loads(line)
        if "pause" in order:
            turns.paused.set()
        else:
            turns.go(order["endpoint"], order["round"])
    turns.end()
    for thread in threads:
        thread.join()
    said.put(None)
    speaker.join()


def _speak(said: Said) -> None:
    while (event := said.get()) is not None:
        print(json.dumps(event), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
