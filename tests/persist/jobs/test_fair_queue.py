"""Tenants are served in turn by cost, independent of their queue lengths, and each in order."""

from __future__ import annotations

from collections import Counter, defaultdict

import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from persist.jobs import ByteBudget, FairQueue, PersistQueue

steps = st.lists(
    st.one_of(st.none(), st.tuples(st.sampled_from("abcd"), st.integers(1, 50))), max_size=200
)


@given(steps)
def test_each_tenants_items_leave_in_order_and_none_is_lost(
    todo: list[tuple[str, int] | None],
) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue()
    put, got = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    for number, step in enumerate([*todo, *[None] * len(todo)]):
        if step is not None:
            tenant, cost = step
            queue.put(tenant, (tenant, number), cost)
            put[tenant].append(number)
        elif queue:
            first = queue.first()
            tenant, number = queue.take()
            assert first == (tenant, number)
            got[tenant].append(number)
    assert got == put
    assert not queue


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 40), min_size=2), st.data())
def test_tenants_that_always_have_items_get_equal_shares_by_cost(
    most: dict[str, int], data: st.DataObject
) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue()
    for tenant, largest in most.items():
        for cost in data.draw(st.lists(st.integers(1, largest), min_size=80, max_size=80)):
            queue.put(tenant, (tenant, cost), cost)
    got, left = Counter[str](), Counter(dict.fromkeys(most, 80))
    while all(left.values()):
        tenant, cost = queue.take()
        got[tenant] += cost
        left[tenant] -= 1
        for one in most:
            for other in most:
                assert got[one] - got[other] <= most[one] + most[other]


def test_an_idle_tenant_accumulates_no_credit() -> None:
    queue: FairQueue[str] = FairQueue()
    for _ in range(1_000):
        queue.put("busy", "busy", 10)
    for _ in range(500):
        queue.take()
    for _ in range(20):
        queue.put("late", "late", 10)
    assert Counter(queue.take() for _ in range(20)) == {"busy": 10, "late": 10}


def test_ten_thousand_jobs_of_one_tenant_delay_another_tenant_only_by_running_jobs() -> None:
    async def main() -> None:
        queue: PersistQueue[str, None] = PersistQueue(2)
        done: list[str] = []

        async def begin(_: str) -> None:
            await trio.sleep(1)

        async def finish(job: str, _: None) -> None:
            await trio.sleep(1)
            done.append(job)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(queue.run, begin, finish)
            for number in range(10_000):
                queue.put(f"many/t/{number}", "many", 1, "many")
            await trio.sleep(20.5)
            before = len(done)
            for number in range(4):
                queue.put(f"few/t/{number}", "few", 1, "few")
            while done.count("few") < 4:
                await trio.sleep(1)
            assert len(done) - before <= 20
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_budget_serves_tenants_in_turn_and_is_not_overtaken_by_small_jobs() -> None:
    async def main() -> None:
        budget, served = ByteBudget(10), list[str]()

        async def job(tenant: str, nbytes: int) -> None:
            await budget.spend(nbytes, tenant)
            served.append(tenant)
            await trio.sleep(1)
            budget.give_back(nbytes)

        async with trio.open_nursery() as nursery:
            for _ in range(1_000):
                nursery.start_soon(job, "many", 5)
            await trio.sleep(10.5)
            nursery.start_soon(job, "large", 500)
            nursery.start_soon(job, "few", 5)
            await trio.sleep(4)
            assert {"large", "few"} <= set(served[20:28])
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
