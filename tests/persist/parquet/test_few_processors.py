"""Sequential and parallel encoding produce the same files."""

from __future__ import annotations

import threading

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from persist.parquet import encode as parquet
from persist.parquet.encode import encode_ordered
from persist.parquet.sort import sort_rows
from persist.partitioning import UNPARTITIONED
from persist.table import TableDefinition

ROWS = pa.table({"k": pc.random(300_000, initializer=1), "s": ["x", "y", "z"] * 100_000})


@pytest.mark.parametrize("files", [1, 3])
def test_files_are_the_same(monkeypatch: pytest.MonkeyPatch, files: int) -> None:
    definition = TableDefinition(ROWS.schema, UNPARTITIONED, sort_by=("s", "k"))
    encoders: list[set[int]] = []
    encode = parquet.encode

    def watched(*args: object, **more: object) -> pa.Buffer:
        encoders[-1].add(threading.get_ident())
        return encode(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(parquet, "encode", watched)

    def encoded(few: int) -> list[bytes]:
        monkeypatch.setattr(parquet, "FEW_PROCESSORS", few)
        encoders.append(set())
        order = sort_rows(ROWS, definition)
        made = encode_ordered(ROWS, order, definition, metadata={"a": "b"}, files=files)
        return [file.data.to_pybytes() for file in made]

    one_by_one, at_once = encoded(1 << 20), encoded(0)
    assert len(one_by_one) == files
    assert one_by_one == at_once
    assert encoders[0] == {threading.get_ident()}
    assert files == 1 or threading.get_ident() not in encoders[1]
