"""The manifest version whose files a copy has, and the way to a later one.

Law of this file: a version is known by its number and its unique id, so that one of another table
of the same name is told from it. What a later version changes is done to the sink in the caller's
transaction, with the state that says so. One thread.
"""

from __future__ import annotations

from collections.abc import Collection

from ingester.followers.applying import Applying, Resync
from ingester.followers.errors import TableReplaced, table_made_anew
from ingester.followers.files import Files
from ingester.followers.fold import Fold, fold_appended, fold_keyed
from ingester.followers.keeping import BuildAnew, Keeping
from ingester.followers.sink import FollowedTable
from persist.manifest import PartitionKey, TableState, VersionNotKept


class CopiedVersion:
    """The version of a copy."""

    def __init__(
        self, table: FollowedTable, files: Files, applying: Applying, keeping: Keeping
    ) -> None:
        self._table, self._files = table, files
        self._applying, self._keeping = applying, keeping
        self._known: TableState | None = None

    def forget(self) -> None:
        """Go by the state that is kept alone."""
        self._known = None

    def begin(self, version: TableState) -> None:
        """Take a version for the copy's, whose state is about to say so."""
        self._known = version

    def state(self) -> TableState:
        """The manifest's state at the version that the copy has.

        Raises:
            BuildAnew: It is not kept any more.
            TableReplaced: It is of another table of the same name.
        """
        kept = self._keeping.state
        if self._known is None or self._known.version != kept.version:
            try:
                found = self._files.version(kept.version)
            except VersionNotKept as exc:
                if exc.newest < kept.version:
                    raise self._made_anew(kept.version) from exc
                raise BuildAnew from exc
            if found.uid != kept.uid:
                raise self._made_anew(kept.version)
            self._known = found
            self._applying.learn_columns(found)
        return self._known

    def fold(self, now: TableState, emptied: Collection[PartitionKey] | None = None) -> None:
        """Take a later version's files in.

        Args:
            emptied: Where all groups were taken out before: partitions of a keyed table that have
                to be read anew for that.

        Raises:
            Resync: Groups have to come again, and were not taken out.
            BuildAnew, TableReplaced: As :meth:`state`.
        """
        before = self.state()
        plan = self._plan(before, now) if now.version != before.version else Fold()
        if emptied is not None:
            plan.reloads = list(dict.fromkeys([*plan.reloads, *emptied]))
            plan.diffs = [partition for partition in plan.diffs if partition not in emptied]
        elif plan.resync:
            raise Resync
        self._applying.carry_out(plan, before, now)
        self._known = now
        self._keeping.set(version=now.version, uid=now.uid)

    def _plan(self, before: TableState, now: TableState) -> Fold:
        if now.version < before.version:
            raise self._made_anew(before.version)
        try:
            changes = self._files.changes(before.version, now.version)
        except VersionNotKept as exc:
            raise BuildAnew from exc
        ledger, seen = self._keeping.ledger, self._keeping.seen
        if self._table.keyed:
            return fold_keyed(ledger, seen, before, now, changes)
        return fold_appended(
            ledger, seen, before, now, changes, lambda add: self._files.count(now, add)
        )

    def _made_anew(self, version: int) -> TableReplaced:
        return table_made_anew(self._table.namespace, self._table.table, version)
