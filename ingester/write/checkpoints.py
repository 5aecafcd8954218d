"""The calls by which a source reads its state, and stores one without rows.

    put, delete ─▶ an operation without rows ─▶ the log ─▶ applied ─▶ answered
    get         ─▶ the newest version, and operations applied since

An answered state is in the log. A state becomes visible with its put, or with the batch that it
came with, and never without the rows that it belongs to (tests/client/test_checkpoints_at_daemon).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import trio

from ingester.buffer import TableBuffer
from ingester.dml.operation import Operation
from ingester.dml.record import LoggedSchema, TableRows, make_operation
from ingester.errors import BadRequest
from ingester.origins.checkpoint_state import SourceCheckpoint
from ingester.origins.checkpoints import PendingCheckpoint
from ingester.tables.catalog import Catalog
from ingester.write.acknowledgement import Acknowledgement
from ingester.write.metadata import SharedStates, fitted
from ingester.write.stream import WritePath
from persist.manifest import CheckpointAction as CheckpointAction
from persist.manifest import SharedState, TableState
from persist.table import TableKey


class CheckpointAnswer(NamedTuple):
    """A partition's state in the log and in object storage; None without one."""

    table_version: int
    partition: str
    state: bytes | None
    shared: bytes | None
    durable: bool
    """Whether object storage has the log's state."""
    durable_state: bytes | None
    durable_shared: bytes | None


class CheckpointListing(NamedTuple):
    """A checkpoint without its state."""

    table: TableKey
    table_version: int
    partition: str
    bytes: int
    shared_id: str | None
    shared_bytes: int
    at: str | None
    durable: bool
    origin: str | None


class CheckpointCalls:
    """Answers the calls. Loop only.

    Args:
        schema_numbers: one for each schema of incoming rows.
    """

    def __init__(self, catalog: Catalog, path: WritePath, schema_numbers: Iterator[int]) -> None:
        self._catalog = catalog
        self._path = path
        self._schema_numbers = schema_numbers
        self._schemas: dict[TableKey, tuple[int, LoggedSchema]] = {}

    async def get(
        self, namespace: str, name: str, partition: str, table_version: int | None = None
    ) -> CheckpointAnswer:
        """Find a partition's state, by the newest version.

        Args:
            table_version: the table version that the caller knows.

        Raises:
            UnknownTable, StoreUnreachable
            BadRequest: also if the table is at another ``table_version``.
        """
        table = await self._catalog.open(namespace, name)
        # Another daemon may have committed a state with its rows.
        await self._catalog.refresh(table, -1.0)
        _check_version(table, table_version)
        return self._stored(table, partition)

    async def put(
        self,
        namespace: str,
        name: str,
        checkpoint: SourceCheckpoint,
        table_version: int | None = None,
    ) -> CheckpointAnswer:
        """Store or delete a state without rows; returns when it is in the log and visible.

        ``table_version``: see :meth:`get`.

        Raises:
            BadRequest, UnknownTable, StoreUnreachable, OwnedElsewhere, Stopping
            Refused: there is no room now.
        """
        path = self._path
        if path.admission.stopping:
            raise path.admission.refusal()
        if checkpoint.state is None:
            there = await self.get(namespace, name, checkpoint.partition, table_version)
            if there.state is None and there.durable:
                return there
        table = await self._catalog.prepare_delete(namespace, name)
        _check_version(table, table_version)
        checkpoint = fitted(table, path.checkpoints, checkpoint)
        rows = TableRows(self._schema(table), table.definition.spec_id)
        operation = make_operation(rows, checkpoint=checkpoint)
        at_store = path.levels.at_store(table.key, table.definition.ack)
        path.log.check_room((table.route,), operation.nbytes, at_store=at_store)
        if (refusal := path.admission.enter(operation.nbytes, table.use)) is not None:
            path.relieve(refusal)
            raise refusal
        await self._logged(operation, table, at_store)
        return self._stored(table, checkpoint.partition)

    async def listed(self, namespace: str | None, name: str | None) -> list[CheckpointListing]:
        """List the checkpoints of a table, a namespace, or all tables, sorted.

        Raises:
            BadRequest, UnknownTable, StoreUnreachable
        """
        if name is not None and namespace is None:
            raise BadRequest("checkpoints: a 'table' needs its 'namespace'")
        tables = await self._catalog.chosen(namespace, name)
        if name is None:  # those that nobody has used since the start as well
            keys = [key for key in await self._catalog.names() if namespace in (None, key[0])]
            tables = [await self._catalog.open(*key) for key in keys]
        found: list[CheckpointListing] = []
        for table in tables:
            await self._catalog.refresh(table, -1.0)
            found += self._of_table(table)
        return found

    def shared_of(self, namespace: str, name: str) -> SharedStates:
        """Return the shared states of a table, for a put that names one."""
        states = SharedStates()
        table = self._catalog.known(namespace, name)
        if table is not None:
            states.known = lambda: table.state.shared_states
            for waiting in self._path.checkpoints.pending(table.key).values():
                if (shared := waiting[-1].given.shared) is not None:
                    states.sent(shared.state)
        return states

    async def _logged(self, operation: Operation, table: TableBuffer, at_store: bool) -> None:
        acknowledgement = _OfCheckpoint(
            operation, partial(self._path.admission.leave, operation.nbytes, table.use)
        )
        acknowledgement.routes, acknowledgement.at_store = (table.route,), at_store
        self._path.log.append(acknowledgement)
        await acknowledgement.answered.wait()
        if acknowledgement.error is not None:
            raise acknowledgement.error

    def _schema(self, table: TableBuffer) -> LoggedSchema:
        definition = table.definition
        known = self._schemas.get(table.key)
        if known is None or known[0] != definition.schema_id:
            schema = LoggedSchema.of(next(self._schema_numbers), table.key, definition.schema)
            known = self._schemas[table.key] = (definition.schema_id, schema)
        return known[1]

    def _stored(self, table: TableBuffer, partition: str) -> CheckpointAnswer:
        there, version = table.state.checkpoints.get(partition), table.state.table_version
        durable = (_decoded(there), _shared_of(table.state, there))
        newest = self._path.checkpoints.newest(table.key, partition, table.state)
        if newest is None:
            return CheckpointAnswer(version, partition, *durable, True, *durable)
        given = newest.given
        logged = (given.state, None if given.shared is None else given.shared.state)
        return CheckpointAnswer(version, partition, *logged, logged == durable, *durable)

    def _of_table(self, table: TableBuffer) -> list[CheckpointListing]:
        state, checkpoints = table.state, self._path.checkpoints
        found = []
        for partition in sorted({*state.checkpoints, *checkpoints.pending(table.key)}):
            newest = checkpoints.newest(table.key, partition, state)
            if newest is not None:
                if newest.given.state is not None:
                    found.append(_listed_pending(table.key, state.table_version, newest))
            elif (there := state.checkpoints[partition]).state is not None:
                found.append(_listed(table.key, state, there))
        return found


class _OfCheckpoint(Acknowledgement):
    """Wakes the call that waits until its state is in the log."""

    __slots__ = ("_leave", "answered", "error")

    def __init__(self, operation: Operation, leave: Callable[[], None]) -> None:
        super().__init__(operation, None)
        self._leave = leave
        self.answered = trio.Event()
        self.error: BaseException | None = None

    def answer(self, error: BaseException | None) -> None:
        """Stop counting the operation, and wake the call."""
        self._leave()
        self.error = error
        self.answered.set()


def _check_version(table: TableBuffer, named: int | None) -> None:
    now = table.state.table_version
    if named not in (None, now):
        raise BadRequest(
            f"table {table.namespace}/{table.name} is at table version {now}, and the checkpoint's"
            f" key names version {named}"
        )


def _listed_pending(
    table: TableKey, table_version: int, pending: PendingCheckpoint
) -> CheckpointListing:
    given, shared = pending.given, pending.given.shared
    return CheckpointListing(
        table,
        table_version,
        given.partition,
        given.nbytes,
        None if shared is None else shared.id,
        0 if shared is None else len(shared.state),
        given.at,
        False,
        None if pending.tenure is None else pending.tenure.origin,
    )


def _listed(table: TableKey, state: TableState, there: CheckpointAction) -> CheckpointListing:
    return CheckpointListing(
        table,
        state.table_version,
        there.partition,
        len(_decoded(there) or b""),
        there.shared,
        len(_shared_of(state, there) or b""),
        there.at,
        True,
        there.origin,
    )


def _decoded(stored: CheckpointAction | SharedState | None) -> bytes | None:
    if stored is None or stored.state is None:
        return None
    return base64.b64decode(stored.state)


def _shared_of(state: TableState, there: CheckpointAction | None) -> bytes | None:
    if there is None or there.shared is None:
        return None
    return _decoded(state.shared_states.get(there.shared))
