"""A flush of a keyed table reads all files that may contain a touched key, and few others."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist.manifest import Add
from persist.parquet import key_overlap as keyed
from persist.parquet.key_overlap import overlapping
from persist.parquet.stats import column_stats

KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int": (pa.int64(), st.integers(-50, 50)),
    "text": (pa.string(), st.text("ab9", max_size=3)),
    "time": (pa.timestamp("us", "UTC"), st.integers(-50, 50)),
    "day": (pa.date32(), st.integers(-50, 50)),
    "bool": (pa.bool_(), st.booleans()),
    "bytes": (pa.binary(), st.binary(max_size=2)),
    "decimal": (pa.decimal128(6, 2), st.integers(-2000, 2000).map(lambda n: Decimal(n) / 100)),
}


def file_of(keys: pa.Table, name: str) -> Add:
    return Add(
        path=name,
        kind="persist",
        rows=keys.num_rows,
        bytes=1,
        spec_id=1,
        values=(),
        stats=column_stats(keys),
        writer="w",
        epoch=1,
        first_seq=0,
        last_seq=0,
        schema_id=1,
        at="2026-11-22T00:00:00+00:00",
    )


@pytest.mark.parametrize("few", [0, 100])
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_no_file_with_a_touched_key_is_omitted(kind: str, few: int, data: st.DataObject) -> None:
    arrow, values = KINDS[kind]
    keys = st.lists(values, min_size=1, max_size=6)
    files = data.draw(st.lists(keys, max_size=4))
    touched = data.draw(keys)

    def table(of: list[Any]) -> pa.Table:
        return pa.table({"k": pa.array(of, arrow)})

    adds = [file_of(table(of), str(n)) for n, of in enumerate(files)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyed, "FEW", few)
        found = {add.path for add in overlapping(adds, table(touched))}
    assert {str(n) for n, of in enumerate(files) if set(of) & set(touched)} <= found


def test_a_file_between_two_touched_keys_stays() -> None:
    adds = [file_of(pa.table({"k": range(n, n + 10)}), str(n)) for n in range(0, 50, 10)]
    found = overlapping(adds, pa.table({"k": [3, 45]}))
    assert [add.path for add in found] == ["0", "40"]
