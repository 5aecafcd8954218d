"""Several daemons of one store answer SQL as one, if each names the others in ``sql.peers``."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.client import NEVER, Client, Unavailable
from tests.drivers.daemon import Daemon
from tests.drivers.ports import free_port
from tests.drivers.sql import ask, rows
from tests.drivers.wire import create, delete, persist, put


class Two(NamedTuple):
    a: Daemon
    b: Daemon


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    folder = tmp_path_factory.mktemp("peers")
    store = f"file://{folder}/store"
    ports = free_port(), free_port()
    daemons = []
    try:
        for place, name in enumerate("ab"):
            settings: dict[str, Any] = {
                "id": name,
                "store": store,
                "sql__peers": json.dumps([f"grpc://127.0.0.1:{ports[1 - place]}"]),
            }
            flight = ("--flight", f"127.0.0.1:{ports[place]}")
            daemons.append(Daemon.start(folder / name, arguments=flight, **settings))
        yield Two(*daemons)
    finally:
        for daemon in daemons:
            daemon.kill()


def test_a_query_at_any_daemon_has_the_rows_of_all(two: Two) -> None:
    with fl.connect(two.a.flight) as a, fl.connect(two.b.flight) as b:
        put(a, ("shop", "visits"), pa.record_batch({"n": [1]}))
        put(b, ("shop", "visits"), pa.record_batch({"n": [2], "later": ["x"]}))
        for _ in range(2):
            for client in (a, b):
                found = rows(client, "SELECT n, later FROM shop.visits ORDER BY n")
                assert found == [(1, None), (2, "x")]
                assert rows(client, "SELECT n FROM shop.visits WHERE later = 'x'") == [(2,)]
                answer = ask(client, "SELECT count(*) FROM shop.visits")
                assert json.loads(answer.schema.metadata[b"parts"]) == ["a", "b"]
            persist(b, ("shop", "visits"))
        put(b, ("shop", "visits"), pa.record_batch({"n": [3]}))
        assert rows(a, "SELECT sum(n) FROM shop.visits") == [(6,)]


def test_copies_of_a_peers_rows_are_out_of_reach_and_end_with_their_query(two: Two) -> None:
    with fl.connect(two.a.flight) as a, fl.connect(two.b.flight) as b:
        put(b, ("shop", "copied"), pa.record_batch({"n": [1]}))
        files = "glob(current_setting('temp_directory') || '/**')"
        assert rows(a, f"SELECT n, (SELECT count(*) FROM {files}) FROM shop.copied") == [(1, 0)]
    assert not [path for path in (two.a.data_dir / "sql").rglob("*") if path.is_file()]


def test_a_table_with_a_key_is_read_at_its_owner(two: Two) -> None:
    table = ("shop", "keyed")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
    with fl.connect(two.a.flight) as a, fl.connect(two.b.flight) as b:
        create(b, table, schema, primary_key=["id"])
        put(b, table, pa.record_batch({"id": [1, 2, 3], "v": ["a", "b", "c"]}))
        persist(b, table)
        put(b, table, pa.record_batch({"id": [2, 4], "v": ["B", "d"]}))
        delete(b, table, pa.record_batch({"id": [3]}))
        for client in (a, b):
            found = rows(client, "SELECT id, v FROM shop.keyed ORDER BY id")
            assert found == [(1, "a"), (2, "B"), (4, "d")]
            assert rows(client, "SELECT id FROM shop.keyed WHERE v IN ('b', 'c')") == []


def test_each_row_is_there_once_while_both_daemons_write_and_flush(two: Two) -> None:
    table = ("shop", "once")
    written = {"a": 0, "b": 0}

    def write(daemon: Daemon, name: str) -> None:
        with fl.connect(daemon.flight) as client:
            for n in range(60):
                put(client, table, pa.record_batch({"who": [name], "n": [n]}))
                written[name] = n + 1
                if n % 10 == 9:
                    persist(client, table)

    with fl.connect(two.a.flight) as a:
        put(a, table, pa.record_batch({"who": ["-"], "n": [0]}))
        threads = [
            threading.Thread(target=write, args=(daemon, name))
            for name, daemon in zip("ab", two, strict=True)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            before = dict(written)
            text = "SELECT who, count(*), count(DISTINCT n), max(n) FROM shop.once GROUP BY who"
            for who, count, distinct, newest in rows(a, text):
                assert isinstance(who, str)
                assert count == distinct
                assert isinstance(newest, int) and count == newest + 1
                assert newest + 1 >= before.get(who, 0)
        for thread in threads:
            thread.join()


def test_a_peer_that_is_away_is_named(tmp_path: Path) -> None:
    port = free_port()
    peers = json.dumps([f"grpc://127.0.0.1:{port}"])
    with (
        Daemon.start(tmp_path / "data", sql__peers=peers) as daemon,
        fl.connect(daemon.flight) as client,
    ):
        put(client, ("shop", "t"), pa.record_batch({"n": [1]}))
        named = rf"127\.0\.0\.1:{port} \(sql\.peers\) does not answer"
        with pytest.raises(fl.FlightUnavailableError, match=named):
            ask(client, "SELECT n FROM shop.t")
        assert rows(client, "SELECT 1") == [(1,)]


def test_an_unreachable_peer_is_refused_or_left_out_and_named(tmp_path: Path) -> None:
    nobody = "grpc://127.0.0.1:9"
    with (
        Daemon.start(tmp_path / "d", sql__peers=json.dumps([nobody])) as daemon,
        Client(daemon.flight, retry=NEVER) as client,
    ):
        client.write("shop", "visits", pa.table({"n": [1]}))
        with pytest.raises(Unavailable, match=r"sql\.peers"):
            client.sql("FROM shop.visits")
        table = client.sql("FROM shop.visits", missing="allow")
        assert table.to_pylist() == [{"n": 1}]
        assert json.loads(table.schema.metadata[b"missing"]) == [nobody]
        assert json.loads(table.schema.metadata[b"parts"]) == ["tested"]
        # A query that reads no buffers needs no peer.
        table = client.sql("SELECT 1 AS n")
        assert json.loads(table.schema.metadata[b"parts"]) == []


def test_a_client_of_both_daemons_asks_either_of_them(two: Two) -> None:
    with Client([two.a.flight, two.b.flight]) as client:
        for n in range(4):
            client.write("shop", f"both{n}", pa.table({"n": [n]}))
            assert client.sql(f"SELECT n FROM shop.both{n}").to_pylist() == [{"n": n}]
        with client.sql_stream("FROM shop.both0") as stream:
            assert (stream.parts, stream.missing) == (("a", "b"), ())
