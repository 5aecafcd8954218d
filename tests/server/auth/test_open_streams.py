"""An open stream ends within seconds of its token's end, and the client gets the reason."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.flight as fl
import pytest

from ingester.client import Client, ConnectionOptions
from tests.drivers.waiting import until
from tests.drivers.wire import Stream, extra, numbers, path, put, rows, ticket
from tests.server.auth.secured import Secured

ENDS_WITHIN_S = 10.0
"""Twice the documented time, for a busy machine."""


def test_streams_end_when_their_token_is_revoked(secured: Secured) -> None:
    table, quiet = ("shop", "revoked"), ("shop", "quiet")
    secured.tokens.add("leaving", "shop:read,write")
    secured.reload()
    until(lambda: admitted(secured, "leaving"), "the new token to be known")
    with (
        secured.client("leaving") as client,
        secured.client("rw") as stays,
        ThreadPoolExecutor(1) as threads,
    ):
        sending = Stream(client, path(table), numbers(0, 1).schema)
        idle = Stream(client, path(table), numbers(0, 1).schema)
        other = Stream(stays, path(table), numbers(0, 1).schema)
        for stream in (sending, idle, other):
            stream.write(numbers(0, 1))
        put(stays, quiet, numbers(0, 1))
        waits = ticket(quiet, scope="live", after=now(client, quiet), wait_s=30)
        waiting = threads.submit(lambda: client.do_get(waits).read_all())
        until(lambda: waiting_calls(secured) == 1, "the follower's call")
        secured.tokens.revoke("leaving")
        began = time.monotonic()
        with pytest.raises((OSError, fl.FlightError)) as ended:
            send_for_ever(sending)
        assert time.monotonic() - began < ENDS_WITHIN_S
        assert "was revoked at" in str(ended.value)
        # On an empty answer, an idle client ends its call, which reports the reason.
        assert idle.answer() is None
        with pytest.raises((OSError, fl.FlightError), match="was revoked at"):
            idle.close()
        with pytest.raises(fl.FlightUnauthenticatedError) as refused:
            waiting.result(30)
        assert extra(refused.value)["code"] == "unauthenticated"
        assert time.monotonic() - began < ENDS_WITHIN_S
        assert other.write(numbers(0, 1))["accepted"]
        other.close()
        assert rows(stays, table).count(0) == 4


def test_a_stream_ends_when_its_token_expires_or_loses_its_right(secured: Secured) -> None:
    table = ("shop", "expiring")
    secured.tokens.add("brief", "shop:read,write", expires=datetime.now(UTC) + timedelta(seconds=2))
    secured.reload()
    until(lambda: admitted(secured, "brief"), "the new token to be known")
    with secured.client("brief") as client:
        stream = Stream(client, path(table), numbers(0, 1).schema)
        stream.write(numbers(0, 1))
        assert stream.answer() is None
        with pytest.raises((OSError, fl.FlightError), match="expired at"):
            stream.close()
        with pytest.raises(fl.FlightUnauthenticatedError, match="expired at"):
            put(client, table, numbers(0, 1))


def send_for_ever(stream: Stream) -> None:
    """Send batches until the call ends, reading the answers."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        stream.write(numbers(1, 1))


def waiting_calls(secured: Secured) -> int:
    """The number of followers' calls that wait."""
    waiting: int = secured.http("/api/status", "root")[1]["streams"]["waiting"]
    return waiting


def test_a_writer_goes_on_when_its_token_is_rotated(secured: Secured, tmp_path: Path) -> None:
    file, table = tmp_path / "token", ("shop", "rotated")
    for name in ("old", "new"):
        secured.tokens.add(name, "shop:read,write")
    secured.reload()
    until(lambda: admitted(secured, "new"), "the new tokens to be known")
    file.write_text(secured.tokens.secret["old"])
    written = 0
    options = ConnectionOptions(token_file=str(file))
    with (
        Client(secured.daemon.flight, options=options) as client,
        client.writer(*table, numbers(0, 1).schema, origin="rotated") as writer,
    ):

        def ended() -> bool:
            nonlocal written
            writer.write(numbers(written, 1))
            written += 1
            return any(line["principal"] == "old" for line in secured.audited())

        ended()
        writer.flush()
        file.write_text(secured.tokens.secret["new"])
        secured.tokens.revoke("old")
        secured.reload()
        until(ended, "the stream with the old token to end")
        ended()
    with secured.client("rw") as reader:
        assert rows(reader, table) == list(range(written))


def admitted(secured: Secured, name: str) -> bool:
    """Whether the daemon accepts this token yet."""
    return secured.http("/api/status", name)[0] == 200


def now(client: fl.FlightClient, table: tuple[str, str]) -> dict[str, int]:
    """The current position of a table's live feed."""
    answered = client.do_get(ticket(table)).schema
    said = {key.decode(): value.decode() for key, value in (answered.metadata or {}).items()}
    return {"epoch": int(said["epoch"]), "sequence": int(said["snapshot_sequence"])}
