"""A writer over all rounds, and a reader that only observes.

A note is always written before a batch is sent and after its answer has arrived
(:mod:`tests.crash.ledger`). All send many batches before the first answer. Most have an origin:
after a crash or a time-out they resend unacknowledged batches, and now and then acknowledged ones.
The others send each batch once. Now and then a writer reads its own rows.
"""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.flight as fl

from tests.crash.history import History
from tests.crash.ledger import Note, has_origin
from tests.crash.reading import Reader
from tests.crash.rows import TABLES
from tests.crash.session import (
    CLIENT_TIMEOUT_S,
    ERRORS,
    Batch,
    Refused,
    Session,
    Unclear,
    raise_what_it_means,
)

MAX_PIPELINED = 64
LONGEST_REST_S = 0.4
"""Upper bound of a rest: a resting client notices no kill, and the next round waits for all."""
NUMBERS = ("writer", "n")
TABLE_NAMES = tuple(table.name for table in TABLES)
CLIENT_FAILED = "the client itself failed"


def name_of(number: int) -> str:
    """The origin of a writer, and its name in the history."""
    return f"writer-{number}"


class Writer:
    """One writer over all rounds."""

    most_pipelined = MAX_PIPELINED
    most_rows = 4000
    """Of a batch."""
    longest_rest_s = LONGEST_REST_S

    def __init__(
        self,
        number: int,
        folder: Path,
        random: Random,
        rows_per_s: float,
        tables: tuple[str, ...] = TABLE_NAMES,
    ) -> None:
        self.name = name_of(number)
        self._number = number
        self._tables = tables
        self._random = random
        self._rows_per_s = rows_per_s
        self._origin = self.name if has_origin(number) else None
        history = History(folder / "history")
        self._note = Note(folder / f"{self.name}.ledger", number, history)
        self._reader = Reader(history, self.name, CLIENT_TIMEOUT_S)
        self._next = dict.fromkeys(tables, 0)
        self._sequence = 0
        self._burst = 0
        self._unknown: tuple[str, list[Batch]] | None = None
        self._recent: dict[str, list[Batch]] = {table: [] for table in tables}

    def work(self, endpoint: str, paused: threading.Event) -> str | None:
        """Write until paused (``None``) or until the daemon is gone (the observed error)."""
        gave_up = False
        while True:
            try:
                with fl.connect(endpoint) as client:
                    session = Session(client, self._origin, gave_up=gave_up)
                    self._write(session, endpoint, paused)
                return None
            except Unclear:
                gave_up = True
            except ERRORS as exc:
                return f"{type(exc).__name__}: {exc}"[:300]

    def complain(self, text: str) -> None:
        """Note an unexpected event."""
        self._note.complaint(text)

    def _write(self, session: Session, endpoint: str, paused: threading.Event) -> None:
        if self._origin is None:
            self._unknown = None
        while self._unknown is not None or not paused.is_set():
            try:
                if self._unknown is not None:
                    self._send_again(session)
                    continue
                rows = self._send_burst(session)
                if self._random.random() < 0.04:
                    self._look(endpoint)
            except Refused:
                continue
            rest_s = rows / self._rows_per_s * self._random.uniform(0.5, 1.5)
            paused.wait(min(self.longest_rest_s, rest_s))

    def _look(self, endpoint: str) -> None:
        table = self._random.choice(self._tables)
        try:
            self._reader.read(endpoint, table, NUMBERS, only=self._number)
        except ERRORS as exc:
            raise_what_it_means(exc, exc)

    def _send_burst(self, session: Session) -> int:
        random = self._random
        table = random.choice(self._tables)
        burst, self._burst = self._burst, self._burst + 1
        batches = []
        for _ in range(random.choice((1, 1, 1, random.randint(2, 8), self.most_pipelined))):
            count = max(1, min(self.most_rows, int(random.lognormvariate(2.5, 1.6))))
            batches.append(Batch(self._next[table], count, self._sequence))
            self._next[table] += count
            self._sequence += 1
        self._note.sent(table, burst, batches)
        self._deliver(session, table, batches)
        if random.random() < 0.1:
            session.finish(table)
        return sum(batch.count for batch in batches)

    def _send_again(self, session: Session) -> None:
        """Resend unacknowledged batches after a few acknowledged ones, which must be duplicates."""
        assert self._unknown is not None
        table, batches = self._unknown
        recent = self._recent[table][-self._random.randint(0, 5) :] if self._recent[table] else []
        for index, answer in session.exchange(table, self._number, recent):
            if not answer["duplicate"]:
                self.complain(
                    f"{table}: sequence {recent[index].sequence} was acknowledged before and is not"
                    f" taken for a duplicate: {answer}"
                )
        self._deliver(session, table, batches)

    def _deliver(self, session: Session, table: str, batches: list[Batch]) -> None:
        """Send, and note every answer as it arrives."""
        self._unknown = (table, batches)
        try:
            for index, answer in session.exchange(table, self._number, batches):
                batch = batches[index]
                self._note.kept(table, batch.start)
                self._unknown = (table, batches[index + 1 :])
                self._recent[table] = [*self._recent[table][-8:], batch]
                self._check_answer(table, batch, answer)
        except Refused:
            if self._origin is not None:
                raise
            self._note.refused(table, [batch.start for batch in self._unknown[1]])
        self._unknown = None

    def _check_answer(self, table: str, batch: Batch, answer: dict[str, Any]) -> None:
        if answer["accepted"] is not True:
            self.complain(f"{table}: answer {answer} to batch {batch}")
        if self._origin is not None:
            memory, durable = answer["memory_sequence"], answer["durable_sequence"]
            if memory is None or memory < batch.sequence or (durable or 0) > memory:
                self.complain(f"{table}: sequences of {answer} to batch {batch}")


class Onlooker:
    """Reads whole tables, one after the other."""

    def __init__(self, name: str, folder: Path, random: Random) -> None:
        self.name = name
        self._random = random
        self._reader = Reader(History(folder / "history"), name, CLIENT_TIMEOUT_S)

    def work(self, endpoint: str, paused: threading.Event) -> str | None:
        """Read until paused (``None``) or until the daemon is gone (the observed error)."""
        while not paused.wait(self._random.uniform(0.0, 0.4)):
            try:
                try:
                    self._reader.read(endpoint, self._random.choice(TABLES).name, NUMBERS)
                except ERRORS as exc:
                    raise_what_it_means(exc, exc)
            except (Refused, Unclear):
                continue
            except ERRORS as exc:
                return f"{type(exc).__name__}: {exc}"[:300]
        return None

    def complain(self, text: str) -> None:
        """No-op: a reader has no ledger."""
        raise AssertionError(text)
