"""The checker finds each planted anomaly by its name, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.crash.check import Checker
from tests.crash.history import Event, History, events_of, shown
from tests.crash.reading import ROOT
from tests.crash.rows import batch_of


def sent(t: float, start: int, count: int = 10, writer: int = 1, **facts: Any) -> Event:
    return _of("sent", t, start, writer, count=count, **facts)


def kept(t: float, start: int, writer: int = 1) -> Event:
    return _of("kept", t, start, writer)


def refused(t: float, start: int, writer: int = 1) -> Event:
    return _of("refused", t, start, writer)


def _of(kind: str, t: float, start: int, writer: int, **facts: Any) -> Event:
    by = f"writer-{writer}"
    return {"is": kind, "t": t, "by": by, "table": "t", "writer": writer, "start": start, **facts}


def read(t: float, last: float, *ranges: list[int], **facts: Any) -> Event:
    """A read that returned these rows of writer 1."""
    event = {"is": "read", "t": t, "first": t, "last": last, "by": "reader", "table": "t",
             "how": "daemon", "whole": True, "only": None, "twice": {},
             "rows": {"1": list(ranges)} if ranges else {}}  # fmt: skip
    return event | facts


def broken(*events: Event) -> set[str]:
    return {anomaly.rule for anomaly in Checker().check(events).anomalies}


GOOD = [
    sent(1, 0), kept(2, 0),
    sent(3, 10), sent(3, 20),
    read(3.5, 5, [0, 20]),       # 10 is in progress and visible, 20 is not
    kept(4, 10), refused(4, 20),
    read(6, 7, [0, 20]), read(6, 7, [0, 20], by="other"),
    sent(7, 30), read(8, 9, [0, 20]),  # in progress: invisible is as good as visible
    sent(10, 30), kept(11, 30),        # sent again, acknowledged now
    read(12, 13, [0, 20], whole=False),
    read(14, 15, [0, 20], [30, 40]),
]  # fmt: skip


def test_a_history_that_may_have_happened_passes_and_is_counted() -> None:
    verdict = Checker().check(GOOD)
    assert verdict.anomalies == []
    assert (verdict.sent, verdict.kept, verdict.kept_rows, verdict.refused) == (4, 3, 30, 1)
    assert (verdict.reads, verdict.broken_off) == (6, 1)


@pytest.mark.parametrize(
    ("rule", "events"),
    [
        ("never sent", [sent(1, 0), kept(2, 0), read(3, 4, [0, 11])]),
        ("never sent", [sent(1, 0), read(3, 4, [0, 10], [12, 13])]),
        ("never sent", [read(3, 4, [0, 10])]),
        ("never sent", [read(3, 4, [0, 10]), sent(5, 0), kept(6, 0), read(7, 8, [0, 10])]),
        ("never sent", [sent(1, 0), sent(1, 0, writer=2),
                        read(3, 4, rows={"1": [[0, 10]], "2": [[0, 10]]}, only=2)]),
        ("refused", [sent(1, 0), refused(2, 0), read(3, 4, [0, 10])]),
        ("refused", [sent(1, 0), read(2, 3, [0, 10]), refused(4, 0)]),
        ("twice", [sent(1, 0), kept(2, 0), read(3, 4, [0, 10], twice={"1": [[3, 4]]})]),
        ("torn", [sent(1, 0), read(3, 4, [0, 9])]),
        ("torn", [sent(1, 0), kept(2, 0), read(3, 4, [1, 10])]),
        ("lost", [sent(1, 0), kept(2, 0), read(3, 4)]),
        ("lost", [sent(1, 0), kept(2, 0), read(3, 4, [0, 10], by="a"), read(3, 4, by="b")]),
        ("lost", [sent(1, 0), kept(2, 0), read(3, 4, how="spark")]),
        ("read your writes", [sent(1, 0), kept(2, 0), read(3, 4, by="writer-1", only=1),
                              read(3, 4, [0, 10])]),
        ("taken back", [sent(1, 0), read(3, 4, [0, 10], by="a"), read(5, 6, by="b")]),
        ("taken back", [sent(1, 0), read(3, 4, [0, 10], by="a", whole=False), read(5, 6, by="b")]),
        ("not monotonic", [sent(1, 0), read(3, 4, [0, 10]), read(5, 6)]),
        ("not monotonic", [sent(1, 0), read(3, 4, [0, 3], whole=False), read(5, 6)]),
        ("not read", [sent(1, 0), kept(2, 0)]),
        ("not read", [sent(1, 0), kept(2, 0), read(3, 4, [0, 10]), sent(5, 10), kept(6, 10)]),
        ("not read", [sent(1, 0), kept(2, 0), read(3, 4, [0, 10], whole=False)]),
        ("not read", [sent(1, 0), kept(2, 0), read(3, 4, [0, 10], only=1)]),
        ("not a history", [kept(2, 0), read(3, 4)]),
        ("not a history", [sent(3, 0), kept(2, 0), read(4, 5)]),
        ("not a history", [sent(1, 0), sent(2, 0, 11), read(4, 5)]),
        ("not a history", [sent(1, 0), refused(2, 0), sent(3, 0), read(4, 5)]),
        ("not a history", [sent(1, 0), read(4, 3)]),
        ("not a history", [sent(1, 0) | {"is": "thought"}]),
    ],
)  # fmt: skip
def test_a_planted_anomaly_is_found_by_its_name_and_no_other_is(
    rule: str, events: list[Event]
) -> None:
    assert broken(*events) == {rule}


def test_a_batch_that_is_acknowledged_and_refused_is_no_history() -> None:
    assert "not a history" in broken(sent(1, 0), refused(2, 0), kept(3, 0), read(4, 5, [0, 10]))


def test_reads_that_overlap_may_differ() -> None:
    events = [sent(1, 0), read(2, 6, [0, 10], by="a"), read(3, 5, by="b"), read(5.9, 9, by="b")]
    assert broken(*events) == set()


def test_an_answer_that_comes_while_a_read_runs_binds_the_next_one_alone() -> None:
    assert broken(sent(1, 0), read(2, 4), kept(3, 0), read(5, 6, [0, 10])) == set()


def test_a_history_is_read_as_several_clients_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "history"
    first, second = History(path), History(path)
    first.add(GOOD[0], GOOD[1])
    second.add(*GOOD[2:])
    second.note("kill")
    first.close()
    second.close()
    with path.open("ab") as file:
        file.write(b'{"is": "se')
    events = list(events_of(path))
    assert events[:-1] == GOOD
    verdict = Checker().check(events)
    assert verdict.notes == {"kill": 1}
    assert verdict.anomalies == []


def test_rows_become_ranges_and_those_that_are_there_twice_are_told() -> None:
    rows = pa.Table.from_batches([batch_of(1, 5, 3), batch_of(1, 0, 2), batch_of(2, 7, 4),
                                  batch_of(2, 8, 2)])  # fmt: skip
    found = shown(rows)
    assert found == {"rows": {"1": [[0, 2], [5, 8]], "2": [[7, 11]]}, "twice": {"2": [[8, 10]]}}
    assert shown(None) == {"rows": {}, "twice": {}}


@pytest.mark.parametrize(("events", "code"), [(GOOD, 0), ([*GOOD, read(20, 21)], 1)])
def test_the_program_says_what_is_wrong_and_fails_where_anything_is(
    tmp_path: Path, events: list[Event], code: int
) -> None:
    history = History(tmp_path / "history")
    history.add(*events)
    history.close()
    command = [sys.executable, "-m", "tests.crash.check", str(history.path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == code, done.stderr
    assert "4 batches sent, 3 acknowledged (30 rows), 1 refused" in done.stdout
    assert ("lost:" in done.stdout) == bool(code)
