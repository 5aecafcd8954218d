"""Casts batches to a table's types if every value stays exact. Pure.

The daemon widens narrower types itself. Casts whose exactness depends on the values are made here:
numbers that are equal in the table's type, and times in another zone. Everything else is left to
the daemon.
"""

import pyarrow as pa

from ingester.conversion import NotExact, converted

from .errors import InvalidRequest


class Fitting:
    """Casts batches of the schema ``sent`` to the attribute ``schema``."""

    def __init__(self, sent: pa.Schema, kept: pa.Schema) -> None:
        """Plan casts to the types of columns with the same name in ``kept``."""
        self._sent = sent
        self._casts: list[tuple[int, pa.DataType]] = []
        fields = list(sent)
        for index, field in enumerate(sent):
            at = kept.get_field_index(field.name)
            target = None if at < 0 else _target(field.type, kept.field(at).type)
            if target is not None and target != field.type:
                self._casts.append((index, target))
                fields[index] = field.with_type(target)
        self.schema = pa.schema(fields, sent.metadata) if self._casts else sent

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch in the table's types.

        Raises:
            InvalidRequest: A value would change; the message names column and value.
        """
        if not self._casts or not batch.schema.equals(self._sent):
            return batch
        columns = list(batch.columns)
        for index, target in self._casts:
            columns[index] = _cast(batch.schema.field(index).name, columns[index], target)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def aligned(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch converted to exactly the columns and types of ``schema``.

    Columns may be in another order, and nullable ones may be missing. Texts may be large or views,
    dictionaries encoded or not, numbers narrower, times of another unit.

    Raises:
        InvalidRequest: A column is unknown, missing, or of another kind.
    """
    batch = Fitting(batch.schema, schema)(batch)
    if batch.schema.equals(schema):
        return batch
    unknown = [name for name in batch.schema.names if schema.get_field_index(name) < 0]
    if unknown:
        raise InvalidRequest(
            f"batch has another schema than the writer: {unknown} are not in\n{schema}\n"
            "open another writer for other columns"
        )
    columns = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        if at < 0 and not field.nullable:
            raise InvalidRequest(f"column {field.name!r} is missing and not nullable")
        column = pa.nulls(batch.num_rows, field.type) if at < 0 else batch.column(at)
        if not column.type.equals(field.type):
            if not _same_kind(column.type, field.type):
                raise InvalidRequest(
                    f"batch has another schema than the writer: column {field.name!r} is"
                    f" {column.type}, not {field.type}; cast it before writing"
                )
            column = _cast(field.name, column, field.type)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _same_kind(sent: pa.DataType, kept: pa.DataType) -> bool:
    t = pa.types
    if t.is_dictionary(sent) or t.is_dictionary(kept):
        plain = [kind.value_type if t.is_dictionary(kind) else kind for kind in (sent, kept)]
        return plain[0] == plain[1] or _same_kind(*plain)
    if t.is_timestamp(sent) and t.is_timestamp(kept):
        return bool(sent.tz == kept.tz)
    texts = t.is_string, t.is_large_string, t.is_string_view
    binaries = t.is_binary, t.is_large_binary, t.is_binary_view
    return bool(
        t.is_null(sent)
        or (t.is_integer(sent) and t.is_integer(kept))
        or (t.is_floating(sent) and t.is_floating(kept) and sent.bit_width <= kept.bit_width)
        or any(
            all(any(is_(kind) for is_ in kinds) for kind in (sent, kept))
            for kinds in (texts, binaries)
        )
    )


def _cast(name: str, column: pa.Array, target: pa.DataType) -> pa.Array:
    try:
        return converted(column, target)
    except pa.ArrowException as exc:
        row = f"row {exc.index} of the batch: " if isinstance(exc, NotExact) else ""
        raise InvalidRequest(
            f"column {name!r}: table has {target}, batch has {column.type}, and not every value can"
            f" be converted exactly: {row}{exc}; round or cast it before writing"
        ) from exc


def _target(sent: pa.DataType, kept: pa.DataType) -> pa.DataType | None:
    """The type to cast ``sent`` to for a table's ``kept``; None for no cast."""
    t = pa.types
    if sent == kept:
        return None
    if t.is_timestamp(sent) and t.is_timestamp(kept):
        # A time without a zone is not a moment. Units are left to the daemon and its messages.
        return pa.timestamp(sent.unit, kept.tz) if sent.tz and kept.tz else None
    if _is_number(sent) and _is_number(kept):
        return kept if _may_be_exact(sent, kept) else None
    if t.is_struct(sent) and t.is_struct(kept):
        return _struct_target(sent, kept)
    for is_kind, made in ((t.is_list, pa.list_), (t.is_large_list, pa.large_list)):
        if is_kind(sent) and t.is_list(kept):
            inner = _target(sent.value_type, kept.value_type)
            return None if inner is None else made(sent.value_field.with_type(inner))
    return None


def _struct_target(sent: pa.DataType, kept: pa.DataType) -> pa.DataType | None:
    fields = [sent.field(i) for i in range(sent.num_fields)]
    inner = [
        None if (at := kept.get_field_index(f.name)) < 0 else _target(f.type, kept.field(at).type)
        for f in fields
    ]
    if not any(inner):
        return None
    return pa.struct([f.with_type(kind or f.type) for f, kind in zip(fields, inner, strict=True)])


def _may_be_exact(sent: pa.DataType, kept: pa.DataType) -> bool:
    """Whether Arrow's cast detects inexact values. Widening is left to the daemon."""
    t = pa.types
    if t.is_integer(sent) and t.is_integer(kept):
        signs = t.is_signed_integer(sent), t.is_signed_integer(kept)
        wider = sent.bit_width < kept.bit_width
        return not (wider and signs != (True, False)) and sent != kept
    # Fractions are rarely exact in a narrower float, or between floats and decimals.
    return bool(
        t.is_integer(kept) or (t.is_integer(sent) or (t.is_decimal(sent) and t.is_decimal(kept)))
    )


def _is_number(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(
        t.is_integer(kind) or t.is_float32(kind) or t.is_float64(kind) or t.is_decimal(kind)
    )
