"""The rows of a keyed table, each key once: neighbours are looked at, one batch after another.

Law of this file: rows come in the order of their keys, so a key that stands twice has two rows side
by side. Which of them is meant nobody can tell, as a frame has no order: it is refused by name.
Runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ingester.spark.errors import WriteRefused


def each_key_once(
    batches: Iterable[pa.RecordBatch], primary_key: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the batches as they are.

    Raises:
        WriteRefused: A key that stands twice, or a row without its key.
    """
    last: pa.RecordBatch | None = None
    for batch in batches:
        if batch.num_rows:
            keys = batch.select(list(primary_key))
            _check_nulls(keys)
            seen = keys if last is None else pa.concat_batches([last, keys])
            _check_neighbours(seen)
            last = keys.slice(keys.num_rows - 1)
        yield batch


def _check_nulls(keys: pa.RecordBatch) -> None:
    for name in keys.schema.names:
        if keys.column(name).null_count:
            raise WriteRefused(f"column {name!r} of the primary key is null in a row")


def _check_neighbours(keys: pa.RecordBatch) -> None:
    rows = keys.num_rows - 1
    if rows < 1:
        return
    same: pa.Array | None = None
    for column in keys.columns:
        equal = pc.equal(column.slice(1), column.slice(0, rows))
        same = equal if same is None else pc.and_(same, equal)
    place = pc.index(same, True).as_py()
    if place >= 0:
        key = ", ".join(
            f"{name} = {keys.column(name)[place].as_py()!r}" for name in keys.schema.names
        )
        raise WriteRefused(
            f"the frame has several rows of one primary key ({key}), and no order that says which"
            " of them is meant: keep one of each key, as with dropDuplicates"
        )
