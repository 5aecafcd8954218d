"""Knows which transformers a table has, and makes the chain of a stream.

    settings, ``[tables."namespace/table"] transformers``      win, also with an empty list
    the manifest's property ``transformers``                   from ``create_table``, or the last
                                                               ones in force

A table's batches pass the same classes at every daemon, or are refused: the manifest has the last
ones in force, and a daemon that cannot load one of them accepts no batch. Only
:meth:`Transforms.names_of` runs on the loop; it looks up two dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa
import structlog
import trio

from ingester.config.settings import TableSettings, TransformSettings
from ingester.errors import BadRequest, IngesterError, NotAvailable
from ingester.observability.status import TransformStatus
from ingester.write.transform.chain import Chain, FailureLog, Observe, Surroundings
from ingester.write.transform.loading import LoadedTransformer, TransformerLoader
from ingester.write.transform.pool import TransformPool
from persist.table import TableDefinition, TableKey

S = TypeVar("S")
T = TypeVar("T")

log = structlog.get_logger(__name__)

MAX_CLASSES = 16
"""The most transformers of one table."""


class Transforms:
    """The transformers of a daemon.

    Args:
        tables: the settings of tables, by ``namespace/table``.
        observe: receives each call of ``transform``.
    """

    def __init__(
        self,
        settings: TransformSettings,
        tables: Mapping[str, TableSettings],
        max_batch_bytes: int,
        observe: Observe,
    ) -> None:
        self._by_settings = {
            (key.split("/")[0], key.split("/")[1]): tuple(table.transformers)
            for key, table in tables.items()
            if table.transformers is not None
        }
        self._pool = TransformPool(settings.threads, settings.timeout)
        self._surroundings = Surroundings(self._pool, max_batch_bytes, observe, FailureLog())
        trusted = {name for names in self._by_settings.values() for name in names}
        self._loader = TransformerLoader(self._pool, trusted, settings.allowed)
        self._limiter = trio.CapacityLimiter(settings.threads)

    def names_of(self, key: TableKey, definition: TableDefinition | None) -> tuple[str, ...]:
        """Return the names of a table's transformers; none for most tables. On the loop."""
        names = self._by_settings.get(key) if self._by_settings else None
        if names is not None or definition is None or not definition.transformers:
            return names or ()
        return tuple(each.name for each in definition.transformers)

    def chain(self, names: Sequence[str], sent: pa.Schema) -> Chain:
        """Make the transformers of one stream. In the stream's own thread.

        Raises:
            NotAvailable: a class is not allowed or not found.
            BadRequest, TooSlow, Saturated: see :class:`Chain`.
        """
        return Chain(self._surroundings, [self._loader.load(name) for name in names], sent)

    async def defined(
        self, key: TableKey, definition: TableDefinition, asked: Sequence[str]
    ) -> TableDefinition:
        """Return the definition of a new table with its transformers. On the loop.

        Args:
            asked: the classes that ``create_table`` names. Those of the settings win.

        Raises:
            BadRequest: a class is not allowed or not found.
            TooSlow, Saturated: see :class:`TransformPool`.
        """
        if len(asked) > MAX_CLASSES:
            raise BadRequest(f"transformers: {len(asked)} classes; at most {MAX_CLASSES}")
        if len(set(asked)) != len(asked):
            raise BadRequest(f"transformers: {list(asked)} names a class twice")
        try:
            for name in asked:
                self._loader.check_allowed(name)
            names = self._by_settings.get(key, tuple(asked))
            if not names:
                return definition
            loaded = await self._in_thread(self._all, names)
        except NotAvailable as exc:
            raise BadRequest(exc.message) from exc
        used = [(each.name, each.version) for each in loaded]
        return replace(definition, transformers=()).with_transformers(used)

    async def load_early(self) -> None:
        """Load the classes of the settings before a batch needs them; failures are logged.

        On the loop.
        """
        for name in sorted({name for names in self._by_settings.values() for name in names}):
            try:
                await self._in_thread(self._loader.load, name)
            except IngesterError as exc:
                log.warning(
                    "transformer not loaded",
                    transformer=name,
                    error=exc.message,
                    runbook="transformer-missing",
                )

    def is_settled(self, key: TableKey) -> bool:
        """Whether this daemon's settings name the table's transformers."""
        return key in self._by_settings

    def statistics(self) -> TransformStatus:
        """Count busy threads, and hung calls by class."""
        busy, hung = self._pool.statistics()
        return TransformStatus(busy_threads=busy, hung_calls=hung)

    async def _in_thread(self, call: Callable[[S], T], argument: S) -> T:
        """Run a call that waits for users' code; a stop does not wait for it."""
        return await trio.to_thread.run_sync(
            call, argument, limiter=self._limiter, abandon_on_cancel=True
        )

    def _all(self, names: Sequence[str]) -> list[LoadedTransformer]:
        return [self._loader.load(name) for name in names]
