"""Positions of tables whose operations wait for the store: nothing is missed, nothing repeated."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from ingester.query.live_groups import Position
from tests.drivers.held_shipping import ShippingDaemon, Writer, shipping_daemon
from tests.drivers.waiting import PATIENCE_S


def in_daemon(folder: Path, work: Callable[[ShippingDaemon], Awaitable[None]], *names: str) -> None:
    async def run() -> None:
        with trio.fail_after(PATIENCE_S):
            async with shipping_daemon(folder, *names) as daemon:
                await work(daemon)

    trio.run(run)


def test_a_position_lies_below_what_waits_for_the_store(tmp_path: Path) -> None:
    async def work(daemon: ShippingDaemon) -> None:
        ships, local = await daemon.writer("ships"), await daemon.writer("local")
        await daemon.persist("ships")
        ships.send(1)
        await daemon.shipped(1)
        assert (await local.write(2)).sequence == 2
        daemon.runtime.wal.catch_up()
        assert daemon.position("local").sequence == 2
        assert daemon.position("ships").sequence == 0
        assert await daemon.query("ships") == ([], 0)
        await daemon.persist("ships")
        assert await daemon.give_back()
        assert (await ships.answer()).sequence == 1
        rows, sequence = await daemon.query("ships")
        assert rows == [1]
        assert sequence >= 1
        assert daemon.position("local").sequence == 2

    in_daemon(tmp_path, work, "ships")


def test_local_tables_go_on_while_the_store_is_away(tmp_path: Path) -> None:
    async def work(daemon: ShippingDaemon) -> None:
        ships, local = await daemon.writer("ships"), await daemon.writer("local")
        after = daemon.position("local")
        for number in range(1, 20, 2):
            ships.send(number)
            answer = await local.write(number + 1)
            rows, sequence = await daemon.query("local")
            assert rows[-1] == number + 1
            assert sequence == answer.sequence
            found, after = await daemon.live("local", after, 1)
            assert found == [number + 1]
        assert daemon.position("ships").sequence == 0

    in_daemon(tmp_path, work, "ships")


def test_a_duplicate_names_a_position_that_its_followers_reach(tmp_path: Path) -> None:
    async def work(daemon: ShippingDaemon) -> None:
        ships = await daemon.writer("ships", "o")
        ships.send(1)
        await daemon.shipped(1)
        await daemon.persist("ships")
        await daemon.give_back()
        first = await ships.answer()
        local, other = await daemon.writer("local"), await daemon.writer("ships")
        other.send(2)
        await daemon.shipped(1)
        await local.write(7)
        again = await (await daemon.writer("ships", "o")).write(1)
        assert again.duplicate
        assert first.sequence <= again.sequence <= daemon.position("ships").sequence

    in_daemon(tmp_path, work, "ships")


class _Follower:
    """What a follower of a table has."""

    def __init__(self, daemon: ShippingDaemon, table: str) -> None:
        self.daemon, self.table = daemon, table
        self.position = daemon.position(table)
        self.rows: list[int] = []

    async def ask(self) -> None:
        # The files of version 1 have nothing: a flush keeps its rows for followers.
        tails = self.daemon.runtime.query.live_tails
        tails.followed(self.daemon.table(self.table))
        rows, position = await self.daemon.live(self.table, self.position, 1)
        assert position >= self.position
        self.rows, self.position = self.rows + rows, position


@pytest.mark.parametrize("seed", range(12))
def test_followers_have_each_operation_once(tmp_path: Path, seed: int) -> None:
    """Tables of each kind in turn, one of them shipped from somewhere in the middle."""
    chance = random.Random(seed)
    tables = ("local", "late", "one", "two")

    async def work(daemon: ShippingDaemon) -> None:
        writers: dict[str, Writer] = {name: await daemon.writer(name) for name in tables}
        sent: dict[str, list[int]] = {name: [] for name in tables}
        followers = {name: _Follower(daemon, name) for name in tables}
        for number in range(80):
            if number == 30:
                daemon.shipping.names.add("late")
            name = chance.choice(tables)
            writers[name].send(number)
            sent[name].append(number)
            step = chance.random()
            if step < 0.1:
                await daemon.persist(chance.choice(tables))
            elif step < 0.5:
                await daemon.give_back(chance.choice(tables[1:]))
            elif step < 0.8:
                await trio.sleep(0.001)
                daemon.runtime.wal.catch_up()
            await followers[chance.choice(tables)].ask()
        await writers["local"].write(100)
        sent["local"].append(100)
        for name in tables:
            await daemon.persist(name)
            while await daemon.give_back(name):
                pass
        for name in tables:
            await followers[name].ask()
            assert (name, followers[name].rows) == (name, sent[name])
            rows, sequence = await daemon.query(name)
            assert rows == sorted(sent[name])
            assert Position(1, sequence) == daemon.position(name) == followers[name].position

    in_daemon(tmp_path, work, "one", "two")
