"""Converts the data that a caller passes to ``write`` into record batches of one schema. Pure.

    RecordBatch, RecordBatchReader, iterable of RecordBatches   each batch is one operation
    Table, pandas or Polars frame, dict of columns, dicts,      one operation if it fits a batch,
    any object with __arrow_c_stream__ or __arrow_c_array__     else divided by size

The data is not copied as a whole, and neither pandas nor Polars is imported. Values whose meaning
Arrow would change are refused.
"""

import bisect
import datetime
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from .errors import InvalidRequest

Data: TypeAlias = Any
"""Any form listed above; pyarrow is untyped, and the other libraries are not imported."""

# A quarter of the daemon's default limit, whose measure of a batch may exceed Arrow's.
TABLE_BATCH_BYTES = 16 * 1024**2
_NOT_CONVERTED = (pa.ArrowException, TypeError, ValueError, OverflowError)
_WHOLE_NUMBERS = {
    pa.uint64(): "pyarrow.uint64()",
    pa.decimal128(38, 0): "pyarrow.decimal128(38, 0)",
}
_SHOWN_CHARACTERS = 80

FORMS = (
    "a pyarrow RecordBatch or Table, a pandas or Polars DataFrame, any object with"
    " __arrow_c_stream__, a dict of columns such as {'v': [1, 2]}, or a list of dicts such as"
    " [{'v': 1}, {'v': 2}]"
)


class Input(NamedTuple):
    """The non-empty batches of a caller's data.

    Attributes:
        schema: None if there is no data.
        drawn: The caller chose the boundaries of the batches.
        held: All rows are in memory, so all can be checked before one is sent.
    """

    schema: pa.Schema | None
    batches: Iterator[pa.RecordBatch]
    drawn: bool
    held: bool = False


_NOTHING = Input(None, iter(()), True)


def batches_of(data: Data, max_batch_bytes: int) -> Input:
    """The batches of ``data``.

    Raises:
        InvalidRequest: The form is unknown, or a column has several types; also raised while
            iterating.
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
        held = hasattr(data, "__len__")  # a Polars frame, not a query that runs while it is read
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
    """Data that is completely in memory, as a table; None for other data."""
    if isinstance(data, pa.Table):
        return data
    # While another thread is importing pandas, the module has no DataFrame yet.
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
    """The single batch, or none: batches that the caller numbers cannot be divided here.

    Raises:
        InvalidRequest: There are several.
    """
    found = list(itertools.islice(batches, 2))
    if len(found) > 1:
        raise InvalidRequest(
            "the rows make more than one batch, but first_sequence numbers batches: write record"
            " batches, divided in the same way each time"
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
        InvalidRequest: A value is not a column, or the columns differ in length.
    """
    made = {}
    for name, values in columns.items():
        if not isinstance(name, str):
            raise InvalidRequest(f"column {name!r}: the name of a column must be text")
        if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__len__"):
            raise InvalidRequest(
                f"column {name!r} is a {type(values).__name__}: a dict holds columns, each a list"
                " or an array; write a single row as a list of dicts, such as [{'v': 1}]"
            )
        made[name] = _column(name, values)
    lengths = {name: len(values) for name, values in made.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidRequest(f"the columns differ in length: {lengths}")
    return pa.table(made)


def table_of_rows(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """A list of dicts as a table: every key is a column, null in the rows that lack it.

    Raises:
        InvalidRequest: An item is not a dict, or a column has values of several types.
    """
    names: dict[str, None] = {}
    for at, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidRequest(
                f"row {at} is a {type(row).__name__}, not a dict like the first one"
            )
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
    except _NOT_CONVERTED as exc:
        where = f"column {name!r}"
        if isinstance(values, list | tuple):
            row = _first_refused(values)
            where += f", row {row}: {_shown(values[row])}"
        raise InvalidRequest(f"{where}: {exc}; write another value{_other_type(values)}") from exc
    check_meaning(name, values, made.type)
    return made


def _other_type(values: Any) -> str:
    """Advice for whole numbers that Arrow does not convert by itself, if a type holds all."""
    if isinstance(values, list | tuple) and all(
        each is None or type(each) is int for each in values
    ):
        for kind, spelled in _WHOLE_NUMBERS.items():
            try:
                pa.array(values, kind)
            except _NOT_CONVERTED:
                continue
            return (
                ", or give the column a type that holds all of them:"
                f" pyarrow.array(values, {spelled})"
            )
    return ""


def _first_refused(values: Sequence[Any]) -> int:
    """The first row that pyarrow cannot convert together with those before it, by bisection."""

    def is_refused(end: int) -> bool:
        try:
            pa.array(values[: end + 1])
        except _NOT_CONVERTED:
            return True
        return False

    return bisect.bisect_left(range(len(values) - 1), True, key=is_refused)


def _shown(value: object) -> str:
    text = ascii(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _table_of_pandas(frame: Any) -> pa.Table:
    """A named index becomes a column; unnamed row numbers are dropped."""
    if any(name is not None for name in frame.index.names):
        frame = frame.reset_index()
    elif frame.index.nlevels > 1 or not (len(frame) == 0 or frame.index.dtype.kind in "iu"):
        raise InvalidRequest(
            "the DataFrame's index has values but no name: name it, as in"
            " frame.rename_axis('time'), to write it as a column, or drop it with"
            " frame.reset_index(drop=True)"
        )
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except _NOT_CONVERTED as exc:
        said = "; ".join(map(str, exc.args))
        raise InvalidRequest(f"the DataFrame cannot be converted: {said}") from exc
    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        check_meaning(name, frame.get(name, []), kind)
    return table.replace_schema_metadata(None)


def _checked(batch: object) -> pa.RecordBatch:
    if isinstance(batch, pa.RecordBatch):
        return batch
    if hasattr(batch, "__arrow_c_stream__") or hasattr(batch, "__arrow_c_array__"):
        remedy = "write each separately"
    else:
        remedy = "name the columns, as in [{'id': 1}, {'id': 2}] or {'id': [1, 2]}"
    kind = type(batch).__name__
    raise InvalidRequest(f"an iterable must have record batches or dicts, not a {kind}: {remedy}")


def _one_column(data: object) -> InvalidRequest:
    return InvalidRequest(
        f"a {type(data).__name__} is one column: name it, as in write(…, {{'v': column}})"
    )


def _refused(data: object) -> InvalidRequest:
    ways = ("to_arrow", "toArrow", "collect")
    way = next((f": write its .{name}()" for name in ways if hasattr(data, name)), "")
    return InvalidRequest(f"write takes {FORMS}; not a {type(data).__name__}{way}")


def check_meaning(name: str, values: Any, kind: pa.DataType) -> None:
    """Check that values keep their meaning in the Arrow type ``kind``.

    Arrow gives a mixture of times with and without a zone the zone of the first, or none. Periods
    and intervals of pandas would become integers.

    Raises:
        InvalidRequest: They do not; the message says what to write instead.
    """
    if isinstance(kind, pa.BaseExtensionType) and kind.extension_name.startswith("pandas."):
        raise InvalidRequest(
            f"column {name!r}: a {kind.extension_name} is not a type of a table: write timestamps"
            f" (frame[{name!r}].dt.to_timestamp()) or text (frame[{name!r}].astype(str))"
        )
    if isinstance(values, list | tuple) or str(getattr(values, "dtype", "")) == "object":
        for leaf, objects in _leaves(kind, values):
            _check_times(name, leaf, [v for v in objects if isinstance(v, datetime.datetime)])


def _check_times(name: str, kind: pa.DataType, times: list[Any]) -> None:
    if pa.types.is_date32(kind) and times:
        raise InvalidRequest(
            f"column {name!r} has dates and times: make all of them times, as in"
            " datetime.datetime(2026, 11, 21), or dates, as in time.date()"
        )
    if len({time.tzinfo is not None for time in times}) > 1:
        raise InvalidRequest(
            f"column {name!r} has times with a zone and times without: give each a zone, as in"
            " time.replace(tzinfo=datetime.timezone.utc)"
        )
    if any(getattr(time, "nanosecond", 0) for time in times):
        raise InvalidRequest(
            f"column {name!r} has nanoseconds in a list of objects, which Arrow would truncate:"
            " write a pandas.Series of them into a table with nanoseconds, or round them"
        )


def _leaves(
    kind: pa.DataType, values: Iterable[Any]
) -> Iterator[tuple[pa.DataType, Iterable[Any]]]:
    """The times inside Python objects of a nested type, by field."""
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        yield kind, values
    elif pa.types.is_list(kind):
        lists = [v for v in values if isinstance(v, list | tuple)]
        yield from _leaves(kind.value_type, itertools.chain.from_iterable(lists))
    elif pa.types.is_struct(kind):
        structs = [v for v in values if isinstance(v, Mapping)]
        for field in (kind.field(i) for i in range(kind.num_fields)):
            yield from _leaves(field.type, [struct.get(field.name) for struct in structs])


def check_objects(data: Any) -> None:
    """Refuse a Polars frame with Python objects, which would become memory addresses, or with
    128-bit integers, which Arrow lacks.
    """
    polars = sys.modules.get("polars")
    frame = getattr(polars, "DataFrame", None)  # absent while another thread is importing it
    if polars is None or frame is None or not isinstance(data, frame):
        return
    for column, kind in data.schema.items():
        if kind == polars.Object:
            raise InvalidRequest(
                f"column {column!r} holds Python objects, which a table cannot store: convert them"
                " to text, numbers or structs"
            )
        if wide := re.search(r"U?Int128", str(kind)):
            raise InvalidRequest(
                f"column {column!r}: Arrow has no {wide[0]}: cast it to Int64, Decimal(38, 0) or"
                " String"
            )


def regrouped(batches: Iterable[pa.RecordBatch], max_batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """The same rows in order, in few batches of at most about ``max_batch_bytes``."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        nbytes = int(batch.nbytes)
        if held and held_bytes + nbytes > max_batch_bytes:
            yield from _joined(held)
            held, held_bytes = [], 0
        if nbytes > max_batch_bytes:
            yield from cut_table(pa.Table.from_batches([batch]), max_batch_bytes)
        else:
            held.append(batch)
            held_bytes += nbytes
    yield from _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """One batch; or the given ones if Arrow cannot concatenate their type."""
    if len(batches) < 2:
        return batches
    try:
        return [pa.concat_batches(batches)]
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return batches


def cut_table(table: pa.Table, max_batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """The table's rows in order, in batches of at most about ``max_batch_bytes``."""
    for chunk in table.to_batches():
        if not chunk.num_rows:
            continue
        pieces = -(-int(chunk.nbytes) // max_batch_bytes)
        rows = max(1, -(-chunk.num_rows // max(1, pieces)))
        for start in range(0, chunk.num_rows, rows):
            piece = chunk.slice(start, rows)
            # Rows of uneven size: divide a piece that is still too large.
            if piece.nbytes > max_batch_bytes and 1 < piece.num_rows < chunk.num_rows:
                yield from cut_table(pa.Table.from_batches([piece]), max_batch_bytes)
            else:
                yield piece
