"""Keeps an Iceberg catalogue up to date with what is published (``[catalog_options]``).

    version published ─▶ due ─▶ a thread registers it (:mod:`persist.publish.registration`)
                          ▲         │ failed: again after a wait
                          └─────────┘

One table at a time, behind its publication, which does not wait. A table of several versions that
wait is registered once, at the newest. Event loop only.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import structlog
import trio

from ingester.config.settings import ConfigError
from persist.backoff import Backoff
from persist.publish.listing import newest
from persist.publish.registration import CatalogUnavailable, NotRegistered, Registration
from persist.publish.steps import ForeignCommit
from persist.store import ObjectStore, StoreError
from persist.table import TableKey

log = structlog.get_logger(__name__)

RETRY_FIRST_S, RETRY_CAP_S = 1.0, 30.0
TIMEOUT_S = 60.0
"""An attempt that takes longer is given up. Its thread keeps the only place until it ends."""


class CatalogEntries:
    """The tables of this daemon in a catalogue.

    Args:
        options: those of the catalogue, as for ``Registration``.
    """

    def __init__(self, store: ObjectStore, options: Mapping[str, Any]) -> None:
        """Raises :class:`ConfigError` if pyiceberg is not installed."""
        try:
            self._registration = Registration(options)
        except ImportError as exc:
            raise ConfigError("catalog_options", str(exc)) from exc
        self._store = store
        self._due: dict[TableKey, None] = {}
        self._changed = trio.Event()
        # One thread, as the catalogue's classes are not made for several.
        self._limiter = trio.CapacityLimiter(1)
        self._random = Random()

    def note(self, key: TableKey) -> None:
        """Record that a version of a table was published as Iceberg."""
        self._due[key] = None
        self._changed.set()
        self._changed = trio.Event()

    async def run(self) -> None:
        """Register what is due until cancelled."""
        backoff = Backoff(RETRY_FIRST_S, RETRY_CAP_S, self._random)
        while True:
            while not self._due:
                await self._changed.wait()
            key = next(iter(self._due))
            del self._due[key]
            if await self._attempt(key):
                backoff = Backoff(RETRY_FIRST_S, RETRY_CAP_S, self._random)
                continue
            self._due.setdefault(key)
            await trio.sleep(backoff.next_s())

    async def _attempt(self, key: TableKey) -> bool:
        """Register a table; return whether it need not be repeated."""
        try:
            with trio.fail_after(TIMEOUT_S):
                await trio.to_thread.run_sync(
                    self._register, key, limiter=self._limiter, abandon_on_cancel=True
                )
        except (NotRegistered, ForeignCommit) as exc:
            log.warning(
                "table not registered", table=key, error=str(exc), runbook="publish-stopped"
            )
        except (CatalogUnavailable, StoreError, OSError, trio.TooSlowError) as exc:
            told = str(exc) or f"no answer within {TIMEOUT_S:.0f} s"
            log.warning("table not registered", table=key, error=told, runbook="publish-behind")
            return False
        except Exception:
            # A fault here must not end a daemon that holds rows.
            log.exception("table not registered", table=key, runbook="internal-error")
        return True

    def _register(self, key: TableKey) -> None:
        found = newest(self._store, *key)
        if found is not None:
            head, metadata = found
            self._registration.register(*key, head.location, metadata)
