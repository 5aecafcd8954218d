"""Validating a stream's batches, and converting them to the table's columns and types.

Arrow checks every string separately for valid UTF-8, which takes most of the validation's time.
Bytes below 128 are valid UTF-8 wherever they are cut, so columns of plain ASCII text are validated
as binary, for their offsets, and their bytes are checked in one pass. Each call into Arrow or numpy
releases the GIL and waits to get it back, so there is one for a whole batch. What is refused, and
why, is what Arrow says.

The result of a conversion fits the table exactly, so nothing later can fail on a value; values that
cannot be stored exactly are refused here, before the log (tests/schema). A batch of keys to delete
becomes rows with the key and a deletion mark. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingester.errors import BadRequest
from ingester.schema.expansion import expands, fixed_bytes, plain, plain_bytes, shows_text
from ingester.schema.limits import check_column_names
from ingester.schema.types import clash_remedy, has_no_type, table_type, widens
from persist.table import DELETED, TableDefinition

_MANY_ROWS = 2000
"""From this many rows on, this is faster than Arrow's own validation."""
_HELD_BYTES = 256 << 10
"""Text up to this size is checked without releasing the GIL."""
# Types are compared by id, because hashing one takes longer than checking a column.
_BINARY = {pa.lib.Type_STRING: pa.binary(), pa.lib.Type_LARGE_STRING: pa.large_binary()}
_OFFSET = {pa.lib.Type_STRING: struct.Struct("<i"), pa.lib.Type_LARGE_STRING: struct.Struct("<q")}


def validate_fully(batches: Sequence[pa.RecordBatch]) -> None:
    """Validate batches of one schema in few calls.

    Raises:
        pa.ArrowInvalid: one of them is invalid.
    """
    rows = sum(batch.num_rows for batch in batches)
    if rows >= _MANY_ROWS * len(batches) and all(map(_is_known_valid, batches)):
        return
    if len(batches) == 1:
        batches[0].validate(full=True)
    else:
        # Arrow checked each column's row count when it read the message.
        pa.Table.from_batches(batches).validate(full=True)


def _is_known_valid(batch: pa.RecordBatch) -> bool:
    """Return whether a batch is known to be valid; False means unknown."""
    columns, texts = [], []
    try:
        for column in batch.columns:
            if (binary := _BINARY.get(column.type.id)) is not None:
                texts.append(column)
                column = _as_binary(column, binary)
            columns.append(column)
        looked_at = pa.RecordBatch.from_arrays(columns, batch.schema.names)
        looked_at.validate(full=True)
    except (pa.ArrowInvalid, ValueError):  # ValueError: columns of different lengths
        return False
    return looked_at.num_rows == batch.num_rows and all(map(_is_ascii, texts))


def _as_binary(strings: pa.Array, binary: pa.DataType) -> pa.Array:
    """Return an unvalidated binary array over the same buffers."""
    buffers = strings.buffers()
    if buffers[0] is not None:
        # Counted now, because the null count may be unknown.
        strings.validate()
    nulls, at = strings.null_count, strings.offset
    return pa.Array.from_buffers(binary, len(strings), buffers, nulls, at)


def _is_ascii(strings: pa.Array) -> bool:
    """Return whether all bytes between the first and last offset (both valid) are ASCII."""
    _, offsets, data = strings.buffers()
    if not len(strings) or offsets is None or data is None:
        return True
    offset, at = _OFFSET[strings.type.id], strings.offset
    (first,) = offset.unpack_from(offsets, at * offset.size)
    (last,) = offset.unpack_from(offsets, (at + len(strings)) * offset.size)
    text = memoryview(data)[first:last]
    if len(text) <= _HELD_BYTES:
        return bytes(text).isascii()
    return bool(np.frombuffer(text, np.int8).min() >= 0)


def kept_schema(sent: pa.Schema, unit: str, reserved: tuple[str, ...]) -> pa.Schema:
    """Return a sent schema's columns in their stored form.

    Columns whose type is wholly or partly null are omitted; :class:`Normaliser` refuses batches
    with values in them.

    Raises:
        BadRequest: an invalid name or type.
    """
    try:
        check_column_names(sent.names, reserved)
        kinds = [(f, table_type(f.name, f.type, unit)) for f in sent]
        # A sent null column may be declared not nullable, which Arrow cannot represent.
        fields = [pa.field(f.name, kind, f.nullable or kind == pa.null()) for f, kind in kinds]
    except UnicodeDecodeError as exc:
        raise BadRequest(f"the schema has a name that is not UTF-8: {exc.reason}") from exc
    return pa.schema([field for field in fields if not has_no_type(field.type)])


def missing_columns(definition: TableDefinition, sent: pa.Schema) -> list[pa.Field]:
    """Return a batch's columns that the table lacks, as nullable fields of stored types."""
    kept = kept_schema(sent, definition.timestamp_unit, definition.spec.names)
    folded = {name.casefold(): name for name in definition.schema.names}
    new = []
    for field in kept:
        have = folded.get(field.name.casefold())
        if have is None:
            new.append(field.with_nullable(True))
        elif have != field.name:
            raise BadRequest(
                f"column {field.name!r} differs from the table's {have!r} only in case"
            )
    return new


class Normaliser:
    """Converts batches of one schema to one table definition.

    The result has those of the table's columns that the batch has, in the table's order; missing
    columns are null.
    """

    def __init__(self, definition: TableDefinition, sent: pa.Schema) -> None:
        """Plan the conversion from ``sent`` to the table.

        Raises:
            BadRequest: an unknown or clashing column, or a missing required one.
        """
        self.definition = definition
        self._unit = definition.timestamp_unit
        kept_schema(sent, self._unit, definition.spec.names)
        known = set(definition.schema.names)
        self._untyped = [
            (index, field)
            for index, field in enumerate(sent)
            if field.name not in known and self._is_partly_typed(field)
        ]
        """The fields without a table column, because part of their type is unknown."""
        fields: list[pa.Field] = []
        self._sources: list[tuple[int, pa.Field]] = []
        for field in definition.schema:
            index = sent.get_field_index(field.name)
            if index < 0:
                self._check_absent(field)
                if field.name not in definition.spec.columns:
                    continue
                # Its nulls determine the rows' partition.
            else:
                self._check_type(field, sent.field(index).type)
            self._sources.append((index, field))
            fields.append(field)
        if not fields:
            # Rows without any value are still rows.
            self._sources.append((-1, definition.schema.field(0)))
            fields.append(definition.schema.field(0))
        self._kept = pa.schema(fields)
        self.schema = self._kept
        """The schema of converted batches."""
        self._required = any(not field.nullable for field in fields)
        self._same = self._kept.equals(pa.schema([f.with_nullable(True) for f in sent]))
        self.keeps_types = all(
            index >= 0 and sent.field(index).type == field.type for index, field in self._sources
        )
        """Whether columns are passed through unchanged, unless refused."""
        # Depends only on types, so computed once.
        self._sizes = [
            (
                index,
                field.type,
                fixed_bytes(field.type),
                index >= 0 and expands(sent.field(index).type),
            )
            for index, field in self._sources
        ]
        self.shows_text = any(map(shows_text, sent.types))
        """Whether there are string views, which may all show the same text."""
        self._fixed_row = (
            None
            if any(expanding for *_, expanding in self._sizes)
            else sum(max(1.0, fixed) for _, _, fixed, _ in self._sizes)
        )

    def most_bytes(self, batch: pa.RecordBatch) -> float | None:
        """Return an upper bound of :meth:`plain_bytes` from sizes alone, for a batch that may be
        invalid.

        None if it depends on values, as for dictionaries.
        """
        if self._fixed_row is None:
            return None
        return float(batch.get_total_buffer_size() + batch.num_rows * self._fixed_row)

    def plain_bytes(self, batch: pa.RecordBatch, enough: float = 0.0) -> float:
        """Return the approximate converted size of a valid batch.

        Args:
            enough: an upper bound up to this size is returned as it is.
        """
        total, rows = 0.0, batch.num_rows
        most = self.most_bytes(batch)
        if most is not None and most <= enough:
            return most
        for index, kept, fixed, expanding in self._sizes:
            if index < 0:
                total += rows * max(1.0, fixed)
            elif expanding:
                total += plain_bytes(batch.column(index), kept)
            else:
                total += max(batch.column(index).get_total_buffer_size(), rows * fixed)
        return total

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a batch to the table's types.

        Raises:
            BadRequest: values that cannot be stored: nulls in a required column, nanoseconds
                that are not whole microseconds, times out of range,
                values of a type that is partly unknown.
        """
        if self._same and not self._required:
            return batch
        for index, field in self._untyped:
            _check_says_nothing(batch.column(index), field)
        columns = [
            batch.column(index) if index >= 0 else pa.nulls(batch.num_rows, field.type)
            for index, field in self._sources
        ]
        if not self.keeps_types:
            columns = [
                self._convert(column, field)
                for column, (_, field) in zip(columns, self._sources, strict=True)
            ]
        for column, (_, field) in zip(columns, self._sources, strict=True):
            if not field.nullable and column.null_count:
                raise BadRequest(
                    f"column {field.name!r}: {column.null_count} nulls in a column that"
                    f" {self._why_required(field.name)}"
                )
        return pa.RecordBatch.from_arrays(columns, schema=self._kept)

    def _is_partly_typed(self, field: pa.Field) -> bool:
        kept = table_type(field.name, field.type, self._unit)
        return has_no_type(kept) and not pa.types.is_null(kept)

    def _why_required(self, name: str) -> str:
        in_key = name in self.definition.primary_key
        return "is part of the primary key" if in_key else "the table declares as not nullable"

    def _check_absent(self, field: pa.Field) -> None:
        if not field.nullable:
            raise BadRequest(
                f"column {field.name!r} is missing; it {self._why_required(field.name)}"
            )

    def _check_type(self, field: pa.Field, sent: pa.DataType) -> None:
        if not widens(table_type(field.name, sent, self._unit), field.type):
            raise BadRequest(
                f"column {field.name!r}: table has {field.type}, batch has {sent}"
                f"{clash_remedy(sent, field.type)}"
            )

    def _convert(self, column: pa.Array, field: pa.Field) -> pa.Array:
        try:
            column = plain(column)
            if column.type == field.type:
                return column
            if pa.types.is_timestamp(column.type):
                self._check_timestamps(column, field)
            return column.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowCapacityError) as exc:
            raise BadRequest(
                f"column {field.name!r}: values do not fit {field.type}: {exc}"
            ) from exc
        except pa.ArrowNotImplementedError as exc:
            raise BadRequest(
                f"column {field.name!r}: {column.type} cannot be kept as {field.type}"
            ) from exc

    def _check_timestamps(self, column: pa.Array, field: pa.Field) -> None:
        """Refuse nanoseconds that are not whole microseconds in a table of microseconds."""
        if column.type.unit != "ns" or field.type.unit != "us":
            return
        ticks = column.view(pa.int64())
        whole = pc.equal(pc.multiply(pc.divide(ticks, 1000), 1000), ticks)
        lossy = len(ticks) - ticks.null_count - (pc.sum(whole).as_py() or 0)
        if lossy:
            raise BadRequest(
                f"column {field.name!r}: {lossy} of {len(ticks)} timestamps are not whole"
                " microseconds; round them before sending (for example cast to timestamp('us')"
                ' with safe=False), or create the table with timestamp_unit = "ns"'
                " ('ingester create --timestamp-unit ns')"
            )


def _check_says_nothing(column: pa.Array, field: pa.Field) -> None:
    column = plain(column)
    if column.null_count < len(column):
        raise BadRequest(
            f"column {field.name!r}: part of its type {field.type} is null, so its"
            f" {len(column) - column.null_count} values cannot be stored; send it with its"
            " final type"
        )


_MARK = pa.field(DELETED, pa.bool_(), nullable=False)


class DeleteNormaliser(Normaliser):
    """Converts batches of keys to rows that delete them."""

    def __init__(self, definition: TableDefinition, sent: pa.Schema) -> None:
        """Plan the conversion from ``sent`` to the table.

        Raises:
            BadRequest: the table has no key, or columns outside of the key were sent.
        """
        if not definition.keyed:
            raise BadRequest("delete: the table has no primary key, so rows cannot be deleted")
        strangers = [name for name in sent.names if name not in definition.primary_key]
        if strangers:
            raise BadRequest(
                f"delete: column {strangers[0]!r} is not in the primary key"
                f" {list(definition.primary_key)}"
            )
        super().__init__(replace(definition, schema=definition.key_schema), sent)
        self.schema = self._kept.append(_MARK)

    def most_bytes(self, batch: pa.RecordBatch) -> float | None:
        """See :meth:`Normaliser.most_bytes`."""
        most = super().most_bytes(batch)
        return None if most is None else most + batch.num_rows

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the keys with deletion marks. Raises BadRequest as
        :meth:`Normaliser.__call__`.
        """
        keys = super().__call__(batch)
        marks = pa.repeat(pa.scalar(True), keys.num_rows)
        return pa.RecordBatch.from_arrays([*keys.columns, marks], schema=self.schema)
