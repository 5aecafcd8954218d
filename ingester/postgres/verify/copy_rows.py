"""A copy's table, read for a comparison: all of its rows, or those of some keys.

Law of this file: rows come as Arrow batches from the daemon, of which a few at a time are in
memory, and leave as the texts that PostgreSQL would write.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa

from ingester.client import Client
from ingester.postgres.verify.copy_texts import copy_texts
from ingester.postgres.verify.found_rows import (
    FoundRows,
    Key,
    add_rows,
    hash_block,
    hash_keys,
)
from ingester.postgres.verify.row_hashes import Texts, nothing
from ingester.postgres.verify.source_rows import Take
from ingester.postgres.verify.source_texts import unescaped

BLOCK_BYTES = 2 << 20


class SchemaChanged(Exception):
    """The copy's columns are not what they were when the comparison began."""


class CopyRows:
    """One table here; the key's columns are the first."""

    def __init__(
        self, client: Client, table: tuple[str, str], names: Sequence[str], key_columns: int
    ) -> None:
        """Ask for the table's columns.

        Args:
            table: namespace and name.
            names: the columns that are compared, in the order of the source's; one that is not
                there is null in all rows.

        Raises:
            NotFound: no such table.
        """
        self._client = client
        self._table = table
        self._names = names
        self.schema: pa.Schema = client.schema(*table)
        self.key_columns = key_columns

    def kept(self, name: str) -> pa.DataType | None:
        """The type of a column; None where it is not there."""
        return self.schema.field(name).type if name in self.schema.names else None

    def estimated_rows(self) -> int:
        """The number of rows, about.

        Raises:
            ClientError
        """
        found = self._client.describe(*self._table)
        return found.buffered.rows + found.persisted.rows

    def scan(self, take: Take) -> None:
        """Hand all rows of one snapshot to ``take``, block by block.

        Raises:
            SchemaChanged, NoText, ClientError
        """
        self._read(None, take)

    def find(self, keys: Collection[Key]) -> FoundRows:
        """The rows of these keys, at one snapshot.

        Raises:
            SchemaChanged, NoText, ClientError
        """
        found: FoundRows = {}
        if not keys:
            return found
        hashed = hash_keys(keys)

        def take(columns: list[Texts]) -> None:
            places = np.flatnonzero(np.isin(hash_block(columns, self.key_columns).keys, hashed))
            add_rows(found, columns, self.key_columns, places.tolist())

        self._read(self._filter(keys), take)
        return {key: row for key, row in found.items() if key in keys}

    def _filter(self, keys: Collection[Key]) -> list[tuple[str, str, object]] | None:
        """The filter that finds these keys, and with several columns more; None where none does."""
        terms: list[tuple[str, str, object]] = []
        for name, texts in zip(self._names, zip(*keys, strict=True), strict=False):
            kind = self.kept(name)
            # A NaN is found by no filter.
            if kind is None or pa.types.is_floating(kind):
                continue
            try:
                values = [_filter_value(kind, text or b"") for text in dict.fromkeys(texts)]
            except ValueError:
                continue  # A key of the source that is no value of the copy's type.
            terms.append((name, "in", values))
        return terms or None

    def _read(self, filter_: list[tuple[str, str, object]] | None, take: Take) -> None:
        there = [name for name in self._names if name in self.schema.names]
        with self._client.query_stream(*self._table, columns=there, filter=filter_) as stream:
            expected = [self.kept(name) for name in there]
            if [stream.schema.field(name).type for name in there] != expected:
                raise SchemaChanged(f"the columns of {self._table[1]!r} here have changed")
            waiting: list[pa.RecordBatch] = []
            nbytes = 0
            for batch, _ in stream:
                waiting.append(batch)
                nbytes += batch.nbytes
                if nbytes >= BLOCK_BYTES:
                    take(self._texts(waiting))
                    waiting, nbytes = [], 0
            if waiting:
                take(self._texts(waiting))

    def _texts(self, batches: list[pa.RecordBatch]) -> list[Texts]:
        [rows] = pa.Table.from_batches(batches).combine_chunks().to_batches() or [None]
        if rows is None:
            return [nothing(0) for _ in self._names]
        return [
            copy_texts(rows.column(name)) if name in rows.schema.names else nothing(rows.num_rows)
            for name in self._names
        ]


def _filter_value(kind: pa.DataType, text: bytes) -> object:
    """The value of a key as the filters of the protocol have it."""
    value = unescaped(text).decode()
    if pa.types.is_boolean(kind):
        return value == "t"
    if pa.types.is_integer(kind):
        return int(value)
    if pa.types.is_binary(kind):
        return base64.b64encode(bytes.fromhex(value)).decode()
    if pa.types.is_timestamp(kind):
        return value.replace(" ", "T", 1) + (":00" if kind.tz is not None else "")
    return value
