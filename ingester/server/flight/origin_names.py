"""Names of origins belong to those who may write wherever the origin writes.

Law of this file: a name is claimed before anything of its stream is read, and as long as that is
open. Without tokens everybody may use every name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ingester.errors import Forbidden
from ingester.server.auth.access import Access, Permit
from ingester.server.flight.requests import CopyCommand, SyncCommand, WriteCommand
from ingester.server.portal import Portal
from ingester.tables.origin_lookup import KnownOrigins

_SHOWN = 128


class OriginNames:
    """Lets streams in by the names of their origins. Any thread."""

    def __init__(self, access: Access, known: KnownOrigins, portal: Portal) -> None:
        self._access = access
        self._known = known
        self._portal = portal

    @contextmanager
    def claimed(
        self, permit: Permit, command: WriteCommand | SyncCommand | CopyCommand
    ) -> Iterator[None]:
        """Have the stream's origin inside the block.

        Raises:
            Forbidden: the origin writes to a namespace where the caller may not.
        """
        origin = None if isinstance(command, CopyCommand) else command.origin
        if origin is None or not self._access.enabled:
            yield
            return
        reads = isinstance(command, SyncCommand)
        if not self._portal.call(self._claim, permit, origin, command.namespace, reads):
            error = Forbidden(f"origin {origin[:_SHOWN]!r} is taken: choose another name")
            permit.refuse(error, f"put {command.type}", command.namespace, command.table)
        try:
            yield
        finally:
            self._portal.post(self._known.unclaim, origin, command.namespace)

    async def _claim(self, permit: Permit, origin: str, namespace: str, reads: bool) -> bool:
        if reads:
            await self._known.find(origin)  # as the replication does, at its first message
        caller = permit.caller
        return self._known.claim(origin, namespace, lambda each: caller.may("write", each))
