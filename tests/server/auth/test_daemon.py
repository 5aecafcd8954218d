"""A daemon that requires tokens: what it reveals, what it logs, and which requests it answers."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon, DaemonEnded
from tests.drivers.waiting import until
from tests.drivers.wire import ARROW_AND_FLIGHT, act, numbers, persist, put, query
from tests.fuzz.raw_flight import call, field, flight_data, ipc_stream, path_descriptor
from tests.server.auth.secured import Secured, connect


def test_the_audit_log_has_administrative_actions_and_refusals(secured: Secured) -> None:
    table = ("shop", "audited")
    with secured.client("rw") as client, secured.client("reads") as reader:
        put(client, table, numbers(0, 1))
        persist(client, table)
        with pytest.raises(fl.FlightUnauthorizedError):
            act(reader, "persist", namespace="shop", table="audited")
        with pytest.raises(pa.ArrowKeyError):
            act(client, "checkpoint_delete", namespace="shop", table="nowhere", partition="p")
    lines = [line for line in secured.audited() if line.get("namespace") == "shop"]
    made = [line for line in lines if line["action"] == "table created"]
    assert [line["outcome"] for line in made if line["table"] == "audited"] == ["done"]
    told = [
        (line["principal"], line["action"], line["table"], line["outcome"])
        for line in lines
        if line["table"] in ("audited", "nowhere") and line["principal"] != "-"
    ]
    assert told == [
        ("rw", "action persist", "audited", "done"),
        ("reads", "action persist", "audited", "forbidden"),
        ("rw", "action checkpoint_delete", "nowhere", "not_found"),
    ]
    assert all(line["peer"].startswith("ipv4:127.0.0.1:") for line in lines if "peer" in line)


def test_no_secret_is_in_what_the_daemon_tells_or_logs(secured: Secured) -> None:
    token = secured.tokens.secret["root"]
    secret = token.split("_", 2)[2]
    with (
        connect(secured.daemon.flight, token + "x") as client,
        pytest.raises(fl.FlightUnauthenticatedError) as refused,
    ):
        query(client, ("shop", "t"))
    texts = [
        str(refused.value),
        secured.daemon.stderr_file.read_text(),
        json.dumps(secured.audited()),
        json.dumps(secured.http("/api/status", "root")[1]),
        str(secured.http("/metrics", "root")[1]),
    ]
    assert not any(secret in text for text in texts)


@pytest.mark.parametrize("more", ["Bearer igt_000000000000_x", ""])
def test_a_call_with_two_tokens_is_refused(secured: Secured, more: str) -> None:
    with (
        connect(secured.daemon.flight, secured.tokens.secret["rw"], more) as client,
        pytest.raises(fl.FlightUnauthenticatedError, match="not one 'Bearer TOKEN'"),
    ):
        list(client.list_flights())


def test_whoever_has_no_token_is_refused_before_anything_that_is_sent_is_read(
    secured: Secured,
) -> None:
    before = secured.http("/api/status", "root")[1]["admission"]["memory"]["used_bytes"]
    batch = pa.record_batch({"v": pa.array([b"x" * (64 << 20)], pa.large_binary())})
    with secured.client(None) as client:
        for _ in range(4):
            with pytest.raises(ARROW_AND_FLIGHT):
                put(client, ("shop", "t"), batch)
    after = secured.http("/api/status", "root")[1]
    assert after["admission"]["memory"]["used_bytes"] <= before + (1 << 20)
    assert after["tables"], "and answers others"


@pytest.mark.parametrize("method", ["DoPut", "DoExchange", "GetSchema", "DoGet", "DoAction"])
def test_who_has_no_token_is_told_so_in_json_whatever_the_method(
    secured: Secured, method: str
) -> None:
    """Before the handler runs, pyarrow can put the JSON only into this one trailer."""
    descriptor = path_descriptor("shop", "t")
    messages = [field(1, b"status")] if method in ("DoGet", "DoAction") else [descriptor]
    if method in ("DoPut", "DoExchange"):
        ((header, body), *_) = ipc_stream(pa.record_batch({"a": [1]}))
        messages = [flight_data(header, body, descriptor)]
    answered = call(secured.daemon.flight, method, messages)
    assert answered.status == "16"
    told = json.loads(answered.binary("grpc-status-details-bin"))
    assert told["code"] == "unauthenticated"
    assert answered.binary("x-arrow-status-message-bin").decode() == told["message"]
    if method in ("DoGet", "DoAction"):
        assert json.loads(answered.binary("ingester-error-bin")) == told
    else:
        assert "ingester-error-bin" not in answered.trailers  # as docs/protocol.md says


def test_a_request_by_another_name_is_not_answered(secured: Secured) -> None:
    for path in ("/", "/metrics", "/api/status"):
        status, body = secured.http(path, "root", Host="evil.example:8080")
        assert (status, body["code"]) == (421, "invalid")
        assert "http.hosts" in body["message"]
        assert secured.http(path, "root", Host="localhost:1")[0] == 200
    assert secured.http("/health/live", Host="evil.example")[0] == 200


def test_sighup_takes_tokens_and_audit_log_up_anew_and_a_bad_file_changes_nothing(
    secured: Secured, tmp_path: Path
) -> None:
    file = secured.tokens.path
    good = file.read_bytes()
    try:
        file.write_bytes(good[:-20])
        until(lambda: problems(secured) != [], "the file to be seen")
        assert "is not a file of tokens" in problems(secured)[0]
        assert "ingester_auth_problems 1.0" in str(secured.http("/metrics", "root")[1])
        assert str(file) not in json.dumps(secured.http("/api/status", "rw")[1])
    finally:
        file.write_bytes(good)
    secured.audit_file.rename(tmp_path / "audit.1")
    secured.reload()
    until(secured.audit_file.exists, "the audit log to be opened anew")
    until(lambda: problems(secured) == [], "the tokens to be read again")
    assert [line["outcome"] for line in secured.audited() if line["action"] == "tokens reload"]


def problems(secured: Secured) -> list[str]:
    """The reasons why the daemon cannot read its tokens."""
    found: list[str] = secured.http("/api/status", "root")[1]["security"]["callers"]["problems"]
    return found


def test_a_daemon_does_not_start_with_tokens_that_it_cannot_use(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    file.write_text('{"version": 1, "tokens": []}')
    file.chmod(0o644)
    with pytest.raises(DaemonEnded) as ended:
        Daemon.start(tmp_path / "data", auth__tokens=str(file))
    assert "auth.tokens" in ended.value.stderr
    assert "chmod 0640" in ended.value.stderr
