"""Messages are read by their columns' roles, or refused with a column's name."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from ingester.errors import BadRequest
from ingester.replication.messages import MessageColumn, SyncLayout

PLAIN = [("old_pk", "id"), ("new_pk", "id"), ("changed", "v"), ("value", "v"), ("value", "w")]


def layout(columns: list[tuple[Any, str]], *types: pa.DataType) -> SyncLayout:
    schema = pa.schema([pa.field(f"f{number}", kind) for number, kind in enumerate(types)])
    return SyncLayout([MessageColumn(role, name) for role, name in columns], schema)


def test_fields_are_matched_by_position_and_keys_are_put_in_one_order() -> None:
    columns: list[tuple[Any, str]] = [
        ("value", "v"), ("old_pk", "b"), ("old_pk", "a"), ("new_pk", "a"), ("new_pk", "b"),
        ("changed", "v"),
    ]  # fmt: skip
    text, number, flag = pa.string(), pa.int64(), pa.bool_()
    found = layout(columns, number, text, number, number, text, flag)
    assert found.key == ("a", "b")
    assert found.schema.names == ["a", "b", "v"]
    batch = pa.record_batch(
        [
            pa.array([7, 8]), pa.array([None, "x"]), pa.array([None, 1]), pa.array([1, None]),
            pa.array(["x", None]), pa.array([True, False]),
        ],
        names=[f"f{number}" for number in range(6)],
    )  # fmt: skip
    changes = found.changes(batch)
    assert changes.old.to_pylist() == [{"a": None, "b": None}, {"a": 1, "b": "x"}]
    assert changes.new.to_pylist() == [{"a": 1, "b": "x"}, {"a": None, "b": None}]
    assert changes.values.to_pylist() == [{"v": 7}, {"v": 8}]
    assert changes.changed["v"].tolist() == [True, False]


def test_keys_of_dictionaries_and_tables_without_values_are_fine() -> None:
    kind = pa.dictionary(pa.int32(), pa.string())
    found = layout([("old_pk", "k"), ("new_pk", "k")], kind, kind)
    keys = pa.array(["a", "b"]).dictionary_encode()
    changes = found.changes(pa.record_batch([keys, keys], names=["o", "n"]))
    assert changes.new["k"].to_pylist() == ["a", "b"]
    assert changes.values.num_rows == changes.rows == 2


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (PLAIN[:4], "4 columns are described, the batch has 5"),
        ([*PLAIN[:4], ("value", "v")], "value 'v' is given twice"),
        ([("old_pk", "id"), ("new_pk", "key"), *PLAIN[2:]], "old_pk 'id' has no new_pk"),
        ([("value", "id"), ("new_pk", "id"), *PLAIN[2:]], "new_pk 'id' has no old_pk"),
        ([("value", "a"), ("value", "b"), *PLAIN[2:]], "no column has the role new_pk"),
        ([*PLAIN[:2], ("changed", "x"), *PLAIN[3:]], "changed 'x' has no value"),
        ([*PLAIN[:4], ("value", "id")], "'id' is both in the key and a value"),
        ([*PLAIN[:2], ("value", "w"), ("changed", "w"), ("value", "v")], "'w' is int64, not boo"),
    ],
)
def test_columns_that_make_no_message_are_refused(
    columns: list[tuple[Any, str]], said: str
) -> None:
    number = pa.int64()
    with pytest.raises(BadRequest, match=said):
        layout(columns, number, number, pa.bool_(), number, number)


def test_keys_of_two_types_are_refused() -> None:
    with pytest.raises(BadRequest, match="'id' is int64 in old_pk and int32 in new_pk"):
        layout([("old_pk", "id"), ("new_pk", "id")], pa.int64(), pa.int32())


@pytest.mark.parametrize(
    ("old", "new", "flag", "said"),
    [
        ((None, None), (None, None), True, "row 0 has neither an old nor a new key"),
        ((1, None), (None, None), True, "old_pk of row 0 is partly null"),
        ((None, None), (None, 1), True, "new_pk of row 0 is partly null"),
        ((1, 1), (1, 1), None, "changed 'v' has 1 nulls"),
    ],
)
def test_rows_that_are_no_changes_are_refused(old: Any, new: Any, flag: Any, said: str) -> None:
    number = pa.int64()
    roles: list[tuple[Any, str]] = [
        ("old_pk", "a"), ("old_pk", "b"), ("new_pk", "a"), ("new_pk", "b"), ("value", "v"),
        ("changed", "v"),
    ]  # fmt: skip
    found = layout(roles, number, number, number, number, number, pa.bool_())
    arrays = [pa.array([value], number) for value in (*old, *new, 5)]
    batch = pa.record_batch([*arrays, pa.array([flag], pa.bool_())], names=list("abcdef"))
    with pytest.raises(BadRequest, match=said):
        found.changes(batch)
