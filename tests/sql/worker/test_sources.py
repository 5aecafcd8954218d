"""How DuckDB scans a dataset of ours, none of which it documents, and what our dataset answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from ingester.sql.worker.sources import Source
from tests.drivers.sql_filters import connection

SCHEMA = pa.schema({"a": pa.int64(), "b": pa.string(), "s": pa.struct({"x": pa.int64()})})
ROWS = 1000


def batch(first: int) -> pa.RecordBatch:
    numbers = range(first, first + ROWS)
    return pa.record_batch(
        [pa.array(numbers), pa.array(map(str, numbers)), pa.array([{"x": n} for n in numbers])],
        schema=SCHEMA,
    )


class Scans:
    """Opens scans of some batches and counts what becomes of them."""

    def __init__(self, batches: int, *, fails_after: int | None = None) -> None:
        self.opened: list[tuple[list[str], Any]] = []
        self.read = self.closed = 0
        self._batches = batches
        self._fails_after = fails_after
        self._one = threading.Lock()

    def open(self, columns: list[str], terms: Any) -> Iterator[pa.RecordBatch]:
        self.opened.append((columns, terms))
        try:
            for number in range(self._batches):
                if number == self._fails_after:
                    raise OSError("the store is on fire")
                assert self._one.acquire(blocking=False), "two threads read one scan"
                self.read += 1
                found = batch(number * ROWS).select(columns)
                self._one.release()
                yield found
        finally:
            self.closed += 1


Registered = Callable[..., tuple[duckdb.DuckDBPyConnection, Scans]]


@pytest.fixture
def registered() -> Registered:
    def made(batches: int, *, filters: bool = True, **options: Any) -> Any:
        database, scans = connection(), Scans(batches, **options)
        database.register("t", Source(SCHEMA, scans.open, filters=filters))
        return database, scans

    return made


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("SELECT * FROM t", ["a", "b", "s"]),
        ("SELECT b FROM t", ["b"]),
        ("SELECT max(s.x) FROM t", ["s"]),
        ("SELECT count(*) FROM t", ["a"]),  # the first column: none would leave no row count
        ("SELECT count(*) FROM t WHERE b > 'x'", ["a"]),
        ("SELECT 1 FROM t LIMIT 1", ["a"]),
    ],
)
def test_a_scan_has_only_the_columns_that_the_query_needs(
    query: str, columns: list[str], registered: Registered
) -> None:
    database, scans = registered(2)
    database.execute(query).fetchall()
    assert [asked for asked, _ in scans.opened] == [columns]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW v AS SELECT * FROM t",
        "DESCRIBE t",
        "EXPLAIN SELECT * FROM t",
        "SELECT * FROM t WHERE false",
    ],
)
def test_a_statement_that_reads_no_row_opens_no_scan(
    statement: str, registered: Registered
) -> None:
    database, scans = registered(2)
    database.execute(statement).fetchall()
    assert scans.opened == []


def test_duckdb_does_not_check_a_filter_again(registered: Registered) -> None:
    database, scans = registered(2)
    assert database.execute("SELECT count(*) FROM t WHERE a = 5").fetchall() == [(2 * ROWS,)]
    assert scans.opened == [(["a"], [[["a", "=", 5]]])]


def test_what_a_ticket_cannot_say_is_filtered_by_the_expression(registered: Registered) -> None:
    database, scans = registered(2)
    query = "SELECT b FROM t WHERE s.x = 5 AND a > 3"
    assert database.execute(query).fetchall() == [("5",)]
    assert scans.opened == [(["b", "a", "s"], [[["a", ">", 3]]])]


def test_a_scan_without_filters_is_asked_for_all_rows(registered: Registered) -> None:
    database, scans = registered(2, filters=False)
    assert database.execute("SELECT b FROM t WHERE a = 5").fetchall() == [("5",)]
    assert scans.opened == [(["b", "a"], None)]


def test_a_long_or_is_filtered_by_the_expression(registered: Registered) -> None:
    database, scans = registered(2)
    alternatives = " OR ".join(f"(a = {n} AND b = '{n}')" for n in range(500))
    query = f"SELECT count(*), max(b) FROM t WHERE {alternatives}"
    assert database.execute(query).fetchall() == [(500, "99")]
    assert scans.opened == [(["b", "a"], None)]


def test_each_scan_of_a_table_is_opened_and_closed(registered: Registered) -> None:
    database, scans = registered(3)
    query = "SELECT count(*) FROM t JOIN t u USING (a) WHERE t.b <> ''"
    assert database.execute(query).fetchall() == [(3 * ROWS,)]
    assert (len(scans.opened), scans.closed) == (2, 2)


def test_a_limit_ends_the_scan(registered: Registered) -> None:
    database, scans = registered(10**9)
    assert len(database.execute("SELECT a FROM t LIMIT 10").fetchall()) == 10
    assert scans.closed == 1
    assert scans.read < 10


def test_an_answer_that_is_read_slowly_reads_no_further_than_its_buffer(
    registered: Registered,
) -> None:
    database, scans = registered(10**9)
    database.execute("SET streaming_buffer_size = '1MB'")
    reader = database.sql("SELECT a FROM t").to_arrow_reader(ROWS)
    for _ in range(50):
        reader.read_next_batch()
    assert 50 <= scans.read < 1000
    del reader
    database.close()
    assert scans.closed == 1


def test_an_error_of_a_scan_fails_the_query_with_its_text(registered: Registered) -> None:
    database, scans = registered(5, fails_after=3)
    with pytest.raises(duckdb.Error, match="the store is on fire"):
        database.execute("SELECT sum(a) FROM t").fetchall()
    assert scans.closed == 1
    assert database.execute("SELECT 1").fetchall() == [(1,)]


def test_a_batch_of_other_types_is_refused() -> None:
    database = connection()
    wrong = pa.record_batch({"a": pa.array([1], pa.int32())})
    schema = pa.schema({"a": pa.int64()})
    database.register("t", Source(schema, lambda columns, terms: iter([wrong])))
    with pytest.raises(duckdb.Error, match="the scan returned"):
        database.execute("SELECT * FROM t").fetchall()


def test_names_that_look_like_syntax_are_columns() -> None:
    names = ["A", "a", "x.y", 'say "hi"', "(", ")", "and", "is_valid", ""]
    schema = pa.schema([(name, pa.int64()) for name in names] + [("s", SCHEMA.field("s").type)])
    row = [pa.array([n]) for n in range(len(names))] + [pa.array([{"x": 1}])]
    asked: list[Any] = []

    def scan(columns: list[str], terms: Any) -> Iterator[pa.RecordBatch]:
        asked.append(terms)
        yield pa.record_batch(row, schema=schema).select(columns)

    database = connection()
    database.register("t", Source(schema, scan))
    shown = [name for name, *_ in database.execute("DESCRIBE t").fetchall()]
    for number, (name, column) in enumerate(zip(names, shown, strict=False)):
        quoted = '"' + column.replace('"', '""') + '"'
        query = f"SELECT {quoted} FROM t WHERE s.x = 1 AND {quoted} = {number}"
        assert database.execute(query).fetchall() == [(number,)]
        assert asked.pop() == [[[name, "=", number]]]
