"""Folded changes equal the changes applied one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from ingester.replication.fold import Changes, fold

Key = int | None
Change = tuple[Key, Key, str, bool, int, bool]
"""Old key, new key, v and whether it changed, w and whether it changed."""
Table = dict[int, dict[str, Any]]

KEY = pa.schema({"id": pa.int64()})
VALUES = pa.schema({"v": pa.string(), "w": pa.int64(), "u": pa.int64()})


def changes_of(rows: list[Change]) -> Changes:
    old, new, v, v_changed, w, w_changed = zip(*rows, strict=True) if rows else ((),) * 6
    return Changes(
        old=pa.record_batch([pa.array(old, pa.int64())], schema=KEY),
        new=pa.record_batch([pa.array(new, pa.int64())], schema=KEY),
        # Column u is sent with every change.
        values=pa.record_batch(
            [pa.array(v, pa.string()), pa.array(w, pa.int64()), pa.array(range(len(rows)))],
            schema=VALUES,
        ),
        changed={"v": np.array(v_changed, bool), "w": np.array(w_changed, bool)},
    )


def one_by_one(table: Table, rows: list[Change]) -> Table:
    """Apply changes row by row, as the reference."""
    table = dict(table)
    for number, (old, new, v, v_changed, w, w_changed) in enumerate(rows):
        row = dict.fromkeys(VALUES.names) if old is None else table.pop(old, None)
        if new is None:
            continue
        row = dict(row or dict.fromkeys(VALUES.names))
        if v_changed:
            row["v"] = v
        if w_changed:
            row["w"] = w
        row["u"] = number
        table[new] = row
    return table


def folded(table: Table, rows: list[Change]) -> Table:
    """Fold the changes, then apply one change for each key."""
    changes = changes_of(rows)
    result = fold(changes)
    keys = result.keys["id"].to_pylist()
    deleted = result.deleted["id"].to_pylist()
    assert len({*keys, *deleted}) == len(keys) + len(deleted), "a key twice"
    after = {key: row for key, row in table.items() if key not in {*keys, *deleted}}
    for place, key in enumerate(keys):
        base = int(result.base[place])
        made_of = table.get(changes.old["id"][base].as_py()) if base >= 0 else None
        row = dict(made_of or dict.fromkeys(VALUES.names))
        for name, sources in result.sources.items():
            if sources[place] >= 0:
                row[name] = changes.values[name][int(sources[place])].as_py()
        after[key] = row
    return after


_KEYS = st.integers(0, 5)
_CHANGES = st.tuples(
    st.none() | _KEYS, st.none() | _KEYS, st.text("ab", max_size=1), st.booleans(),
    st.integers(0, 9), st.booleans(),
).filter(lambda change: change[:2] != (None, None))  # fmt: skip
_ROWS = st.fixed_dictionaries(
    {"v": st.text("xy", max_size=1), "w": st.integers(10, 19), "u": st.just(-1)}
)
_TABLES = st.dictionaries(_KEYS, _ROWS)
_TEMPORARY: list[Change] = [(None, 1, "a", True, 1, True), (1, None, "", True, 0, True)]
_MOVED: list[Change] = [
    (None, 2, "", False, 20, True),
    (2, -2, "", False, 21, True),
    (-2, 3, "two", True, 30, True),
]


@given(_TABLES, st.lists(_CHANGES, max_size=12))
@example({}, _TEMPORARY)
@example({}, _MOVED)
def test_folding_is_the_changes_one_by_one(table: Table, rows: list[Change]) -> None:
    assert folded(table, rows) == one_by_one(table, rows)


@given(_TABLES, st.lists(_CHANGES, max_size=12), st.integers(0, 12))
def test_a_cut_anywhere_changes_nothing(table: Table, rows: list[Change], cut: int) -> None:
    whole = folded(table, rows)
    parts = folded(folded(table, rows[:cut]), rows[cut:])
    # Column u is ignored, because it numbers the rows within each part.
    assert [{**row, "u": 0} for _, row in sorted(parts.items())] == [
        {**row, "u": 0} for _, row in sorted(whole.items())
    ]
    assert parts.keys() == whole.keys()


def test_keys_of_several_columns_are_told_apart() -> None:
    schema = pa.schema({"a": pa.string(), "b": pa.int64()})
    old = pa.record_batch([pa.array([None, "x", None]), pa.array([None, 1, None])], schema=schema)
    new = pa.record_batch([pa.array(["x", "x", "y"]), pa.array([1, 2, 1])], schema=schema)
    values = pa.record_batch({"v": pa.array([1, 2, 3])})
    result = fold(Changes(old, new, values, {}))
    assert result.keys.to_pylist() == [{"a": "x", "b": 2}, {"a": "y", "b": 1}]
    assert result.deleted.to_pylist() == [{"a": "x", "b": 1}]
    assert result.sources["v"].tolist() == [1, 2]
    assert result.base.tolist() == [-1, -1]


def test_nothing_folds_to_nothing() -> None:
    result = fold(changes_of([]))
    assert result.keys.num_rows == result.deleted.num_rows == 0


def test_a_long_chain_is_one_change() -> None:
    rows: list[Change] = [(n, n + 1, "", n == 7, n, False) for n in range(5_000)]
    result = fold(changes_of(rows))
    assert result.keys["id"].to_pylist() == [5_000]
    assert result.base.tolist() == [0]
    assert result.sources["v"].tolist() == [7]
    assert result.sources["w"].tolist() == [-1]
    assert result.deleted["id"].to_pylist() == list(range(5_000))
