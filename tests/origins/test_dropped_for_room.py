"""An abandoned transaction is dropped to free memory, and its client learns of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from ingester.config.settings import MemorySettings, Settings
from ingester.daemon.assembly import Found, Identified, Runtime
from ingester.daemon.startup import log_settings
from ingester.errors import Refused
from ingester.observability.metrics import Metrics
from ingester.replication.open_transactions import Message, OpenTransaction, StreamIdentity
from ingester.replication.service import IDLE_S, Replication
from persist.manifest import WriterIdentity
from persist.store.local import LocalStore
from wal import Log

ORIGIN = "A"
ASKS = Message(StreamIdentity(ORIGIN, None, begin=False), commits_as=None, rows=None)
ENDS = ASKS._replace(commits_as=7)


def with_replication(
    folder: Path, work: Callable[[Replication, trio.testing.MockClock], Awaitable[None]]
) -> None:
    """The daemon's replication; a transaction of the origin is open and its client was answered."""

    async def run() -> None:
        settings = Settings(id="d", data_dir=folder, memory=MemorySettings(limit=1 << 30))
        log = Log(folder / "wal", log_settings(settings))
        recovered = await log.recover()
        store = LocalStore(folder / "store")
        writer = WriterIdentity("d", "run", 1)
        found = Found(Identified(store, "", writer), log, recovered, [], 0)
        parts = Runtime(settings, found, Metrics(CollectorRegistry())).replication
        replication = parts.service
        assert (await replication.take(ASKS)).first
        parts.open_transactions.put(ORIGIN, OpenTransaction())
        assert not (await replication.take(ASKS)).first
        await work(replication, clock)
        await log.close()

    clock = trio.testing.MockClock()
    trio.run(run, clock=clock)


def test_one_that_is_gone_on_with_stays(tmp_path: Path) -> None:
    async def work(replication: Replication, clock: trio.testing.MockClock) -> None:
        clock.jump(IDLE_S - 1)
        replication.drop_idle()
        assert replication.statistics().open_transactions == 1
        clock.jump(2)
        # A message is being taken. Private: a real take would end before the loop runs other tasks.
        async with replication._one_at_a_time(ORIGIN):
            replication.drop_idle()
        assert replication.statistics().open_transactions == 1
        await replication.take(ASKS)  # the client of this one is connected
        replication.drop_idle()
        assert replication.statistics().open_transactions == 1
        clock.jump(IDLE_S + 1)
        replication.drop_idle()
        assert replication.statistics().open_transactions == 0

    with_replication(tmp_path, work)


def test_who_asks_is_told_to_begin_anew(tmp_path: Path) -> None:
    async def work(replication: Replication, clock: trio.testing.MockClock) -> None:
        clock.jump(IDLE_S + 1)
        replication.drop_idle()
        for _ in range(2):  # an answer may be lost
            assert (await replication.take(ASKS)).first
        with pytest.raises(Refused, match="send it again from its first message"):
            await replication.take(ENDS)

    with_replication(tmp_path, work)


def test_its_end_is_not_taken_for_all_of_it(tmp_path: Path) -> None:
    async def work(replication: Replication, clock: trio.testing.MockClock) -> None:
        clock.jump(IDLE_S + 1)
        replication.drop_idle()
        with pytest.raises(Refused, match="send it again from its first message"):
            await replication.take(ENDS)
        assert (await replication.take(ASKS)).first

    with_replication(tmp_path, work)
