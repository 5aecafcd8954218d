"""Rounds of copies, beside the stream, and the copy of one table into a new version.

    orders that are due ─▶ one snapshot ─▶ table by table: copied, switched, reported
                                        └▶ failed: set aside, or retried later

    Snapshot.locked ──▶ copy_stream ──▶ client.copy ──▶ files ──▶ the version and its state
                        a thread        this thread

One round runs at a time, in its own thread. Until the stream has restarted after a round, the slot
stays where it was when the round began: the stream then repeats what the copied tables lack. A copy
contains all rows of the snapshot, as many as the server says that it sent, or it fails and leaves
no row, version or slot (``tests/postgres/test_table_copy.py``).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from ingester.client import Client, ClientError, InvalidRequest
from ingester.client.copying import TableCopy
from ingester.postgres.catalog import read_publication, read_server, read_tables
from ingester.postgres.connection import Stopped, ask
from ingester.postgres.copy_stream import (
    CopyBlocks,
    find_wide,
    read_block,
    read_wide,
    rows_at_most,
    source_of,
    wide_condition,
)
from ingester.postgres.facts import TableFacts
from ingester.postgres.history import sequences_upto
from ingester.postgres.options import Options
from ingester.postgres.planning import WantedTable, wanted_of
from ingester.postgres.server_errors import SourceFailed
from ingester.postgres.snapshot import ChangedMeanwhile, SourceSnapshot
from ingester.postgres.states import (
    BadState,
    History,
    ReplicaState,
    Shape,
    SlotPlace,
    encode_state,
    partition_of,
    shape_of,
)
from ingester.postgres.tables import Tables, now
from ingester.postgres.timelines import kept
from ingester.postgres.types import ValueNotKept
from persist.prefetch import one_ahead

Progress = Callable[[int, int, int | None], None]
"""Called with the rows so far, the bytes of their texts, and the estimated total of rows."""


class CopiedTable(NamedTuple):
    table_version: int
    rows: int
    bytes: int
    """Bytes of the texts, as the server sent them."""


def copy_table(
    snapshot: SourceSnapshot,
    facts: TableFacts,
    shape: Shape,
    client: Client,
    namespace: str,
    partition: str,
    state: Callable[[], bytes],
    progress: Progress = lambda rows, nbytes, total: None,
) -> CopiedTable:
    """Copy a table from the snapshot; it is the table's new version when this returns.

    Args:
        facts: the table in the snapshot.
        shape: the columns to keep.
        partition: the checkpoint that is committed with the rows.
        state: called for the table's state once all rows are written.
        progress: called after each batch, in this thread.

    Raises:
        ValueNotKept: with the table's name, the row's key and the column.
        ChangedMeanwhile: take another snapshot.
        Stopped: the snapshot was interrupted.
        InvalidRequest: the daemon refuses the table; no retry helps.
    """
    names = {column.source: column.name for column in shape.columns}
    key = [names[name] for name in shape.key]
    with client.copy(namespace, shape.target, key) as copy:
        copy.write(_no_rows(shape))
        with snapshot.locked(facts):
            nbytes = _copy_rows(snapshot, facts, shape, copy, progress)
        return CopiedTable(copy.finish(partition, state()), copy.rows, nbytes)


def _copy_rows(
    snapshot: SourceSnapshot, facts: TableFacts, shape: Shape, copy: TableCopy, progress: Progress
) -> int:
    """Write all rows; return the bytes of their texts."""
    total = estimate_rows(snapshot.connection, facts)
    progress(0, 0, total)
    wide = find_wide(snapshot, facts, shape)
    nbytes = 0
    with contextlib.closing(_batches(snapshot, facts, shape, wide=bool(wide))) as batches:
        for batch, size in batches:
            copy.write(batch)
            nbytes += size
            progress(copy.rows, nbytes, total)
    largest = (0, "")
    for row in wide:
        batch, size, where = read_wide(snapshot, facts, shape, row)
        largest = max(largest, (batch.nbytes, where))
        try:
            copy.write(batch)
        except InvalidRequest as exc:
            raise InvalidRequest(_too_large(shape, *largest, exc)) from exc
        nbytes += size
        del batch  # Free it before reading the next one.
        progress(copy.rows, nbytes, total)
    return nbytes


def _too_large(shape: Shape, nbytes: int, where: str, exc: InvalidRequest) -> str:
    """Explain an error about a row's size."""
    if "max_batch_bytes" not in str(exc):
        return str(exc)
    return (
        f"table {shape.target!r}, {where}: the row has {nbytes} bytes, more than the"
        " daemon accepts: raise its flight.max_batch_bytes"
    )


def estimate_rows(connection: Any, facts: TableFacts) -> int | None:
    """The estimated number of rows; None if the table was never analyzed.

    Calculated like the server's planner: by rows per page at the last ANALYZE.
    """
    oids = [leaf.oid for leaf in facts.leaves] or [facts.oid]
    [(rows,)] = ask(
        connection,
        "SELECT sum(reltuples::float8 / relpages * pg_relation_size(oid)"
        " / current_setting('block_size')::int) FROM pg_class"
        " WHERE oid = ANY (%s::oid[]) AND relpages > 0 AND reltuples >= 0",
        oids,
    )
    return None if rows is None else round(rows)


def copy_statement(facts: TableFacts, shape: Shape, *, wide: bool = False) -> Any:
    """The COPY statement for a table, as psycopg2's ``Composed``.

    Args:
        wide: leave out wide rows.
    """
    from psycopg2 import sql

    columns = sql.SQL(", ").join(sql.Identifier(column.source) for column in shape.columns)
    which = sql.SQL("")
    if wide:
        which = sql.SQL(" WHERE NOT ({})").format(wide_condition(facts, shape))
    return sql.SQL("COPY (SELECT {} FROM {}{}) TO STDOUT (FORMAT csv)").format(
        columns, source_of(facts), which
    )


def _batches(
    snapshot: SourceSnapshot, facts: TableFacts, shape: Shape, *, wide: bool
) -> Generator[tuple[pa.RecordBatch, int], None, None]:
    """The table's rows, with the bytes of their texts."""
    statement = copy_statement(facts, shape, wide=wide)
    blocks = CopyBlocks(snapshot.connection, statement, rows_at_most(shape), snapshot.stopped)
    rows = 0
    read = ((read_block(block, shape), len(block)) for block in blocks)
    with contextlib.closing(one_ahead(read)) as batches:
        try:
            for batch, size in batches:
                rows += batch.num_rows
                yield batch, size
            sent = blocks.rows
        finally:
            blocks.end()  # First, as the prefetching thread waits for blocks.
    if rows != sent:
        raise SourceFailed(
            f"table {facts.full_name}: the source sent {sent} rows, of which {rows} were read;"
            " the copy was discarded. This is a bug in ingester: please report it"
        )


def _no_rows(shape: Shape) -> pa.RecordBatch:
    """An empty batch that tells the columns of a table without rows."""
    return pa.schema([(column.name, column.type.arrow) for column in shape.columns]).empty_table()


class Copying(NamedTuple):
    """The progress of the running copy."""

    target: str
    rows: int
    nbytes: int
    rows_total: int | None


@dataclass
class Copier:
    """Runs the copies that are due.

    Args:
        say: called with a line for each event.
        stopped: whether to end.
    """

    options: Options
    tables: Tables
    client: Client
    say: Callable[[str], None]
    stopped: Callable[[], bool]
    progress: Copying | None = None
    waits: str = ""
    _thread: threading.Thread | None = field(default=None, repr=False)
    _done: int = 0
    """Written by the thread; ``_taken`` by the caller, so no count is lost in between."""
    _taken: int = 0
    _failure: BaseException | None = None
    _at: str | None = None
    """The table whose copy began last in this round."""

    @property
    def at(self) -> str | None:
        """The table whose copy began last in this round."""
        return self._at

    @property
    def busy(self) -> bool:
        """Whether a round is running."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, place: SlotPlace, history: History) -> bool:
        """Start a round if a copy is due and none is running; return whether it did.

        Args:
            history: of the log that the session reads; copies of another log are not made.
        """
        if self.busy or not (due := self.tables.due()):
            return False
        self._thread = threading.Thread(
            target=self._run, args=(place, history, due), name="postgres-copy", daemon=True
        )
        self._thread.start()
        return True

    def take_done(self) -> int:
        """The number of tables copied since the last call.

        Raises:
            BaseException: the error that ended a round.
        """
        done = self._done - self._taken
        self._taken += done
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return done

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the round."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self, place: SlotPlace, history: History, due: Sequence[str]) -> None:
        import psycopg2

        self._at = None
        try:
            self._round(place, history, due)
        except Stopped:
            pass
        except (psycopg2.OperationalError, ClientError) as exc:
            self._again(due, f"retrying: {' '.join(str(exc).split())}")
        except SourceFailed as exc:
            self._again(due, f"copy postponed: {exc}")
        except BaseException as exc:
            self._failure = exc
        finally:
            self.progress, self.waits = None, ""

    def _again(self, due: Sequence[str], why: str) -> None:
        if self.stopped():
            return
        self.say(why)
        # Delay only the table that ended the round, which it may do again.
        for target in due if self._at is None else (self._at,):
            self.tables.order_failed(target)

    def _waiting(self, text: str) -> None:
        if text and text != self.waits:
            self.say(text)
        self.waits = text

    def _round(self, place: SlotPlace, history: History, due: Sequence[str]) -> None:
        options = self.options
        name = f"{options.slot[:40]}_copy"
        with SourceSnapshot.take(options.dsn, name, self.stopped, self._waiting) as snapshot:
            if snapshot.history != history:
                raise SourceFailed("the source was replaced by another server", permanent=False)
            wanted = self._wanted(snapshot.connection)
            for target in due:
                if self.stopped():
                    return
                table = wanted.get(target)
                if table is None or table.hindrance or target not in self.tables.orders:
                    # The next look decides.
                    self.tables.order_failed(target)
                    continue
                self._copy(snapshot, place, table)

    def _wanted(self, connection: Any) -> dict[str, WantedTable]:
        publication = read_publication(connection, self.options.publication)
        tables = read_tables(connection, self.options.publication)
        found = wanted_of(tables, read_server(connection), publication, self.options)
        return {each.target: each for each in found}

    def _copy(self, snapshot: SourceSnapshot, place: SlotPlace, table: WantedTable) -> None:
        target, facts = table.target, table.facts
        state = ReplicaState(
            place=place,
            publication=self.options.publication,
            facts=facts,
            columns=table.columns,
            from_lsn=snapshot.lsn,
            since=now(),
            history=kept(snapshot.history),
        )

        def progress(rows: int, nbytes: int, total: int | None) -> None:
            self.progress = Copying(target, rows, nbytes, total)

        self._at = target
        progress(0, 0, None)
        began = time.monotonic()
        shape = shape_of(target, facts, table.columns)
        if snapshot.lsn < sequences_upto(self.tables, target):
            # Changes up to there would be taken for applied.
            self.say(f"copy of {target} postponed: the source's log is shorter than what was read")
            self.tables.order_failed(target)
            return
        try:
            copied = copy_table(
                snapshot,
                facts,
                shape,
                self.client,
                self.tables.namespace,
                partition_of(self.tables.origin),
                lambda: encode_state(state),
                progress,
            )
        except ValueNotKept as exc:
            helps = ("correct the value, or set a policy: --values",)
            self._failed(target, began, str(exc), helps)
        except InvalidRequest as exc:
            self._failed(target, began, f"the daemon refuses it: {exc}")
        except BadState as exc:
            self._failed(target, began, str(exc))
        except SourceFailed as exc:
            self._failed(target, began, str(exc), exc.helps)
        except ChangedMeanwhile as exc:
            self.say(f"{exc}")
            self.tables.order_failed(target)
        else:
            self.tables.copied(target, state)
            self._done += 1
            self.say(f"copied {copied.rows} rows of {facts.full_name}")
        finally:
            self.progress = None

    def _failed(self, target: str, began: float, reason: str, helps: tuple[str, ...] = ()) -> None:
        known = self.tables.aside.get(target)
        if known is None or known.reason != reason:
            self.say(f"table {target} is set aside: {reason}")
        self.tables.set_aside(target, reason, helps)
        self.tables.order_failed(target, time.monotonic() - began)
