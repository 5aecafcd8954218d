"""A transaction under REPLICA IDENTITY FULL leaves the same rows as at the source."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.postgres.collector import NotWhole, settle
from ingester.postgres.pgoutput import Change, UnknownMessage
from tests.postgres.messages import UNCHANGED, Cell, cells_of, deleted, inserted, kind_of, updated

Row = tuple[str, str]


def moved(old: Row, new: tuple[str, object]) -> Change:
    return updated(7, new, old, b"O")


def text(cell: Cell) -> str:
    assert isinstance(cell, bytes)
    return cell.decode()


def settled(changes: list[Change]) -> list[tuple[str, Row]]:
    """Return the kind and row of each remaining change."""
    found = []
    for data in settle(change.data for change in changes):
        change = Change(7, data)
        [row] = [row for row in cells_of(change) if row is not None]
        found.append((kind_of(change), (text(row[0]), text(row[1]))))
    return found


def applied(changes: list[tuple[str, Row]], rows: dict[str, Row]) -> dict[str, Row]:
    """Apply changes one by one and return the table's rows by key."""
    rows = dict(rows)
    for kind, row in changes:
        if kind == "D":
            rows.pop(row[0], None)
        else:
            rows[row[0]] = row
    return rows


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        # UPDATE s SET id = id + 1
        (
            [moved((f"{at}", f"v{at}"), (f"{at + 1}", f"v{at}")) for at in (1, 2, 3)],
            {"2": ("2", "v1"), "3": ("3", "v2"), "4": ("4", "v3")},
        ),
        # Two rows swap their keys.
        (
            [moved(("1", "v1"), ("2", "v1")), moved(("2", "v2"), ("1", "v2"))],
            {"1": ("1", "v2"), "2": ("2", "v1"), "3": ("3", "v3")},
        ),
        # A row is inserted over another, which is deleted afterwards.
        ([inserted(7, ("1", "n")), deleted(7, ("1", "v1"), b"O")], {"1": ("1", "n")}),
        # A row is inserted and deleted, twice.
        ([inserted(7, ("9", "a")), deleted(7, ("9", "a"), b"O")] * 2, {}),
        # A row is deleted and inserted unchanged.
        ([deleted(7, ("1", "v1"), b"O"), inserted(7, ("1", "v1"))], {"1": ("1", "v1")}),
        # A large value stays unchanged in two updates.
        (
            [moved(("1", "v1"), ("8", UNCHANGED)), moved(("8", "v1"), ("9", UNCHANGED))],
            {"9": ("9", "v1")},
        ),
    ],
)
def test_known_moves_leave_what_the_source_has(changes: list[Change], left: dict[str, Row]) -> None:
    before = {key: (key, f"v{key}") for key in ("1", "2", "3")}
    found = applied(settled(changes), before)
    named = {text(row[0]) for change in changes for row in cells_of(change) if row is not None}
    assert {key: row for key, row in found.items() if key in named | set(left)} == left


@st.composite
def transactions(draw: st.DrawFn) -> tuple[dict[str, Row], list[Change], dict[str, Row]]:
    """Draw rows, a transaction that may duplicate keys, and the rows that it leaves."""
    keys, values = st.sampled_from("12345"), st.sampled_from("uvw")
    before = {key: (key, value) for key, value in draw(st.dictionaries(keys, values)).items()}
    rows = list(before.values())
    changes = []
    for _ in range(draw(st.integers(1, 12))):
        what = draw(st.sampled_from("IUD"))
        if what == "I" or not rows:
            new = (draw(keys), draw(values))
            changes.append(inserted(7, new))
        else:
            old = rows.pop(draw(st.integers(0, len(rows) - 1)))
            if what == "D":
                changes.append(deleted(7, old, b"O"))
                continue
            new = (draw(keys), draw(st.sampled_from([old[1], "z"])))
            sent = UNCHANGED if new[1] == old[1] and draw(st.booleans()) else new[1]
            changes.append(moved(old, (new[0], sent)))
        rows.append(new)
    # A deferred constraint is checked at commit, so duplicate keys are deleted.
    for key, count in Counter(row[0] for row in rows).items():
        for _ in range(count - 1):
            at = draw(st.sampled_from([at for at, row in enumerate(rows) if row[0] == key]))
            changes.append(deleted(7, rows.pop(at), b"O"))
    return before, changes, {row[0]: row for row in rows}


@given(transactions())
def test_any_transaction_leaves_what_the_source_has(
    case: tuple[dict[str, Row], list[Change], dict[str, Row]],
) -> None:
    before, changes, after = case
    left = settled(changes)
    assert applied(left, before) == after
    assert left == sorted(left, key=lambda change: change[0] != "D"), "deletes come first"
    assert len({row for _, row in left}) == len(left)


def test_a_change_without_its_whole_old_row_is_refused() -> None:
    for change in (updated(7, ("1", "a")), updated(7, ("1", "a"), ("1", None))):
        with pytest.raises(NotWhole):
            settled([change])
    with pytest.raises(UnknownMessage):
        settled([Change(7, b"I")])


@given(transactions(), st.data())
def test_a_change_that_ends_early_is_never_settled(
    case: tuple[dict[str, Row], list[Change], dict[str, Row]], data: st.DataObject
) -> None:
    change = data.draw(st.sampled_from(case[1])).data
    short = Change(7, change[: data.draw(st.integers(0, len(change) - 1))])
    # A message truncated in its last row is refused only when that row is read.
    with pytest.raises((UnknownMessage, NotWhole)):
        settled([short])
