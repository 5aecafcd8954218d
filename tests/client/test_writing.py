"""The batches of a writer: content, order, and waits."""

import threading

import pyarrow as pa
import pytest

from ingester.client import Client, InvalidRequest, UnknownOutcome, WriteResult
from tests.client.rows import SCHEMA, batch, values
from tests.client.small_daemon import SmallDaemon


def test_a_written_table_is_acknowledged_and_counted(daemon: SmallDaemon, client: Client) -> None:
    result = client.write("ns", "t", pa.table({"v": pa.array([1, 2, 3], pa.int64())}))
    assert result == WriteResult(
        rows=3, batches=1, duplicates=0, sequence=1, epoch=1, memory_sequence=1
    )
    assert values(daemon) == [1, 2, 3]


def test_nothing_to_write_sends_nothing(daemon: SmallDaemon, client: Client) -> None:
    assert client.write("ns", "t", []) == WriteResult()
    assert client.write("ns", "t", SCHEMA.empty_table()) == WriteResult()
    assert daemon.commands == []


def test_many_batches_are_pipelined_in_order(daemon: SmallDaemon, client: Client) -> None:
    result = client.write("ns", "t", (batch(n) for n in range(2000)))
    assert (result.rows, result.batches) == (2000, 2000)
    assert values(daemon) == list(range(2000))
    assert len(daemon.commands) == 1


def test_an_invalid_batch_is_not_retried_and_fails_the_writer(
    daemon: SmallDaemon, client: Client
) -> None:
    def refuse(n: int) -> None:
        if n == 2:
            raise pa.ArrowInvalid("column 'v': table has double, batch has int64")

    daemon.before = refuse
    writer = client.writer("ns", "t", SCHEMA)
    first, second = writer.write(batch(1)), writer.write(batch(2))
    assert first.result(10).accepted
    with pytest.raises(InvalidRequest, match=r"^column 'v': table has double, batch has int64$"):
        second.result(10)
    with pytest.raises(InvalidRequest):
        writer.write(batch(3))
    with pytest.raises(InvalidRequest):
        writer.close()
    assert daemon.seen == 2


def test_a_checkpoint_is_sent_with_its_batch(daemon: SmallDaemon, client: Client) -> None:
    with client.writer("ns", "t", SCHEMA, origin="o", first_sequence=17) as writer:
        writer.write(batch(1), checkpoint=("topic-0", b"\x00\xff"))
    assert daemon.metadata == [
        {"sequence": 17, "checkpoint": {"partition": "topic-0", "state": "AP8="}}
    ]


def test_a_full_window_waits_for_answers(daemon: SmallDaemon, client: Client) -> None:
    go_on = threading.Event()

    def hold(n: int) -> None:
        assert go_on.wait(10)

    daemon.before = hold
    writer = client.writer("ns", "t", SCHEMA, max_unanswered=2)
    assert writer.try_write(batch(1)) is not None
    assert writer.try_write(batch(2)) is not None
    assert writer.try_write(batch(3)) is None
    go_on.set()
    writer.write(batch(3))
    assert writer.close().batches == 3


def test_an_exception_in_the_with_block_does_not_wait_for_answers(
    daemon: SmallDaemon, client: Client
) -> None:
    go_on = threading.Event()

    def hold(n: int) -> None:
        assert go_on.wait(10)

    daemon.before = hold
    acks = []

    def body() -> None:
        with client.writer("ns", "t", SCHEMA) as writer:
            acks.append(writer.write(batch(1)))
            raise LookupError

    with pytest.raises(LookupError):
        body()
    go_on.set()
    assert isinstance(acks[0].exception(10), UnknownOutcome)


def test_another_schema_is_refused_before_it_is_sent(daemon: SmallDaemon, client: Client) -> None:
    other = pa.record_batch({"w": [1]})
    with pytest.raises(InvalidRequest, match="another schema"):
        client.write("ns", "t", [batch(1), other])
