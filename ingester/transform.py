"""The base classes of transformers: user classes that change batches before they are logged.

    :class:`Transformer`      receives a batch; returns one, ``SKIP`` or ``UNCHANGED``
    :class:`RowTransformer`   receives each row as a dict

This module imports pyarrow only and nothing of the daemon, which runs the classes
(:mod:`ingester.write.transform`), so user classes and their tests need no daemon;
``docs/transformers.md`` describes them.

In a ``RowTransformer`` a value comes out unchanged or as the class returned it, or the batch is
refused (tests/transform). Nothing is cut off: a column that the schema lacks, a fraction for an
integer column and a time for a date column are errors. (Floats are rounded to the column's
precision, but not to infinity.)
"""

from __future__ import annotations

import datetime as dt
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Enum
from typing import Any, ClassVar

import pyarrow as pa


class Signal(Enum):
    """Results of a transformer that are not batches."""

    SKIP = "skip"
    UNCHANGED = "unchanged"


SKIP = Signal.SKIP
"""Write nothing of the batch. Its sequence and checkpoint still advance."""
UNCHANGED = Signal.UNCHANGED
"""Write the batch unchanged."""


class Transformer(ABC):
    """Changes the batches of one stream before the daemon logs them.

    The daemon creates one instance per stream, without arguments, and calls one method at a
    time, in varying pool threads. A batch that is sent again is transformed again before its
    sequence is checked, so a transformer should be deterministic.
    """

    version: ClassVar[str | None] = None
    """Version of the class's behaviour. Defaults to a hash of its source."""

    @abstractmethod
    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        """Return what to write instead of a batch: ``SKIP``, ``UNCHANGED``, or another batch.

        Args:
            batch: at least one row, with the schema passed to ``output_schema``.

        Returns:
            A batch with the schema that ``output_schema`` returned and any number of rows.

        Raises:
            Exception: refuses the batch, with the class's name and the message.
        """

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema that ``transform`` returns for batches of ``schema``; by default the
        same.

        Called once, before the first batch of a stream.
        """
        return schema

    def close(self) -> None:  # noqa: B027 - most have nothing to release
        """Release the instance's resources at the end of its stream.

        Not called on SIGKILL.
        """


Row = dict[str, Any]


class RowTransformer(Transformer):
    """A transformer that receives each row as a dict, for what Arrow's functions cannot express.

    Each value is converted to a Python object and back, which takes some microseconds: about a
    hundred times as long as Arrow's functions.

    Times with a zone are in UTC, and a time has to be returned with a zone if its column has one,
    and else without. Nanosecond times and durations are integers, because Python has
    no type for them.
    """

    _schemas: tuple[pa.Schema, pa.Schema] | None = None

    @abstractmethod
    def transform_row(self, row: Row) -> Row | Signal:
        """Return what to write instead of a row: ``SKIP``, ``UNCHANGED``, or another dict.

        A column that the dict lacks becomes null; one that the output schema lacks is an error.
        """

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        """Transform row by row; ``UNCHANGED`` or ``SKIP`` if all rows are."""
        schema = self._output(batch.schema)
        made: list[Row] = []
        unchanged: list[int] = []
        order: list[tuple[bool, int]] = []  # per row: whether it is unchanged, and its index
        for index, row in enumerate(_plain_rows(batch)):
            before = dict(row)
            answer = self.transform_row(row)
            if answer is SKIP:
                continue
            if answer is UNCHANGED:
                _check_unchanged(before, row)
                order.append((True, len(unchanged)))
                unchanged.append(index)
            elif isinstance(answer, dict):
                _check_names(answer, schema)
                order.append((False, len(made)))
                made.append(answer)
            else:
                raise TypeError(
                    f"transform_row returned {type(answer).__name__}; it returns a dict, SKIP or"
                    " UNCHANGED"
                )
        if not order:
            return SKIP
        if len(unchanged) == batch.num_rows and schema.equals(batch.schema):
            return UNCHANGED
        kept = _as_they_came(batch.take(pa.array(unchanged, pa.int64())), schema)
        both = pa.concat_batches([kept, _batch_of(made, schema)])
        places = [at if came else len(unchanged) + at for came, at in order]
        return both.take(pa.array(places, pa.int64()))

    def _output(self, schema: pa.Schema) -> pa.Schema:
        """The output schema, requested once. (A subclass may define ``__init__``.)"""
        if self._schemas is None or not self._schemas[0].equals(schema):
            self._schemas = (schema, self.output_schema(schema))
        return self._schemas[1]


def _plain_rows(batch: pa.RecordBatch) -> list[Row]:
    columns = [_plain(column) for column in batch.columns]
    rows: list[Row] = pa.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist()
    return rows


def _plain(column: pa.Array) -> pa.Array:
    """Return the column in a type whose values Python represents exactly."""
    kind = column.type
    if _is_nanoseconds(kind):
        return column.cast(pa.int64())
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return column.cast(pa.timestamp(kind.unit, "UTC"))
    return column


def _is_nanoseconds(kind: pa.DataType) -> bool:
    is_time = pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_time64(kind)
    return bool(is_time) and kind.unit == "ns"


def _check_unchanged(before: Row, row: Row) -> None:
    if before != row:
        changed = [name for name in {**before, **row} if before.get(name) != row.get(name)]
        raise ValueError(
            f"transform_row changed {changed} of the row and returned UNCHANGED; return the row"
        )


def _check_names(row: Row, schema: pa.Schema) -> None:
    strangers = [name for name in row if schema.get_field_index(name) < 0]
    if strangers:
        raise ValueError(
            f"transform_row returned columns {strangers}, which output_schema does not have"
        )


def _as_they_came(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return unchanged rows with the output's columns."""
    strangers = [name for name in batch.schema.names if schema.get_field_index(name) < 0]
    if strangers and batch.num_rows:
        raise ValueError(
            f"transform_row returned UNCHANGED for a row with columns {strangers}, which"
            " output_schema does not have"
        )
    columns = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        kind = field.type if at < 0 else batch.schema.field(at).type
        if kind != field.type and batch.num_rows:
            raise ValueError(
                f"transform_row returned UNCHANGED, but column {field.name!r} is {kind} and becomes"
                f" {field.type}"
            )
        same = at >= 0 and kind == field.type
        columns.append(batch.column(at) if same else pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _batch_of(rows: list[Row], schema: pa.Schema) -> pa.RecordBatch:
    columns = [_column([row.get(field.name) for row in rows], field) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    try:
        column = pa.array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as exc:
        raise ValueError(f"column {field.name!r} of {field.type}: {exc}") from exc
    if isinstance(column, pa.ChunkedArray):
        raise ValueError(f"column {field.name!r} of {field.type}: the values are too many")
    if pa.types.is_timestamp(field.type):
        _check_zones(values, field)
    if _may_lose(field.type):
        for value, kept in zip(values, column.to_pylist(), strict=True):
            if not _is_kept(value, kept):
                raise ValueError(f"column {field.name!r}: {value!r} does not fit {field.type}")
    return column


def _check_zones(values: list[Any], field: pa.Field) -> None:
    """Refuse local times for moments, and the reverse: pyarrow takes a local time as UTC."""
    zoned = field.type.tz is not None
    for value in values:
        if isinstance(value, dt.datetime) and (value.tzinfo is not None) != zoned:
            has = "no" if zoned else "a"
            raise ValueError(f"column {field.name!r} of {field.type}: {value!r} has {has} zone")


def _may_lose(kind: pa.DataType) -> bool:
    """Return whether pyarrow might truncate a value when converting it to a type."""
    t = pa.types
    whole = (t.is_string, t.is_large_string, t.is_binary, t.is_large_binary, t.is_boolean)
    return not (
        any(is_kind(kind) for is_kind in whole) or t.is_float64(kind) or _is_nanoseconds(kind)
    )


def _is_kept(value: Any, kept: Any) -> bool:
    """Return whether a column's value equals the value it was made from."""
    if value is None or kept is None:
        return value is kept
    if isinstance(kept, dict):
        return value.keys() <= kept.keys() and all(
            _is_kept(value.get(name), kept[name]) for name in kept
        )
    if isinstance(kept, list | tuple):
        given = value.items() if isinstance(value, Mapping) else value
        return len(given) == len(kept) and all(map(_is_kept, given, kept))
    if isinstance(kept, dt.datetime) and isinstance(value, dt.datetime):
        zones = value.tzinfo is None, kept.tzinfo is None
        return zones[0] == zones[1] and _in_utc(value) == _in_utc(kept)
    if isinstance(value, dt.datetime):
        return bool(value == dt.datetime.combine(kept, dt.time(), value.tzinfo))
    if isinstance(kept, dt.date | dt.time | dt.timedelta) and isinstance(value, int):
        return True  # in the column's unit
    if isinstance(kept, float):
        return not math.isinf(kept) or bool(value == kept)
    return bool(value == kept)


def _in_utc(moment: dt.datetime) -> dt.datetime:
    """Return a moment in UTC, without its zone; a local time as it is."""
    return moment if moment.tzinfo is None else moment.astimezone(dt.UTC).replace(tzinfo=None)
