"""SQL at a daemon gives DuckDB's answers, and the comparison finds what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from ingester.client import Client
from tests.drivers.daemon import Daemon
from tests.sql_logic.answers import as_expected, differences
from tests.sql_logic.campaign import Campaign, Plan
from tests.sql_logic.engines import DaemonEngine, Engine, LocalEngine
from tests.sql_logic.generator import Generator
from tests.sql_logic.mirror import is_stored
from tests.sql_logic.random_tables import rows, tables
from tests.sql_logic.script import Record, Unsupported, parse
from tests.sql_logic.suites import Report, find_files, run_files

SUITE = Path(__file__).parent / "suite"
SCRIPT = """
statement ok
CREATE TABLE t(a INTEGER)

foreach value 1 2

statement ok
INSERT INTO t VALUES (${value})

endloop

skipif duckdb
query I
SELECT nothing

query I rowsort label-1
SELECT a FROM t
WHERE a > 0
----
1
2

statement error
SELECT b FROM t
----
no such column

halt

query I
SELECT 3
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("sql_logic")
    with Daemon.start(folder / "data", maintenance__compact="true") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(daemon.flight) as client:
        yield client


def test_a_script_is_parsed_with_its_loops_and_without_records_for_others() -> None:
    found = list(parse(SCRIPT))
    assert [record.sql for record in found] == [
        "CREATE TABLE t(a INTEGER)",
        "INSERT INTO t VALUES (1)",
        "INSERT INTO t VALUES (2)",
        "SELECT a FROM t\nWHERE a > 0",
        "SELECT b FROM t",
    ]
    query = found[3]
    assert (query.kind, query.sort, query.expected) == ("query", "rowsort", ("1", "2"))
    assert found[4].kind == "error"


def test_a_script_that_needs_an_extension_is_refused() -> None:
    with pytest.raises(Unsupported, match="require spatial"):
        list(parse("require spatial\n\nquery I\nSELECT 1\n----\n1\n"))


@pytest.mark.parametrize(
    ("expected", "equal"),
    [
        (("1\ta", "NULL\t(empty)"), True),
        (("1", "a", "NULL", "(empty)"), True),
        (("4 values hashing to 6c9eb27a04fab95f5ba3b3eb6d5bd2ef",), False),
        (("1\ta", "2\t(empty)"), False),
        (("1\ta",), False),
    ],
)
def test_an_answer_is_compared_with_the_text_of_a_file(
    expected: tuple[str, ...], equal: bool
) -> None:
    answer = pa.table({"i": pa.array([1, None], pa.int32()), "s": ["a", ""]})
    assert as_expected(Record(1, "query", "", "IT", "nosort", expected), answer) is equal


def test_answers_differ_by_type_value_count_and_order() -> None:
    one = pa.table({"f": pa.array([0.0, None, float("nan")])})
    assert differences(one, one.take([2, 1, 0])) is None
    assert "another order" in (differences(one.take([2, 1, 0]), one, ordered=True) or "")
    assert "type float" in (differences(one.cast(pa.schema({"f": pa.float32()})), one) or "")
    assert "2 rows" in (differences(one.slice(1), one) or "")
    signed = pa.table({"f": pa.array([-0.0, None, float("nan")])})
    assert differences(signed, one)
    assert differences(signed, one, rounded=True) is None


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        ("INTEGER", True),
        ("TIMESTAMP WITH TIME ZONE[]", True),
        ('STRUCT(a INTEGER, "B c" MAP(VARCHAR, DECIMAL(10,2)))', True),
        ("HUGEINT", False),
        ("TIME", False),
        ("STRUCT(a UUID)", False),
        ("INTEGER[3]", False),
        ("TIMESTAMP_S", False),
        ("ENUM('a', 'b')", False),
    ],
)
def test_types_that_tables_do_not_have_are_known(kind: str, stored: bool) -> None:
    assert is_stored(kind) is stored


def test_nearly_all_random_queries_are_valid_and_have_rows() -> None:
    random, copy = Random(7), LocalEngine()
    made = {table.name: table.schema for table in tables()}
    copy.load(
        {
            name: pa.Table.from_batches([rows(random, schema, [*range(60)])])
            for name, schema in made.items()
        }
    )
    generator = Generator(random, made, ["keyed"])
    failed = filled = 0
    for _ in range(200):
        try:
            filled += bool(copy.run(generator.query().sql).num_rows)
        except Exception:
            failed += 1
    copy.close()
    assert failed <= 10
    assert filled >= 100


def test_files_of_sqllogictest_give_their_answers(client: Client) -> None:
    report = _run_suite(client, lambda namespace: DaemonEngine(client, namespace))
    assert report.faults == []
    assert report.counts["files"] == len(list(SUITE.iterdir()))
    assert report.counts["answers as in the file"] == report.counts["queries"] >= 50
    assert not any("failed locally" in why for why in report.skipped)


def test_a_daemon_that_loses_a_row_is_found(client: Client) -> None:
    class Losing(LocalEngine):
        def __init__(self, namespace: str) -> None:
            super().__init__()
            for table in client.tables():
                if table.namespace == namespace:
                    there = client.query(namespace, table.table)
                    self.load({table.table: there.slice(1)})

    engines: dict[str, Losing] = {}

    def engine(namespace: str) -> Engine:
        if namespace not in engines:
            engines[namespace] = Losing(namespace)
        return engines[namespace]

    report = _run_suite(client, engine, seed=1, name="nulls_and_floats.test")
    for one in engines.values():
        one.close()
    assert len(report.faults) >= 3


def test_random_queries_give_duckdbs_answers_while_rows_are_flushed(client: Client) -> None:
    plan = Plan(seed=1, rounds=2, queries=12, flushes=2)
    outcome = Campaign(plan, client).run()
    assert outcome.faults == []
    assert outcome.counts["queries"] >= 20


def _run_suite(
    client: Client, engine: Callable[[str], Engine], seed: int = 0, name: str = ""
) -> Report:
    return run_files(find_files([SUITE / name]), client, engine, seed=seed, say=lambda _: None)
