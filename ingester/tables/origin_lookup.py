"""Looking up origins: in this daemon's log and memory, and in the manifests of all tables.

If an origin is unknown here, for example after the loss of the disk, closed tables are read for
their origins; their files are not kept in memory (tests/origins).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import trio

from ingester.buffer import TableBuffer
from ingester.observability.status import OriginStatus
from ingester.origins.origin_table import OriginTable
from ingester.origins.registry import KnownOrigin, Origins
from ingester.tables.catalog import Catalog
from ingester.tables.origin_takeover import store_asked_of
from persist.manifest import OriginAction as OriginAction
from persist.manifest import TableNotFound
from persist.manifest.origins import NO_END, durable_of, runs_of, verdict_of
from persist.table import TableKey

READ_AGAIN_S = 5.0
Sees = Callable[[str], bool]
"""Returns whether a caller may see a namespace."""


class TableStanding(NamedTuple):
    """An origin's progress in a table.

    Attributes:
        upto: All sequences up to it are known to be present.
        newest: The last sequence that is present. Earlier ones may be unknown, for example after
            a copy replaced the table.
        partly: The last sequence whose rows some partitions have and others lack; those were
            lost with a daemon's disk or
            are in another daemon's log.
        marks: Between two of them, and up to the first, all sequences have the same status in
            every partition. A client
            that batches its rows differently than before ends a batch at each mark.
        there: For each mark, whether the sequences since the previous mark are present.
    """

    upto: int | None
    newest: int | None
    partly: int | None
    marks: list[int]
    there: list[bool]


class KnownOrigins:
    """Answers for origins over all tables. Event loop only."""

    def __init__(self, catalog: Catalog, origins: Origins) -> None:
        self._catalog = catalog
        self.origins = origins
        self._closed: dict[TableKey, dict[str, int | None]] = {}
        self._claims: dict[str, Counter[str]] = {}
        """Number of open streams by origin and namespace."""
        self._read_at = float("-inf")

    def statistics(self, sees: Sees | None = None) -> list[OriginStatus]:
        """Return all origins that are known without reading the store.

        Args:
            sees: restricts the namespaces; None allows all.
        """
        names: dict[str, int | None] = {}
        for table in self._catalog.opened():
            if sees is None or sees(table.namespace):
                _merge(names, _durable(table.state.origins.values()))
        for key, found in self._closed.items():
            if sees is None or sees(key[0]):
                _merge(names, found)
        for origin in self.origins:
            if sees is None or any(sees(key[0]) for key in origin.tables):
                names.setdefault(origin.name, None)
        return [self._facts(name, durable) for name, durable in names.items()]

    async def find(self, name: str | None, sees: Sees | None = None) -> list[OriginStatus]:
        """Return one origin, or all; nothing if no table knows it.

        Args:
            sees: restricts the namespaces; None allows all.

        Raises:
            StoreUnreachable: the origin is unknown here and the store cannot be reached.
        """
        known = None if name is None else self.origins.find(name)
        if known is None or known.memory_sequence is None:
            with store_asked_of(name):
                await self._read_closed()
        return [facts for facts in self.statistics(sees) if name in (None, facts.origin)]

    def claim(self, name: str, namespace: str, may_write: Sees) -> bool:
        """Admit a stream of an origin unless the origin writes where the caller may not.

        An origin's sequences count over all its namespaces. A caller who could use another's
        origin name would make that producer believe that lost rows are durable. :meth:`unclaim`
        reverts it when the stream ends. Does not read the store.
        """
        # Atomic: the second of two concurrent claims sees the first.
        origin = self.origins.find(name)
        known = {key[0] for key in origin.tables} if origin is not None else set()
        known |= {each.namespace for each in self._catalog.opened() if name in each.state.origins}
        known |= {key[0] for key, names in self._closed.items() if name in names}
        claims = self._claims.get(name, Counter())
        if not all(may_write(each) for each in known | claims.keys()):
            return False
        self._claims.setdefault(name, claims)[namespace] += 1
        return True

    def unclaim(self, name: str, namespace: str) -> None:
        """Revert a :meth:`claim`."""
        claims = self._claims[name]
        claims[namespace] -= 1
        if not claims[namespace]:
            del claims[namespace]
        if not claims:
            del self._claims[name]

    def standing(self, name: str, table: TableBuffer) -> TableStanding:
        """Return an origin's known progress in a table."""
        origin = self.origins.find(name) or KnownOrigin(name)
        origin_table = origin.tables.get(table.key) or OriginTable(name, table.key)
        tenures, marks = origin_table.tenures, set(origin_table.fates.under_way)
        ahead: set[int] = set()
        runs = runs_of(table.state.origins.get(name))
        for run in runs:
            marks.update((run.first - 1, run.upto))
            ahead.update(run.ahead.values())
        for one in tenures:
            marks.update((one.first - 1, one.last))
            if one.end < NO_END:
                marks.add(one.end - 1)
            ahead.update(one.ahead.values())
        marks |= ahead
        in_order = sorted(mark for mark in marks if mark >= 0)
        definition = table.definition
        # In an unpartitioned table the only partition has everything.
        only = None if definition.spec.fields else (definition.spec_id, ())
        there = [
            any(one.first <= mark <= one.last for one in tenures)
            or bool(runs and verdict_of(runs, mark, None, only).durable)
            for mark in in_order
        ]
        upto = None
        for mark, is_there in zip(in_order, there, strict=True):
            if not is_there:
                break
            upto = mark
        known = dict(zip(in_order, there, strict=True))
        return TableStanding(
            upto,
            max((mark for mark, is_there in known.items() if is_there), default=None),
            max((mark for mark in ahead if not known.get(mark, True)), default=None),
            in_order,
            there,
        )

    def _facts(self, name: str, durable: int | None) -> OriginStatus:
        origin = self.origins.find(name) or KnownOrigin(name)
        origin.note_known(durable)
        return OriginStatus(
            origin=name,
            memory_sequence=origin.memory_sequence,
            durable_sequence=origin.durable_sequence,
            files_sequence=origin.files_sequence,
            open=origin.open_streams > 0,
        )

    async def _read_closed(self) -> None:
        opened = {table.key for table in self._catalog.opened()}
        for key in opened:
            self._closed.pop(key, None)
        if trio.current_time() - self._read_at < READ_AGAIN_S:
            return
        began = trio.current_time()
        keys = [key for key in await self._catalog.names() if key not in opened]
        failed: list[Exception] = []
        async with trio.open_nursery() as nursery:
            for key in keys:
                nursery.start_soon(self._read, key, failed, nursery.cancel_scope)
        if failed:
            raise failed[0]  # raised alone: the nursery would wrap it in a group
        self._read_at = began

    async def _read(self, key: TableKey, failed: list[Exception], all_of: trio.CancelScope) -> None:
        try:
            self._closed[key] = await self._catalog.commits.read(partial(self._origins_in, key))
        except Exception as exc:
            failed.append(exc)
            all_of.cancel()

    def _origins_in(self, key: TableKey) -> dict[str, int | None]:
        # Runs in a thread.
        try:
            state = self._catalog.manifest(key).load()
        except TableNotFound:
            return {}
        return _durable(state.origins.values())


def _durable(origins: Iterable[OriginAction]) -> dict[str, int | None]:
    return {origin.name: durable_of(origin) for origin in origins}


def _merge(names: dict[str, int | None], found: dict[str, int | None]) -> None:
    for name, durable in found.items():
        known = names.setdefault(name, durable)
        if durable is not None and (known is None or durable > known):
            names[name] = durable
