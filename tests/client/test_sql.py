"""``sql`` and ``sql_stream`` of all three clients, with a real daemon and with one that fails."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import trio
from pyarrow import flight

from ingester.client import Client, InvalidRequest, RetryPolicy, TimedOut, Unavailable, Unreachable
from ingester.client.aio import AsyncClient
from ingester.client.sql import parameter_row
from ingester.client.trio_client import TrioClient
from tests.cli.conftest import ROOT, run_command
from tests.client.small_daemon import SmallDaemon, unavailable
from tests.drivers.daemon import Daemon
from tests.drivers.ports import free_port
from tests.drivers.waiting import until

NUMBERS = "range(9999) a(i), range(9999999999999) b(j)"
SILENT = f"SELECT count(*) AS n FROM {NUMBERS} WHERE hash(i + j) = 1"
"""A query without an end that yields nothing."""
LONG = f"SELECT i + j AS n FROM {NUMBERS}"
"""A query without an end that yields rows."""
UTC = datetime.UTC
QUICK = RetryPolicy(for_s=5, first_delay_s=0.005, max_delay_s=0.05)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon.start(tmp_path_factory.mktemp("sql") / "data") as started:
        with Client(started.flight) as client:
            rows = {
                "id": [1, 2, 3],
                "name": ["a", "b", "c"],
                "total": [Decimal("1.50"), Decimal("7.00"), Decimal("9.99")],
                "placed": [datetime.datetime(2026, 1, 1, tzinfo=UTC)] * 3,
            }
            client.write("shop", "orders", rows)
        yield started


@pytest.fixture
def asker(real: Daemon) -> Iterator[Client]:
    with Client(real.flight) as connected:
        yield connected


def running(client: Client) -> int:
    return int(client.status()["sql"]["running"])


def test_an_answer_is_a_table_or_a_stream_that_libraries_read(asker: Client) -> None:
    text = "SELECT id, name FROM shop.orders ORDER BY id"
    rows = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 3, "name": "c"}]
    assert asker.sql(text).to_pylist() == rows
    with asker.sql_stream(text) as stream:
        assert stream.query_id
        assert [row for batch in stream for row in batch.to_pylist()] == rows
    with asker.sql_stream(text) as stream:
        assert pl.DataFrame(stream).to_dicts() == rows
    with asker.sql_stream(text) as stream:
        assert stream.reader().read_all().to_pandas().to_dict("records") == rows
        with pytest.raises(InvalidRequest, match="can be read once"):
            stream.reader()
    assert asker.sql("SELECT id FROM orders WHERE id < 2", namespace="shop").num_rows == 1
    nothing = asker.sql("SELECT id FROM shop.orders WHERE false")
    assert (nothing.schema.names, nothing.num_rows) == (["id"], 0)


def test_parameters_are_in_order_or_by_name(asker: Client) -> None:
    above = "SELECT count(*) AS n FROM shop.orders WHERE id >= {} AND name <> {}"
    for text, given in (
        (above.format("?", "?"), [2, "c"]),
        (above.format("$1", "$2"), (2, "c")),
        (above.format("$id", "$name"), {"name": "c", "id": 2}),
        (above.format("?", "?"), pa.record_batch({"a": [2], "b": ["c"]})),
    ):
        assert asker.sql(text, given).to_pylist() == [{"n": 1}]
    with pytest.raises(InvalidRequest, match="1 values are needed, 2 are given"):
        asker.sql("SELECT ?", [1, 2])


BERLIN = ZoneInfo("Europe/Berlin")
EXACT: list[tuple[Any, Any]] = [
    (2**63, Decimal(2**63)),
    (Decimal("1.10"), Decimal("1.10")),
    (Decimal("1E+3"), Decimal(1000)),
    (datetime.datetime(2026, 1, 1), datetime.datetime(2026, 1, 1)),
    # The second time of 2:30, after the clock was set back.
    (
        datetime.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN),
        datetime.datetime(2026, 10, 25, 1, 30, tzinfo=UTC),
    ),
    (datetime.date(1, 1, 1), datetime.date(1, 1, 1)),
    (datetime.time(1, 2, 3, 4), datetime.time(1, 2, 3, 4)),
    (b"\x00\xff", b"\x00\xff"),
    (memoryview(b"x"), b"x"),
    ("a\0b", "a\0b"),
    (None, None),
    (pd.NaT, None),
    (pd.NA, None),
    (True, True),
    (np.uint64(2**64 - 1), 2**64 - 1),
    (np.float16(1.5), 1.5),
    (np.float32(0.1), float(np.float32(0.1))),
    (np.datetime64("2026-01-01T00:00:00", "us"), datetime.datetime(2026, 1, 1)),
    ([1, None], [1, None]),
    ([], []),
    ({"a": [{"b": 1}]}, {"a": [{"b": 1}]}),
    (np.array([1, 2]), [1, 2]),
    (pa.scalar(Decimal("1.00"), pa.decimal128(5, 2)), Decimal("1.00")),
]


def test_values_of_python_arrive_exactly(asker: Client) -> None:
    columns = ", ".join(f"? AS c{at}" for at in range(len(EXACT)))
    answer = asker.sql(f"SELECT {columns}", [given for given, _ in EXACT])
    assert list(answer.to_pylist()[0].values()) == [meant for _, meant in EXACT]
    text = asker.sql("SELECT ?::VARCHAR AS u", [uuid.UUID(int=5)]).to_pylist()[0]["u"]
    assert uuid.UUID(text).int == 5
    day = asker.sql("SELECT DATE '2026-01-01' + ? AS d", [datetime.timedelta(days=1)])
    assert str(day.to_pylist()[0]["d"]) == "2026-01-02 00:00:00"


INEXACT: list[tuple[Any, str]] = [
    (10**38, "38 digits"),
    (Decimal("1E-40"), "38 digits"),
    ({"a": [Decimal(10**38)]}, "38 digits"),
    (Decimal("NaN"), "precision"),
    (np.longdouble("0.1"), "longdouble"),
    (pd.Timedelta("1ns"), "no nanoseconds"),
    (np.timedelta64(1, "ns"), "not a value of duration"),
    (pd.Timestamp("2026-01-01T00:00:00.000000001"), "nanoseconds"),
    ([pd.Timestamp("2026-01-01T00:00:00.000000001")], "nanoseconds"),
    (datetime.time(1, tzinfo=UTC), "no zone"),
    ([datetime.datetime(2026, 1, 1), datetime.datetime(2026, 1, 1, tzinfo=UTC)], "zone"),
    ([2**53 + 1, 0.5], "9007199254740993"),
    ("\ud800", "surrogates"),
    (object(), "object"),
]


@pytest.mark.parametrize(("value", "why"), INEXACT, ids=[str(at) for at in range(len(INEXACT))])
def test_a_value_that_cannot_be_sent_exactly_is_refused(value: Any, why: str) -> None:
    with pytest.raises(InvalidRequest, match=f"(?s)parameter x: a value of type .*{why}"):
        parameter_row({"x": value})


def test_wrong_arguments_are_refused_before_anything_is_sent() -> None:
    with Client("127.0.0.1:9") as client:
        for wrong in ("abc", {1: 2}, {"": 1}, 5, pa.record_batch({"a": [1, 2]})):
            with pytest.raises(InvalidRequest, match="parameters: "):
                client.sql("SELECT ?", wrong)
        for text in ("", " ", 5, "SELECT '\ud800'"):
            with pytest.raises(InvalidRequest, match="sql: "):
                client.sql(text)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="missing='maybe'"):
            client.sql("SELECT 1", missing="maybe")  # type: ignore[arg-type]
    assert parameter_row([]) is None
    assert parameter_row({}) is None


def test_refusals_are_those_of_the_daemon(asker: Client) -> None:
    for text in ("SELEC 1", "FROM nowhere.t", "DROP TABLE t", "SELECT 1; SELECT 2"):
        with pytest.raises(InvalidRequest):
            asker.sql(text)
    with pytest.raises(InvalidRequest, match="boom"), asker.sql_stream("SELECT error('boom')") as s:
        list(s)


def test_a_statement_that_takes_too_long_is_not_repeated(asker: Client) -> None:
    before = asker.status()["sql"]["started"]
    with pytest.raises(TimedOut):
        asker.sql(SILENT, timeout_s=0.5)
    until(lambda: running(asker) == 0, "its end")
    assert asker.status()["sql"]["started"] - before == 1


def test_leaving_or_dropping_a_stream_ends_the_query(asker: Client) -> None:
    with asker.sql_stream(LONG) as stream:
        assert next(iter(stream)).num_rows
        assert running(asker) == 1
    until(lambda: running(asker) == 0, "the end of the query")
    dropped = asker.sql_stream(LONG)
    assert dropped.read() is not None
    del dropped
    until(lambda: running(asker) == 0, "the end of the query")


INTERRUPTED = """
import sys
import polars  # replaces the handler of SIGINT
from ingester.client import Client

client = Client(sys.argv[1])
print("ready", flush=True)
for ask in (client.sql, lambda text: list(client.sql_stream(text))):
    try:
        ask(sys.argv[2])
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        input()
"""


def test_ctrl_c_ends_a_query_that_yields_nothing(real: Daemon, asker: Client) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, real.flight, SILENT],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with program:
        assert program.stdout is not None
        assert program.stdin is not None
        try:
            assert program.stdout.readline() == b"ready\n"
            for _ in range(2):
                until(lambda: running(asker) == 1, "the query")
                program.send_signal(signal.SIGINT)
                assert program.stdout.readline() == b"interrupted\n"
                until(lambda: running(asker) == 0, "its end at the daemon")
                program.stdin.write(b"\n")
                program.stdin.flush()
            assert program.wait(30) == 0
        finally:
            program.kill()


def test_the_awaited_clients_do_the_same(real: Daemon, asker: Client) -> None:
    async def answers(client: AsyncClient | TrioClient) -> list[Any]:
        table = await client.sql("SELECT id FROM orders WHERE id = ?", [2], namespace="shop")
        async with await client.sql_stream("SELECT id FROM shop.orders") as stream:
            assert (stream.schema.names, stream.missing) == (["id"], ())
            rows = [batch.num_rows async for batch in stream]
        return [*table.to_pylist(), sum(rows)]

    async def first_row(asked: Awaitable[Any]) -> None:
        async with await asked as stream:
            await anext(aiter(stream))

    async def with_asyncio() -> list[Any]:
        async with AsyncClient(real.flight) as client:
            for ask in (client.sql, client.sql_stream):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(first_row(ask(SILENT)), 0.5)
                await asyncio.to_thread(until, lambda: running(asker) == 0, "the end")
            return await answers(client)

    async def with_trio() -> list[Any]:
        async with TrioClient(real.flight) as client:
            with trio.move_on_after(0.5) as scope:
                await client.sql(SILENT)
            assert scope.cancelled_caught
            await trio.to_thread.run_sync(until, lambda: running(asker) == 0, "the end")
            return await answers(client)

    assert asyncio.run(with_asyncio()) == [{"id": 2}, 3]
    assert trio.run(with_trio) == [{"id": 2}, 3]


class Answering(SmallDaemon):
    """Answers any statement with its id, and says whose buffers it has read."""

    def __init__(self, name: str, *parts: str) -> None:
        super().__init__()
        self._name = name
        self._parts = parts
        self.actions["store"] = lambda body: [{"store": "s", "ingester_id": name}]
        self.breaks: Callable[[int], None] = lambda n: None

    def do_get(self, context: Any, ticket: Any) -> Any:
        self.gets += 1
        asked = self.gets
        self.tickets.append(json.loads(ticket.ticket))
        self.on_get(asked)
        schema = pa.schema([("who", pa.string())], {"parts": json.dumps(self._parts)})

        def answer() -> Iterator[pa.RecordBatch]:
            yield pa.record_batch({"who": [self._name]})
            self.breaks(asked)

        return flight.GeneratorStream(schema, answer())


def test_transient_refusals_are_repeated_and_broken_answers_are_errors() -> None:
    def refuse(n: int) -> None:
        if n == 1:
            raise unavailable("limit")

    def cut(n: int) -> None:
        if n == 2:
            raise flight.FlightUnavailableError("gone")

    with Answering("a") as daemon, Client(daemon.endpoint, retry=QUICK) as client:
        daemon.on_get, daemon.breaks = refuse, cut
        with pytest.raises(Unreachable):
            client.sql("SELECT 1")
        assert client.sql("SELECT 1").to_pylist() == [{"who": "a"}]
        assert daemon.gets == 3
        with Client(daemon.endpoint, retry=RetryPolicy(for_s=0)) as impatient:
            daemon.gets = 0
            with pytest.raises(Unavailable):
                impatient.sql("SELECT 1")


def test_an_answer_of_several_daemons_has_the_buffers_of_all_or_says_what_is_missing() -> None:
    with ExitStack() as stack:
        both = [stack.enter_context(Answering(name, "a", "b")) for name in ("a", "b")]
        client = stack.enter_context(Client([d.endpoint for d in both], retry=QUICK))
        assert client.sql("SELECT 1").num_rows == 1
        with client.sql_stream("SELECT 1") as stream:
            assert (stream.parts, stream.missing) == (("a", "b"), ())

        alone = [stack.enter_context(Answering(name, name)) for name in ("a", "b")]
        client = stack.enter_context(Client([d.endpoint for d in alone], retry=QUICK))
        with pytest.raises(
            InvalidRequest, match=r"name all other daemons .* in sql\.peers"
        ) as told:
            client.sql("SELECT 1")
        assert told.value.code == "peers"
        (unread,) = told.value.details["missing"]
        assert unread in {each.endpoint for each in alone}
        table = client.sql("SELECT 1", missing="allow")
        other = alone["ab".index(table.column("who")[0].as_py()) - 1]
        assert json.loads(table.schema.metadata[b"missing"]) == [other.endpoint]
        with client.sql_stream("SELECT 1", missing="allow") as stream:
            assert pa.table(stream).num_rows == 1

        # No buffers were needed: a query without tables, or of older versions.
        none = [stack.enter_context(Answering(name)) for name in ("a", "b")]
        client = stack.enter_context(Client([d.endpoint for d in none], retry=QUICK))
        assert client.sql("SELECT 1").num_rows == 1


def test_an_unreachable_daemon_of_several_is_an_error_or_reported() -> None:
    nobody = "grpc://127.0.0.1:9"
    with (
        Answering("a", "a") as daemon,
        Client([daemon.endpoint, nobody], retry=RetryPolicy(for_s=0)) as client,
    ):
        with pytest.raises(Unreachable, match="--allow-missing"):
            client.sql("SELECT 1")
        assert daemon.tickets == []
        table = client.sql("SELECT 1", missing="allow")
        assert json.loads(table.schema.metadata[b"missing"]) == [nobody]
        assert daemon.tickets == [{"sql": "SELECT 1", "missing": "allow"}]


def test_a_statement_that_takes_too_long_is_not_sent_to_the_next_daemon() -> None:
    ended = threading.Event()
    with ExitStack() as stack:
        slow = [stack.enter_context(Answering(name, "a", "b")) for name in ("a", "b")]
        client = stack.enter_context(Client([d.endpoint for d in slow], retry=QUICK))
        stack.callback(ended.set)
        for each in slow:
            each.on_get = lambda n: ended.wait(20) and None
        with pytest.raises(TimedOut):
            client.sql("SELECT 1", timeout_s=0.3)
        assert sum(each.gets for each in slow) == 1


PAGE = (ROOT / "docs" / "sql.md").read_text()


def test_the_programs_and_commands_of_the_page_run(real: Daemon, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    assert len(blocks) == 4
    program = "\n".join(blocks).replace("grpc://127.0.0.1:8082", real.flight)
    exec(compile(program, "docs/sql.md", "exec"), {})
    (commands,) = re.findall(r"^```bash\n(.*?)^```$", PAGE, re.M | re.S)
    for line in commands.splitlines():
        *piped, command = line.split(" | ")
        given = piped[0].split(" ", 1)[1].strip('"').encode() if piped else b""
        arguments = [each.replace("\\$", "$") for each in shlex.split(command)[1:]]
        done = run_command(*arguments, cwd=tmp_path, endpoint=real.flight, stdin=given)
        assert (done.returncode, line) == (0, line), done.stderr
    assert (tmp_path / "orders.parquet").exists()


def test_the_messages_of_the_page_are_those_of_the_daemon(asker: Client) -> None:
    for text, message in (
        ("DROP TABLE shop.orders", "SQL only reads"),
        ("FROM shop.nothing", "Table .* does not exist"),
        ('FROM shop."orders@v99"', "version .* is not kept"),
        ("SELECT ?", "values are needed"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            asker.sql(text)
        assert message.replace(" .* ", " … ") in PAGE


def test_all_tries_of_a_statement_share_its_timeout() -> None:
    with Client(f"grpc://127.0.0.1:{free_port()}") as client:
        began = time.monotonic()
        with pytest.raises(Unreachable):
            client.sql("SELECT 1", timeout_s=0.5)
        assert time.monotonic() - began < 5  # the retry policy's time is 30 s
