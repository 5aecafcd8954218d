"""The collector turns the changes of transactions into messages, table by table."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import pytest

from ingester.client.sync_stream import SyncColumn
from ingester.postgres.collector import MESSAGE_BYTES, MESSAGE_ROWS, Collector, TruncatedTable
from ingester.postgres.pgoutput import Change, Relation, RelationColumn, UnknownMessage
from ingester.postgres.states import Shape, ShapeColumn, ShapeDiffers
from ingester.postgres.sync_messages import SyncMessage
from ingester.postgres.types import ValueNotKept, column_type
from tests.postgres.applying import Tables, apply_messages
from tests.postgres.messages import UNCHANGED, deleted, inserted, updated
from tests.postgres.test_types import BOOL, DATE, INT4

TEXT = 25
INT, NAME = RelationColumn("id", INT4, -1), RelationColumn("name", TEXT, -1)
RELATION = Relation(7, "public", "t", (INT, NAME), ("id",))


def shape(relation: Relation) -> Shape:
    columns = tuple(
        ShapeColumn(name, f"x{name}", column_type(oid, modifier))
        for name, oid, modifier in relation.columns
    )
    return Shape(relation.name, ("id",), columns, relation.identity == "f")


def test_transactions_are_collected_by_table() -> None:
    shapes = {7: shape(RELATION)}
    collector = Collector(shapes)
    collector.relation(RELATION)
    for change in (
        inserted(7, ["1", "a"]),
        updated(7, ["2", UNCHANGED], ["1", None]),
        updated(7, ["2", "b"]),
        deleted(7, ["2", None]),
        inserted(8, ["a table that is not followed"]),
    ):
        collector.add(change)
    collector.commit(5)
    # A new column begins a second message, which follows the first.
    wider = RELATION._replace(columns=(INT, NAME, RelationColumn("more", BOOL, -1)))
    shapes[7] = shape(wider)
    collector.relation(wider)
    collector.add(inserted(7, ["3", "c", "t"]))
    collector.commit(6)
    assert (collector.upto, collector.changes) == (6, 5)
    first, second = collector.take()
    assert isinstance(first, SyncMessage)
    assert isinstance(second, SyncMessage)
    roles = [("old_pk", "xid"), ("new_pk", "xid"), ("value", "xname"), ("changed", "xname")]
    assert first.columns == tuple(SyncColumn(*role) for role in roles)
    assert first.batch.to_pydict() == {
        "0": [None, 1, 2, 2],
        "1": [1, 2, 2, None],
        "2": ["a", None, "b", None],
        "3": [True, False, True, True],
    }
    assert second.batch.to_pydict() == {"0": [None], "1": [3], "2": ["c"], "3": [True]}
    assert (collector.upto, collector.changes, collector.nbytes) == (None, 0, 0)
    assert list(collector.take()) == []


def collected(relation: Relation, *changes: Change) -> Collector:
    """Return a collector that holds some changes of one table, as one transaction."""
    collector = Collector({relation.oid: shape(relation)})
    collector.relation(relation)
    for change in changes:
        collector.add(change)
    collector.commit(9)
    return collector


def rows_of(messages: Iterable[SyncMessage | TruncatedTable]) -> Tables:
    tables: Tables = {}
    apply_messages(messages, tables)
    return tables


def test_messages_are_bounded_and_a_large_row_is_one_of_its_own() -> None:
    small, large = "s" * (MESSAGE_BYTES // 3), "l" * (MESSAGE_BYTES + 1)
    changes = [inserted(7, [at, small]) for at in range(4)]
    changes += [inserted(7, [4, large]), inserted(7, [5, "x"])]
    changes += [inserted(7, [at, None]) for at in range(6, 6 + MESSAGE_ROWS)]
    collector = collected(RELATION, *changes)
    assert collector.changes == len(changes)
    held = sum(sys.getsizeof(change.data) for change in changes)
    assert held <= collector.nbytes < 1.1 * held
    messages = [message for message in collector.take() if isinstance(message, SyncMessage)]
    assert [message.batch.num_rows for message in messages] == [2, 2, 1, MESSAGE_ROWS, 1]
    ids = [row for message in messages for row in message.batch.column(1).to_pylist()]
    assert ids == list(range(6 + MESSAGE_ROWS))
    assert (collector.changes, collector.nbytes) == (0, 0)


FULL = RELATION._replace(key=("id", "name"), identity="f")


@pytest.mark.parametrize("relation", [RELATION, FULL])
def test_a_truncation_takes_the_place_of_what_was_before_it(relation: Relation) -> None:
    other = relation._replace(oid=8, name="other")
    collector = Collector({7: shape(relation), 8: shape(other)})
    collector.relation(relation)
    collector.relation(other)
    # The truncation discards both rows, including the unsupported value.
    for change in (inserted(7, ["x", "gone"]), inserted(7, ["1", "gone"])):
        collector.add(change)
    collector.commit(1)
    collector.add(inserted(7, ["2", "gone"]))
    collector.add(inserted(8, ["1", "stays"]))
    for oid in (7, 7, 99):
        collector.truncate(oid)
    alone = collected(other, inserted(8, ["1", "stays"]))
    assert (collector.changes, collector.nbytes) == (1, alone.nbytes)
    collector.add(inserted(7, ["3", "new"]))
    collector.commit(2)
    messages = list(collector.take())
    [at] = [at for at, each in enumerate(messages) if isinstance(each, TruncatedTable)]
    assert messages[at] == TruncatedTable("t")
    tables: Tables = {"t": {(0,): {}}, "other": {}}
    apply_messages(messages, tables)
    assert tables["t"] == {(3,): {"xid": 3, "xname": "new"}}
    assert tables["other"] == {(1,): {"xid": 1, "xname": "stays"}}


def test_rows_that_change_places_are_settled_at_the_end_of_their_transaction() -> None:
    collector = Collector({7: shape(FULL)})
    collector.relation(FULL)
    for sequence, (a, b) in enumerate([("a", "b"), ("b", "a"), ("a", "b")]):
        if sequence == 0:
            collector.add(inserted(7, ["1", "a"]))
            collector.add(inserted(7, ["2", "b"]))
        collector.add(updated(7, ["2", UNCHANGED], ["1", a], b"O"))
        collector.add(updated(7, ["1", UNCHANGED], ["2", b], b"O"))
        collector.commit(sequence)
    messages = list(collector.take())
    assert rows_of(messages)["t"] == {
        (1,): {"xid": 1, "xname": "b"},
        (2,): {"xid": 2, "xname": "a"},
    }
    # The complete old row has the values that the log omits, so no row is looked up.
    assert all(isinstance(m, SyncMessage) and m.columns[-1].role == "value" for m in messages)


def test_a_lone_update_of_a_whole_row_is_one_change() -> None:
    collector = collected(FULL, updated(7, ["2", UNCHANGED], ["1", "a"], b"O"))
    [message] = collector.take()
    assert isinstance(message, SyncMessage)
    assert message.batch.to_pydict() == {"0": [1], "1": [2], "2": ["a"]}


def test_partitions_of_one_table_keep_their_order_whatever_theirs_is() -> None:
    turned = Relation(8, "public", "t_1", (NAME, INT), ("id",))
    collector = Collector({7: shape(RELATION), 8: shape(turned)._replace(target="t")})
    for change in (
        inserted(7, ["1", "a"]),
        updated(8, ["b", "1"]),
        updated(7, ["2", "c"], ["1", None]),
        updated(8, ["d", "2"]),
    ):
        collector.relation(RELATION)
        collector.relation(turned)
        collector.add(change)
    collector.commit(1)
    assert rows_of(collector.take()) == {"t": {(2,): {"xid": 2, "xname": "d"}}}


@pytest.mark.parametrize(
    ("relation", "reason"),
    [
        (RELATION._replace(columns=(INT,)), "column 'name' is gone"),
        (RELATION._replace(columns=(INT, NAME, RelationColumn("n", 25, -1))), "column 'n' is new"),
        (RELATION._replace(key=("name",)), "column 'id' is not in the REPLICA IDENTITY"),
        (FULL, "its REPLICA IDENTITY changed"),
    ],
)
def test_a_table_that_is_not_what_it_is_followed_by_is_refused(
    relation: Relation, reason: str
) -> None:
    collector = Collector({7: shape(RELATION)})
    with pytest.raises(ShapeDiffers, match=f"table 't': {reason}") as caught:
        collector.relation(relation)
    assert (caught.value.oid, caught.value.target) == (7, "t")
    # Each later change raises the error again.
    with pytest.raises(ShapeDiffers):
        collector.add(inserted(7, ["1", "a"]))
    with pytest.raises(ShapeDiffers):
        collector.truncate(7)


def test_a_table_whose_shape_comes_late_is_followed_from_there() -> None:
    shapes: dict[int, Shape] = {}
    collector = Collector(shapes)
    collector.relation(RELATION)
    collector.add(inserted(7, ["1", "before"]))
    shapes[7] = shapes[8] = shape(RELATION)
    collector.add(inserted(7, ["2", "after"]))
    with pytest.raises(UnknownMessage, match="a change of table 8 before what the table is"):
        collector.add(inserted(8, ["1", "a"]))
    collector.commit(1)
    assert list(rows_of(collector.take())["t"]) == [(2,)]


def test_a_column_that_is_not_wanted_is_left_out() -> None:
    collector = Collector({7: shape(RELATION)._replace(left_out=("extra",))})
    collector.relation(RELATION._replace(columns=(RelationColumn("extra", 600, -1), INT, NAME)))
    collector.add(inserted(7, ["(1,2)", "1", "a"]))
    collector.commit(1)
    assert rows_of(collector.take()) == {"t": {(1,): {"xid": 1, "xname": "a"}}}


def test_a_partition_that_sends_no_whole_rows_is_refused() -> None:
    collector = Collector({7: shape(FULL)})
    collector.relation(FULL)
    collector.add(updated(7, ["1", "a"]))
    collector.add(updated(7, ["1", "b"]))
    with pytest.raises(ShapeDiffers, match="without its old row"):
        collector.commit(1)


DAYS = RELATION._replace(
    columns=(INT, RelationColumn("day", DATE, -1), RelationColumn("n", INT4, -1))
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            inserted(7, ["5", "infinity", "1"]),
            "table 't', row id=5, column 'day': 'infinity' does not fit into date32[day]",
        ),
        (
            updated(7, ["6", "0044-03-15 BC", "1"], ["5", None, None]),
            "table 't', row id=6, column 'day': '0044-03-15 BC' does not fit into date32",
        ),
        (
            inserted(7, [None, None, "1"]),
            "row id=null, column 'id': 'null' is not allowed in the key",
        ),
        (
            deleted(7, [None, None, "1"]),
            "row id=null, column 'id': 'null' is not allowed in the key",
        ),
        (updated(7, [UNCHANGED, None, "1"]), "column 'id': 'null' is not allowed in the key"),
        (inserted(7, ["7", None, "x" * 999]), f"row id=7, column 'n': '{'x' * 80}…' does not fit"),
    ],
)
def test_a_value_that_is_not_kept_is_told_by_table_row_and_column(
    change: Change, message: str
) -> None:
    collector = collected(DAYS, inserted(7, ["1", "2026-11-26", "1"]), change)
    with pytest.raises(ValueNotKept) as caught:
        list(collector.take())
    assert message in str(caught.value)
    assert (caught.value.target, caught.value.row_index) == ("t", 1)


def test_a_key_is_never_left_null_by_its_policy() -> None:
    dated = shape(DAYS)
    columns = tuple(
        column._replace(type=column.type._replace(policy="null")) for column in dated.columns
    )
    collector = Collector({7: dated._replace(key=("day",), columns=columns)})
    collector.relation(DAYS._replace(key=("day",)))
    collector.add(inserted(7, ["1", "infinity", "1"]))
    collector.commit(1)
    with pytest.raises(
        ValueNotKept, match="row day=infinity, column 'day': 'infinity' is not allowed in the key"
    ):
        list(collector.take())


def test_a_change_that_is_damaged_is_refused_when_it_is_taken() -> None:
    collector = collected(RELATION, Change(7, inserted(7, ["1", "a"]).data[:-1]))
    with pytest.raises(UnknownMessage, match="ends too early"):
        list(collector.take())
