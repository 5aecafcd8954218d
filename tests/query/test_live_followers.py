"""Followers that the daemon knows from their calls, and its notices of coming versions."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest
import trio
from trio.testing import MockClock

from ingester.query import live_followers
from ingester.query.live_followers import ALIVE_S, FORGOTTEN_S, SETTLE_S, Coming, LiveFollowers
from ingester.query.ticket import AskedBy
from tests.cli.conftest import run_command
from tests.drivers.daemon import Daemon
from tests.drivers.following import Parked, live
from tests.drivers.waiting import until
from tests.drivers.wire import Json, Table, act, numbers, put

KEY = ("n", "t")


def named(name: str, *prepared: int) -> AskedBy:
    return AskedBy(name, 1, list(prepared))


def test_a_follower_is_alive_while_it_waits_and_for_a_while_after_its_call() -> None:
    trio.run(_some_follow, clock=MockClock(autojump_threshold=0))


async def _some_follow() -> None:
    registry = LiveFollowers(trio.current_time)
    lost = False
    with registry.calling(KEY, named("busy", 2), lambda: False):
        pass
    with registry.calling(KEY, named("waits"), lambda: False):
        with registry.calling(KEY, named("killed", 3, 2), lambda: lost):
            assert [each.alive for each in await registry.listed(KEY)] == [True, True, True]
            lost = True
        assert {e.name: e.alive for e in await registry.listed(KEY)}["killed"] is False
        await trio.sleep(ALIVE_S)
        busy, killed, waits = await registry.listed(KEY)
        assert (busy.alive, killed.alive, waits.alive) == (False, False, True)
        assert (busy.prepared, killed.prepared, waits.prepared) == ((2,), (2, 3), ())
        with registry.calling(KEY, named("busy", 2, 3), lambda: False):
            pass
        await trio.sleep(FORGOTTEN_S - 1)
        assert [each.name for each in await registry.listed(KEY)] == ["busy", "waits"]
    assert await registry.listed(("n", "other")) == []


def test_those_who_are_gone_are_forgotten_also_where_nobody_asks() -> None:
    now = 0.0
    registry = LiveFollowers(lambda: now)
    for number in range(1000):
        now += FORGOTTEN_S / 10
        with registry.calling(KEY, named(f"anew-{number}"), lambda: False):
            pass
    assert len(registry._callers[KEY]) == 11


def test_the_list_waits_until_those_who_are_there_have_called() -> None:
    trio.run(_one_is_late, clock=MockClock(autojump_threshold=0))


async def _one_is_late() -> None:
    registry = LiveFollowers(trio.current_time)
    found: list[live_followers.KnownFollower] = []

    async def ask() -> None:
        found.extend(await registry.listed(KEY))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.sleep(SETTLE_S - 0.1)
        assert found == []
        with registry.calling(KEY, named("late"), lambda: False):
            await trio.sleep(0.2)
    assert [each.name for each in found] == ["late"]
    began = trio.current_time()
    await registry.listed(KEY)
    assert trio.current_time() == began, "and once alone"


def test_a_version_that_is_coming_begins_their_time() -> None:
    trio.run(_told_before, clock=MockClock(autojump_threshold=0))


async def _told_before() -> None:
    registry = LiveFollowers(trio.current_time)
    registry.prepare(("n", "other"), Coming(2, "p"))
    await trio.sleep(SETTLE_S - 1)
    began = trio.current_time()
    await registry.listed(KEY)
    assert trio.current_time() - began == pytest.approx(1), "the rest alone, whatever the table"


def test_those_who_are_known_are_told_without_waiting() -> None:
    now = 0.0
    registry = LiveFollowers(lambda: now)
    for table in (("n", "u"), KEY):
        for name in ("b", "a"):
            with registry.calling(table, named(name, 2), lambda: False):
                pass
    told = [(table, each.name, each.alive) for table, each in registry.known()]
    assert told == [(t, n, True) for t in (KEY, ("n", "u")) for n in ("a", "b")]
    now += ALIVE_S
    assert {each.alive for _, each in registry.known()} == {False}
    now += FORGOTTEN_S
    assert list(registry.known()) == []
    assert registry._callers == {}, "nothing is kept of tables that nobody follows"


def test_what_is_coming_is_kept_until_the_table_is_there_and_is_bounded() -> None:
    registry = LiveFollowers()
    for number in [*range(2, 30), 29]:
        registry.prepare(KEY, Coming(number, f"p{number}"))
    assert [each.table_version for each in registry.coming(KEY)] == list(range(22, 30))
    registry.switched(KEY, 25)
    assert 25 not in [each.table_version for each in registry.coming(KEY)]
    assert registry.coming(("n", "other")) == ()


def test_followers_hear_what_is_coming_and_are_listed_with_what_they_say(
    shared: Daemon, client: fl.FlightClient, table: Table, tmp_path: Path
) -> None:
    def listed() -> list[Json]:
        return act(client, "followers", namespace=table[0], table=table[1])

    put(client, table, numbers(0, 1))
    begun = live(client, table)
    assert "coming" not in begun.metadata
    ours = {"name": "reports", "table_version": 1}
    parked = Parked(shared.flight, table, after=begun.position, wait_s=30, follower=ours)
    until(lambda: len(listed()) == 1, "the follower waits")
    assert listed() == [{**ours, "alive": True, "prepared": []}]
    body = {"namespace": table[0], "table": table[1]}
    coming = {"table_version": 2, "push_id": "p"}
    for _ in range(2):
        assert act(client, "followers_prepare", **body, **coming) == [coming]
    answer = parked.result(10.0)  # at once, before its 30 s have passed
    assert json.loads(answer.metadata["coming"]) == [coming]
    live(client, table, wait_s=0, follower={**ours, "prepared": [2]})
    assert listed() == [{**ours, "alive": True, "prepared": [2]}]
    with urllib.request.urlopen(f"{shared.http}/api/status", timeout=10) as answer:
        followers = json.loads(answer.read())["followers"]
    assert {**body, **ours, "alive": True, "prepared": [2]} in followers
    printed = run_command("status", cwd=tmp_path, endpoint=shared.flight).stdout.decode()
    (line,) = [each for each in printed.splitlines() if table[1] in each and "reports" in each]
    assert line.split()[-4:] == ["reports", "yes", "v1", "v2"]
    act(client, "followers_prepare", **body, table_version=1, push_id="what counts")
    assert json.loads(live(client, table).metadata["coming"]) == [coming]


@pytest.mark.parametrize(
    ("follower", "says"),
    [
        ({"name": "", "table_version": 1}, "name must have 1 to 256 bytes"),
        ({"name": "a", "table_version": 0}, "version 0 is less than 1"),
        ({"name": "a", "table_version": 1, "prepared": [-1]}, "version -1 is less than 1"),
        ({"name": "a", "table_version": 1, "prepared": [1] * 65}, "more than 64 prepared"),
    ],
)
def test_a_follower_that_makes_no_sense_is_refused(
    client: fl.FlightClient, table: Table, follower: Json, says: str
) -> None:
    put(client, table, numbers(0, 1))
    with pytest.raises(pa.ArrowInvalid, match=says):
        live(client, table, follower=follower)
    body = {"namespace": table[0], "table": table[1], "table_version": 2, "push_id": ""}
    with pytest.raises(pa.ArrowInvalid, match="push_id"):
        act(client, "followers_prepare", **body)
