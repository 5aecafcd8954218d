"""Records, requests, leaders, file lists and statuses written by version 0.1.0 are readable.

``records`` holds the objects of four pushes as that version stored them, with the two newest
records of each. Its state machine wrote them in memory, over simulated regions.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ingester.pushes import Status, wait
from ingester.pushes.leading import leader_of
from ingester.pushes.record import decode, encode
from ingester.pushes.spark.job import read_data_list
from ingester.pushes.store import PushStore
from ingester.reports.pushes import decode_push_status
from persist.store import ObjectStore
from tests.drivers.memory_store import MemoryStore
from tests.pushes.world import ONCE, Life, ScriptedPanel, World

RECORDS = Path(__file__).parent / "records"
STATUSES = {
    "waiting": "WAITING",
    "rolled-back": "ROLLED_BACK",
    "failed": "WAITING",
    "live": "SERVING",
}


@pytest.fixture
def old() -> ObjectStore:
    store = MemoryStore()
    for file in RECORDS.rglob("*"):
        if file.is_file():
            store.put(str(file.relative_to(RECORDS)), file.read_bytes())
    return store


@pytest.mark.parametrize("push_id", STATUSES)
def test_a_record_its_leader_and_its_status_are_read_as_they_were(
    old: ObjectStore, push_id: str
) -> None:
    saved = PushStore(old, ONCE).newest(push_id)
    assert saved.record.status is Status(STATUSES[push_id])
    assert saved.record.plan.primary_key == ("n",)
    assert saved.record.params == {"who": "tests"}
    assert decode(encode(saved.record)) == saved.record
    leader = leader_of(old, push_id)
    assert leader is not None
    assert leader.controller == saved.controller
    told = decode_push_status(old.get(f"_push_status/{push_id}"))
    assert told.status == saved.record.status.value
    assert [each.name for each in told.regions] == list(saved.record.order.regions)


def test_steps_requests_endings_and_lists_of_files_are_read(old: ObjectStore) -> None:
    pushes = PushStore(old, ONCE)
    step = pushes.newest("waiting").record.region("b").step
    assert step is not None
    assert (step.method, step.round) == ("pre_version_swap", 3)
    assert [each.reason for each in step.asked] == ["", "it is Friday"]
    (request,) = pushes.requests("rolled-back")
    assert (request.kind, request.reason) == ("rollback", "the numbers are wrong")
    ending = pushes.newest("rolled-back").record.ending
    assert ending is not None
    assert ending.kind == "rollback"
    failed = pushes.newest("failed").record
    assert failed.region("c").reason == "swap: it was told to refuse"
    assert failed.region("d").unreachable_since is not None
    data = read_data_list(old, "live")
    assert data is not None
    assert (data.rows, data.complete_in("a"), data.complete_in("b")) == (3, True, False)


def test_a_push_that_an_old_controller_led_is_led_to_its_end(old: ObjectStore) -> None:
    world = World()
    for name, region in world.regions.items():
        region.versions.add(2)
        region.made["waiting"] = 2
        if name == "a":
            region.current, region.before["waiting"] = 2, 1
    panel = ScriptedPanel("acme:Gate", "acme:Delay", anew=["acme:Delay"])
    panel.say("pre_version_swap", wait("still Friday"), region="b", hook="acme:Gate")
    life = Life(world, old, panel)
    life.resume("waiting")
    assert life.run().status is Status.SERVING
    assert panel.calls[0] == ("pre_version_swap", "b", "acme:Delay", 3)
    assert world.log == ["swap b", "swap c", "swap d"]
