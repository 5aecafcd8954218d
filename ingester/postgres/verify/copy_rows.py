"""The copy of a table at the daemon: its rows for a comparison, and its position.

    from_lsn      the position of the copy
    its sequence  changes of the table up to it are applied
    the report    the replicator has applied the log up to it, and the table follows
    the slot      everything before it is in object storage, for all tables

A copy has passed a position if one of these has. A table without changes has no sequence of its
own; for it only the replicator's report tells. A scan holds a few batches in memory.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from ingester.client import Client, NotFound
from ingester.postgres.connection import ask
from ingester.postgres.states import ReplicaState, decode_state, partition_of
from ingester.postgres.verify.compared_texts import copy_texts, unescaped
from ingester.postgres.verify.differences import (
    FoundRows,
    Key,
    add_rows,
    hash_block,
    hash_keys,
)
from ingester.postgres.verify.row_hashes import Texts, nothing
from ingester.postgres.verify.source_rows import Take
from ingester.reports.replications import ReplicationReport

REPORT_EVERY_S = 0.5
BLOCK_BYTES = 2 << 20


class CopyPosition:
    def __init__(
        self, client: Client, table: tuple[str, str], origin: str, connection: Any
    ) -> None:
        self._client = client
        self._table = table
        self._origin = origin
        self._connection = connection
        self._reported_at = -REPORT_EVERY_S

    def state(self) -> ReplicaState | None:
        """The table's current state; None if it has none."""
        try:
            stored = self._client.checkpoint(*self._table, partition_of(self._origin))
        except NotFound:
            return None
        return None if stored.state is None else decode_state(stored.state)

    def passed(self, lsn: int) -> bool:
        """Whether the copy contains all changes before ``lsn``."""
        state = self.state()
        if state is None:
            return False
        states = self._client.origins(self._origin, self._table)
        sequences = [each.table_newest or 0 for each in states]
        if max([state.from_lsn, state.upto, *sequences, self._reported()]) >= lsn:
            return True
        rows = ask(
            self._connection,
            "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots"
            " WHERE slot_name = %s AND database = current_database()"
            " AND confirmed_flush_lsn IS NOT NULL",
            state.place.slot,
        )
        return any(int(confirmed) >= lsn for (confirmed,) in rows)

    def wait(self, lsn: int, patience_s: float, meanwhile: Callable[[], None]) -> bool:
        """Wait for the copy to pass ``lsn``; return whether it has.

        Args:
            meanwhile: called between two checks; should take a moment.
        """
        ends_at = time.monotonic() + patience_s
        while not self.passed(lsn):
            if time.monotonic() > ends_at:
                return False
            meanwhile()
        return True

    def _reported(self) -> int:
        """The position up to which the replicator reports the table as applied."""
        now = time.monotonic()
        if now - self._reported_at < REPORT_EVERY_S:
            return 0
        self._reported_at = now
        report = report_of(self._client, self._table[0], self._origin)
        if report is None or report.applied is None or report.state != "running":
            return 0
        phases = {each.table: each.phase for each in report.tables}
        # Of very many tables those that follow are counted instead of named.
        others = "following" if set(report.left_out) == {"following"} else "waiting"
        return lsn_of(report.applied) if phases.get(self._table[1], others) == "following" else 0


def report_of(client: Client, namespace: str, origin: str) -> ReplicationReport | None:
    """The latest report of an origin's replicator, or None."""
    for each in client.status_list("replications"):
        known = {name: each[name] for name in ReplicationReport.__struct_fields__ if name in each}
        report = msgspec.convert(known, ReplicationReport)
        if (report.namespace, report.origin) == (namespace, origin):
            return report
    return None


def lsn_of(text: str) -> int:
    """A position in the log as a number."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


class SchemaChanged(Exception):
    """The copy's columns changed during the comparison."""


class ComparedCopy:
    """The table here; the key's columns come first."""

    def __init__(
        self, client: Client, table: tuple[str, str], names: Sequence[str], key_columns: int
    ) -> None:
        """Read the table's schema.

        Args:
            table: namespace and name.
            names: the compared columns, in the source's order; a missing one is null in all rows.

        Raises:
            NotFound: no such table.
        """
        self._client = client
        self._table = table
        self._names = names
        self.schema: pa.Schema = client.schema(*table)
        self.key_columns = key_columns

    def kept(self, name: str) -> pa.DataType | None:
        """The type of a column, or None."""
        return self.schema.field(name).type if name in self.schema.names else None

    def estimated_rows(self) -> int:
        """The approximate number of rows."""
        found = self._client.describe(*self._table)
        return found.buffered.rows + found.persisted.rows

    def scan(self, take: Take) -> None:
        """Pass all rows of one snapshot to ``take``, in blocks.

        Raises:
            SchemaChanged, NoText
        """
        self._read(None, take)

    def find(self, keys: Collection[Key]) -> FoundRows:
        """The rows of these keys in one snapshot.

        Raises:
            SchemaChanged, NoText
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
        """A filter that matches these keys and possibly others; None if there is no such filter."""
        terms: list[tuple[str, str, object]] = []
        for name, texts in zip(self._names, zip(*keys, strict=True), strict=False):
            kind = self.kept(name)
            # No filter matches NaN.
            if kind is None or pa.types.is_floating(kind):
                continue
            try:
                values = [_filter_value(kind, text or b"") for text in dict.fromkeys(texts)]
            except ValueError:
                continue  # A key of the source that the copy's type cannot hold.
            terms.append((name, "in", values))
        return terms or None

    def _read(self, filter_: list[tuple[str, str, object]] | None, take: Take) -> None:
        there = [name for name in self._names if name in self.schema.names]
        with self._client.query_stream(*self._table, columns=there, filter=filter_) as stream:
            expected = [self.kept(name) for name in there]
            if [stream.schema.field(name).type for name in there] != expected:
                raise SchemaChanged(f"the columns of {self._table[1]!r} changed here")
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
    """A key's value for a filter of the protocol."""
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
