"""Which thread sends a batch: its caller if that cannot block, else the writer's own thread."""

import sys
import threading
import traceback
from collections.abc import Callable

import pyarrow as pa
import pytest

from ingester.client import Client, connection
from ingester.client.ack import Ack
from ingester.client.delivery import Pending
from ingester.client.streams import AT_ONCE_BYTES, PutStream
from tests.client.conftest import QUICK
from tests.client.rows import SCHEMA, batch, values
from tests.client.small_daemon import SmallDaemon, unavailable

LARGE = pa.record_batch({"v": pa.array(range(16_384), pa.int64())})

_streams: list[PutStream] = []

Send = Callable[[Callable[[], None], int], None]
"""Sends a batch by calling the first argument; the second is the number of its first value."""


@pytest.fixture
def senders(monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """The name of the thread that has sent each value."""
    return _observed(monkeypatch, lambda send, value: send())


def _observed(monkeypatch: pytest.MonkeyPatch, through: Send) -> dict[int, str]:
    senders: dict[int, str] = {}
    _streams.clear()

    class Observed(PutStream):
        def send(self, pending: Pending) -> None:
            value = pending.batch["v"][0].as_py()
            _streams.append(self)
            senders[value] = threading.current_thread().name
            through(lambda: super(Observed, self).send(pending), value)

    monkeypatch.setattr(connection, "PutStream", Observed)
    return senders


def test_a_caller_that_waits_for_each_answer_sends_its_batches_itself(
    daemon: SmallDaemon, client: Client, senders: dict[int, str]
) -> None:
    with client.writer("ns", "t", SCHEMA) as writer:
        for n in range(5):
            writer.write(batch(n)).result(10)
            _until(lambda: not _streams[-1].sending)
    own = threading.current_thread().name
    assert [senders[n] for n in range(5)] == ["ingester-send", own, own, own, own]
    assert values(daemon) == list(range(5))


def test_a_caller_returns_at_once_while_the_daemon_does_not_read(
    daemon: SmallDaemon, client: Client, senders: dict[int, str]
) -> None:
    go_on = threading.Event()
    with client.writer("ns", "t", LARGE.schema) as writer:
        writer.write(LARGE).result(10)
        daemon.before = lambda n: _wait(go_on)
        appended = threading.Thread(target=lambda: [writer.write(LARGE) for _ in range(200)])
        appended.start()
        appended.join(10)
        try:
            assert not appended.is_alive()
        finally:
            go_on.set()
            appended.join(10)
    assert set(senders.values()) == {"ingester-send"}
    assert len(daemon.rows["ns", "t"]) == 201


def test_batches_of_another_writer_on_the_way_count(
    daemon: SmallDaemon, client: Client, senders: dict[int, str]
) -> None:
    go_on = threading.Event()
    with client.writer("ns", "t", SCHEMA) as small, client.writer("ns", "u", SCHEMA) as large:
        for writer in (small, large):
            writer.write(batch(1)).result(10)
            _until(lambda: not _streams[-1].sending)
        daemon.before = lambda n: _wait(go_on)
        large.write(LARGE)
        _until(lambda: 0 in senders)
        small.write(batch(2))
        go_on.set()
        for writer in (small, large):
            writer.flush()
        _until(lambda: not any(stream.sending for stream in _streams))
        small.write(batch(3)).result(10)
    assert senders[2] == "ingester-send"
    assert senders[3] == threading.current_thread().name


def test_two_writers_that_ask_at_the_same_time_count_each_other(
    client: Client, senders: dict[int, str]
) -> None:
    with client.writer("ns", "t", SCHEMA) as one, client.writer("ns", "u", SCHEMA) as other:
        for writer in (one, other):
            writer.write(batch(1)).result(10)
            _until(lambda: not _streams[-1].sending)
        asked = Pending(batch(2), None, None, Ack(lambda: 1.0), AT_ONCE_BYTES * 2 // 3)
        assert [stream.takes_at_once(asked) for stream in _streams] == [True, False]
        _streams[0].weigh(asked, answered=True)
        assert _streams[1].takes_at_once(asked)


@pytest.mark.parametrize("waits", [True, False])
def test_threads_that_share_a_writer_keep_the_order_of_its_sequences(
    daemon: SmallDaemon, client: Client, waits: bool
) -> None:
    with client.writer("ns", "t", SCHEMA, origin="o", first_sequence=1) as writer:

        def write(start: int) -> None:
            for n in range(start, start + 100):
                ack = writer.write(batch(n))
                if waits:
                    ack.result(10)

        threads = [threading.Thread(target=write, args=(i * 100,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(values(daemon)) == list(range(400))
    assert [m and m["sequence"] for m in daemon.metadata] == list(range(1, 401))


def test_an_interrupted_send_is_repeated_and_no_answer_is_taken_for_anothers(
    daemon: SmallDaemon, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupts = iter([KeyboardInterrupt])

    def through(send: Callable[[], None], value: int) -> None:
        if value == 2 and (interrupt := next(interrupts, None)) is not None:
            raise interrupt
        send()

    _observed(monkeypatch, through)
    with client.writer("ns", "t", SCHEMA) as writer:
        writer.write(batch(1)).result(10)
        _until(lambda: not _streams[-1].sending)
        with pytest.raises(KeyboardInterrupt):
            writer.write(batch(2))
        assert writer.write(batch(3)).result(10).memory_sequence == 3
    assert values(daemon) == [1, 2, 3]


def test_a_stream_that_ends_while_a_caller_sends_is_followed_by_another(
    daemon: SmallDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    third_begun = threading.Event()

    def through(send: Callable[[], None], value: int) -> None:
        if value == 3 and not third_begun.is_set():
            third_begun.set()
            _until(lambda: {"_run_stream", "wait_for"} <= _stack("ingester-send"))
            return  # lost with the stream
        send()

    def refuse(n: int) -> None:
        if n == 2:
            assert third_begun.wait(10)
            raise unavailable("memory")

    _observed(monkeypatch, through)
    daemon.before = refuse
    with Client(daemon.endpoint, timeout_s=60, retry=QUICK) as client:
        writer = client.writer("ns", "t", SCHEMA)
        writer.write(batch(1)).result(10)
        _until(lambda: not _streams[-1].sending)
        writer.write(batch(2))
        _until(lambda: not _streams[-1].sending)
        assert writer.write(batch(3)).result(10).accepted
        writer.close()
    assert values(daemon) == [1, 2, 3]


def _until(known: Callable[[], bool]) -> None:
    """Return when another thread has seen to it."""
    while not known():
        threading.Event().wait(0.001)


def _stack(name: str) -> set[str]:
    """The functions in which the threads of this name are."""
    idents = {thread.ident for thread in threading.enumerate() if thread.name == name}
    frames = [frame for ident, frame in sys._current_frames().items() if ident in idents]
    return {each.f_code.co_name for frame in frames for each, _ in traceback.walk_stack(frame)}


def _wait(event: threading.Event) -> None:
    assert event.wait(30)
