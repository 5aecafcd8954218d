"""Sessions at the source, each a thread that runs the transactions drawn by its catalog.

If a transaction fails because of its rows, it is repeated without them, so that the model of the
tables stays correct. If it meets another session's lock, it is repeated unchanged.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.postgres.storm.model import Catalog
from tests.postgres.storm.transactions import Ending, Transaction, draw

_TRIES = 20
_GONE = ("57P01", "57P02", "57P03", "08006", None)
"""SQL states during a restart of the server."""


@dataclass(frozen=True, slots=True)
class Step:
    """A transaction that a session has tried, and its outcome."""

    session: int
    number: int
    lsn: str
    """The position of the source's log after the transaction."""
    outcome: str
    statements: tuple[str, ...]
    touched: frozenset[int]

    def __str__(self) -> str:
        body = "".join(f"\n      {text}" for text in self.statements)
        return f"  {self.lsn} session {self.session} step {self.number}: {self.outcome}{body}"


class Session:
    """One session, which the storm starts and pauses."""

    def __init__(
        self, dsn: str, catalog: Catalog, pause_s: float, log: Callable[[Step], None]
    ) -> None:
        self.catalog = catalog
        self.outcomes: Counter[str] = Counter()
        self.calm = False
        self.failed: BaseException | None = None
        self._dsn = dsn
        self._pause_s = pause_s
        self._log = log
        self._going, self._over, self._idle = (threading.Event() for _ in range(3))
        self._number = 0
        self._connection: Any = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def go_on(self) -> None:
        """Start or continue."""
        self._idle.clear()
        self._going.set()

    def pause(self, patience_s: float = 60.0) -> None:
        """Wait until no transaction is running."""
        self._going.clear()
        assert self._idle.wait(patience_s), f"session {self.catalog.number} does not come to an end"
        if self.failed is not None:
            raise self.failed

    def end(self) -> None:
        self._over.set()
        self._going.set()
        self._thread.join(60)

    def _work(self) -> None:
        try:
            while not self._over.is_set():
                if not self._going.is_set():
                    self._idle.set()
                    self._going.wait()
                    continue
                self.step()
                self._over.wait(self._pause_s)
        except BaseException as exc:
            self.failed = exc
        finally:
            self._idle.set()
            if self._connection is not None:
                self._connection.close()

    def step(self) -> None:
        """Draw a transaction and run it."""
        before = self.catalog.state()
        transaction = draw(self.catalog, calm=self.calm)
        self._number += 1
        statements = list(transaction.statements)
        outcome = self._try(statements, transaction.ending)
        if outcome not in ("done", "rolled back"):
            kept = [transaction.statements[at] for at in sorted(transaction.altering)]
            first, statements = outcome, kept
            outcome = self._try(kept, transaction.ending) if kept else "not done"
            if outcome in ("done", "rolled back", "not done"):
                self.outcomes[f"rows refused: {first[:60]}"] += 1
            else:
                self.catalog.restore(before)
            outcome += f" (at first: {first})"
        self.outcomes[outcome.partition(" (")[0]] += 1
        self._tell(outcome, statements, transaction)

    def _tell(self, outcome: str, statements: list[str], transaction: Transaction) -> None:
        [(lsn,)] = self._asked("SELECT pg_current_wal_insert_lsn()::text")
        texts = tuple(text[:300] for text in statements)
        touched = frozenset(transaction.touched)
        if transaction.ending is not Ending.COMMIT:
            outcome += f" [{transaction.ending.value}]"
        number = self.catalog.number
        self._log(Step(number, self._number, lsn, outcome, texts, touched))

    def _try(self, statements: list[str], ending: Ending) -> str:
        """Run a transaction and return ``done``, ``rolled back`` or the reason of its failure."""
        import psycopg2

        name = f"storm-{self.catalog.number}-{self._number}"
        for _ in range(_TRIES):
            try:
                return self._do(statements, ending, name)
            except psycopg2.Error as exc:
                code = exc.pgcode
                if self._connection is not None:
                    if self._connection.closed or code in _GONE:
                        if self._committed(name):
                            return "done"
                        continue
                    self._asked("ROLLBACK")
                if code in ("40P01", "55P03", "40001"):
                    continue
                return f"{code} {' '.join(str(exc).split())[:200]}"
        return "tried too often"

    def _do(self, statements: list[str], ending: Ending, name: str) -> str:
        connection = self._connected()
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
            # After a lost connection, this row tells whether the transaction was committed.
            cursor.execute("INSERT INTO storm_log.done VALUES (%s)", (name,))
            for text in statements:
                cursor.execute(text)
            if ending in (Ending.COMMIT, Ending.ROLLBACK):
                cursor.execute(ending.value)
                return "done" if ending is Ending.COMMIT else "rolled back"
            cursor.execute(f"PREPARE TRANSACTION '{name}'")
            if ending is Ending.PREPARED_ROLLBACK:
                cursor.execute(f"ROLLBACK PREPARED '{name}'")
                return "rolled back"
            cursor.execute(f"COMMIT PREPARED '{name}'")
            return "done"

    def _committed(self, name: str) -> bool:
        """Return whether an interrupted transaction was committed; roll back a prepared one."""
        for (prepared,) in self._asked("SELECT gid FROM pg_prepared_xacts WHERE gid = %s", name):
            self._asked(f"ROLLBACK PREPARED '{prepared}'")
        return bool(self._asked("SELECT 1 FROM storm_log.done WHERE name = %s", name))

    def _asked(self, text: str, *values: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query, repeated while the server restarts."""
        import psycopg2

        for left in reversed(range(_TRIES)):
            connection = self._connected()
            try:
                with connection.cursor() as cursor:
                    cursor.execute(text, values)
                    return [] if cursor.description is None else list(cursor.fetchall())
            except psycopg2.OperationalError as exc:
                if not left or not (connection.closed or exc.pgcode in _GONE):
                    raise
        raise AssertionError(_TRIES)

    def _connected(self) -> Any:
        import psycopg2

        deadline = time.monotonic() + 60
        while self._connection is None or self._connection.closed:
            try:
                self._connection = psycopg2.connect(self._dsn)
                self._connection.autocommit = True
                with self._connection.cursor() as cursor:
                    cursor.execute("SET lock_timeout = '2s'; SET client_min_messages = 'error'")
            except psycopg2.OperationalError:
                assert time.monotonic() < deadline, "the source does not come back"
                time.sleep(0.1)
        return self._connection
