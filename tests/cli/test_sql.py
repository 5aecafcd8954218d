"""`ingester sql`: one statement, statements from a file or a pipe, and the prompt on a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.cli.sql_answers import SqlAnswers, divided
from ingester.cli.sql_prompt import SqlPrompt, as_name
from ingester.client import Client, RetryPolicy
from tests.cli.conftest import ROOT, Run, check_refused
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until

ENDLESS = (
    "SELECT count(*) AS n FROM range(9999) a(i), range(9999999999999) b(j) WHERE hash(i + j) = 1"
)
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def orders(served: Daemon) -> Daemon:
    """A daemon with a table ``sqlshop.orders``."""
    with Client(served.flight) as client:
        rows = pa.table({"id": [1, 2], "name": ["a", "b"]})
        client.write("sqlshop", "orders", rows)
    return served


def test_a_statement_is_answered_in_every_format(orders: Daemon, run: Run, tmp_path: Path) -> None:
    text = "SELECT id, name FROM sqlshop.orders ORDER BY id"
    assert run("sql", text).stdout.decode().split() == ["id", "name", "1", "a", "2", "b"]
    assert run("sql", text, "--csv").stdout == b'"id","name"\n1,"a"\n2,"b"\n'
    lines = run("sql", text, "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    assert run("sql", text, "--output", "o.parquet").returncode == 0
    assert pyarrow.parquet.read_table(tmp_path / "o.parquet").column("id").to_pylist() == [1, 2]
    with pa.ipc.open_stream(run("sql", text, "--format", "arrow").stdout) as reader:
        assert reader.read_all().num_rows == 2


def test_names_have_a_default_namespace(orders: Daemon, run: Run) -> None:
    found = run("sql", "SELECT name FROM orders WHERE id = 2", "--namespace", "sqlshop", "--json")
    assert json.loads(found.stdout) == {"name": "b"}


def test_a_pipe_has_several_statements(run: Run) -> None:
    text = "SELECT 'a;b' AS x; -- one; two\nSELECT /* ; */ 2 AS y\n"
    assert run("sql", "--json", stdin=text.encode()).stdout == b'{"x":"a;b"}\n{"y":2}\n'
    stopped = run("sql", "--json", stdin=b"SELECT 1 AS a; SELECT nothing; SELECT 3 AS c")
    assert (stopped.returncode, stopped.stdout) == (1, b'{"a":1}\n')
    check_refused(run("sql"), 2, "no statement is given")
    check_refused(run("sql", stdin=b"SELECT '\xff'"), 2, "not UTF-8")
    twice = run("sql", "--output", "o.csv", stdin=text.encode())
    check_refused(twice, 2, "--output takes the answer of one statement, not of 2")


def test_refusals_are_one_line_with_the_exit_code_of_the_error(run: Run) -> None:
    check_refused(run("sql", "SELEC 1"), 1, "syntax error")
    check_refused(run("sql", "SELECT * FROM nowhere.t"), 1, "does not exist")
    check_refused(run("sql", "DROP TABLE t"), 1, "SQL only reads")
    nobody = run("sql", "SELECT 1", "--endpoint", "127.0.0.1:9")
    check_refused(nobody, 3, "cannot connect")
    check_refused(run("sql", "SELECT 1 AS a, 2 AS a", "--json"), 1, "two columns have the name 'a'")
    interval = run("sql", "SELECT INTERVAL 1 DAY AS i", "--output", "i.parquet")
    check_refused(interval, 1, "cast the column, or use another format")


def test_types_that_no_table_has_are_printed_exactly(run: Run) -> None:
    values = {
        "TIME '01:02:03.000004'": "01:02:03.000004",
        "INTERVAL '1 month 2 days -3.5 seconds'": "P1M2DT-3.5S",
        "'a'::ENUM('a', 'b')": "a",
        "[1, 2]::INT[2]": [1, 2],
        "{'a': INTERVAL 1 DAY, 'n': NULL}": {"a": "P0M1DT0S", "n": None},
        "map(['k'], [TIME '01:02:03'])": [{"key": "k", "value": "01:02:03.000000"}],
        "12345678901234567890123456789012345678::HUGEINT": "12345678901234567890123456789012345678",
        "TIMESTAMP_S '2026-01-01 00:00:00'": "2026-01-01T00:00:00",
        "[TIMESTAMPTZ '2026-01-01 00:00:00+01']": ["2025-12-31T23:00:00Z"],
        "union_value(a := 1)": "1",
        "NULL": None,
    }
    columns = ", ".join(f"{text} AS c{at}" for at, text in enumerate(values))
    found = run("sql", f"SELECT {columns}", "--json")
    assert list(json.loads(found.stdout).values()) == list(values.values())
    assert run("sql", f"SELECT {columns}").returncode == 0
    assert "Projection" in run("sql", "EXPLAIN SELECT 1").stdout.decode()
    cut = run("sql", "FROM range(2000)")
    assert b"(the first 1,000 rows; another --format prints all)" in cut.stderr


@given(
    st.lists(st.sampled_from([";", "'", '"', "--", "\n", "/*", "*/", "$$", "$a$", "e'", "\\", "x"]))
)
def test_dividing_keeps_every_character_of_a_statement(pieces: list[str]) -> None:
    text = "".join(pieces)
    statements, rest = divided(text)
    assert all(each.strip() for each in statements)
    at = 0
    for each in [*statements, rest]:
        at = text.index(each, at) + len(each)
    # What is whole stays whole when more follows.
    assert divided(text + "\n; SELECT 1;")[0][: len(statements)] == statements


def test_completion_has_tables_and_columns_and_asks_the_daemon_once(orders: Daemon) -> None:
    with Client(orders.flight) as client:
        prompt = SqlPrompt(client, SqlAnswers(None, "table"))
        assert _completed(prompt, "sqls") == ["sqlshop.orders"]
    # The client is closed: a further question would fail.
    assert "orders" in _completed(prompt, "ORD")
    assert "name" in _completed(prompt, "na")
    assert _completed(prompt, "nothing") == []
    silent = SqlPrompt(Client("127.0.0.1:9", retry=RetryPolicy(for_s=0)), SqlAnswers(None, "table"))
    assert _completed(silent, "a") == []
    assert [as_name(each) for each in ("shop", "Shop", 'x"y')] == ["shop", '"Shop"', '"x""y"']


def _completed(prompt: SqlPrompt, text: str) -> list[str]:
    found: list[str] = []
    while (word := prompt.complete(text, len(found))) is not None:
        found.append(word)
    return found


class Terminal:
    """The prompt on a terminal of its own."""

    def __init__(self, daemon: Daemon, home: Path) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (50, 200))
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "INGESTER_ENDPOINT": daemon.flight,
            "HOME": str(home),
            "TERM": "dumb",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ingester", "sql", "--namespace", "sqlshop"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        self._unread = ""

    def typed(self, text: str, expected: str) -> str:
        """Type a text; return what is printed up to and with ``expected``."""
        self.send(text)
        give_up_at = time.monotonic() + WITHIN_S
        while expected not in self._unread:
            ready, _, _ = select.select([self._ours], [], [], give_up_at - time.monotonic())
            assert ready, f"no {expected!r} in {self._unread!r}"
            try:
                self._unread += os.read(self._ours, 1 << 16).decode(errors="replace")
            except OSError as exc:  # the other end is closed
                raise AssertionError(f"no {expected!r} in {self._unread!r}") from exc
        before, _, self._unread = self._unread.partition(expected)
        return before + expected

    def send(self, text: str) -> None:
        """Type a text."""
        os.write(self._ours, text.encode())

    def end(self) -> None:
        """Kill it if it still runs."""
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def terminal(orders: Daemon, tmp_path: Path) -> Iterator[Terminal]:
    started = Terminal(orders, tmp_path)
    yield started
    started.end()


PROMPT = "ingester=> "


def test_the_prompt_runs_statements_until_it_is_left(
    terminal: Terminal, orders: Daemon, tmp_path: Path
) -> None:
    terminal.typed("", PROMPT)
    terminal.typed("SELECT name\n", "ingester-> ")
    assert "b" in terminal.typed("FROM orders ORDER BY id;\n", "(2 rows)")
    terminal.typed("", PROMPT)
    terminal.typed("SELECT 'x' AS a; SELECT 'y' AS b;\n", "(1 row)")
    terminal.typed("", "(1 row)")
    terminal.typed("", PROMPT)
    assert "orders" in terminal.typed("SHOW TABLES;\n", PROMPT)
    assert "Traceback" not in terminal.typed("SELEC 1;\n", PROMPT)
    # Ctrl-C drops what was typed, and later ends a running query.
    terminal.typed("SELECT 'dropped\n", "ingester-> ")
    terminal.typed("\x03", PROMPT)
    with Client(orders.flight) as client:

        def running() -> int:
            return int(client.status()["sql"]["running"])

        terminal.send(f"{ENDLESS};\n")
        until(lambda: running() == 1, "the query", WITHIN_S)
        terminal.typed("\x03", "cancelled")
        until(lambda: running() == 0, "its end at the daemon", WITHIN_S)
    terminal.typed("", PROMPT)
    terminal.typed("FROM sqls\t\n", "ingester-> ")
    terminal.typed(";\n", "(2 rows)")
    terminal.typed("", PROMPT)
    terminal.send("\x04")
    assert terminal.process.wait(WITHIN_S) == 0
    history = tmp_path / ".ingester_history"
    assert "SELECT name FROM orders ORDER BY id;" in history.read_text().splitlines()
    assert history.stat().st_mode & 0o777 == 0o600
