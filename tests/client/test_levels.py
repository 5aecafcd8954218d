"""The level of acknowledgements, as a client asks for it and reports it."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import trio

from ingester.client import (
    NEVER,
    Client,
    InvalidRequest,
    OriginState,
    SyncColumn,
    Unavailable,
    UnknownOutcome,
    WriteAnswer,
)
from ingester.client.ack import Ack, all_of
from ingester.client.delivery import Pending, SendWindow, WindowLimits
from ingester.client.trio_client import TrioClient
from ingester.errors import BadRequest
from ingester.write.metadata import decode_object
from tests.client.conftest import QUICK
from tests.client.rows import SCHEMA, batch, values
from tests.client.small_daemon import SmallDaemon, unavailable

STORE = {"ack": "store", "files_sequence": None}


class _Command(msgspec.Struct, forbid_unknown_fields=True):
    """The command of a write before it could name a level."""

    type: str
    namespace: str
    table: str
    origin: str | None = None
    columns: list[Any] = []
    begin: bool = False
    sequence: int | None = None
    transaction: str | None = None
    epoch: int | None = None


class Older(SmallDaemon):
    """A daemon of an earlier release."""

    def __init__(self) -> None:
        super().__init__()
        self.actions["create_table"] = self._create

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        self._check("descriptor", descriptor.command)
        super().do_put(context, descriptor, reader, writer)

    def _create(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        self._check("action create_table", msgspec.json.encode({"type": "create", **body}))
        return []

    def _check(self, what: str, raw: bytes) -> None:
        known = {**msgspec.json.decode(raw)}
        known.pop("schema", None)
        try:
            decode_object(what, msgspec.json.encode(known), msgspec.json.Decoder(_Command).decode)
        except BadRequest as exc:
            raise pa.ArrowInvalid(str(exc)) from exc


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr(sys, "tracebacklimit", 0, raising=False)
    with Older() as running, Client(running.endpoint, timeout_s=10, retry=QUICK) as client:
        yield client


def test_a_stream_names_a_level_only_if_it_is_given(daemon: SmallDaemon, client: Client) -> None:
    client.write("ns", "t", batch(1))
    client.write("ns", "t", batch(2), ack="store")
    client.delete("ns", "t", batch(2), ack="disk", exactly_once=False)
    with client.writer("ns", "t", SCHEMA, ack="store") as writer:
        writer.write(batch(3))
    levels = [command.get("ack") for command in daemon.commands]
    assert levels == [None, "store", "disk", "store"]
    assert "ack" not in daemon.commands[0]


def test_an_awaited_client_asks_for_a_level_too(daemon: SmallDaemon) -> None:
    daemon.also = STORE

    async def main() -> None:
        async with (
            TrioClient(daemon.endpoint, retry=QUICK) as client,
            await client.writer("ns", "t", SCHEMA, ack="store") as writer,
        ):
            answer = await (await writer.write(batch(1))).wait()
            assert (answer.ack, daemon.commands[0]["ack"]) == ("store", "store")

    trio.run(main)


def test_another_level_is_refused_before_anything_is_sent(
    daemon: SmallDaemon, client: Client
) -> None:
    level: Any = "stor"
    for call in (
        lambda: client.write("ns", "t", batch(1), ack=level),
        lambda: client.writer("ns", "t", SCHEMA, ack=level),
        lambda: client.sync("ns", "o", ack=level),
        lambda: client.create_table("ns", "t", SCHEMA, ack=level),
    ):
        with pytest.raises(InvalidRequest, match="expected one of disk, store; did you mean 'stor"):
            call()
    assert daemon.commands == []


ROW = pa.record_batch([pa.nulls(1, pa.int64()), pa.array([1])], names=["0", "1"])
CALLS: dict[str, Callable[[Client], object]] = {
    "write": lambda client: client.write("ns", "t", batch(1), ack="store"),
    "without an origin": lambda client: client.write(
        "ns", "t", batch(1), ack="store", exactly_once=False
    ),
    "delete": lambda client: client.delete("ns", "t", batch(1), ack="store"),
    "sync": lambda client: client.sync("ns", "o", ack="store").send(
        "t", [SyncColumn("old_pk", "v"), SyncColumn("new_pk", "v")], ROW, begin=True, sequence=1
    ),
    "create_table": lambda client: client.create_table("ns", "t", SCHEMA, ack="store"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_older_daemon_is_named_as_too_old(older: Client, call: Callable[[Client], Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"^this daemon is too old for ack='store': ") as said:
        call(older)
    assert "unknown field" not in str(said.value)


def test_an_older_daemon_takes_writes_that_name_no_level(older: Client) -> None:
    assert older.write("ns", "t", batch(1)).ack == "disk"


def test_an_answer_says_its_level_and_a_result_the_lowest(
    daemon: SmallDaemon, client: Client
) -> None:
    with client.writer("ns", "t", SCHEMA) as writer:
        daemon.also = STORE
        assert writer.write(batch(1)).result(10).ack == "store"
        assert writer.acknowledged.ack == "store"
        daemon.also = {}
        assert writer.write(batch(2)).result(10).ack == "disk"
        daemon.also = STORE
        assert writer.write(batch(3)).result(10).ack == "store"
        assert writer.close().ack == "disk"


def test_a_promise_for_several_batches_has_their_lowest_level() -> None:
    acks = [Ack(lambda: 30.0) for _ in range(3)]
    whole = all_of(acks, lambda: 30.0)
    for ack, level in zip(acks, ("store", "disk", "store"), strict=True):
        ack.settle(WriteAnswer(True, ack=level), None)
        ack.tell()
    assert whole.result(0).ack == "disk"


def test_the_answer_in_place_of_a_lost_one_has_the_level_that_was_asked(
    daemon: SmallDaemon, client: Client
) -> None:
    daemon.also = STORE

    def refuse(n: int) -> None:
        if n == 2:
            raise unavailable("memory")

    daemon.before = refuse
    with client.writer("ns", "t", SCHEMA, ack="store") as writer:
        acks = [writer.write(batch(n)) for n in range(3)]
    assert [ack.result(10).ack for ack in acks] == ["store"] * 3
    assert writer.acknowledged.ack == "store"


def test_what_an_older_daemon_calls_durable_is_in_files() -> None:
    old, new = b'{"accepted": true, "durable_sequence": 4}', b', "files_sequence": null}'
    decode = msgspec.json.Decoder(WriteAnswer).decode
    assert decode(old).files_sequence == 4
    assert decode(old[:-1] + new).files_sequence is None
    state = msgspec.convert({"origin": "o", "durable_sequence": 4}, OriginState)
    assert state.files_sequence == 4
    told = msgspec.convert({"origin": "o", "durable_sequence": 4, "files_sequence": 2}, OriginState)
    assert told.files_sequence == 2


def test_a_result_says_what_is_durable_and_what_is_in_files(
    daemon: SmallDaemon, client: Client
) -> None:
    daemon.also = {"ack": "store", "durable_sequence": 9, "files_sequence": 3}
    done = client.write("ns", "t", batch(1))
    assert (done.durable_sequence, done.files_sequence) == (9, 3)


def test_a_batch_that_is_only_in_log_objects_is_kept(daemon: SmallDaemon, client: Client) -> None:
    daemon.also = {"ack": "store", "durable_sequence": 2, "files_sequence": 1}
    with client.writer("ns", "t", SCHEMA, origin="o", keep_until_durable=True) as writer:
        for n in range(2):
            writer.write(batch(n)).result(10)
        window = writer._sender.delivery.window
        assert [each.sequence for each in window.take_kept()] == [2]


def test_kept_batches_are_dropped_when_they_are_in_files() -> None:
    window = SendWindow(WindowLimits())
    for sequence in (1, 2, 3):
        window.keep(Pending(batch(1), None, sequence, Ack(lambda: 30.0), 8), sequence - 1)
    assert [each.sequence for each in window.take_kept()] == [3]


@pytest.mark.parametrize("code", ["store", "fenced"])
def test_a_batch_with_an_origin_is_sent_again_while_the_store_is_away(
    daemon: SmallDaemon, client: Client, code: str
) -> None:
    def refuse(n: int) -> None:
        if n <= 2:
            raise unavailable(code, 0.01)

    daemon.before = refuse
    assert client.write("ns", "t", batch(1, 2), ack="store").batches == 1
    assert values(daemon) == [1, 2]


@pytest.mark.parametrize("code", ["store", "fenced"])
def test_without_an_origin_the_outcome_is_unknown_and_nothing_is_sent_again(
    daemon: SmallDaemon, client: Client, code: str
) -> None:
    def refuse(n: int) -> None:
        raise unavailable(code, 0.01)

    daemon.before = refuse
    with pytest.raises(UnknownOutcome, match=f"refused: {code}; 1 batches had no origin"):
        client.write("ns", "t", batch(1), ack="store", exactly_once=False)
    assert daemon.seen == 1


def test_the_outcome_at_a_fenced_daemon_is_unknown_when_retries_have_ended(
    daemon: SmallDaemon,
) -> None:
    """The batch may be in the store, and the daemon's successor applies it then."""

    def refuse(n: int) -> None:
        raise unavailable("fenced")

    daemon.before = refuse
    with Client(daemon.endpoint, retry=NEVER) as client:
        with pytest.raises(UnknownOutcome, match="1 batches may have been applied") as said:
            client.write("ns", "t", batch(1), origin="o", ack="store")
        assert isinstance(said.value.__cause__, Unavailable)
