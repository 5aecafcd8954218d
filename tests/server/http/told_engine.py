"""An SQL engine that knows its answers, for tests of what is around it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from ingester.sql.engine import SqlAnswer, SqlCaller, SqlEngine
from ingester.sql.request import Statement

WITHIN_S = 10.0
Batches = Iterator[pa.RecordBatch]


class Rows(SqlAnswer):
    """An answer with these batches."""

    def __init__(self, schema: pa.Schema, batches: Batches, on_close: Callable[[], None]) -> None:
        self.query_id, self.schema = "q", schema
        self._batches, self._on_close = batches, on_close

    def __iter__(self) -> Batches:
        return self._batches

    def close(self) -> None:
        self._on_close()


@dataclass(repr=False)
class Told(SqlEngine):
    """An engine that knows each answer by its statement."""

    answers: dict[str, pa.Table | Exception] = field(default_factory=dict)
    asked: list[tuple[Statement, SqlCaller]] = field(default_factory=list)
    running: int = 0
    closed: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def run(
        self, statement: Statement, caller: SqlCaller, query_id: str | None = None
    ) -> SqlAnswer:
        """Return the answer; ``endless`` has none until the caller is gone."""
        self.asked.append((statement, caller))
        if statement.text == "endless":
            return Rows(pa.schema([("n", "int64")]), self._endless(caller), self._close)
        found = self.answers[statement.text]
        if isinstance(found, Exception):
            raise found
        return Rows(found.schema, iter(found.to_batches(700)), self._close)

    def _endless(self, caller: SqlCaller) -> Batches:
        self._add(1)
        try:
            while self.running:
                time.sleep(0.02)
                caller.check_wanted()
            yield pa.record_batch({"n": [1]})
        finally:
            self._add(-1)

    def _close(self) -> None:
        self.closed += 1

    def _add(self, change: int) -> None:
        with self.changed:
            self.running += change
            self.changed.notify_all()

    def wait_running(self, count: int) -> None:
        """Wait until so many endless queries run."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.running == count, WITHIN_S), self.running
