"""A controller pauses during a swap, and another one takes the push over."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ingester.pushes.driver import Job, PushDriver
from ingester.pushes.states import Status
from ingester.pushes.store import Deposed
from ingester.pushes.tasks import ActionTask, RegionAction, Rules
from tests.pushes.world import OLD, PATIENCE, Life, World, in_order

NEW = OLD + 1


def up_to_the_swap_of(life: Life, region: str) -> tuple[PushDriver, Job]:
    """Run a controller that has recorded a swap but not made it yet."""
    wanted = ActionTask(RegionAction.SWAP, region)
    life.run(until=lambda: any(job.task == wanted for job in life.pending))
    assert life.driver is not None
    (job,) = [job for job in life.pending if job.task == wanted]
    assert life.record.region(region).swap_number > 0
    return life.driver, job


def asked_for(life: Life, kind: str) -> None:
    life.pushes.request("p1", kind, "wrong day", life.world.now)  # type: ignore[arg-type]
    life.resume()
    life.run()


def test_a_swap_that_comes_late_changes_nothing_after_a_rollback(life: Life, world: World) -> None:
    life.begin(in_order())
    paused, job = up_to_the_swap_of(life, "b")
    asked_for(life, "rollback")
    assert life.record.status is Status.ROLLED_BACK
    assert life.record.region("b").status is Status.ABORTED
    result = paused.do(job)
    assert world.log == ["swap a", "back a"]
    with pytest.raises(Deposed):
        paused.took(job, result, world.now)
    assert life.pushes.newest("p1").record == life.record


def test_a_swap_that_nobody_wrote_down_is_undone_by_a_rollback(life: Life, world: World) -> None:
    life.begin(in_order())
    paused, job = up_to_the_swap_of(life, "b")
    paused.do(job)
    asked_for(life, "rollback")
    assert world.log == ["swap a", "swap b", "back b", "back a"]
    assert life.record.region("b").status is Status.ROLLED_BACK


def test_a_swap_that_nobody_wrote_down_is_found_by_an_abort(life: Life, world: World) -> None:
    life.begin(in_order())
    paused, job = up_to_the_swap_of(life, "b")
    paused.do(job)
    asked_for(life, "abort")
    assert life.record.status is Status.ABORTED
    assert [region.status.value for region in life.record.regions] == [
        "SERVING",
        "SERVING",
        "ABORTED",
        "ABORTED",
    ]
    assert world.current() == [NEW, NEW, OLD, OLD]


def test_a_swap_that_nobody_wrote_down_is_taken_in_by_who_goes_on(life: Life, world: World) -> None:
    life.begin(in_order())
    paused, job = up_to_the_swap_of(life, "b")
    paused.do(job)
    life.resume()
    assert life.run().status is Status.SERVING
    assert world.log == ["swap a", "swap b", "swap c", "swap d"]
    assert life.record.region("b").previous == OLD


def test_a_region_that_went_away_in_its_swap_is_known_as_one_that_may_serve(
    life: Life, world: World
) -> None:
    life.rules = Rules(patience=PATIENCE, on_unreachable="skip")
    life.begin(in_order())
    paused, job = up_to_the_swap_of(life, "b")
    paused.do(job)
    world.regions["b"].away = True
    life.resume()
    assert life.run().status is Status.FAILED
    assert life.record.region("b").status is Status.FAILED
    assert world.current() == [NEW] * 4
    world.regions["b"].away = False
    asked_for(life, "rollback")
    assert life.record.status is Status.ROLLED_BACK
    assert world.current() == [OLD] * 4
    assert [line for line in world.log if line.startswith("back")] == [
        "back d",
        "back c",
        "back b",
        "back a",
    ]


def test_an_end_that_was_asked_for_before_a_swap_is_heard_before_it(
    life: Life, world: World
) -> None:
    life.begin(in_order())
    life.run(until=lambda: life.record.region("b").status is Status.WAITING)
    life.pushes.request("p1", "abort", "wrong day", world.now)
    world.now += timedelta(milliseconds=1)
    assert life.run().status is Status.ABORTED
    assert world.log == ["swap a"]
