"""``POST /api/sql``: answers, limits, rights, other sites, and queries that nobody waits for."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.errors import BadRequest, NotAuthenticated, NotAvailable, OverQuota, TooManyStreams
from ingester.server.auth.access import Access
from ingester.server.auth.rights import Caller, parse_grants
from ingester.server.http import sql as route
from ingester.server.http.app import create_app
from ingester.server.http.entrance import Entrance
from ingester.server.tls import check_certificates
from ingester.sql.engine import SqlEngine
from ingester.sql.request import MAX_SQL_BYTES, Statement
from tests.drivers.certificates import Authority
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.drivers.wire import Table, numbers, put
from tests.server.http.serving import Answer, RunningServer, TurnableSource
from tests.server.http.told_engine import Told

WITHIN_S = 10.0


@contextmanager
def served(engine: SqlEngine | str, access: Access | None = None) -> Iterator[RunningServer]:
    """Serve with this engine."""
    server = RunningServer(create_app(TurnableSource(sql=engine), Entrance(access)))
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def engine() -> Told:
    """The engine of :func:`server`."""
    return Told({"": pa.table({"a": [1]})})


@pytest.fixture(scope="module")
def server(engine: Told) -> Iterator[RunningServer]:
    """A server without tokens."""
    with served(engine) as server:
        yield server


def post(server: RunningServer, body: Any, **headers: str) -> Answer:
    """Send a statement, or a body as it is."""
    if isinstance(body, str):
        body = {"sql": body}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return server.post(route.PATH, data, **{"Content-Type": "application/json"} | headers)


def refusal(answer: Answer) -> tuple[int, str, str]:
    """Its status, code and message."""
    found = json.loads(answer.body)
    assert set(found) == {"code", "message"}
    return answer.status, found["code"], found["message"]


def test_an_answer_has_columns_and_rows(server: RunningServer, engine: Told) -> None:
    engine.answers["SELECT 1"] = pa.table({"a": pa.array([1, None], "int32"), "<b>": ["x", "y"]})
    answer = post(server, {"sql": "SELECT 1", "namespace": "shop"})
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    assert json.loads(answer.body) == {
        "columns": [{"name": "a", "type": "int32"}, {"name": "<b>", "type": "string"}],
        "rows": [["1", "x"], [None, "y"]],
        "truncated": False,
    }
    assert engine.asked[-1][0] == Statement("SELECT 1", "shop", first_rows=1001)
    assert engine.closed > 0


def test_at_most_a_thousand_rows_are_sent(server: RunningServer, engine: Told) -> None:
    for count, truncated in ((1000, False), (1001, True), (50_000, True), (0, False)):
        engine.answers["rows"] = pa.table({"n": range(count)})
        found = json.loads(post(server, "rows").body)
        assert [int(row[0]) for row in found["rows"]] == list(range(min(count, 1000)))
        assert found["truncated"] is truncated


def test_at_most_a_mebibyte_is_sent_and_of_long_values_the_size(
    server: RunningServer, engine: Told
) -> None:
    engine.answers["wide"] = pa.table({"t": ["\0" * 4000] * 1000})  # 6 bytes each in JSON
    answer = post(server, "wide")
    assert 1 << 19 < len(answer.body) < (1 << 20) + 200
    assert json.loads(answer.body)["truncated"] is True
    engine.answers["long"] = pa.table(
        {"t": ["é" * 40_000, "x"], "e": pa.array(["a", "a"]).dictionary_encode(), "l": [["y"], []]}
    )
    found = json.loads(post(server, "long").body)
    assert found["rows"] == [["(80,004 bytes)", "a", '["y"]'], ["x", "a", "[]"]]
    assert found["truncated"] is False
    engine.answers["names"] = pa.table({f"{n:04}{'x' * 2000}": [n] for n in range(600)})
    assert refusal(post(server, "names"))[:2] == (400, "invalid")


def test_errors_have_their_code_and_status(server: RunningServer, engine: Told) -> None:
    engine.answers["bad"] = BadRequest("Parser Error: …")
    assert refusal(post(server, "bad")) == (400, "invalid", "Parser Error: …")
    for error, status, after in (
        (TooManyStreams("all workers are busy", retry_after_s=1.5), 503, "2"),
        (OverQuota("the namespace has 2 queries"), 429, "1"),
    ):
        engine.answers["busy"] = error
        answer = post(server, "busy")
        assert (answer.status, answer.headers["retry-after"]) == (status, after)
        assert refusal(answer)[1] == "limit"
    engine.answers["bug"] = ValueError("/secret/path")
    status, code, message = refusal(post(server, "bug"))
    assert (status, code) == (500, "internal")
    assert "secret" not in message
    engine.answers["missing"] = NotAvailable("SQL needs DuckDB")
    assert refusal(post(server, "missing"))[:2] == (501, "unimplemented")
    with served("starting") as starting:
        assert refusal(post(starting, ""))[:2] == (503, "stopping")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "truncated"),
        (b"[" * 100_000, "body"),
        (b'{"sql": 1}', "Expected `str`"),
        (b'{"sql": "SELECT 1", "parameter": 1}', "unknown field `parameter`"),
        (b'{"sql": "\xff"}', "utf-8"),
        (json.dumps({"sql": "x" * (MAX_SQL_BYTES + 1)}).encode(), "at most"),
    ],
)
def test_a_body_that_is_no_statement_is_refused(
    server: RunningServer, body: bytes, said: str
) -> None:
    status, code, message = refusal(post(server, body))
    assert (status, code) == (400, "invalid")
    assert said in message


def test_only_post_of_json_is_answered(server: RunningServer) -> None:
    for method in ("GET", "HEAD", "PUT", "OPTIONS"):
        answer = server.request(route.PATH, method)
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
        assert "access-control-allow-origin" not in answer.headers
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert refusal(post(server, "", **{"Content-Type": kind}))[:2] == (415, "invalid")
    assert post(server, "", **{"Content-Type": "Application/JSON; charset=utf-8"}).status == 200
    huge = post(server, b" " * (route.MAX_BODY_BYTES + 1))
    assert refusal(huge)[:2] == (413, "invalid")


def test_a_page_of_another_site_cannot_ask(server: RunningServer) -> None:
    host, port = server.address
    for allowed in (
        {"Origin": f"http://{host}:{port}"},
        {"Origin": "https://proxy.example", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
    ):
        assert post(server, "", **allowed).status == 200
    for refused in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://{host}:{port + 1}"},
        {"Origin": f"http://{host}:{port}", "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        assert refusal(post(server, "", **refused))[:2] == (403, "forbidden")
    assert refusal(post(server, "", Host="evil.example"))[0] == 421


class Tokens:
    """Tokens by their grant; ``revoked`` ones are refused."""

    def __init__(self) -> None:
        self.revoked = ""

    def knows(self, token: str) -> bool:
        """Every token is of this kind."""
        return True

    def caller(self, token: str) -> Caller:
        """Return the owner of the token."""
        if token == self.revoked:
            raise NotAuthenticated("the token is not known here")
        return Caller("someone", "1", parse_grants([token.removeprefix("igt_")]))


def test_a_caller_asks_for_what_it_may_read_until_its_token_is_revoked() -> None:
    engine, access, tokens = Told(), Access(), Tokens()
    access.trust(tokens)
    engine.answers["SELECT 1"] = pa.table({"a": [1]})
    with served(engine, access) as server:
        assert refusal(post(server, ""))[:2] == (401, "unauthenticated")
        assert refusal(post(server, "", Authorization="Bearer igt_shop:write"))[:2] == (
            *(403, "forbidden"),
        )
        assert engine.asked == []
        for grant, seen in (("shop:read", [True, False]), ("*:admin", [True, True])):
            post(server, "SELECT 1", Authorization=f"Bearer igt_{grant}")
            caller = engine.asked[-1][1]
            assert [caller.may_read(name) for name in ("shop", "other")] == seen
            assert caller.authorization == f"Bearer igt_{grant}"
        revoked = threading.Thread(
            target=lambda: refused.append(
                post(server, "endless", Authorization="Bearer igt_a:read")
            )
        )
        refused: list[Answer] = []
        revoked.start()
        engine.wait_running(1)
        tokens.revoked = "igt_a:read"
        access.changed()
        revoked.join(WITHIN_S)
        assert refusal(refused[0])[:2] == (401, "unauthenticated")


def open_query(server: RunningServer, body: bytes = b'{"sql": "endless"}') -> socket.socket:
    """Send a query and do not wait for its answer."""
    host, port = server.address
    sock = socket.create_connection((host, port), timeout=WITHIN_S)
    sock.sendall(posted(host, 18) + body)
    return sock


def posted(host: str, size: int) -> bytes:
    """The head of a request with a body of this size."""
    head = f"POST {route.PATH} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {size}\r\n\r\n".encode()


def test_a_query_ends_when_its_client_disconnects(server: RunningServer, engine: Told) -> None:
    with open_query(server):
        engine.wait_running(1)
    began = time.monotonic()
    engine.wait_running(0)
    assert time.monotonic() - began < 1.0
    with open_query(server, b'{"sql": '):
        pass
    assert post(server, "").status == 200


@pytest.mark.parametrize("politely", [True, False])
def test_a_query_over_tls_ends_when_its_client_says_goodbye_or_not(
    tmp_path: Path, politely: bool
) -> None:
    authority, engine = Authority(tmp_path), Told()
    pair = authority.issue("daemon")
    certificates = check_certificates(pair.cert.read_bytes(), pair.key.read_bytes(), None)
    server = RunningServer(create_app(TurnableSource(sql=engine)), certificates=certificates)
    context = ssl.create_default_context(cafile=str(authority.path))
    plain = socket.create_connection(server.address, timeout=WITHIN_S)
    try:
        with context.wrap_socket(plain, server_hostname="localhost") as sock:
            body = b'{"sql": "endless"}'
            sock.sendall(posted("localhost", len(body)) + body)
            engine.wait_running(1)
            if politely:
                # Only TLS is closed: the TCP connection stays.
                with suppress(ssl.SSLError):  # the answer comes after the goodbye
                    sock.unwrap()
                engine.wait_running(0)
        engine.wait_running(0)
    finally:
        server.stop()


def test_a_connection_takes_one_query_after_another(server: RunningServer, engine: Told) -> None:
    engine.answers["SELECT 1"] = pa.table({"a": [1]})
    engine.answers["bad"] = BadRequest("bad")
    connection = http.client.HTTPConnection(*server.address, timeout=WITHIN_S)
    try:
        for statement, status in (("SELECT 1", 200), ("bad", 400), ("", 200), ("SELECT 1", 200)):
            body = json.dumps({"sql": statement})
            connection.request("POST", route.PATH, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == status
            assert not answer.will_close
    finally:
        connection.close()


def test_queries_leave_the_status_and_the_metrics_alone(
    server: RunningServer, engine: Told
) -> None:
    queries = [open_query(server) for _ in range(route.QUERIES)]
    engine.wait_running(route.QUERIES)
    answer = post(server, "SELECT 1")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert json.loads(answer.body)["code"] == "saturated"
    for path in ("/", "/metrics", "/api/status", "/health/live"):
        assert server.request(path).status == 200
    for each in queries:
        each.close()
    engine.wait_running(0)


def test_a_stop_of_the_server_ends_its_queries() -> None:
    engine = Told()
    with served(engine) as server, open_query(server):
        engine.wait_running(1)
        assert server.stop() < 5.0
        engine.wait_running(0)


# A real daemon


def ask(daemon: Daemon, statement: str, namespace: str | None = None) -> tuple[int, Any]:
    """Send a statement to a daemon."""
    request = urllib.request.Request(
        f"{daemon.http}{route.PATH}",
        json.dumps({"sql": statement, "namespace": namespace}).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as exc:
        return exc.code, json.load(exc)


def counts(daemon: Daemon) -> dict[str, int]:
    """The daemon's numbers of queries."""
    with urllib.request.urlopen(f"{daemon.http}/api/status") as answer:
        found: dict[str, int] = json.load(answer)["sql"]
        return found


@pytest.mark.skipif(find_spec("duckdb") is None, reason="needs the extra sql")
def test_a_daemon_answers_and_counts(shared: Daemon, client: fl.FlightClient, table: Table) -> None:
    before = counts(shared)
    assert before["available"] is True
    put(client, table, numbers(0, 5000))
    status, found = ask(shared, f"SELECT i FROM {table[1]} ORDER BY i", table[0])
    assert status == 200
    assert found["rows"] == [[str(n)] for n in range(1000)]
    assert found["truncated"] is True
    status, found = ask(shared, f"SELECT count(*) AS n FROM {table[0]}.{table[1]}")
    assert (found["columns"], found["rows"]) == ([{"name": "n", "type": "int64"}], [["5000"]])
    assert ask(shared, "SELECT * FROM nowhere.t")[0] == 400
    endless = b'{"sql": "SELECT count(*) FROM range(1000000000000)"}'
    host, port = urlsplit(shared.http).netloc.split(":")
    with socket.create_connection((host, int(port)), timeout=WITHIN_S) as sock:
        sock.sendall(posted(host, len(endless)) + endless)
        until(lambda: counts(shared)["running"] == 1, "its start")
    until(lambda: counts(shared)["cancelled"] == before["cancelled"] + 1, "its end", 2.0)
    after = counts(shared)
    assert {name: after[name] - before[name] for name in ("done", "failed", "rows", "running")} == {
        **{"done": 2, "failed": 1, "rows": 1002, "running": 0}
    }
    with urllib.request.urlopen(f"{shared.http}/metrics") as answer:
        shown = answer.read().decode()
    assert f'ingester_sql_queries_total{{outcome="done"}} {after["done"]}.0' in shown
    assert f"ingester_sql_seconds_count {after['started']}.0" in shown
