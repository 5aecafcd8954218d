"""The rows of a live answer in the form that a sink takes.

Law of this file: pure. In a table without a primary key rows stay as they came. In a keyed one the
last row of a key in the answer is the one that counts, a deletion or not, so that no key comes
twice and puts and deletes may be done in either order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingester.followers.feed import OPERATION, Batch, GroupOf
from ingester.followers.files import fitted
from ingester.followers.sink import FROM_FILES, Rows, Run
from ingester.followers.state import Group, Ledger, part_name

DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Arrived:
    """The rows of one group."""

    of: GroupOf
    rows: pa.Table


def grouped(batches: Sequence[Batch], schema: pa.Schema) -> list[Arrived]:
    """The groups of an answer in their order, with rows of just these columns."""
    found = []
    for of, each in groupby(batches, key=lambda batch: batch.group):
        rows = pa.Table.from_batches([batch.rows for batch in each])
        found.append(Arrived(of, fitted(rows, schema)))
    return found


def numbered(arrived: Sequence[Arrived], ledger: Ledger, next_at: int) -> tuple[list[Group], int]:
    """The groups with their numbers, remembered in the ledger, and the next free number."""
    groups = []
    for one in arrived:
        of = one.of
        group = Group(
            of.partition, of.epoch, of.first_seq, of.last_seq, one.rows.num_rows, 0, of.buffer
        )
        group = group._replace(at=ledger.number(group, next_at))
        next_at = max(next_at, group.at + 1)
        ledger.add(group)
        groups.append(group)
    return groups, next_at


def appended(arrived: Sequence[Arrived], groups: Sequence[Group]) -> Rows:
    """The rows of at least one group, to be put."""
    runs = tuple(Run(part_name(group.partition), group.at, group.rows) for group in groups)
    return Rows(pa.concat_tables([one.rows for one in arrived]), runs)


def merged(
    arrived: Sequence[Arrived], groups: Sequence[Group], primary_key: Sequence[str]
) -> tuple[Rows | None, pa.Table | None]:
    """The rows to put, and the keys to delete, of at least one group.

    The rows have :data:`OPERATION` behind.
    """
    table = pa.concat_tables([one.rows for one in arrived])
    places = np.repeat(np.arange(len(arrived)), [one.rows.num_rows for one in arrived])
    if len(arrived) > 1 and (last := last_of_each_key(table, primary_key)) is not None:
        table, places = table.take(pa.array(last)), places[last]
    gone = pc.equal(table.column(OPERATION), DELETE)
    keys = table.filter(gone).select(list(primary_key))
    there = pc.invert(gone)
    rows = table.filter(there).drop_columns([OPERATION])
    places = places[there.combine_chunks().to_numpy(zero_copy_only=False)]
    runs = tuple(
        Run(part_name(groups[place].partition), groups[place].at, len(list(run)))
        for place, run in groupby(places.tolist())
    )
    return (Rows(rows, runs) if rows.num_rows else None, keys if keys.num_rows else None)


def last_of_each_key(table: pa.Table, primary_key: Sequence[str]) -> np.ndarray | None:
    """The places of the last row of each key, rising; None where each key comes once."""
    numbers, count = _key_numbers([table.column(name) for name in primary_key])
    last = np.full(count, -1)
    last[numbers] = np.arange(table.num_rows)  # of equal numbers the last one stays
    found = last[last >= 0]
    return None if len(found) == table.num_rows else np.sort(found)


def missing_keys(keys: pa.Table, there: pa.Table) -> pa.Table:
    """The keys that are not among others; both have the columns of a primary key alone."""
    both = pa.concat_tables([keys, there.cast(keys.schema)])
    numbers, count = _key_numbers(both.columns)
    found = np.zeros(count, np.bool_)
    found[numbers[keys.num_rows :]] = True
    return keys.filter(pa.array(~found[numbers[: keys.num_rows]]))


def _key_numbers(columns: Sequence[pa.ChunkedArray]) -> tuple[np.ndarray, int]:
    """A number for each row, the same for equal keys alone, and how many numbers there are."""
    numbers, count = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        pairs = numbers * max(1, len(encoded.dictionary)) + codes
        distinct, numbers = np.unique(pairs, return_inverse=True)
        count = len(distinct)
    return numbers, max(1, count)


def from_file(rows: pa.Table, part: str) -> Rows:
    """Rows of a file, to be put."""
    return Rows(rows, (Run(part, FROM_FILES, rows.num_rows),))


def with_new_columns(known: pa.Schema, seen: pa.Schema) -> pa.Schema:
    """The known columns, and behind them those that only ``seen`` has."""
    for field in seen:
        if field.name != OPERATION and known.get_field_index(field.name) < 0:
            known = known.append(field.with_nullable(True))
    return known
