"""A replicator's reports are bounded and never disturb the replicator."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pyarrow.flight as fl
import pytest

from ingester.client import Client
from ingester.postgres.reporting import ReportSender
from ingester.reports.replications import (
    MAX_REPORT_BYTES,
    MOST_TABLES,
    Phase,
    ReplicationReport,
    TableReport,
    bounded,
    plain,
)
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until


def report(origin: str, *tables: TableReport, **more: Any) -> ReplicationReport:
    return ReplicationReport(
        origin=origin, namespace="shop", source="db/shop", slot="s", tables=tables, **more
    )


def table(name: str, phase: Phase = "following", **more: Any) -> TableReport:
    return TableReport(table=name, source=f"public.{name}", phase=phase, **more)


def told(daemon: Daemon, origin: str) -> dict[str, Any] | None:
    with Client(daemon.flight) as client:
        found = client.status_list("replications")
    return next((each for each in found if each["origin"] == origin), None)


def test_of_very_many_tables_those_that_follow_are_counted_and_the_others_named() -> None:
    many = [table(f"t{number}") for number in range(5_000)]
    aside = [table(f"a{number}", "set_aside") for number in range(7)]
    small = bounded(report("o", *many, *aside))
    assert [each.phase for each in small.tables[:8]] == ["set_aside"] * 7 + ["following"]
    assert (len(small.tables), small.left_out) == (MOST_TABLES, {"following": 3_007})
    assert small.count_phases()["following"] == 5_000
    assert bounded(small) == small
    # Each table reports as much as it may: now the number of bytes is the limit.
    loud = [
        table(f"l{n}", "set_aside", reason="ü" * 900, helps=("x" * 900,) * 9) for n in range(1000)
    ]
    cut = bounded(report("o", *loud))
    assert len(msgspec.json.encode(cut)) <= MAX_REPORT_BYTES
    assert 0 < len(cut.tables) < 1000
    assert cut.count_phases()["set_aside"] == 1000
    assert cut.tables[0].helps[-1] == "and 5 more"
    assert bounded(cut) == cut


def test_texts_are_one_line_of_what_prints_and_numbers_are_numbers() -> None:
    assert plain("a\x1b[31mb\u202ec\ud800\x00") == "a\\x1b[31mb\\u202ec\\ud800\\x00"
    assert plain("first\n\tsecond  third") == "first second third"
    assert plain("<b>Straße</b> 表") == "<b>Straße</b> 表"
    assert plain("x" * 700) == "x" * 600 + "…"
    hostile = report(
        "\x07o", table("\x1b]0;t\x07", reason="r\n" * 5000, lag_s=-3.0, lag_bytes=2**70)
    )
    small = bounded(msgspec.structs.replace(hostile, lag_s=float("nan")))
    assert (small.origin, small.lag_s) == ("\\x07o", None)
    (only,) = small.tables
    assert (only.table, only.lag_s, only.lag_bytes) == ("\\x1b]0;t\\x07", 0.0, 2**63 - 1)
    assert len(only.reason) == 601
    # The daemon applies the same limits when it reads a report.
    assert msgspec.convert(msgspec.to_builtins(small), ReplicationReport) == small


def test_a_daemon_shows_what_it_was_told_last_and_that_the_replicator_has_ended(
    shared: Daemon, origin: str
) -> None:
    said: list[str] = []
    rows = iter(range(1_000_000))
    big = [table(f"t{number}") for number in range(5_000)]
    with ReportSender(shared.flight, said.append, every_s=0.05) as sender:

        def shown(least: int) -> bool:
            sender.tell(lambda: report(origin, table("a", "copying", rows_done=next(rows)), *big))
            found = told(shared, origin)
            return found is not None and found["tables"][0]["rows_done"] >= least

        until(lambda: shown(0), "a report")
        until(lambda: shown(2), "newer ones")
        first = told(shared, origin)
        assert first is not None and first["alive"]
        assert (len(first["tables"]), first["phases"]["following"]) == (MOST_TABLES, 5_000)
        sender.tell(lambda: report(origin, state="ended", reason="the slot is lost"), last=True)
    ended = told(shared, origin)
    assert ended is not None
    assert (ended["alive"], ended["state"], ended["reason"]) == (False, "ended", "the slot is lost")
    assert said == []


def test_two_replicators_of_one_origin_are_told_and_one_that_was_started_again_is_not(
    shared: Daemon, origin: str
) -> None:
    numbers = iter(range(1, 100))

    def rivals_when_heard(one: ReportSender) -> int:
        number = next(numbers)
        one.tell(lambda: report(origin, retries=number), last=True)
        until(lambda: (told(shared, origin) or {}).get("retries") == number, "a report")
        return int((told(shared, origin) or {})["rivals"])

    senders = [ReportSender(shared.flight, pytest.fail, every_s=0.0) for _ in range(3)]
    with senders[0] as killed, senders[1] as again, senders[2] as rival:
        assert [rivals_when_heard(each) for each in (killed, again, rival)] == [0, 0, 0]
        assert rivals_when_heard(again) == 1


def test_nothing_that_goes_wrong_with_reports_reaches_the_replicator(origin: str) -> None:
    def broken() -> ReplicationReport:
        raise KeyError("lag")

    said: list[str] = []
    # No process listens at this address.
    with ReportSender("grpc://127.0.0.1:1", said.append) as sender:
        sender.tell(lambda: report(origin))
        sender.tell(broken, last=True)
        sender.tell(broken, last=True)
    assert said == ["could not build a replication report: KeyError('lag')"]


class OldDaemon(fl.FlightServerBase):  # type: ignore[misc]
    """A daemon without this action, which counts the requests."""

    asked = 0

    def do_action(self, context: Any, action: Any) -> Any:
        self.asked += 1
        raise NotImplementedError(f"action {action.type!r} does not exist; there are status")


def test_an_older_daemon_is_told_of_in_one_line_and_left_alone(origin: str) -> None:
    said: list[str] = []
    with OldDaemon("grpc://127.0.0.1:0") as old:
        endpoint = f"grpc://127.0.0.1:{old.port}"
        with ReportSender(endpoint, said.append, every_s=0.0) as sender:
            sender.tell(lambda: report(""))
            sender.tell(lambda: report(origin))
            until(lambda: bool(said), "the line")
            # The daemon may be upgraded, so it is asked again after a minute.
            enough_at = time.monotonic() + 0.3
            while time.monotonic() < enough_at:
                sender.tell(lambda: report(origin))
        assert old.asked == 1
    assert len(said) == 1
    assert "this daemon is older" in said[0]
