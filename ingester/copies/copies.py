"""All copies of a daemon: begun by their first stream, finished or given up.

A copy belongs to the process. A client whose copy is unknown starts again, or finds the finished
copy's state in the table. A finish continues even if the client stops waiting. Loop only.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import structlog
import trio

from ingester.buffer import TableBuffer
from ingester.copies.copy_files import HELD_BYTES, CopyFiles, CopyPlace, Encoders
from ingester.copies.table_copy import (
    CopyDone,
    CopyName,
    CopyState,
    CopyTarget,
    IncomingCopy,
    copy_definition,
)
from ingester.copies.takeover import Takeover
from ingester.errors import (
    BadRequest,
    IngesterError,
    InternalFailure,
    NotAvailable,
    Refused,
    Stopping,
    StoreUnreachable,
    TooManyStreams,
    TooSlow,
    UnknownTable,
)
from ingester.origins.checkpoint_state import SourceCheckpoint
from ingester.tables.catalog import Catalog
from ingester.tables.encodable import check_encodable
from ingester.tables.new_version import WholeTable
from ingester.tables.opening import Shared, TableParts
from persist.manifest import (
    CommitUnclear,
    ManifestError,
    WriterIdentity,
    claim_version,
    give_up_version,
    unfinished_claims,
    version_folder,
)
from persist.store import ObjectStore, StoreError, StoreUnavailable
from persist.table import UNNUMBERED, TableDefinition, TableKey

log = structlog.get_logger(__name__)

IDLE_S = 600.0
"""The time after which an idle or finished copy is forgotten."""
SILENT_S = 6 * 3600.0
"""The same for a copy with an open stream: a source may search for hours, or vanish."""
LOOK_S = 10.0
MOST = 64
"""The most copies at a time."""
WAIT_S = 60.0
"""How long a call waits for the finish; the client then calls again."""
CLAIM = "_copy/"
"""The prefix of names under which copies claim table versions."""


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """The parts of other rooms that copies use.

    Attributes:
        names_of: Returns the names of a table's transformers.
        is_stopping: Whether the daemon is stopping.
        upto_in: Returns the lowest position of tables.
        target_bytes: ``persist.target_file_bytes``.
    """

    names_of: Callable[[TableKey, TableDefinition | None], tuple[str, ...]]
    is_stopping: Callable[[], bool]
    upto_in: Callable[[Iterable[TableKey]], int]
    target_bytes: int


class Copies:
    """Begins, finishes and forgets copies. Loop only."""

    def __init__(
        self,
        catalog: Catalog,
        writer: WriterIdentity,
        encoders: Encoders,
        takeover: Takeover,
        options: CopyOptions,
    ) -> None:
        self._catalog = catalog
        self._writer = writer
        self._encoders = encoders
        self._takeover = takeover
        self._options = options
        self._copies: dict[CopyName, IncomingCopy] = {}
        self._opening: dict[TableKey, trio.Lock] = {}
        """Copies of a table begin one at a time: each gives up unknown versions."""
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Run finishes, and forget idle copies, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            while True:
                await trio.sleep(LOOK_S)
                now = time.monotonic()
                for copy in list(self._copies.values()):
                    idle_s = SILENT_S if copy.streams else IDLE_S
                    if copy.attempt is None and copy.touched_at < now - idle_s:
                        if copy.state is CopyState.DONE:
                            del self._copies[copy.name]
                        else:
                            self._end(
                                copy, BadRequest(f"{copy.name} was idle and has been discarded")
                            )

    async def open(
        self, name: CopyName, primary_key: tuple[str, ...], sent: pa.Schema
    ) -> IncomingCopy:
        """Open a stream of a copy, which begins if it does not exist; pair with :meth:`closed`.

        Raises:
            BadRequest: not a valid copy, other columns than the copy's, or already finished.
            NotAvailable: the table has transformers.
            UnknownTable, OwnedElsewhere, StoreUnreachable, Stopping, TooManyStreams
        """
        self._check_not_stopping()
        lock = self._opening.setdefault(name.table, trio.Lock())
        try:
            async with lock:
                copy = self._copies.get(name)
                if copy is None:
                    copy = await self._begin(name, primary_key, sent)
                copy.check_like(sent, primary_key)
                copy.streams += 1
                copy.touch()
                return copy
        finally:
            if not lock.locked():
                self._opening.pop(name.table, None)

    def closed(self, copy: IncomingCopy) -> None:
        """Note the end of a stream of the copy."""
        copy.streams -= 1
        copy.touch()

    async def finish(self, name: CopyName, rows: int, checkpoint: SourceCheckpoint) -> CopyDone:
        """Make the copy the table, with its source's state; idempotent.

        Raises:
            UnknownTable: unknown or forgotten copy.
            BadRequest: another number of rows, a repeated key, or the table was replaced
                meanwhile; the copy is discarded.
            Refused, TooSlow: call it again.
        """
        self._check_not_stopping()
        copy = self._known(name)
        if copy.done is None:
            if copy.attempt is None:
                copy.attempt = trio.Event()
                assert self._nursery is not None
                self._nursery.start_soon(self._finish, copy, rows, checkpoint)
            with trio.move_on_after(WAIT_S) as patience:
                await copy.attempt.wait()
            if patience.cancelled_caught:
                raise TooSlow(f"{name} is being finished: call again", retry_after_s=0.0)
            if copy.error is not None:
                raise copy.error
        assert copy.done is not None
        if copy.done.rows != rows:
            raise BadRequest(f"{name} is done, with {copy.done.rows} rows, not {rows}")
        return copy.done

    async def abort(self, name: CopyName) -> None:
        """Discard a copy, unless it is unknown or being finished."""
        copy = self._copies.get(name)
        if copy is not None and copy.state is not CopyState.DONE and copy.attempt is None:
            self._end(copy, BadRequest(f"{name} was aborted"))

    def stop(self) -> None:
        """Discard all open copies when the daemon stops."""
        for copy in list(self._copies.values()):
            if copy.attempt is None and copy.state is not CopyState.DONE:
                self._end(copy, Stopping(f"the daemon is stopping: {copy.name} is discarded"))

    # Beginning

    async def _begin(
        self, name: CopyName, primary_key: tuple[str, ...], sent: pa.Schema
    ) -> IncomingCopy:
        if sum(copy.state is not CopyState.DONE for copy in self._copies.values()) >= MOST:
            raise TooManyStreams(f"{MOST} copies are in progress already", retry_after_s=10.0)
        table = await self._catalog.find(*name.table)
        self._check_plain(name.table, None if table is None else table.definition)
        if table is None:
            target = CopyTarget(1, "", copy_definition(sent, primary_key, None))
        else:
            target = await self._target(name, table, primary_key, sent)
        await check_encodable(target.definition.schema)
        definition = target.definition
        if not target.is_new:
            # Numbers follow from the table that is replaced in the end, perhaps by another copy's.
            definition = replace(definition, first_schema_id=UNNUMBERED)
        place = CopyPlace(
            self._catalog.store,
            version_folder(*name.table, target.number),
            definition,
            self._writer,
            min(self._options.target_bytes, HELD_BYTES, self._encoders.most_held),
        )
        copy = IncomingCopy(name, target, sent, CopyFiles(place, self._encoders))
        copy.normaliser()  # refuses columns that no table takes
        self._copies[name] = copy
        log.info("copy begun", table=name.table, copy=name.copy, table_version=target.number)
        return copy

    async def _target(
        self, name: CopyName, table: TableBuffer, primary_key: tuple[str, ...], sent: pa.Schema
    ) -> CopyTarget:
        if not table.definition.keyed:
            raise BadRequest(
                f"copy: table {'/'.join(name.table)} has no primary key and rows of its own:"
                " copy into another table"
            )
        definition = copy_definition(sent, primary_key, table.definition)
        # A daemon that does not own the table could not replace it in the end.
        await self._catalog.prepare_delete(*name.table)
        claim = f"{CLAIM}{name.copy}/{uuid.uuid4().hex}"
        active = frozenset(
            copy.target.number
            for copy in self._copies.values()
            if copy.name.table == name.table and copy.state is not CopyState.ENDED
        )
        number = await self._catalog.commits.read(
            partial(_claimed, self._catalog.store, name.table, claim, active)
        )
        return CopyTarget(number, claim, definition)

    def _check_plain(self, key: TableKey, definition: TableDefinition | None) -> None:
        if names := self._options.names_of(key, definition):
            raise NotAvailable(
                f"copy: table {'/'.join(key)} has transformers ({', '.join(names)}), which would"
                " change the source's rows: copy into another table"
            )

    # Finishing

    async def _finish(self, copy: IncomingCopy, rows: int, checkpoint: SourceCheckpoint) -> None:
        """Try to finish a copy, then set its ``attempt``."""
        copy.error = None
        try:
            copy.done = await self._finished(copy, rows, checkpoint)
            copy.become(CopyState.DONE)
            copy.forget_files()
        except IngesterError as exc:
            copy.error = exc
        except (StoreError, StoreUnavailable, CommitUnclear) as exc:
            copy.error = StoreUnreachable(f"the store is unreachable: {exc}", retry_after_s=2.0)
        except ManifestError as exc:
            copy.error = InternalFailure(f"{copy.name}: the table's manifest: {exc}")
        except Exception as exc:
            log.error("copy not finished", exc_info=exc, runbook="internal-error")
            copy.error = InternalFailure(f"{copy.name} failed; the daemon's log has the details")
        finally:
            assert copy.attempt is not None
            attempt, copy.attempt = copy.attempt, None
            copy.touch()
            attempt.set()
        if copy.error is not None and not isinstance(copy.error, Refused):
            self._end(copy, copy.error)

    async def _finished(
        self, copy: IncomingCopy, rows: int, checkpoint: SourceCheckpoint
    ) -> CopyDone:
        files = copy.files
        if copy.state is CopyState.OPEN:
            copy.become(CopyState.COMPLETE)
        if copy.whole is None:
            await trio.to_thread.run_sync(files.complete)
            if files.rows != rows:
                raise BadRequest(f"{copy.name} has {files.rows} rows here, not {rows}")
            await trio.to_thread.run_sync(files.check_keys)
            stamp = checkpoint.stamp(
                (self._writer.ingester_id, self._writer.epoch),
                self._options.upto_in((copy.name.table,)),
                None,
                None,
            )
            copy.whole = WholeTable(
                copy.name.table,
                copy.target.number,
                copy.target.claim,
                copy.target.definition,
                tuple(files.adds),
                checkpoint.filled(stamp),
            )
        state = await self._takeover.carry_out(copy.whole, is_new=copy.target.is_new)
        return CopyDone(copy.target.number, state.version, rows)

    # Ending

    def _known(self, name: CopyName) -> IncomingCopy:
        copy = self._copies.get(name)
        if copy is None:
            raise UnknownTable(
                f"{name} is unknown here: it was finished, given up or forgotten, or the daemon was"
                " restarted; if the table does not have its state, copy again"
            )
        return copy

    def _end(self, copy: IncomingCopy, why: IngesterError) -> None:
        """Forget a copy; a task deletes its files."""
        self._copies.pop(copy.name, None)
        copy.become(CopyState.ENDED)
        log.info("copy given up", table=copy.name.table, copy=copy.name.copy, why=why.message)
        if self._nursery is not None:
            self._nursery.start_soon(self._clean_up, copy, why)

    async def _clean_up(self, copy: IncomingCopy, why: IngesterError) -> None:
        target = copy.target
        try:
            # After an attempt to commit, a version may list the files despite the failure.
            tried = copy.whole is not None and copy.whole.proposal is not None
            await trio.to_thread.run_sync(partial(copy.files.end, why, keep=tried))
            if not target.is_new:
                give_up = partial(
                    give_up_version, self._catalog.store, *copy.name.table, target.number
                )
                await trio.to_thread.run_sync(give_up, "its copy was given up")
        except (StoreError, ManifestError) as exc:
            # The table's next copy gives it up.
            log.info("copy not cleaned up", table=copy.name.table, error=str(exc))

    def _check_not_stopping(self) -> None:
        if self._options.is_stopping():
            raise Stopping("the daemon is stopping", retry_after_s=1.0)


def _claimed(store: ObjectStore, key: TableKey, claim: str, active: frozenset[int]) -> int:
    """Claim a table version, and give up those of earlier processes. Blocks."""
    for version in unfinished_claims(store, *key, CLAIM):
        if version not in active:
            give_up_version(store, *key, version, "its copy was not finished")
    return claim_version(store, *key, claim)


def open_copies(
    shared: Shared,
    tables: TableParts,
    persist: Callable[[str, str, float], Awaitable[object]],
    options: CopyOptions,
) -> Copies:
    """Return the copies of a daemon that has none yet. On the loop."""
    takeover = Takeover(tables.catalog, tables.tree, persist)
    return Copies(tables.catalog, shared.writer, Encoders(shared.ledger), takeover, options)
