"""A controller is killed at every moment of a push; its successor reaches the same end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ingester.pushes.hooks import PROCEED, Answer, HookContext, abort, rollback, wait
from ingester.pushes.states import RegionOrder
from persist.store import ObjectStore, PutInfo
from tests.persist.manifest.stores import FaultyStore
from tests.pushes.world import (
    Killed,
    Life,
    ScriptedPanel,
    World,
    in_order,
    quick_store,
)

THREE = in_order("a", "b", "c")
Script = Callable[[World, HookContext], Answer]


class KillingStore(FaultyStore):
    """A store in which a controller may be killed before and after each create."""

    def __init__(self, inner: ObjectStore, world: World) -> None:
        super().__init__(inner)
        self._world = world

    def create(self, path: str, data: Any) -> PutInfo:
        self._world.moment()
        made = super().create(path, data)
        self._world.moment()
        return made


def good(world: World, context: HookContext) -> Answer:
    return PROCEED


def waits(world: World, context: HookContext) -> Answer:
    """Wait by the clock, as a hook must that may be killed between two calls."""
    if context.method == "pre_version_swap" and context.region in ("a", "c"):
        since = (context.now - context.first_called_at).total_seconds()
        return PROCEED if since >= 100 else wait("a while")
    return PROCEED


def undoes(world: World, context: HookContext) -> Answer:
    bad = (context.method, context.region) == ("post_version_swap", "c")
    return rollback("bad") if bad else PROCEED


def gives_up(world: World, context: HookContext) -> Answer:
    bad = (context.method, context.region) == ("pre_version_swap", "c")
    return abort("bad") if bad else PROCEED


def undoes_at_the_end(world: World, context: HookContext) -> Answer:
    return rollback("bad") if context.method == "pre_end_of_push_job" else PROCEED


def lived(
    script: Script, order: RegionOrder, kills: tuple[int, ...] = (), lost: str = ""
) -> tuple[World, Life]:
    """Lead a push to its end over several controllers, each killed at its moment."""
    world = World(order.regions)
    panel = ScriptedPanel()
    panel.script = lambda hook, context: script(world, context)
    panel.moment = world.moment
    if lost:
        world.regions[lost].lose_answers = 3
    left = list(kills)
    with quick_store() as inner:
        life = Life(world, KillingStore(inner, world), panel)
        while True:
            world.kill_in = left.pop(0) if left else -1
            try:
                if not life.pushes.numbers("p1"):
                    life.begin(order)
                else:
                    life.resume()
                life.run()
                return world, life
            except Killed:
                continue


def ends(world: World, life: Life) -> tuple[object, ...]:
    """Return the result of a push."""
    record = life.record
    return (
        record.status,
        [(each.name, each.status) for each in record.regions],
        world.log,
        world.current(),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "order"),
    [
        (good, THREE),
        (waits, THREE),
        (undoes, THREE),
        (gives_up, THREE),
        (undoes_at_the_end, THREE),
        (good, RegionOrder(("a", "b", "c"), "target_first", "b")),
    ],
)
def test_a_push_ends_as_it_would_have(script: Script, order: RegionOrder) -> None:
    world, life = lived(script, order)
    expected, moments = ends(world, life), world.moments
    called = {call[:3] for call in life.panel.calls}
    assert moments > 100
    for at in range(moments):
        world, life = lived(script, order, (at,))
        assert ends(world, life) == expected, f"killed at {at}"
        assert {call[:3] for call in life.panel.calls} == called, f"killed at {at}"


@pytest.mark.parametrize("script", [good, undoes])
def test_a_push_ends_as_it_would_have_over_many_lives(script: Script) -> None:
    world, life = lived(script, THREE)
    expected, moments = ends(world, life), world.moments
    for stride in (5, 7, 11, 13):
        world, life = lived(script, THREE, (stride,) * moments)
        assert ends(world, life) == expected, f"killed every {stride}"


def test_a_push_ends_as_it_would_have_when_answers_are_lost_as_well() -> None:
    world, life = lived(undoes, THREE, lost="b")
    expected, moments = ends(world, life), world.moments
    for at in range(moments):
        world, life = lived(undoes, THREE, (at,), lost="b")
        assert ends(world, life) == expected, f"killed at {at}"
