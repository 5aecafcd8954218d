"""Changes of transactions become messages, table by table."""

from __future__ import annotations

from ingester.client.sync_stream import SyncColumn
from ingester.postgres.collector import Collector, Shape, ShapeColumn, SyncMessage
from ingester.postgres.pgoutput import UNCHANGED, Column, Relation
from ingester.postgres.types import column_type
from tests.postgres.messages import deleted, inserted, updated
from tests.postgres.test_types import BOOL, INT4, Typed

TEXT = 25
INT, NAME = Column("id", INT4, -1), Column("name", TEXT, -1)
RELATION = Relation(7, "public", "t", (INT, NAME), ("id",))


def shape(relation: Relation) -> Shape:
    columns = tuple(
        ShapeColumn(name, f"x{name}", column_type(Typed(oid, modifier)))
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
    # Another column from here on: another message, behind the first.
    wider = RELATION._replace(columns=(INT, NAME, Column("more", BOOL, -1)))
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
