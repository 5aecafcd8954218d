"""Folds changes of one table to one change per key, and completes them to whole rows.

A change has an old key and a new key: from nothing to a key is an insert, from a key to nothing a
delete, and another key is a move. Each value has a flag: where it is false, the row keeps its
present value, also when it moves.

    row        1      2      3         what is left of key 1:
    old → new  1 → 2  2 → 3  3 → 3     1 is deleted; 3 has v of row 2, w of row 3, and
    changed    v      v      w         everything else of what 1 has in the table

    Folded ──▶ ``kept_keys`` ──▶ (the table's rows with them) ──▶ ``whole_rows`` to upsert, delete

Rows apply in their order. A key may be moved, deleted and inserted again; the table's values of a
key count only for the first row that takes it, if no row made it before. The result does not depend
on how the rows are cut into messages (``tests/replication/test_fold.py``).

Source: the squash of Seafowl's data sync (its changes, not its code), with deletes and inserts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ingester.errors import BadRequest
from persist.table import DELETED, TableDefinition, schema_with_deletes

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_ROW = "_row"
"""Not a valid column name of any table."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of a table's rows, in order; all columns have the same length."""

    old: pa.RecordBatch
    """Key columns before, null for an insert; with the names and types of the table's key."""
    new: pa.RecordBatch
    """Key columns after, null for a delete."""
    values: pa.RecordBatch
    """The other columns that were sent."""
    changed: dict[str, Mask]
    """By column, the rows that apply their value; a missing column applies all."""

    @property
    def nbytes(self) -> int:
        columns = self.old.nbytes + self.new.nbytes + self.values.nbytes
        return int(columns) + sum(flags.nbytes for flags in self.changed.values())

    @property
    def rows(self) -> int:
        """The number of changes."""
        return int(self.new.num_rows)


@dataclass(frozen=True, slots=True)
class Folded:
    """One change per key: the rows that exist afterwards, and the deleted keys."""

    keys: pa.RecordBatch
    """Keys that exist afterwards, unique."""
    base: Rows
    """By key, the change whose old key names the table's row that the new row continues; -1 for
    none."""
    sources: dict[str, Rows]
    """By column and key, the change with the value; -1 if the table's value stays."""
    deleted: pa.RecordBatch
    """Deleted keys, unique; some may never have existed."""
    moved_onto: Rows
    """The moves to a key that is taken again later: the table must not have a row with it."""
    overwritten: Rows
    """The same, but an earlier change has made the key."""


def batch_of(columns: Mapping[str, pa.Array], rows: int) -> pa.RecordBatch:
    """Make a batch that keeps its row count even without columns."""
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def fold(changes: Changes) -> Folded:
    """Fold changes to one per key."""
    old, new = _codes(changes)
    rows = changes.rows
    # Each change takes a key and then makes one: two events, sorted by key and time.
    keys = np.concatenate([old, new])
    at = np.arange(2 * rows) % max(1, rows) * 2 + (np.arange(2 * rows) >= rows)
    there = np.flatnonzero(keys >= 0)
    events = there[np.lexsort((at[there], keys[there]))]
    first = np.ones(len(events), bool)
    first[1:] = keys[events[1:]] != keys[events[:-1]]
    makes = events >= rows
    row = events % max(1, rows)

    # A row continues the change that made its key, else the table's row.
    before = np.full(rows, -1, np.int64)
    follows = np.flatnonzero(~makes[1:] & makes[:-1] & ~first[1:]) + 1
    before[row[follows]] = row[follows - 1]
    from_table = np.zeros(rows, bool)
    from_table[row[first & ~makes]] = True

    last = np.ones(len(events), bool)
    last[:-1] = first[1:]
    kept = row[last & makes]
    gone = row[last & ~makes]

    chain, order, place = _chains(before)
    base = chain[kept]
    base = np.where(from_table[base], base, -1) if len(kept) else base
    sources = {
        name: _last_changed(changes.changed.get(name), chain, order, place, kept)
        for name in changes.values.schema.names
    }
    moves = makes & ((old >= 0) & (new >= 0) & (old != new))[row]
    moved_onto, overwritten = _taken_again(moves, makes, first)
    return Folded(
        keys=changes.new.take(pa.array(kept)),
        base=base,
        sources=sources,
        deleted=changes.old.take(pa.array(gone)),
        moved_onto=row[moved_onto],
        overwritten=row[overwritten],
    )


def _taken_again(moves: Mask, makes: Mask, first: Mask) -> tuple[Rows, Rows]:
    """The events that move a row to a key which a later event takes, of keys' sorted events.

    Returns:
        Those that are the first of their key; those whose key an earlier change has made.
    """
    nothing = np.zeros(0, np.int64)
    if not moves.any():
        return nothing, nothing
    of_key = np.cumsum(first) - 1
    takes = np.flatnonzero(~makes)
    last_take = np.full(int(of_key[-1]) + 1, -1)
    np.maximum.at(last_take, of_key[takes], takes)
    found = np.flatnonzero(moves & (np.arange(len(moves)) < last_take[of_key]))
    again = found[~first[found]]
    return found[first[found]], again[makes[again - 1]]


def _codes(changes: Changes) -> tuple[Rows, Rows]:
    """Number the keys, with equal numbers for equal keys; -1 for null."""
    both = pa.concat_tables(
        [pa.Table.from_batches([changes.old]), pa.Table.from_batches([changes.new])]
    )
    codes = np.zeros(both.num_rows, np.int64)
    missing = np.zeros(both.num_rows, bool)
    for column in both.columns:
        one = column.combine_chunks()
        encoded = pc.dictionary_encode(one)
        indices = pc.fill_null(encoded.indices, 0).to_numpy(zero_copy_only=False).astype(np.int64)
        missing |= pc.is_null(one).to_numpy(zero_copy_only=False)
        # Renumber after each column: the product of all would overflow.
        codes = codes * max(1, len(encoded.dictionary)) + indices
        codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    codes[missing] = -1
    return codes[: changes.rows], codes[changes.rows :]


def _chains(before: Rows) -> tuple[Rows, Rows, Rows]:
    """Follow ``before`` from each row to the beginning of its chain (-1).

    Returns:
        The first row of each row's chain; all rows by chain and time; each row's place in these.
    """
    chain = np.arange(len(before))
    step = np.where(before >= 0, before, chain)
    while True:
        chain, jumped = step, step[step]
        if np.array_equal(jumped, step):
            break
        step = jumped
    order = np.lexsort((np.arange(len(before)), chain))
    place = np.empty(len(before), np.int64)
    place[order] = np.arange(len(before))
    return chain, order, place


def _last_changed(changed: Mask | None, chain: Rows, order: Rows, place: Rows, kept: Rows) -> Rows:
    """The last change in each kept row's chain that applies a value; -1 for none."""
    if changed is None:
        return kept
    marks = np.where(changed[order], np.arange(len(order)), -1)
    newest = np.maximum.accumulate(marks) if len(marks) else marks
    found = newest[place[kept]]
    source = np.where(found >= 0, order[found], -1)
    return np.where((source >= 0) & (chain[source] == chain[kept]), source, -1)


def check_overwritten(changes: Changes, folded: Folded) -> None:
    """Refuse a move to a key that an earlier change has made, if a later one takes it.

    Raises:
        BadRequest: it is unknown which of the two rows the later change means.
    """
    if len(folded.overwritten):
        raise _two_rows(changes.new.slice(int(folded.overwritten[0]), 1))


def moved_onto(changes: Changes, folded: Folded) -> pa.Table | None:
    """The unique keys that the table must not have; None if there are none."""
    if not len(folded.moved_onto):
        return None
    return pa.Table.from_batches([changes.new.take(pa.array(folded.moved_onto))])


def check_moved_onto(found: pa.Table) -> None:
    """Refuse moves to keys that the table has, if later changes take them.

    Args:
        found: the rows with the keys of :func:`moved_onto`.

    Raises:
        BadRequest: the table has one of them.
    """
    if found.num_rows:
        raise _two_rows(found)


def _two_rows(keys: pa.RecordBatch | pa.Table) -> BadRequest:
    return BadRequest(
        f"sync: a row moves to key {keys.slice(0, 1).to_pylist()[0]}, which another row has, and a"
        " later change of the transaction takes this key: it is unknown which row that means. To"
        " exchange keys, delete the rows first, then insert them with all of their values"
    )


def kept_keys(changes: Changes, folded: Folded, definition: TableDefinition) -> pa.Table | None:
    """The unique keys in the table whose rows keep values; None if there are none."""
    keeps = np.zeros(len(folded.base), bool)
    for name in definition.schema.names:
        if name not in definition.primary_key:
            source = folded.sources.get(name)
            keeps |= True if source is None else source < 0
    keeps &= folded.base >= 0
    if not keeps.any():
        return None
    return pa.Table.from_batches([changes.old.take(pa.array(folded.base[keeps]))])


def whole_rows(
    changes: Changes, folded: Folded, definition: TableDefinition, kept: pa.Table | None
) -> pa.RecordBatch:
    """The rows that exist afterwards, followed by those that delete.

    They have the columns of `schema_with_deletes` that contain a value, and the partition columns.

    Args:
        kept: whole rows of the table with the kept keys, in any order.

    Raises:
        BadRequest: null in a column that does not allow it.
    """
    places = np.full(len(folded.base), -1, np.int64)
    if kept is not None:
        places = _places(changes, folded, definition, kept)
    upserts, deletes = folded.keys.num_rows, folded.deleted.num_rows
    columns, fields = [], []
    for field in schema_with_deletes(definition.schema):
        if field.name == DELETED:
            columns.append(pa.array(np.arange(upserts + deletes) >= upserts))
            fields.append(field)
            continue
        if not _may_have_values(definition.schema.field(field.name), definition, folded, kept):
            continue
        fields.append(field)
        field = definition.schema.field(field.name)
        if field.name in definition.primary_key:
            both = [folded.keys.column(field.name), folded.deleted.column(field.name)]
            columns.append(pa.concat_arrays(both))
            continue
        column = _values(field, changes, folded, kept, places)
        if not field.nullable and column.null_count:
            raise BadRequest(
                f"column {field.name!r}: {column.null_count} nulls in a column that the table"
                " declares as not nullable"
            )
        columns.append(pa.concat_arrays([column, pa.nulls(deletes, field.type)]))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _may_have_values(
    field: pa.Field, definition: TableDefinition, folded: Folded, kept: pa.Table | None
) -> bool:
    """Whether a column may have values, or is required."""
    if not field.nullable or field.name in (*definition.primary_key, *definition.spec.columns):
        return True
    if field.name in folded.sources:
        return True
    return kept is not None and kept.column(field.name).null_count < kept.num_rows


def _places(changes: Changes, folded: Folded, definition: TableDefinition, kept: pa.Table) -> Rows:
    """The index in ``kept`` of the row that each row continues; -1 for none."""
    key = list(definition.primary_key)
    at = np.flatnonzero(folded.base >= 0)
    asked = pa.Table.from_batches([changes.old.take(pa.array(folded.base[at]))])
    asked = asked.append_column("_at", pa.array(at))
    found = kept.select(key).append_column(_ROW, pa.array(np.arange(kept.num_rows)))
    pairs = asked.join(found.cast(_like(found.schema, asked.schema)), keys=key, join_type="inner")
    places = np.full(len(folded.base), -1, np.int64)
    places[pairs["_at"].to_numpy()] = pairs[_ROW].to_numpy()
    return places


def _like(schema: pa.Schema, other: pa.Schema) -> pa.Schema:
    """Give columns the nullability of the other schema."""
    names = set(other.names)
    return pa.schema([other.field(f.name) if f.name in names else f for f in schema])


def _values(
    field: pa.Field, changes: Changes, folded: Folded, kept: pa.Table | None, places: Rows
) -> pa.Array:
    """One column of the rows that exist afterwards."""
    rows = len(folded.base)
    sources = folded.sources.get(field.name, np.full(rows, -1, np.int64))
    sent = pa.nulls(0, field.type)
    if field.name in folded.sources:
        sent = changes.values.column(field.name)
    have = pa.nulls(0, field.type)
    if kept is not None:
        have = _array(kept.column(field.name))
    index = np.where(sources >= 0, sources, np.where(places >= 0, len(sent) + places, -1))
    both = pa.concat_arrays([sent, have]) if len(have) else sent
    return both.take(pa.array(index, mask=index < 0))


def _array(column: pa.ChunkedArray) -> pa.Array:
    joined = column.combine_chunks()
    return joined if isinstance(joined, pa.Array) else joined.chunk(0)
