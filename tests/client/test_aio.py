"""The client for asyncio."""

import asyncio
import threading

import pyarrow as pa
import pytest

from ingester.client import Ack, Client, InvalidRequest, UnknownOutcome
from ingester.client.aio import AsyncClient
from tests.client.conftest import QUICK
from tests.client.rows import SCHEMA, batch, values
from tests.client.small_daemon import LostAnswer, SmallDaemon


def test_written_rows_are_read_back(daemon: SmallDaemon) -> None:
    async def main() -> None:
        async with AsyncClient(daemon.endpoint, retry=QUICK) as client:
            async with await client.writer("ns", "t", SCHEMA) as writer:
                acks = [await writer.write(batch(n)) for n in range(50)]
                answers = await asyncio.gather(*acks)
            assert [answer.memory_sequence for answer in answers] == list(range(1, 51))
            assert (await client.write("ns", "t", [{"v": 50}])).rows == 1
            assert (await client.query("ns", "t")).num_rows == 51
            async with await client.query_stream("ns", "t") as stream:
                assert [part.num_rows async for part, _ in stream] == [1] * 51
            assert [table.table for table in await client.tables()] == ["t"]

    asyncio.run(main())


def test_many_tasks_share_a_writer_through_a_lost_answer(daemon: SmallDaemon) -> None:
    def lose(n: int) -> None:
        if n == 4:
            raise LostAnswer("connection reset")

    daemon.after = lose

    async def main() -> None:
        async with (
            AsyncClient(daemon.endpoint, retry=QUICK) as client,
            await client.writer("ns", "t", SCHEMA, max_unanswered=3) as writer,
        ):

            async def write(value: int) -> None:
                await (await writer.write(batch(value)))

            await asyncio.gather(*(write(value) for value in range(100)))

    asyncio.run(main())
    assert sorted(values(daemon)) == list(range(100))


def test_a_refused_batch_raises_where_it_is_awaited(daemon: SmallDaemon) -> None:
    def refuse(n: int) -> None:
        raise pa.ArrowInvalid("column 'v': no")

    daemon.before = refuse

    async def main() -> None:
        async with AsyncClient(daemon.endpoint, retry=QUICK) as client:
            with pytest.raises(InvalidRequest, match=r"^column 'v': no$"):
                await client.write("ns", "t", batch(1))

    asyncio.run(main())


def test_a_cancelled_writer_stops_without_waiting(daemon: SmallDaemon) -> None:
    go_on = threading.Event()
    daemon.before = lambda n: _wait(go_on)

    async def main() -> None:
        async with AsyncClient(daemon.endpoint, retry=QUICK) as client:
            acks = []

            async def write() -> None:
                async with await client.writer("ns", "t", SCHEMA) as writer:
                    acks.append(await writer.write(batch(1)))
                    task.cancel()

            task = asyncio.create_task(write())
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(UnknownOutcome):
                await acks[0]

    asyncio.run(main())
    go_on.set()


def _wait(event: threading.Event) -> None:
    assert event.wait(10)


def test_acks_of_the_blocking_client_can_be_awaited(daemon: SmallDaemon, client: Client) -> None:
    async def main(acks: list[Ack]) -> list[int | None]:
        return [(await ack).memory_sequence for ack in acks]

    with client.writer("ns", "t", SCHEMA) as writer:
        acks = [writer.write(batch(n)) for n in range(10)]
        assert asyncio.run(main(acks)) == list(range(1, 11))
        with pytest.raises(InvalidRequest, match=r"threads call result\(\)"):
            acks[0].__await__().send(None)


def test_an_answer_to_a_cancelled_wait_is_harmless(daemon: SmallDaemon) -> None:
    go_on = threading.Event()
    daemon.before = lambda n: _wait(go_on)
    with Client(daemon.endpoint, retry=QUICK) as client:
        writer = client.writer("ns", "t", SCHEMA)
        ack = writer.write(batch(1))

        async def awaited() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await ack

        asyncio.run(awaited())
        go_on.set()
        assert ack.result(10).accepted
        assert writer.close().rows == 1
