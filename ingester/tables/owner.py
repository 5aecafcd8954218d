"""A keyed table's writes have one order: this daemon claims the table before its first one.

    owned by nobody, or by one that has closed ──▶ claim, with our endpoint ──▶ ours
    owned by another daemon ──▶ refused, with its name and endpoint

Law of this file: nothing is written to a keyed table whose manifest does not say that it is ours. A
claim ends with the daemon's clean stop, or when the log that it has left is adopted. Loop only.
"""

from __future__ import annotations

from collections.abc import Callable

from ingester.buffer import TableBuffer
from ingester.errors import OwnedElsewhere
from persist.manifest import Owner, WriterIdentity, live_owner

OWNER_RETRY_S = 5.0


class TableOwners:
    """Decides whose a keyed table is.

    Args:
        endpoint: where clients find this daemon, once that is known.
    """

    def __init__(self, writer: WriterIdentity, endpoint: Callable[[], str]) -> None:
        self._writer = writer
        self._endpoint = endpoint

    def owns(self, table: TableBuffer) -> bool:
        """Say whether the table needs no claim, or has this daemon's."""
        if not table.definition.keyed:
            return True
        owner = table.state.owner
        return owner is not None and (owner.ingester_id, owner.epoch) == (
            self._writer.ingester_id,
            self._writer.epoch,
        )

    def claim(self, table: TableBuffer) -> Owner:
        """Return the claim of the table, on top of its newest version.

        Raises:
            OwnedElsewhere
        """
        owner = live_owner(table.state)
        if owner is not None and owner.ingester_id != self._writer.ingester_id:
            at = f" at {owner.endpoint}" if owner.endpoint else ""
            raise OwnedElsewhere(
                f"daemon {owner.ingester_id!r}{at} takes the writes of table"
                f" {table.namespace}/{table.name}, which has a primary key",
                retry_after_s=OWNER_RETRY_S,
                details={"owner": owner.ingester_id, "endpoint": owner.endpoint or None},
            )
        return self.first_claim()

    def first_claim(self) -> Owner:
        """The claim of a table that nobody has claimed."""
        return Owner(self._writer.ingester_id, self._writer.epoch, self._endpoint())
