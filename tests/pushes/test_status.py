"""The status of a push for daemons: readable by people, and by older and newer readers."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from ingester.pushes.hooks import Decision
from ingester.pushes.leading import push_status
from ingester.pushes.record import (
    AskedHook,
    HookStep,
    PushRecord,
    new_push,
    with_event,
    with_region,
)
from ingester.pushes.states import RegionOrder
from ingester.reports.pushes import (
    EVENTS,
    KeptIn,
    Leader,
    decode_push_status,
    encode_push_status,
)
from tests.pushes.world import BEGAN

HERE = KeptIn(region="a", url="s3://lake/a")
LEADER = Leader(controller="host-7", at=BEGAN)
LATER = BEGAN + timedelta(minutes=1)


def a_push_that_waits() -> PushRecord:
    record = new_push("p1", ("shop", "visits"), RegionOrder(("a", "b"), "in_order"), {}, BEGAN)
    asked = (
        AskedHook("Gate", Decision.PROCEED, "", 1, 1, BEGAN),
        AskedHook("MinimumDelay", Decision.WAIT, "a serves since 8:00", 1, 1, BEGAN),
    )
    step = HookStep(method="pre_version_swap", began_at=BEGAN, next_at=LATER, asked=asked)
    waits = msgspec.structs.replace(
        record.region("b"), step=step, table_version=4, previous=3, lagging=("report",)
    )
    record = with_region(record, waits)
    for number in range(EVENTS + 5):
        record = with_event(record, "a", f"event {number}", BEGAN)
    return record


def test_a_push_is_told_with_who_is_waited_for_and_its_newest_events() -> None:
    told = push_status(a_push_that_waits(), HERE, LEADER)
    assert decode_push_status(encode_push_status(told)) == told
    region = told.regions[1]
    assert (region.name, region.status, region.table_version, region.previous) == (
        "b",
        "STARTED",
        4,
        3,
    )
    assert region.step is not None and region.step.next_at == LATER
    assert [(wait.hook, wait.reason) for wait in region.step.waits] == [
        ("MinimumDelay", "a serves since 8:00")
    ]
    assert region.lagging == ("report",)
    assert [event.what for event in told.events] == [f"event {n}" for n in range(5, EVENTS + 5)]


def test_fields_and_statuses_of_a_newer_version_are_read_over() -> None:
    told = msgspec.json.decode(encode_push_status(push_status(a_push_that_waits(), HERE, LEADER)))
    told["status"], told["weather"] = "RESTING", "fine"
    assert decode_push_status(msgspec.json.encode(told)).status == "RESTING"


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"push_id": 3}'],
    ids=["empty", "cut", "list", "no text", "deep", "foreign"],
)
def test_what_is_no_status_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_push_status(data)


def test_a_time_without_a_zone_is_refused() -> None:
    told = encode_push_status(push_status(a_push_that_waits(), HERE, LEADER))
    with pytest.raises(ValueError, match="timezone"):
        decode_push_status(told.replace(b"08:00:00Z", b"08:00:00"))
