"""A partition rewritten group by group has every key once, with its newest row."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist.manifest import Add
from persist.parquet.key_overlap import NewRows, overlapping, rising
from persist.parquet.sort import sort_rows
from persist.parquet.sparse_rows import SparseRows
from persist.partitioning import UNPARTITIONED
from persist.table import DELETED, TableDefinition, schema_with_deletes
from tests.persist.parquet.test_key_overlap import file_of

LONG = "x" * 70
"""Longer than the bounds that a file's statistics keep."""
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int": (pa.int64(), st.integers(-9, 9)),
    "text": (pa.string(), st.text("ab", max_size=2) | st.just(LONG)),
    "time": (pa.timestamp("us", "UTC"), st.integers(-9, 9)),
    "day": (pa.date32(), st.integers(-9, 9)),
    "decimal": (pa.decimal128(6, 2), st.integers(-9, 9).map(lambda n: Decimal(n) / 4)),
}
Key = tuple[Any, int]
Row = tuple[Key, int]


def table(schema: pa.Schema, rows: Sequence[Row], deleted: Sequence[bool] = ()) -> pa.Table:
    columns: list[Any] = [[key[n] for key, _ in rows] for n in (0, 1)] + [[v for _, v in rows]]
    if deleted:
        columns.append(list(deleted))
        schema = schema_with_deletes(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
        schema=schema,
    )


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_each_key_is_present_once_with_its_newest_row(kind: str, data: st.DataObject) -> None:
    arrow, values = KINDS[kind]
    schema = pa.schema({"k": arrow, "l": pa.int64(), "v": pa.int64()})
    definition = TableDefinition(schema, UNPARTITIONED, primary_key=("k", "l"))
    keys = st.tuples(values, st.integers(0, 1))

    def plain(key: Key) -> Key:
        """The key as the table returns it."""
        [[again]] = pa.table({"k": pa.array([key[0]], arrow)}).to_pydict().values()
        return again, key[1]

    expected: dict[Key, int] = {}
    files: dict[str, tuple[Add, pa.Table]] = {}
    for n, of in enumerate(data.draw(st.lists(st.lists(keys, min_size=1, unique=True)))):
        rows = [(key, n) for key in of if plain(key) not in expected]
        if rows:
            made = table(schema, rows)
            files[str(n)] = (file_of(made.select(["k", "l"]), str(n)), made)
            expected |= {plain(key): v for key, v in rows}
    changes = data.draw(st.lists(st.tuples(keys, st.booleans()), min_size=1))
    marks = [deletes for _, deletes in changes]
    with_marks = any(marks) or data.draw(st.booleans())
    rows = [(key, 100 + n) for n, (key, _) in enumerate(changes)]
    touched = table(schema, rows, marks if with_marks else ())
    for (key, v), deletes in zip(rows, marks, strict=True):
        expected.pop(plain(key), None)
        if not deletes:
            expected[plain(key)] = v

    new = NewRows(SparseRows.of_table(touched), "k")
    left = rising(overlapping([add for add, _ in files.values()], touched.select(["k", "l"])), "k")
    stay = [made for name, (add, made) in files.items() if add not in left]
    found = [row for made in stay for row in made.to_pylist()]
    size = data.draw(st.integers(1, 3))
    first = True
    while left or first:
        first = False
        group, left = left[:size], left[size:]
        share = new.share(group, left[0] if left else None).table()
        older = [files[add.path][1] for add in group]
        if DELETED in share.schema.names:
            nulls = pa.nulls(sum(each.num_rows for each in older), pa.bool_())
            behind = pa.concat_tables([*older, schema.empty_table()]).append_column(DELETED, nulls)
            merged = pa.concat_tables([behind.cast(share.schema), share])
        else:
            merged = pa.concat_tables([*older, share])
        found += sort_rows(merged, definition).slice().to_pylist()
    state = {(row["k"], row["l"]): row["v"] for row in found}
    assert len(state) == len(found), "a key stands twice"
    assert state == expected


def test_new_rows_are_merged_with_the_nearest_files() -> None:
    schema = pa.schema({"k": pa.int64(), "l": pa.int64(), "v": pa.int64()})
    adds = [file_of(pa.table({"k": range(n, n + 10)}), str(n)) for n in (20, 0, 10)]
    rows = table(schema, [((k, 0), 0) for k in (25, 3, 14, 5, 99)])
    new = NewRows(SparseRows.of_table(rows), "k")
    first, second, third = rising(adds, "k")
    shares = [new.share([first], second), new.share([second], third), new.share([third], None)]
    assert [share.column("k").to_pylist() for share in shares] == [[3, 5], [14], [25, 99]]
