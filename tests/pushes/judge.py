"""The judge checks a push from outside, by calls, answers and times, whichever controller leads it.

It uses none of the state machine's own rules, only the records that the machine keeps. A deposed
controller may not know it yet, so a call may repeat with the same number.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import NamedTuple

from ingester.pushes.driver import Job, PushDriver
from ingester.pushes.hooks import Decision, HookContext
from ingester.pushes.record import Cause, PushRecord, RegionRecord
from ingester.pushes.states import Status
from ingester.pushes.store import PushStore
from ingester.pushes.tasks import ActionTask, RegionAction, Rules
from tests.pushes.world import OLD, World

NEW = OLD + 1
PUSH_METHODS = (
    "validate_hook_params",
    "pre_start_of_push_job",
    "post_start_of_push_job",
    "pre_schema_registration",
    "post_schema_registration",
)
REGION_METHODS = (
    "pre_version_creation",
    "post_version_creation",
    "pre_start_of_version_ingestion_for_followers",
    "post_start_of_version_ingestion_for_followers",
    "post_version_leader_replication",
    "pre_version_swap",
    "post_version_swap",
)
GIVES_UP = (Decision.ABORT, Decision.ROLLBACK)


class Call(NamedTuple):
    """One call of a hook; ``life`` is the number of the controller that made it."""

    context: HookContext
    decision: Decision
    life: int


class Judge:
    """Sees every request to hooks and regions, and the result of the push."""

    def __init__(self, world: World, pushes: PushStore, rules: Rules, anew: str) -> None:
        self._world = world
        self._pushes = pushes
        self._rules = rules
        self._anew = anew
        self._calls: dict[tuple[str, str | None, str, datetime], list[Call]] = {}
        self._lagged: dict[str, datetime] = {}
        self.alone: datetime | None = None
        """The time since which one controller runs alone and the clock advances as it asks."""
        self.troubled = False
        """Whether a region was unreachable, refused or lagged, or a request to end came."""

    # ------------------------------------------------------------------------------------ hooks

    def called(self, hook: str, context: HookContext, decision: Decision, life: int) -> None:
        """Judge a call of a hook and its arguments; ``decision`` is its answer."""
        key = (context.method, context.region, hook, context.deadline)
        before = self._calls.setdefault(key, [])
        highest = max((each.context.call for each in before), default=0)
        assert 1 <= context.call <= highest + 1, "a call that was not counted, or counted twice"
        assert context.deadline - self._rules.patience.deadline <= context.now
        if context.call > 1:
            self._judge_round(hook, context, before, life)
        if hook != self._rules.hooks[0].name:
            first = (context.method, context.region, self._rules.hooks[0].name, context.deadline)
            assert first in self._calls, "out of order"
        self._judge_way(context)
        before.append(Call(context, decision, life))

    def _judge_round(self, hook: str, context: HookContext, calls: list[Call], life: int) -> None:
        last = [each for each in calls if each.context.call == context.call - 1]
        asks = [each for each in last if each.decision is Decision.WAIT or hook == self._anew]
        assert asks, "asked again after it had said proceed"
        patience = self._rules.patience
        early = min(each.context.now for each in asks)
        due = min(early + patience.interval, context.deadline)
        assert context.now >= due, "asked again before the interval"
        assert early < context.deadline, "asked again after the deadline"
        if self.alone and last[-1].life == life:
            assert context.now == min(last[-1].context.now + patience.interval, context.deadline)

    def _judge_way(self, context: HookContext) -> None:
        """A method is called only after the previous one."""
        way = PUSH_METHODS if context.region is None else REGION_METHODS
        if context.method in way and (at := way.index(context.method)):
            assert self._were_called(way[at - 1], context.region), f"before {way[at - 1]}"

    def _were_called(self, method: str, region: str | None) -> bool:
        return any(key[:2] == (method, region) for key in self._calls)

    def _went_by(self, method: str, region: str) -> bool:
        """Return whether each hook has answered proceed, or wait until a deadline that proceeds."""
        late = self._rules.patience.on_deadline is Decision.PROCEED
        by = {
            key[2]
            for key, calls in self._calls.items()
            if key[:2] == (method, region)
            for each in calls
            if each.decision is Decision.PROCEED
            or (late and each.decision is Decision.WAIT and self._world.now >= key[3])
        }
        return by == {hook.name for hook in self._rules.hooks}

    # ---------------------------------------------------------------------------------- regions

    def handed_out(self, driver: PushDriver, name: str, job: Job) -> None:
        """Judge a request that the named controller is about to make to a region."""
        if not isinstance(job.task, ActionTask):
            return
        region = driver.record.region(job.task.region)
        if job.task.action is RegionAction.CHECK_FOLLOWERS:
            self._lagged.setdefault(region.name, self._world.now)
        if not job.task.action.changes:
            return
        newest = self._pushes.newest(driver.record.push_id)
        assert newest.controller == name, "asked for by a controller that was deposed"
        assert newest.record == driver.record, "asked for before it was written down"
        if job.task.action in (RegionAction.ROLL_BACK, RegionAction.DISCARD):
            assert driver.record.ending is not None
        else:
            assert driver.record.ending is None, "begun after the end"
        if job.task.action is RegionAction.SWAP:
            self._judge_swap(driver.record, region)
        if job.task.action is RegionAction.ROLL_BACK:
            self._judge_way_back(driver.record, region)

    def _judge_swap(self, record: PushRecord, region: RegionRecord) -> None:
        assert region.swap_number > 0, "no number was kept before the swap"
        assert len(self._pushes.requests(record.push_id)) == record.requests, "not heard before it"
        assert self._went_by("pre_version_swap", region.name)
        assert self._world.regions[region.name].data_there
        for name in _before(record, region.name):
            left = record.region(name).status is Status.FAILED
            assert (left and self._rules.on_unreachable == "skip") or self._went_by(
                "post_version_swap", name
            ), f"before {name} had its turn"
        if self._world.regions[region.name].lagging:
            assert self._rules.on_followers == "proceed", "before its followers"
            waited = self._world.now - self._lagged[region.name]
            assert waited >= self._rules.followers_deadline, "before its followers had their time"

    def _judge_way_back(self, record: PushRecord, region: RegionRecord) -> None:
        ended = (Status.ROLLED_BACK, Status.ABORTED)
        for other in record.regions:
            if other.swap_number > region.swap_number and other.status not in ended:
                assert other.closed or other.unreachable_since is not None, "in a wrong order"

    # --------------------------------------------------------------------------------- the end

    def ended(self, record: PushRecord) -> None:
        """Judge the result of a push that no controller leads any more."""
        statuses = [region.status for region in record.regions]
        assert record.requests == len(self._pushes.requests(record.push_id)), "taken in twice"
        self._judge_served(record)
        live = set(statuses) == {Status.SERVING} and record.ending is None
        assert (record.status is Status.SERVING) == live
        decisions = [each.decision for calls in self._calls.values() for each in calls]
        late = any(
            each.decision is Decision.WAIT and self._world.now >= each.context.deadline
            for calls in self._calls.values()
            for each in calls
        )
        if not (self.troubled or late or set(decisions) & set(GIVES_UP)):
            assert record.status is Status.SERVING, "nothing was wrong"
        if record.status is Status.SERVING:
            for region in record.regions:
                for method in REGION_METHODS:
                    assert self._were_called(method, region.name)
        if record.ending is not None:
            self._judge_ending(record)
        self._judge_left_behind(record)
        self._judge_asked_anew()
        self.judge_way_back_goes_on(record)
        wishes = self._pushes.requests(record.push_id)
        if any(wish.kind == "rollback" for wish in wishes):
            assert Status.SERVING not in statuses, "a rollback was asked for"
        self._judge_last_words(record)

    def _judge_served(self, record: PushRecord) -> None:
        for region in record.regions:
            serves = self._world.regions[region.name].current
            if f"back {region.name}" in self._world.log:
                assert region.status in (Status.ROLLED_BACK, Status.FAILED)
            if region.status is Status.SERVING:
                assert serves == NEW
            elif region.status in (Status.ROLLED_BACK, Status.ABORTED):
                assert serves == OLD
            elif not region.swap_number:
                assert serves == OLD, "it has swapped, and nobody knows"
        if record.status is Status.ROLLED_BACK:
            assert Status.SERVING not in [region.status for region in record.regions]

    def _judge_left_behind(self, record: PushRecord) -> None:
        """A region is abandoned only after its time limit; a possible swap is rolled back first."""
        for region in record.regions:
            if region.status is not Status.FAILED:
                continue
            at = max(
                event.at
                for event in record.history
                if event.region == region.name and event.what.startswith("FAILED")
            )
            if "unreachable since" in region.reason:
                since = datetime.fromisoformat(_found(r"unreachable since (\S+):", region.reason))
                assert at - since >= self._rules.unreachable_after
            assert "not by this push" not in region.reason
            if record.ending is not None and record.ending.kind == "rollback":
                assert not region.swap_number or at >= record.ending.at

    def judge_way_back_goes_on(self, record: PushRecord) -> None:
        """A reachable region is rolled back at once, even if another one is unreachable."""
        ending = record.ending
        if ending is None or self.alone is None or ending.at < self.alone:
            return
        for event in record.history:
            if event.what.startswith("ROLLED_BACK") and event.region is not None:
                own = [e.what for e in record.history if e.region == event.region]
                if not any(what.startswith("unreachable") for what in own):
                    assert event.at - ending.at < self._rules.unreachable_after

    def _judge_asked_anew(self) -> None:
        """A hook whose answer holds only for the moment is called in each round but the last."""
        first = self._rules.hooks[0].name
        for key, calls in self._calls.items():
            if key[2] == first and {each.decision for each in calls} <= {Decision.WAIT}:
                anew = self._calls.get((*key[:2], self._anew, key[3]), [])
                rounds = {each.context.call for each in calls}
                assert len(rounds) <= 1 + len({each.context.call for each in anew})

    def undone(self, record: PushRecord) -> None:
        """Judge a push that was rolled back after its end, with every region reachable."""
        assert [place.current for place in self._world.regions.values()] == [OLD] * 3
        assert Status.SERVING not in [region.status for region in record.regions]

    def _judge_ending(self, record: PushRecord) -> None:
        """The kind of an ending matches its cause, and the ending came in time."""
        assert record.ending is not None
        kind, reason, cause, at = record.ending.kind, record.ending.reason, *_of(record)
        assert (
            record.status
            in {
                "abort": (Status.ABORTED, Status.FAILED),
                "rollback": (Status.ROLLED_BACK, Status.ABORTED, Status.FAILED),
            }[kind]
        )
        assert (record.status is Status.ABORTED) <= (cause is not Cause.FAILURE)
        if cause is Cause.REQUEST:
            kinds = {wish.kind for wish in self._pushes.requests(record.push_id)}
            assert kind in kinds
        elif cause is Cause.HOOK and "was waited for since" in reason:
            assert kind == self._rules.patience.on_deadline.value
            since = datetime.fromisoformat(_found(r"waited for since (\S+):", reason))
            assert at - since >= self._rules.patience.deadline
        elif cause is Cause.HOOK:
            said = [each.decision for calls in self._calls.values() for each in calls]
            assert Decision(kind) in said
        elif reason.startswith("schema"):
            assert kind == "abort"
        elif "unreachable since" in reason:
            assert kind == self._rules.on_unreachable
            since = datetime.fromisoformat(_found(r"unreachable since (\S+):", reason))
            assert at - since >= self._rules.unreachable_after
        elif "followers have not confirmed" in reason:
            assert kind == self._rules.on_followers
            since = datetime.fromisoformat(_found(r"confirmed since (\S+):", reason))
            assert at - since >= self._rules.followers_deadline
        else:
            assert kind == self._rules.on_failure

    def _judge_last_words(self, record: PushRecord) -> None:
        """``pre_end`` and ``post_end`` receive the push's final status."""
        for method in ("pre_end_of_push_job", "post_end_of_push_job"):
            said = [
                each for key, calls in self._calls.items() if key[0] == method for each in calls
            ]
            assert said, method
            last = max(said, key=lambda each: (each.life, each.context.now))
            if record.ending is None or record.ending.at < last.context.now:
                assert last.context.push.status is record.status, method


def _before(record: PushRecord, region: str) -> list[str]:
    names, kind = record.order.regions, record.order.kind
    if kind == "in_order":
        return list(names[: names.index(region)])
    if kind == "target_first" and region != record.order.target:
        return [str(record.order.target)]
    return []


def _of(record: PushRecord) -> tuple[Cause, datetime]:
    assert record.ending is not None
    return record.ending.cause, record.ending.at


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found is not None, text
    return found[1]
