"""The client for trio."""

import pyarrow as pa
import pytest
import trio

from ingester.client import InvalidRequest, UnknownOutcome
from ingester.client.trio_client import TrioClient
from tests.client.conftest import QUICK
from tests.client.rows import SCHEMA, batch, values
from tests.client.small_daemon import LostAnswer, SmallDaemon


def test_written_rows_are_read_back(daemon: SmallDaemon) -> None:
    async def main() -> None:
        async with TrioClient(daemon.endpoint, retry=QUICK) as client:
            async with await client.writer("ns", "t", SCHEMA) as writer:
                acks = [await writer.write(batch(n)) for n in range(50)]
                answers = [await ack.wait() for ack in acks]
            assert [answer.memory_sequence for answer in answers] == list(range(1, 51))
            assert (await client.query("ns", "t")).num_rows == 50
            async with await client.query_stream("ns", "t") as stream:
                assert [part.num_rows async for part, _ in stream] == [1] * 50
            assert [table.table for table in await client.tables()] == ["t"]

    trio.run(main)


def test_many_tasks_share_a_writer_through_a_lost_answer(daemon: SmallDaemon) -> None:
    def lose(n: int) -> None:
        if n == 4:
            raise LostAnswer("connection reset")

    daemon.after = lose

    async def main() -> None:
        async with (
            TrioClient(daemon.endpoint, retry=QUICK) as client,
            await client.writer("ns", "t", SCHEMA, max_unanswered=3) as writer,
            trio.open_nursery() as nursery,
        ):

            async def write(value: int) -> None:
                await (await writer.write(batch(value))).wait()

            for value in range(20):
                nursery.start_soon(write, value)

    trio.run(main)
    assert sorted(values(daemon)) == list(range(20))


def test_a_refused_batch_raises_where_it_is_awaited(daemon: SmallDaemon) -> None:
    def refuse(n: int) -> None:
        raise pa.ArrowInvalid("column 'v': no")

    daemon.before = refuse

    async def main() -> None:
        async with TrioClient(daemon.endpoint, retry=QUICK) as client:
            with pytest.raises(InvalidRequest, match=r"^column 'v': no$"):
                await client.write("ns", "t", batch(1))

    trio.run(main)


def test_a_cancelled_writer_stops_without_waiting(daemon: SmallDaemon) -> None:
    go_on = trio.Event()
    acks = []

    async def main() -> None:
        def hold(n: int) -> None:
            trio.from_thread.run(go_on.wait, trio_token=token)

        token = trio.lowlevel.current_trio_token()
        daemon.before = hold
        async with TrioClient(daemon.endpoint, retry=QUICK) as client:
            with trio.CancelScope() as scope:
                async with await client.writer("ns", "t", SCHEMA) as writer:
                    acks.append(await writer.write(batch(1)))
                    scope.cancel()
            with pytest.raises(UnknownOutcome):
                await acks[0].wait()
            go_on.set()

    trio.run(main)
