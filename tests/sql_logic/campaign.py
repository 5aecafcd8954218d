"""Random queries at a daemon and at DuckDB over an exact copy, while rows are written and flushed.

A round changes some tables, then asks queries. During the queries a flush of all tables runs, the
daemon compacts, and in every other round a writer writes rows that the queries exclude. Everything
is chosen by the seed, but not the moments of flushes.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from time import monotonic

import pyarrow as pa

from ingester.client import Client, ClientError
from tests.sql_logic.answers import differences
from tests.sql_logic.engines import FAILED, DaemonEngine, Engine, LocalEngine
from tests.sql_logic.generator import Generator, Query
from tests.sql_logic.random_tables import World, Writer

_WRITTEN_MEANWHILE = ["keyed", "daily", "named"]
# Words of queries whose answer may show one of two equal values: a zero of either sign.
_EITHER_ZERO = (
    "ORDER BY",
    "GROUP",
    "DISTINCT",
    "JOIN",
    "UNION",
    "INTERSECT",
    "EXCEPT",
    "min(",
    "max(",
    "OVER",
)

# DuckDB 2.0.1 fails in Parquet files on `s.a IN (1, NULL)` if the struct has a list beside `a`.
_DUCKDBS_FAULT = "Comparison on NULL values"


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is done.

    Attributes:
        flushes: Flushes of each table before the first query.
        rows: Rows of each of these flushes.
    """

    seed: int
    seconds: float = float("inf")
    rounds: int = 1_000_000
    queries: int = 25
    flushes: int = 3
    rows: int = 6


@dataclass
class Outcome:
    """Counts, and the faults."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


class Campaign:
    """One seed at one daemon."""

    def __init__(
        self,
        plan: Plan,
        client: Client,
        say: Callable[[str], None] = print,
    ) -> None:
        self._plan = plan
        self._random = Random(plan.seed)
        self._namespace = f"r{plan.seed}"
        self._world = World(client, self._namespace, self._random)
        self._daemon: Engine = DaemonEngine(client, self._namespace)
        self._copy = LocalEngine(self._namespace)
        self._say = say
        self._older: dict[str, pa.Table] = {}
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Run all rounds, or until the time is over."""
        for _ in range(self._plan.flushes):
            for name in self._world.tables:
                self._world.write(name, self._plan.rows)
            self._world.persist_all()
        end = monotonic() + self._plan.seconds
        for number in range(self._plan.rounds):
            if monotonic() > end or len(self.outcome.faults) >= 20:
                break
            self._round(number)
        self._copy.close()
        return self.outcome

    def _round(self, number: int) -> None:
        for _ in range(self._random.randrange(1, 5)):
            self._change()
        self._copy.load(self._world.take_changed())
        self._remember_version()
        bounded = _WRITTEN_MEANWHILE if number % 2 else []
        schemas = {name: table.rows.schema for name, table in self._world.tables.items()}
        schemas |= {f'"{name}"': rows.schema for name, rows in self._older.items()}
        generator = Generator(self._random, schemas, bounded)
        writer = Writer(self._world, bounded, self._random.randrange(1 << 30))
        flusher = threading.Thread(target=self._flush, args=(self._random.random() < 0.5,))
        if bounded:
            writer.start()
        flusher.start()
        try:
            for _ in range(self._plan.queries):
                self._ask(generator.query())
        finally:
            flusher.join()
            if bounded:
                writer.finish()
        self.outcome.counts["rounds"] += 1
        self.outcome.counts["batches written meanwhile"] += len(writer.written)

    def _change(self) -> None:
        name = self._random.choice(list(self._world.tables))
        match self._random.randrange(6):
            case 0:
                self._world.evolve()
            case 1 if self._world.tables[name].key:
                self._world.delete(name, self._random.choice([0.05, 0.3, 1.0]))
            case 2:
                self._world.persist(name)
            case _:
                self._world.write(name, self._random.choice([1, 7, 40]))

    def _remember_version(self) -> None:
        """Make an older version of a table available to queries, sometimes."""
        if self._random.random() < 0.3:
            name = self._random.choice(list(self._world.tables))
            version = self._world.persist(name)
            rows = self._world.tables[name].rows
            if rows.num_rows < 1000:
                self._older[f"{name}@v{version}"] = rows
                self._copy.load({f"{name}@v{version}": rows})
            for old in list(self._older)[:-3]:
                del self._older[old]

    def _flush(self, all_tables: bool) -> None:
        names = list(self._world.tables)
        for name in names if all_tables else names[::2]:
            try:
                self._world.persist(name)
            except ClientError as exc:
                self.outcome.faults.append(f"flush: {exc}")

    def _ask(self, query: Query) -> None:
        found, refusal = _outcome(self._daemon, query.sql)
        wanted, error = _outcome(self._copy, query.sql)
        counts = self.outcome.counts
        if found is None or wanted is None:
            if found is None and wanted is None:
                counts["queries that fail on both sides"] += 1
            elif _DUCKDBS_FAULT in refusal:
                counts["queries that fail by a fault of DuckDB"] += 1
            else:
                self._fault(query, f"daemon: {refusal or 'answers'}; DuckDB: {error or 'answers'}")
            return
        difference = differences(found, wanted, ordered=query.ordered)
        rounded = difference and any(word in query.sql for word in _EITHER_ZERO)
        if rounded and not differences(found, wanted, ordered=query.ordered, rounded=True):
            counts["queries that differ in the sign of zero"] += 1
            difference = None
        if difference:
            self._fault(query, difference)
        counts["queries"] += 1
        counts["queries with an empty answer"] += not found.num_rows
        counts["rows"] += found.num_rows

    def _fault(self, query: Query, what: str) -> None:
        sizes = {name: table.rows.num_rows for name, table in self._world.tables.items()}
        round_number = self.outcome.counts["rounds"]
        text = f"seed {self._plan.seed}, round {round_number}: {what}\n  {query.sql}\n  {sizes}"
        self.outcome.faults.append(text)
        self._say(text)


def _outcome(engine: Engine, sql: str) -> tuple[pa.Table | None, str]:
    try:
        return engine.run(sql), ""
    except FAILED as exc:
        return None, str(exc)[:400] or type(exc).__name__
