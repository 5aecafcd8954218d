"""Checkpoints as the client sends them: validated, with shared bytes once per stream."""

import hashlib
from typing import Any

import pytest
import trio

from ingester.client import Checkpoint, Client, InvalidRequest
from ingester.client.ack import Ack
from ingester.client.checkpoints import (
    MAX_STATE_BYTES,
    Carried,
    CheckpointMessage,
    SentShared,
    shared_id,
)
from ingester.client.delivery import Delivery, SendWindow, WindowLimits
from ingester.client.retry import RetryPolicy, RetryState
from ingester.client.trio_client import TrioClient
from tests.client.rows import SCHEMA, batch
from tests.client.small_daemon import LostAnswer, SmallDaemon

A, B = b"dictionary a", b"dictionary b"


def sent(stream: SentShared, partition: str, shared: bytes | None) -> str:
    carried = Carried(
        Checkpoint(partition, b"s", shared), None if shared is None else shared_id(shared)
    )
    message = stream.message(carried)
    assert isinstance(message, CheckpointMessage)
    assert message.shared is None or message.shared_id is None
    if message.shared is not None:
        return "bytes"
    return "id" if message.shared_id is not None else "none"


def test_shared_bytes_are_sent_once_per_stream() -> None:
    stream = SentShared()
    asked = [("p", A), ("p", A), ("q", A), ("p", B), ("q", None), ("q", A), ("p", B)]
    forms = [sent(stream, partition, shared) for partition, shared in asked]
    assert forms == ["bytes", "id", "id", "bytes", "none", "id", "id"]


def test_a_stream_with_many_shared_bytes_resends_the_oldest() -> None:
    stream = SentShared()
    many = [bytes([n]) for n in range(9)]  # a daemon remembers 16 per stream
    assert [sent(stream, "p", each) for each in many] == ["bytes"] * 9
    assert [sent(stream, "p", each) for each in (many[8], many[1], many[0])] == [
        "id",
        "id",
        "bytes",
    ]


def test_a_new_stream_resends_the_shared_bytes(daemon: SmallDaemon, client: Client) -> None:
    def lose_the_third(n: int) -> None:
        if n == 3:
            raise LostAnswer("lost", b'{"code": "limit", "message": "lost"}')

    daemon.after = lose_the_third
    with client.writer("ns", "t", SCHEMA, origin="o", first_sequence=1) as writer:
        for n in range(5):
            writer.write(batch(n), Checkpoint(f"p{n % 2}", b"", A)).result()
    found = [(each or {})["checkpoint"] for each in daemon.metadata]
    known = (False, hashlib.sha256(A).hexdigest())
    assert [("shared" in each, each.get("shared_id")) for each in found] == [
        (True, None),
        known,
        known,
        (True, None),  # the third batch, sent a second time
        known,
        known,
    ]
    assert [each["state"] for each in found] == [""] * 6


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("topic-0", "expected a source partition and its state, such as ('topic-0', b'offset 17')"),
        (("topic-0", "17"), "checkpoint: the checkpoint state must be bytes, not str"),
        ((b"topic-0", b"17"), "checkpoint: the partition must be text, not b'topic-0'"),
        (("", b"17"), "checkpoint: a partition's name has 1 to 256 bytes, this one 0"),
        (("é" * 129, b"17"), "checkpoint: a partition's name has 1 to 256 bytes, this one 258"),
        (("a\nb", b"17"), "checkpoint: partition 'a\\nb' has control characters"),
        (("a\u202eb", b"17"), "has control characters"),
        (("\ud800", b"17"), "is not UTF-8"),
        (("p", b"x" * (MAX_STATE_BYTES + 1)), "checkpoint state has 1048577 B; at most 1048576"),
        (("p", b"", b"x" * (MAX_STATE_BYTES + 1)), "shared state has 1048577 B; at most 1048576"),
    ],
)
def test_an_oversized_checkpoint_is_refused_before_its_batch(
    daemon: SmallDaemon, client: Client, given: Any, says: str
) -> None:
    with client.writer("ns", "t", SCHEMA) as writer:
        with pytest.raises(InvalidRequest) as refused:
            writer.write(batch(1), given)
        assert says in str(refused.value)
        writer.write(batch(2), ("p", b"x" * MAX_STATE_BYTES)).result()
    assert daemon.table("ns", "t").num_rows == 1


def test_states_count_in_the_window_and_shared_bytes_count_once() -> None:
    one = Delivery(SendWindow(WindowLimits(bytes=1000)), None, RetryState(RetryPolicy(), lambda: 0))
    rows = batch(1)
    shared = b"x" * 600
    checkpoint = Checkpoint("p", b"y" * 100, shared)
    assert one.weight(rows, checkpoint) == rows.nbytes + 700
    one.append(rows, checkpoint, Ack(lambda: 30.0))
    again = one.weight(rows, Checkpoint("q", b"y" * 100, shared))
    assert again == rows.nbytes + 100
    assert one.window.has_room(again)
    assert not one.window.has_room(one.weight(rows, Checkpoint("q", b"", b"z" * 600)))


def test_the_calls_return_the_daemons_answers(daemon: SmallDaemon, client: Client) -> None:
    asked: list[dict[str, Any]] = []

    def answered(body: dict[str, Any]) -> list[dict[str, Any]]:
        asked.append(body)
        return [
            {
                "table_version": 1,
                "partition": body["partition"],
                "state": "AP8=",
                "shared": None,
                "durable": False,
                "durable_state": "",
                "durable_shared": None,
                "of_a_newer_daemon": 7,
            }
        ]

    daemon.actions["checkpoint_get"] = daemon.actions["checkpoint_put"] = answered
    stored = client.checkpoint("ns", "t", "p")
    assert (stored.state, stored.durable, stored.durable_state) == (b"\x00\xff", False, b"")
    client.put_checkpoint("ns", "t", "p", b"\x00\xff", b"")
    client.put_checkpoint("ns", "t", "p", b"")
    key = {"namespace": "ns", "table": "t", "partition": "p"}
    assert asked == [key, {**key, "state": "AP8=", "shared": ""}, {**key, "state": ""}]
    with pytest.raises(InvalidRequest, match="control characters"):
        client.delete_checkpoint("ns", "t", "\t")

    async def from_trio() -> None:
        async with TrioClient(daemon.endpoint) as awaited:
            assert await awaited.checkpoint("ns", "t", "p") == stored

    trio.run(from_trio)
