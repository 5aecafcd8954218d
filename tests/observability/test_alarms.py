"""The alarms: each rule alone, when they are raised and cleared, and that each is documented."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest

from ingester.observability.alarms import ALARMS, HOLD_S, SLOT_BYTES, Alarms
from ingester.observability.facts import Facts, OverdueRow
from ingester.observability.gauges import GaugeCollector, Scrape
from ingester.observability.status import (
    Admission,
    AdoptionState,
    AdoptionStatus,
    CertificateStatus,
    DiskStatus,
    Identity,
    LostOperations,
    Memory,
    PublishStatus,
    Reason,
    ReplicationStatus,
    SecurityStatus,
    SeenPush,
    State,
    StoreLogStatus,
    StoreState,
    TokenStatus,
    TransformStatus,
)
from ingester.reports.pushes import KeptIn, Leader
from ingester.reports.replications import PHASES, Phase
from persist.store import StoreWatch

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
SEGMENT = 64 * MIB
IDENTITY = Identity(
    ingester_id="i",
    incarnation="n",
    epoch=1,
    version="1",
    pid=1,
    started_at="",
    uptime_s=1.0,
    state="ready",
    flight="",
    http="",
    store="",
)
MEMORY = Memory(used_bytes=0, limit_bytes=1, low_bytes=1, high_bytes=1)
CERTIFICATE = CertificateStatus(
    subject="",
    names=[],
    serial="",
    not_before="",
    not_after="2027-01-01T00:00:00Z",
    ends_in_s=90 * 86400.0,
)
WELL = Facts(
    identity=IDENTITY,
    admission=Admission(accepts_writes=True, reasons=[], memory=MEMORY),
    store=StoreState(state="ok"),
    disk=DiskStatus(log_free_bytes=100 * SEGMENT, log_free_files=10_000),
    security=SecurityStatus(certificate=CERTIFICATE),
    segment_bytes=SEGMENT,
    oldest_unpersisted_s=100.0,
    failed_persists=2,
    frozen_bytes=MIB,
    store_log=StoreLogStatus(state="ok", oldest_waiting_s=9.0),
)
AWAY = StoreState(state="away", reads=False)


def _state(state: State) -> dict[str, object]:
    return {"identity": replace(IDENTITY, state=state)}


def _refused(code: str) -> dict[str, object]:
    reasons = [Reason(code=code, message="")]
    return {"admission": Admission(accepts_writes=False, reasons=reasons, memory=MEMORY)}


def _certificate(**fields: Any) -> dict[str, object]:
    return {"security": SecurityStatus(certificate=replace(CERTIFICATE, **fields))}


def _replication(**fields: Any) -> ReplicationStatus:
    phases: dict[Phase, int] = dict.fromkeys(PHASES, 0)
    told = {"phases": phases, "alive": True, "heard_at": "", "heard_s": 1.0}
    named = {"origin": "o", "namespace": "n", "source": "s", "slot": "s"}
    return ReplicationStatus(**{**named, **told, **fields})


def _push() -> SeenPush:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return SeenPush(
        push_id="p",
        namespace="n",
        table="t",
        order="at_once",
        status="WRITING",
        since=at,
        began_at=at,
        regions=(),
        kept_in=KeptIn(region="r", url="u"),
        leader=Leader(controller="c", at=at),
        led=False,
        told_s=99.0,
    )


def _lost(table: str, operations: int, epoch: int = 1) -> LostOperations:
    return LostOperations(namespace="n", table=table, epoch=epoch, operations=operations)


def _store_log(**fields: Any) -> dict[str, object]:
    return {"store_log": StoreLogStatus(**fields)}


ASIDE = _replication(phases={**dict.fromkeys(PHASES, 0), "set_aside": 4})
HUNG: dict[str, object] = {"transform": TransformStatus(hung_calls={"c": 1})}
LEFT: tuple[AdoptionState, ...] = ("failed", "refused")
TROUBLES: list[tuple[str, str, dict[str, object], str]] = [
    ("store-away", "critical", {"store": AWAY}, "queries of files fail"),
    (
        "store-away",
        "critical",
        {"store": StoreState(state="away", writes=False)},
        "accepts no writes",
    ),
    ("disk-full", "critical", {"disk": DiskStatus(full=True)}, "writes are refused"),
    ("disk-full", "critical", _refused("disk_full"), "writes are refused"),
    (
        "disk-full",
        "critical",
        {"disk": DiskStatus(full=True, log_free_bytes=SEGMENT)},
        "is full (64 MiB left, segments need 128 MiB)",
    ),
    ("disk-full", "warning", {"disk": DiskStatus(log_free_bytes=3 * SEGMENT)}, "192 MiB left"),
    ("disk-full", "warning", {"disk": DiskStatus(log_free_files=7)}, "7 more files"),
    ("disk-full", "warning", {"disk": DiskStatus(store_free_bytes=5)}, "store's disk has 5 B left"),
    ("store-away", "critical", {"store": AWAY, **_state("starting")}, "no calls are accepted"),
    ("disk-full", "critical", {"disk": DiskStatus(full=True, log_free_files=0)}, "no free inodes"),
    ("log-stalled", "critical", {"disk": DiskStatus(log_problem="EROFS")}, "no writes (EROFS)"),
    ("log-stalled", "critical", {"log_writing_s": 6.0}, "not answered for 6 s"),
    (
        "store-log-stalled",
        "critical",
        _store_log(oldest_waiting_s=11.0),
        "for 11 s: writes at 'store' wait; writes at 'disk' continue",
    ),
    (
        "store-log-stalled",
        "critical",
        _store_log(oldest_waiting_s=11.0, disk=False),
        "for 11 s: writes wait",
    ),
    ("operations-lost", "warning", _store_log(lost=[_lost("t", 1)]), "1 operation of 1 table"),
    (
        "operations-lost",
        "warning",
        _store_log(lost=[_lost("t", 4, 1), _lost("t", 3, 2), _lost("u", 2)]),
        "about 9 operations of 2 tables",
    ),
    ("memory-high", "critical", _refused("memory"), "memory.high"),
    ("saturated", "critical", _refused("saturated"), "queue is full"),
    ("persist-failing", "warning", {"failed_persists": 3}, "3 attempts"),
    ("persist-failing", "warning", {"unencodable": 1}, "1 buffer cannot be written"),
    ("oldest-row", "warning", {"overdue": OverdueRow(661.0, 660.0)}, "11 min old"),
    (
        "publish-behind",
        "warning",
        {"publishing": PublishStatus(behind=1, seconds_behind=61.0)},
        "waited for 61 s",
    ),
    (
        "publish-stopped",
        "warning",
        {"publishing": PublishStatus(stopped=2)},
        "2 tables are not published in one of their",
    ),
    ("fenced", "critical", _state("fenced"), "id: this one stops"),
    ("fenced", "critical", {"superseded": True}, "stops at its next commit"),
    ("certificate", "warning", _certificate(ends_in_s=5 * 86400.0), "expires in 5 days"),
    ("certificate", "critical", _certificate(ends_in_s=3600.0), "expires in 60 min"),
    ("certificate", "critical", _certificate(ends_in_s=-1.0), "has expired"),
    ("certificate", "warning", _certificate(problem="bad key"), "cannot be loaded"),
    (
        "tokens-not-read",
        "critical",
        {"security": SecurityStatus(callers=TokenStatus(problems=["x"]))},
        "remain valid",
    ),
    ("loop-stalled", "warning", {"stalled_s": 9.0}, "blocked for 9 s"),
    ("replicator-unheard", "critical", {"replications": (_replication(alive=False),)}, "1 repl"),
    ("replicator-unheard", "critical", {"replications": (_replication(rivals=1),)}, "exactly one"),
    (
        "slot-holds-log",
        "critical",
        {"replications": (_replication(slot_bytes=SLOT_BYTES + 1),) * 2},
        "2 sources retain more than 20 GiB",
    ),
    ("table-set-aside", "warning", {"replications": (ASIDE,)}, "4 replicated tables are set aside"),
    ("transformer-hangs", "warning", HUNG, "1 timed-out call of a transformer"),
    ("push-stuck", "warning", {"pushes": (_push(),)}, "1 push is"),
    (
        "not-adopted",
        "warning",
        {"adoptions": tuple(AdoptionStatus(directory="d", state=s, at="") for s in LEFT)},
        "2 logs of other daemons",
    ),
]


def with_trouble(changed: dict[str, object]) -> Facts:
    """A healthy daemon with only these facts changed."""
    return replace(WELL, **changed)


@pytest.mark.parametrize(("name", "severity", "changed", "said"), TROUBLES)
def test_one_trouble_is_one_alarm_and_its_message_says_what(
    name: str, severity: str, changed: dict[str, object], said: str
) -> None:
    alarms = Alarms()
    assert alarms.judge(WELL, 0.0, 0.0) == ([], [])
    begun, _ = alarms.judge(with_trouble(changed), 1.0, 1.0)
    assert begun == alarms.raised()
    (alarm,) = begun
    assert (alarm.name, alarm.severity, alarm.runbook) == (name, severity, name)
    assert said in alarm.message


def test_every_alarm_is_tried_and_has_its_entry_its_row_and_its_metric() -> None:
    assert {name for name, *_ in TROUBLES} == set(ALARMS)
    entries = re.findall(r"^## (.+)$", (ROOT / "deploy" / "RUNBOOK.md").read_text(), re.M)
    assert set(ALARMS) - set(entries) == set()
    page = (ROOT / "docs" / "operations.md").read_text()
    assert set(re.findall(r"^\| \[([\w-]+)\]", page, re.M)) == set(ALARMS)
    scrape = Scrape(
        facts=with_trouble({"store": AWAY, **_state("starting")}),
        alarms={"fenced"},
        requests=StoreWatch().tally(),
        answers={},
    )
    registry = CollectorRegistry()
    registry.register(GaugeCollector(lambda: scrape))
    found = re.findall(
        r'^ingester_alarm{alarm="(.+)"} (.+)$', generate_latest(registry).decode(), re.M
    )
    # An unknown age has no sample: the log may have rows that are not replayed yet.
    assert "\ningester_oldest_unpersisted_seconds " not in generate_latest(registry).decode()
    assert dict(found) == {name: "1.0" if name == "fenced" else "0.0" for name in ALARMS}


def test_an_alarm_is_held_for_a_while_and_keeps_the_time_of_its_beginning() -> None:
    alarms, bad = Alarms(), with_trouble({"store": AWAY})
    alarms.judge(bad, 0.0, 1e9)
    for now in (1.0, HOLD_S, 2 * HOLD_S - 1):
        # A trouble that comes and goes remains one alarm.
        assert alarms.judge(WELL, now, 1e9 + now) == ([], [])
        assert alarms.judge(bad, now + 0.5, 1e9 + now) == ([], [])
    end = 2 * HOLD_S - 0.5
    assert alarms.judge(WELL, end + HOLD_S, 0.0) == ([], [])
    assert [alarm.since for alarm in alarms.raised()] == ["2001-09-09T01:46:40Z"]
    assert alarms.judge(WELL, end + HOLD_S + 0.1, 0.0) == ([], ["store-away"])
    assert alarms.raised() == []


def test_an_alarm_that_becomes_critical_is_told_of_once_more() -> None:
    alarms = Alarms()
    told = []
    for now, hours in enumerate((48, 48, 12, 48, 12)):
        facts = with_trouble(_certificate(ends_in_s=hours * 3600.0))
        told.append([alarm.severity for alarm in alarms.judge(facts, float(now), 0.0)[0]])
    assert told == [["warning"], [], ["critical"], [], []]


def test_the_critical_ones_come_first_and_the_oldest_of_each() -> None:
    alarms = Alarms()
    alarms.judge(with_trouble(HUNG), 0.0, 0.0)
    alarms.judge(with_trouble({**HUNG, "store": AWAY}), 1.0, 1.0)
    alarms.judge(with_trouble({**HUNG, "store": AWAY, **_state("fenced")}), 2.0, 2.0)
    assert [each.name for each in alarms.raised()] == ["store-away", "fenced", "transformer-hangs"]


@given(st.lists(st.tuples(st.floats(0.1, 15.0), st.sets(st.sampled_from(range(len(TROUBLES)))))))
def test_an_alarm_is_raised_exactly_while_it_was_so_within_the_hold(
    steps: list[tuple[float, set[int]]],
) -> None:
    alarms, now = Alarms(), 0.0
    so_at: dict[str, float] = {}
    for wait_s, numbers in steps:
        now += wait_s
        changed: dict[str, object] = {}
        for number in sorted(numbers):
            changed |= TROUBLES[number][2]
        facts = with_trouble(changed)
        so_at |= {name: now for name, rule in ALARMS.items() if rule(facts) is not None}
        alarms.judge(facts, now, now)
        assert {each.name for each in alarms.raised()} == {
            name for name, at in so_at.items() if now - at <= HOLD_S
        }
