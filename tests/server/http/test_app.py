"""HTTP routes, tested with a plain HTTP client."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator

import msgspec
import pytest

from ingester.observability.metrics import Metrics
from ingester.observability.status import Alarm, DaemonStatus, Reason
from ingester.server.http.app import runbook_entries
from tests.server.http.serving import RunningServer, TurnableSource, example_status, serving


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[TurnableSource, RunningServer]]:
    source = TurnableSource()
    Metrics(source.registry).table("sensors", "readings").wrote(10, 400)
    with serving(source) as server:
        yield source, server


@pytest.fixture
def source(served: tuple[TurnableSource, RunningServer]) -> TurnableSource:
    source, _ = served
    source.is_live, source.not_ready, source.refuses, source.away = True, [], [], []
    source.shown, source.failure = example_status(), None
    return source


@pytest.fixture
def server(served: tuple[TurnableSource, RunningServer], source: TurnableSource) -> RunningServer:
    return served[1]


def test_live_follows_the_daemon(server: RunningServer, source: TurnableSource) -> None:
    alive = server.request("/health/live")
    source.is_live = False
    dead = server.request("/health/live")
    assert (alive.status, json.loads(alive.body)) == (200, {"live": True})
    assert (dead.status, json.loads(dead.body)) == (503, {"live": False})


def test_a_daemon_is_ready_for_what_works_and_names_its_alarms(
    server: RunningServer, source: TurnableSource
) -> None:
    alarm = Alarm(
        name="store-away",
        severity="critical",
        since="2026-11-26T17:00:00Z",
        message="the store does not answer",
        runbook="store-away",
    )
    source.refuses, source.away = ["memory: 950 MiB of 1 GiB"], ["store: does not answer"]
    source.shown = msgspec.structs.replace(source.shown, alarms=[alarm])
    reasons = {"any": [], "query": source.away, "write": source.refuses}
    for purpose, said in reasons.items():
        answer = server.request(f"/health/ready?for={purpose}")
        assert answer.status == (503 if said else 200)
        assert json.loads(answer.body) == {
            "ready": not said,
            "for": purpose,
            "reasons": said,
            "alarms": ["store-away"],
            "limited": [],
        }
    source.refuses = []
    answer = server.request("/health/ready?for=write")
    assert answer.status == 200
    assert json.loads(answer.body)["limited"] == ["store: the store does not answer"]
    plain = server.request("/health/ready")
    assert (plain.status, json.loads(plain.body)["for"]) == (200, "any")


def test_a_starting_daemon_is_live_but_not_ready(
    server: RunningServer, source: TurnableSource
) -> None:
    source.not_ready = ["starting: replaying the log"]
    assert server.request("/health/live").status == 200
    answer = server.request("/health/ready")
    assert answer.status == 503
    assert json.loads(answer.body)["reasons"] == ["starting: replaying the log"]


def test_a_probe_with_an_unknown_purpose_is_told_so(server: RunningServer) -> None:
    answer = server.request("/health/ready?for=writes")
    assert answer.status == 400
    assert "'writes'" in json.loads(answer.body)["message"]


def test_status_is_the_struct_as_json(server: RunningServer, source: TurnableSource) -> None:
    reason = Reason(code="memory", message="over the high watermark", retry_after_s=1.5)
    source.shown = example_status("ready", [reason])
    answer = server.request("/api/status")
    assert answer.headers["content-type"] == "application/json"
    assert msgspec.json.decode(answer.body, type=DaemonStatus) == source.shown
    body = json.loads(answer.body)
    assert body["admission"]["reasons"] == [
        {"code": "memory", "message": "over the high watermark", "retry_after_s": 1.5}
    ]
    assert body["rates"]["last_10s"]["rows_per_s"] == 1.2e6
    assert body["tables"][0]["buffered"] == {"rows": 250000, "bytes": 31457280, "partitions": 2}


def test_a_page_of_the_tables_is_what_the_query_asks_for(
    server: RunningServer, source: TurnableSource
) -> None:
    tables = [msgspec.structs.replace(source.shown.tables[0], table=name) for name in "cab"]
    source.shown = msgspec.structs.replace(source.shown, tables=tables)
    first = json.loads(server.request("/api/status/tables?limit=2").body)
    assert [each["table"] for each in first["items"]] == ["a", "b"]
    assert (first["total"], first["next"]) == (3, "sensors/b")
    last = json.loads(server.request("/api/status/tables?after=sensors%2Fb").body)
    assert ([each["table"] for each in last["items"]], last["next"]) == (["c"], None)


@pytest.mark.parametrize(
    ("path", "named"),
    [("pages", "'pages' is not one of"), ("tables?limit=-1", "'-1'"), ("tables?limit=0", "0")],
)
def test_a_page_that_is_not_there_is_refused_by_name(
    server: RunningServer, path: str, named: str
) -> None:
    answer = server.request(f"/api/status/{path}")
    assert answer.status == 400
    assert named in json.loads(answer.body)["message"]


def test_metrics_come_in_both_prometheus_formats(server: RunningServer) -> None:
    plain = server.request("/metrics")
    assert plain.status == 200
    assert plain.headers["content-type"].startswith("text/plain; version=")
    line = b'ingester_rows_total{namespace="sensors",table="readings"} 10.0'
    assert line in plain.body.splitlines()
    newer = server.request("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert newer.headers["content-type"].startswith("application/openmetrics-text")
    assert newer.body.endswith(b"# EOF\n")


@pytest.mark.parametrize("path", ["/", "/metrics", "/api/status", "/health/live", "/health/ready"])
def test_head_answers_as_get_without_a_body(server: RunningServer, path: str) -> None:
    get, head = server.request(path), server.request(path, "HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"]
    assert get.headers["cache-control"] == head.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", ["/", "/metrics", "/api/status", "/health/live", "/health/ready"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods_are_not_allowed(server: RunningServer, path: str, method: str) -> None:
    answer = server.request(path, method)
    assert answer.status == 405
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD"}
    assert json.loads(answer.body)["code"] == "method_not_allowed"


@pytest.mark.parametrize("path", ["/nothing", "/health", "/metrics/", "/api/x", "//", "/%00"])
def test_an_unknown_path_is_a_json_404(server: RunningServer, path: str) -> None:
    answer = server.request(path)
    assert answer.status == 404
    assert answer.headers["content-type"] == "application/json"
    assert json.loads(answer.body)["code"] == "not_found"


def test_a_failure_shows_an_id_and_no_traceback(
    server: RunningServer, source: TurnableSource, capfd: pytest.CaptureFixture[str]
) -> None:
    source.failure = RuntimeError("secret at /etc/passwd")
    answer = server.request("/api/status")
    body = json.loads(answer.body)
    assert (answer.status, body["code"]) == (500, "internal")
    error_id = re.search(r"internal error (\w+)", body["message"])
    assert error_id is not None
    for hidden in (b"secret", b"Traceback", b".py", b"RuntimeError"):
        assert hidden not in answer.body
    logged = "".join(capfd.readouterr())
    assert error_id[1] in logged
    assert "secret at /etc/passwd" in logged


def test_the_page_loads_nothing_from_elsewhere(server: RunningServer) -> None:
    page = server.request("/")
    text = page.body.decode()
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    links = re.findall(r"""(?:src|href)=["']([^"']+)""", text)
    assert links
    assert all(link.startswith(("/", "data:", "#")) for link in links)
    # The SVG namespace is a name, not a link.
    assert set(re.findall(r"https?://[^\s'\"]+", text)) == {"http://www.w3.org/2000/svg"}


def test_the_policy_allows_exactly_the_pages_own_style_and_script(server: RunningServer) -> None:
    page = server.request("/")
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    for tag in ("script", "style"):
        parts = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>".encode(), page.body, re.DOTALL)
        assert len(parts) == 1
        digest = base64.b64encode(hashlib.sha256(parts[0]).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}';" in policy
    # The policy would block style attributes and inline event handlers, so there must be none.
    markup = re.sub(rb"<(script|style)>.*?</\1>", b"", page.body, flags=re.DOTALL)
    assert not re.search(rb"<[^>]+\s(style|on\w+)=", markup)


def test_the_page_never_makes_markup_of_names(server: RunningServer) -> None:
    script = server.request("/").body.decode()
    writes = (
        r"\.(innerHTML|outerHTML)\s*=[^=]|insertAdjacentHTML|document\.write|\beval\b|new Function"
    )
    assert not re.search(writes, script)


def test_the_runbook_is_here_by_the_names_of_alarms_and_errors(server: RunningServer) -> None:
    entries = runbook_entries()
    assert entries["disk-full"].startswith("## disk-full\n")
    assert "## store-away" not in entries["disk-full"]
    assert all(len(text) > 100 for text in entries.values())
    answer = server.request("/runbook/disk-full")
    assert (answer.status, answer.body.decode()) == (200, entries["disk-full"])
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert server.request("/runbook/nothing").status == 404
