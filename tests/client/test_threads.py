"""A failing thread ends its writer with the error; no caller waits forever."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from ingester.client import (
    Ack,
    Client,
    ClientError,
    InvalidRequest,
    UnknownOutcome,
    WriteAnswer,
    connection,
)
from ingester.client.connection import Connection
from ingester.client.credentials import ConnectionOptions, Credentials
from ingester.client.delivery import Delivery, Pending, SendWindow, WindowLimits
from ingester.client.retry import NEVER, RetryState
from ingester.client.route import Route, RouteRequest
from ingester.client.sender import BatchSender
from ingester.client.streams import PutStream
from ingester.client.wire import put_command
from tests.client.rows import SCHEMA, batch, values
from tests.client.small_daemon import SmallDaemon


class Boom(BaseException):
    """An exception that no code expects."""


class BrokenStream(PutStream):
    """Fails in one of its calls."""

    broken = ""

    def send(self, pending: Pending) -> None:
        self._may_fail("send")
        super().send(pending)

    def answers(self) -> Iterator[WriteAnswer]:
        self._may_fail("answers")
        yield from super().answers()

    def finish_sending(self) -> None:
        super().finish_sending()
        self._may_fail("finish_sending")

    def end(self) -> ClientError | None:
        self._may_fail("end")
        return super().end()

    def _may_fail(self, call: str) -> None:
        if self.broken == call:
            raise Boom(call)


@pytest.mark.parametrize("where", ["open", "send", "answers", "finish_sending", "end"])
def test_a_failed_thread_fails_the_writer_and_every_ack(daemon: SmallDaemon, where: str) -> None:
    # The stream ends before its answers: the client makes its last calls only then.
    daemon.before = _refuse_everything if where in ("finish_sending", "end") else lambda n: None
    with flight.connect(daemon.endpoint) as connected:

        class Breaking(Route):
            def open(self) -> PutStream:
                if where == "open":
                    raise Boom(where)
                credentials = Credentials(daemon.endpoint, ConnectionOptions())
                stream = BrokenStream(connected, way.command, SCHEMA, credentials)
                stream.broken = where
                return stream

        way = RouteRequest(
            ("ns", "t"), None, put_command("write", "ns", "t", None), SCHEMA, asks=False
        )
        route = Breaking(Connection(daemon.endpoint, 30.0, NEVER), way)
        window = SendWindow(WindowLimits())
        sender = BatchSender(route, Delivery(window, None, RetryState(NEVER, lambda: 0.0)), 30.0)
        acks = []
        with pytest.raises(UnknownOutcome, match=f"thread failed: Boom: {where}") as caught:  # noqa: PT012
            for _ in range(3):  # later writes may meet the failure already
                ack = sender.append(batch(1), None)
                assert ack is not None
                acks.append(ack)
            sender.wait_until_idle()
        assert isinstance(caught.value.__cause__, Boom)
        assert acks
        assert {ack.exception(10) for ack in acks} == {caught.value}


def _refuse_everything(n: int) -> None:
    raise pa.ArrowInvalid("column 'v': no")


def test_an_invalid_answer_fails_the_writer(
    daemon: SmallDaemon, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "apply", lambda *_: "nonsense")
    writer = client.writer("ns", "t", SCHEMA)
    ack = writer.write(batch(1))
    assert isinstance(ack.exception(10), UnknownOutcome)
    with pytest.raises(UnknownOutcome, match="Expected `object`, got `str`"):
        writer.close()


def test_a_writer_without_a_thread_fails_at_once(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    writer = client.writer("ns", "t", SCHEMA)
    with monkeypatch.context() as changed:
        changed.setattr(threading.Thread, "start", start)
        ack = writer.write(batch(1))
    assert isinstance(ack.exception(10), UnknownOutcome)
    with pytest.raises(UnknownOutcome, match="can't start new thread"):
        writer.close()


def test_a_stream_without_a_reading_thread_is_closed(
    daemon: SmallDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, finished = threading.Thread.start, threading.Event()

    def start(thread: threading.Thread) -> None:
        if thread.name == "ingester-answers":
            raise RuntimeError("can't start new thread")
        begin(thread)

    class Told(PutStream):
        def finish_sending(self) -> None:
            super().finish_sending()
            finished.set()

    monkeypatch.setattr(connection, "PutStream", Told)
    with monkeypatch.context() as changed, Client(daemon.endpoint) as client:
        changed.setattr(threading.Thread, "start", start)
        ack = client.writer("ns", "t", SCHEMA).write(batch(1))
        assert isinstance(ack.exception(10), UnknownOutcome)
    assert finished.is_set()


def test_invalid_data_is_refused_at_once_and_the_writer_stays_usable(
    daemon: SmallDaemon, client: Client
) -> None:
    with client.writer("ns", "t", SCHEMA) as writer:
        for wrong in (5, None, "text", object(), [1, 2], SCHEMA):
            with pytest.raises(InvalidRequest, match=r"a pyarrow RecordBatch|record batches"):
                writer.write(wrong)
        writer.write(batch(1))
    assert values(daemon) == [1]


def test_a_raising_callback_is_logged_and_has_no_effect(
    daemon: SmallDaemon, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(ack: Ack) -> None:
        raise LookupError("mine")

    with client.writer("ns", "t", SCHEMA) as writer:
        for n in range(20):
            writer.write(batch(n)).add_done_callback(fail)
    assert values(daemon) == list(range(20))
    assert len(daemon.commands) == 1
    assert {record.message for record in caplog.records} == {
        "a callback of an acknowledgement failed"
    }


@pytest.mark.parametrize("how", ["refused", "aborted"])
def test_a_callback_may_wait_for_a_thread_that_uses_the_writer(
    daemon: SmallDaemon, client: Client, how: str
) -> None:
    go_on = threading.Event()
    if how == "refused":
        daemon.before = _refuse_everything
    else:
        daemon.before = lambda n: _wait(go_on)
    writer = client.writer("ns", "t", SCHEMA)
    outcomes: list[Any] = []

    def use() -> None:
        try:
            writer.write(batch(2))
        except ClientError as exc:
            outcomes.append(exc)

    def in_another_thread(ack: Ack) -> None:
        thread = threading.Thread(target=use)
        thread.start()
        thread.join(10)
        outcomes.append(thread.is_alive())

    ack = writer.write(batch(1))
    ack.add_done_callback(in_another_thread)
    told = threading.Event()
    ack.add_done_callback(lambda _: told.set())
    if how == "aborted":
        writer.abort()
    assert told.wait(20)
    go_on.set()
    assert outcomes == [ack.exception(0), False]


def _wait(event: threading.Event) -> None:
    assert event.wait(10)


def test_a_dropped_writer_leaves_no_thread_behind(daemon: SmallDaemon, client: Client) -> None:
    before = set(threading.enumerate())
    assert client.writer("ns", "t", SCHEMA).write(batch(1)).result(10).accepted
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("ingester"):
            thread.join(10)
            assert not thread.is_alive(), thread
    assert values(daemon) == [1]


@pytest.mark.parametrize("use", ["write", "query", "stream", "tables", "sync", "writer"])
def test_a_closed_client_refuses_calls(daemon: SmallDaemon, use: str) -> None:
    client = Client(daemon.endpoint, timeout_s=10)
    client.close()
    client.close()
    calls: dict[str, Callable[[], object]] = {
        "write": lambda: client.write("ns", "t", batch(1)),
        "query": lambda: client.query("ns", "t"),
        "stream": lambda: client.query_stream("ns", "t"),
        "tables": client.tables,
        "sync": lambda: client.sync("ns", "o").standing(),
        "writer": lambda: client.writer("ns", "t", SCHEMA),
    }
    with pytest.raises(InvalidRequest, match="the client is closed: make another one"):
        calls[use]()


def test_a_call_started_during_close_keeps_its_connection(
    daemon: SmallDaemon,
) -> None:
    asking = Connection(daemon.endpoint, 10.0, NEVER)
    begun = asking._flight  # the state of a call that has not reached pyarrow yet
    asking.close()
    assert list(begun.list_flights()) == []
    with pytest.raises(InvalidRequest, match="closed"):
        asking.tables()
