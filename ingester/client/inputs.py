"""The data that a caller hands to ``write``, as record batches of one schema.

    RecordBatch, RecordBatchReader, iterable of RecordBatches   each batch is one operation
    Table, pandas or Polars frame, dict of columns, dicts,      one operation if it fits a batch,
    whatever has __arrow_c_stream__ or __arrow_c_array__        else cut by size

Law of this file: pure, and no copy of the whole. Neither pandas nor Polars is imported: only what
is handed over is looked at.
"""

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from .batches import regrouped
from .errors import InvalidRequest
from .meaning import check_meaning, check_objects

Data: TypeAlias = Any
"""Any form in the table above; pyarrow is untyped, and the rest is not imported."""

# A quarter of the daemon's default limit: its own measure of a batch may be larger than Arrow's.
TABLE_BATCH_BYTES = 16 * 1024**2

FORMS = (
    "a pyarrow RecordBatch or Table, a pandas or Polars DataFrame, whatever has __arrow_c_stream__,"
    " a dict of columns as {'v': [1, 2]}, or a list of dicts as [{'v': 1}, {'v': 2}]"
)


class Input(NamedTuple):
    """The non-empty batches of what was handed over; ``schema`` is None where that is nothing."""

    schema: pa.Schema | None
    batches: Iterator[pa.RecordBatch]
    drawn: bool
    """Whether the caller drew the lines between the batches."""
    held: bool = False
    """Whether all rows are in memory already, so that all can be looked at before one is sent."""


_NOTHING = Input(None, iter(()), True)


def batches_of(data: Data, max_batch_bytes: int) -> Input:
    """The batches of ``data``.

    Raises:
        InvalidRequest: not one of the forms that are taken, or not of one type in each column; also
            while the batches are walked.
    """
    if isinstance(data, pa.RecordBatch):
        return Input(data.schema, iter([data] if data.num_rows else []), True)
    if isinstance(data, pa.RecordBatchReader):
        return Input(data.schema, (batch for batch in data if batch.num_rows), True)
    check_objects(data)
    table = _table_of(data)
    if table is not None:
        return Input(table.schema, regrouped(table.to_batches(), max_batch_bytes), False, True)
    if hasattr(data, "__arrow_c_stream__"):
        reader = _reader_of(data)
        schema = reader.schema.remove_metadata()
        batches = (batch.replace_schema_metadata(None) for batch in reader)
        held = hasattr(data, "__len__")  # a frame of Polars', not a query that runs as it is read
        return Input(schema, regrouped(batches, max_batch_bytes), False, held)
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise _refused(data)
    return _walked(iter(data), max_batch_bytes)


def _walked(items: Iterator[Any], max_batch_bytes: int) -> Input:
    first = next(items, None)
    if first is None:
        return _NOTHING
    whole = itertools.chain([first], items)
    if isinstance(first, Mapping):
        return batches_of(table_of_rows(list(whole)), max_batch_bytes)
    _checked(first)
    return Input(first.schema, (batch for batch in map(_checked, whole) if batch.num_rows), True)


def _table_of(data: Data) -> pa.Table | None:
    """Data that is in memory as a whole, as a table; None where it is no such thing."""
    if isinstance(data, pa.Table):
        return data
    # While another thread imports it (as pyarrow does), it has no frames yet: data is none.
    frame = getattr(sys.modules.get("pandas"), "DataFrame", None)
    if frame is not None and isinstance(data, frame):
        return _table_of_pandas(data)
    if isinstance(data, Mapping):
        return table_of_columns(data)
    if hasattr(data, "__arrow_c_array__") and not hasattr(data, "__arrow_c_stream__"):
        try:
            return pa.Table.from_batches([pa.record_batch(data)]).replace_schema_metadata(None)
        except (pa.ArrowException, TypeError, ValueError) as exc:
            raise _one_column(data) from exc
    return None


def _reader_of(data: Data) -> pa.RecordBatchReader:
    if isinstance(getattr(data, "type", None), pa.DataType):  # pyarrow's own columns
        raise _one_column(data)
    try:
        return pa.RecordBatchReader.from_stream(data)
    except (pa.ArrowException, TypeError, ValueError) as exc:
        if isinstance(exc, pa.ArrowInvalid) and "struct" not in str(exc):
            raise InvalidRequest(str(exc)) from exc
        raise _one_column(data) from exc


def only_one(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The one batch, or none: where every batch has a number, its lines cannot be ours to draw.

    Raises:
        InvalidRequest: there are more.
    """
    found = list(itertools.islice(batches, 2))
    if len(found) > 1:
        raise InvalidRequest(
            "the rows make more than one batch, and first_sequence says which sequence each batch"
            " has: write record batches, cut in the same way each time"
        )
    return iter(found)


def at_least_one(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches, or an empty one."""
    first = next(batches, None)
    if first is None:
        first = pa.RecordBatch.from_pylist([], schema=schema)
    return itertools.chain([first], batches)


def table_of_columns(columns: Mapping[str, Any]) -> pa.Table:
    """A dict of columns as a table.

    Raises:
        InvalidRequest: a value is no column, or the columns differ in length.
    """
    made = {}
    for name, values in columns.items():
        if not isinstance(name, str):
            raise InvalidRequest(f"column {name!r}: a column's name is text")
        if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__len__"):
            raise InvalidRequest(
                f"column {name!r} is a {type(values).__name__}: a dict is taken as columns, each a"
                " list or an array; one row is written as a list of dicts, as [{'v': 1}]"
            )
        made[name] = _column(name, values)
    lengths = {name: len(values) for name, values in made.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidRequest(f"the columns differ in length: {lengths}")
    return pa.table(made)


def table_of_rows(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """A list of dicts as a table: every key is a column, null in the rows that lack it.

    Raises:
        InvalidRequest: an item is no dict, or a column has values of several types.
    """
    names: dict[str, None] = {}
    for at, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidRequest(f"row {at} is a {type(row).__name__}, not a dict as the first one")
        names.update(dict.fromkeys(row))
    if not names:
        raise InvalidRequest("the rows have no columns: every dict is empty")
    return table_of_columns({name: [row.get(name) for row in rows] for name in names})


def _column(name: str, values: Any) -> pa.Array | pa.ChunkedArray:
    try:
        if hasattr(values, "__arrow_c_stream__") and not hasattr(values, "__array__"):
            made = pa.chunked_array(values)
        else:
            made = pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as exc:
        raise InvalidRequest(
            f"column {name!r}: {exc}; give it one type that has room for all of its values, as"
            " pyarrow.array(values, pyarrow.uint64())"
        ) from exc
    check_meaning(name, values, made.type)
    return made


def _table_of_pandas(frame: Any) -> pa.Table:
    """A named index becomes a column; row numbers without a name are left out."""
    if any(name is not None for name in frame.index.names):
        frame = frame.reset_index()
    elif frame.index.nlevels > 1 or not (len(frame) == 0 or frame.index.dtype.kind in "iu"):
        raise InvalidRequest(
            "the DataFrame's index has values and no name: name it, as"
            " frame.rename_axis('time'), to write it as a column, or drop it with"
            " frame.reset_index(drop=True)"
        )
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as exc:
        raise InvalidRequest(f"the DataFrame is not of one type in each column: {exc}") from exc
    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        check_meaning(name, frame.get(name, []), kind)
    return table.replace_schema_metadata(None)


def _checked(batch: object) -> pa.RecordBatch:
    if isinstance(batch, pa.RecordBatch):
        return batch
    if hasattr(batch, "__arrow_c_stream__") or hasattr(batch, "__arrow_c_array__"):
        remedy = "write each by itself"
    else:
        remedy = "say the columns' names, as [{'id': 1}, {'id': 2}] or {'id': [1, 2]}"
    kind = type(batch).__name__
    raise InvalidRequest(
        f"an iterable is taken of record batches or of dicts, not of a {kind}: {remedy}"
    )


def _one_column(data: object) -> InvalidRequest:
    return InvalidRequest(
        f"a {type(data).__name__} is one column: say its name, as write(…, {{'v': column}})"
    )


def _refused(data: object) -> InvalidRequest:
    ways = ("to_arrow", "toArrow", "collect")
    way = next((f": write its .{name}()" for name in ways if hasattr(data, name)), "")
    return InvalidRequest(f"write takes {FORMS}; not a {type(data).__name__}{way}")
