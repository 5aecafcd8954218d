"""Each way in which rows can be wrong is found by the check, and right rows pass."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.crash.checking import Findings, TableCheck
from tests.crash.ledger import Fate, Note, WriterLedger
from tests.crash.rows import SCHEMA, batch_of
from tests.crash.states import SHARED, StateCheck, faults_of

NOTES = [
    "S plain 0 0 10 0",
    "A plain 0",
    "S plain 1 10 5 1",
    "S plain 1 15 5 2",
    "S plain 1 20 5 3",
]
"""Ten acknowledged rows, then three batches of five in progress."""


@pytest.fixture
def ledger(tmp_path: Path) -> WriterLedger:
    path = tmp_path / "ledger"
    Note(path).lines(NOTES)
    found = WriterLedger(path, 3, resends=False)
    found.update()
    return found


def faults(ledger: WriterLedger, *ranges: tuple[int, int], settle: bool = True) -> list[str]:
    rows = [batch_of(ledger.writer, start, count) for start, count in ranges]
    findings = Findings()
    check = TableCheck("plain", [ledger], "test")
    check.check(pa.Table.from_batches(rows, SCHEMA), findings, settle=settle)
    return findings.faults


@pytest.mark.parametrize("rows", [10, 15, 20, 25])
def test_what_was_acknowledged_and_any_first_part_of_the_rest_is_right(
    ledger: WriterLedger, rows: int
) -> None:
    assert faults(ledger, (0, rows)) == []


@pytest.mark.parametrize(
    ("ranges", "told"),
    [
        ([(0, 9)], "is there in part"),
        ([(10, 5)], "is lost"),
        ([(0, 10), (3, 1)], "up to 2 times"),
        ([(0, 10), (0, 10)], "up to 2 times"),
        ([(0, 13)], "is there in part"),
        ([(0, 15), (10, 5)], "up to 2 times"),
        ([(0, 10), (15, 5)], "an earlier one of the same stream is not"),
        ([(0, 26)], "were never sent"),
    ],
)
def test_a_lost_doubled_torn_reordered_or_invented_row_is_found(
    ledger: WriterLedger, ranges: list[tuple[int, int]], told: str
) -> None:
    found = faults(ledger, *ranges)
    assert any(told in fault for fault in found), found


def test_a_row_of_an_unknown_writer_is_found(ledger: WriterLedger) -> None:
    rows = pa.Table.from_batches([batch_of(3, 0, 10), batch_of(4, 0, 1)])
    findings = Findings()
    TableCheck("plain", [ledger], "test").check(rows, findings, settle=True)
    assert any("does not exist" in fault for fault in findings.faults)


@pytest.mark.parametrize("column", ["time", "host", "v"])
def test_a_column_of_another_row_is_found(ledger: WriterLedger, column: str) -> None:
    rows = pa.Table.from_batches([batch_of(3, 0, 10)])
    index = SCHEMA.get_field_index(column)
    moved = rows.column(column).take(pa.array([*range(1, 10), 0]))
    findings = Findings()
    check = TableCheck("plain", [ledger], "test")
    check.check(rows.set_column(index, SCHEMA.field(column), moved), findings, settle=True)
    assert any("never sent" in fault for fault in findings.faults)


def test_what_was_gone_after_a_crash_must_not_come_back(ledger: WriterLedger) -> None:
    assert faults(ledger, (0, 15)) == []
    assert ledger.tables["plain"].fates == [Fate.KEPT, Fate.KEPT, Fate.GONE, Fate.GONE]
    assert any("is there: it was refused, or lost" in fault for fault in faults(ledger, (0, 20)))


def test_what_a_query_has_shown_must_stay(ledger: WriterLedger) -> None:
    assert faults(ledger, (0, 15), settle=False) == []
    assert any("a query has shown it" in fault for fault in faults(ledger, (0, 10)))


def test_a_refused_batch_must_not_be_there(ledger: WriterLedger) -> None:
    Note(ledger.path).lines([f"R plain {start}" for start in (10, 15, 20)])
    ledger.update()
    assert faults(ledger, (0, 10)) == []
    assert any("is there: it was refused" in fault for fault in faults(ledger, (0, 15)))


def test_what_will_be_sent_again_stays_unknown_until_it_is_answered(ledger: WriterLedger) -> None:
    ledger.resends = True
    assert faults(ledger, (0, 10)) == []
    assert faults(ledger, (0, 25)) == []
    assert set(ledger.tables["plain"].fates) == {Fate.KEPT}


def test_half_a_line_of_a_ledger_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_bytes(b"S plain 0 0 10 0\nA pla")
    ledger = WriterLedger(path, 0, resends=False)
    ledger.update()
    assert ledger.tables["plain"].fates == [Fate.SENT]
    with path.open("ab") as file:
        file.write(b"in 0\n")
    ledger.update()
    assert ledger.tables["plain"].fates == [Fate.KEPT]


def stored(state: int | None, durable_state: int | None, shared: bytes | None) -> dict[str, Any]:
    def text(value: object) -> str | None:
        data = value if isinstance(value, bytes) else str(value).encode()
        return None if value is None else base64.b64encode(data).decode()

    return {
        "state": text(state),
        "durable_state": text(durable_state),
        "durable": state == durable_state,
        "shared": text(shared),
    }


@pytest.mark.parametrize(
    ("expected", "answer", "durable", "told"),
    [
        (15, stored(15, 10, SHARED), False, ""),
        (15, stored(15, None, SHARED), False, ""),
        (15, stored(15, 15, SHARED), True, ""),
        (None, stored(None, None, None), True, ""),
        (15, stored(20, 10, SHARED), False, "state 20, and rows up to 15 are there"),
        (15, stored(10, 10, SHARED), False, "state 10, and rows up to 15 are there"),
        (15, stored(None, None, None), False, "state None, and rows up to 15 are there"),
        (15, stored(15, 20, SHARED), False, "durable state 20 is beyond 15"),
        (15, stored(15, 10, SHARED), True, "all is persisted, and the durable state is 10"),
        (15, stored(15, 10, None), False, "what its state shares"),
        (15, stored(15, 10, b"another's"), False, "what its state shares"),
    ],
)
def test_a_state_that_does_not_belong_to_the_rows_is_found(
    expected: int | None, answer: dict[str, Any], durable: bool, told: str
) -> None:
    found = faults_of(4, expected, answer, durable=durable)
    assert bool(found) == bool(told)
    assert told in " ".join(found)


def test_the_state_that_counts_is_that_of_the_last_batch_that_is_there(tmp_path: Path) -> None:
    Note(tmp_path / "notes").lines(["S plain 0 0 10 0", "S plain 0 10 5 1", "S plain 0 15 3 2"])
    asked = []
    for writer, there, told in [(6, 15, ""), (6, 18, "state 15"), (3, 15, "rows up to 10"),
                                (3, 18, "rows up to 18")]:  # fmt: skip
        one = WriterLedger(tmp_path / "notes", writer, resends=True)
        one.update()
        answer = stored(15, 15, None)

        def ask(action: str, answer: Any = answer, **body: str) -> list[dict[str, Any]]:
            asked.append((action, body["partition"]))
            return [answer]

        rows = pa.Table.from_batches([batch_of(writer, 0, there)], SCHEMA)
        findings = Findings()
        StateCheck("plain", "test", ask).check(rows, [one], findings)
        assert bool(findings.faults) == bool(told)
        assert told in " ".join(findings.faults)
    assert set(asked) == {("checkpoint_get", "writer-6"), ("checkpoint_get", "writer-3")}
