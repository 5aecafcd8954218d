"""The versions of a table that a follower has copies of: the one it follows, and those to come.

    coming ─▶ data is there ─▶ filled beside, kept up ─▶ prepared ─┐
                                                                  ▼ the table is switched
    main, live ──────────────────────────────────────────▶ closed; main is the other one:
                                    files, tail, shown in one transaction ─▶ live ─▶ former dropped

Law of this file: readers see the former copy until the new one has all that the table has, and then
that one. What cannot be prepared leaves the live copy alone, and is not confirmed; after a switch
it is copied like any other, and a rollback is a switch. A copy is dropped once nobody will see it:
another one is shown, and its version was left or given up. One thread.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from ingester.client.errors import ClientError, InvalidRequest
from ingester.followers.errors import TableReplaced, table_made_anew
from ingester.followers.feed import Coming, Registration
from ingester.followers.version_copy import VersionCopies, VersionCopy
from persist.manifest import (
    ManifestError,
    TableNotFound,
    known_versions,
    may_count,
    push_mark,
    switches,
)
from persist.parquet.reading import FileDamaged
from persist.store import StoreError

LOOK_S = 1.0
"""The pause between two looks for the data of a version that is coming: nothing tells of it."""
KEEP_UP_S = 5.0
"""The same for what comes to a version that is prepared, and for the word that it was given up."""
TRY_AGAIN_S = 10.0
"""The pause after a version could not be prepared."""
DROP_AFTER_S = 10.0
"""The time after a switch that a former copy stays: readers of a Parquet folder may be in it."""
FAILURES = (ClientError, StoreError, ManifestError, FileDamaged)
"""What a copy may fail with."""


@dataclass(slots=True)
class _Beside:
    """A version that is coming."""

    coming: Coming
    copy: VersionCopy | None = None
    filled: bool = False
    error: str | None = None
    due_at: float = 0.0


class FollowedVersions:
    """The copies of one table. One thread; ``table_version`` and ``told`` any.

    Args:
        name: The follower's, as the daemon lists it.
    """

    def __init__(
        self, copies: VersionCopies, name: str, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._copies = copies
        self._now = now
        host = name or socket.gethostname()
        self._registration = Registration(f"{host}/{os.getpid()}-{secrets.token_hex(3)}")
        self._main: VersionCopy | None = None
        self._version: int | None = None
        """The version that is followed; None for the one that counts at the start."""
        self._former: VersionCopy | None = None
        self._left: set[int] = set()
        """Versions of which there may be copies that nobody sees."""
        self._drop_at: float | None = None
        self._beside: dict[int, _Beside] = {}
        self._given_up: set[Coming] = set()

    @property
    def main(self) -> VersionCopy | None:
        """The copy that is followed; None before it is opened."""
        return self._main

    @property
    def told(self) -> str | None:
        """Where the versions stand that are coming, for people."""
        for version, each in sorted(self._beside.items()):
            if each.error is not None:
                return f"version {version} cannot be prepared: {each.error}"
            return f"version {version} {'is prepared' if each.filled else 'is being prepared'}"
        return None

    def open(self) -> VersionCopy:
        """Open the copy that is followed, unless it is open.

        Raises:
            ClientError, StoreError, ManifestError: To be called again where that may pass.
        """
        if self._main is None:
            beside = self._beside.pop(self._version or 0, None)
            main = None if beside is None else beside.copy
            main = self._copies.open(self._version) if main is None else main
            if self._former is not None:
                main.copy.progress.goes_on_from(self._former.copy.progress)
            ended_before = self._version is None and main.copy.state.complete
            self._main, self._version, self._former = main, main.version, None
            self._left |= set(main.others)
            self._registration.prepared.discard(main.version)
            if main.place.sink.keeps_versions and not main.began_late:
                main.feed.registration = self._registration
            self._drop_at = self._now() if ended_before else None
        return self._main

    def advance(self, wait_s: float) -> None:
        """Do the next thing: of the copy that is followed, and of those to come.

        Raises:
            ClientError, StoreError, ManifestError: To be called again where that may pass.
        """
        main = self.open()
        wait_s = min(wait_s, self._prepare(main))
        try:
            main.copy.advance(wait_s)
        except InvalidRequest:
            now = self._copies.version_at_daemon()
            if now == main.version:
                raise
            self._leave(main, now)
            return
        if main.copy.state.complete:
            self._registration.table_version = main.version
            self._drop(main)

    def close(self) -> None:
        """Let all sinks go. Raises what the last one raised."""
        self._copies.close()

    def _leave(self, main: VersionCopy, version: int) -> None:
        """Follow another version from now on: the table was switched to it."""
        name = f"{main.table.namespace}/{main.table.table}"
        if main.began_late:
            raise TableReplaced(
                f"table {name} was switched from version {main.version} to {version}, and the copy"
                " did not begin at the beginning, so that nobody knows what it should have of that"
                " one; seek to the beginning, or to the tail"
            )
        wish = self._copies.wish
        done = [each.switch for each in switches(self._copies.store, wish.namespace, wish.table)]
        if not any(main.version in (each.table_version, each.previous) for each in done):
            raise table_made_anew(wish.namespace, wish.table, main.version)
        self._left.add(main.version)
        self._former, self._main, self._version = main, None, version
        self._copies.close(main.version)

    # ------------------------------------------------------------------------- versions to come

    def _prepare(self, main: VersionCopy) -> float:
        """Go on with the versions that are coming.

        Returns:
            The time until there is more to do for them, in seconds.
        """
        if main.feed.registration is None or not main.copy.state.complete:
            return LOOK_S if self._beside else float("inf")
        for coming in self._registration.coming:
            if coming not in self._given_up and coming.table_version != main.version:
                self._beside.setdefault(coming.table_version, _Beside(coming))
        for version, beside in list(self._beside.items()):
            if self._now() < beside.due_at:
                continue
            try:
                self._prepare_one(main, version, beside)
            except FAILURES as exc:
                beside.error = " ".join(str(exc).split())
                beside.due_at = self._now() + TRY_AGAIN_S
        due = [each.due_at - self._now() for each in self._beside.values()]
        return max(0.0, min(due, default=float("inf")))

    def _prepare_one(self, main: VersionCopy, version: int, beside: _Beside) -> None:
        if beside.copy is None or beside.filled or beside.error is not None:
            if not self._may_count(version):
                self._give_up(main, version, beside)
                return
            beside.due_at = self._now() + (KEEP_UP_S if beside.filled else LOOK_S)
        if beside.copy is None:
            if not self._is_written(beside.coming):
                return
            beside.copy = self._copies.open(version, is_followed=False)
        beside.filled = beside.copy.copy.prepare()
        beside.error = None
        if beside.filled:
            self._registration.prepared.add(version)
            beside.due_at = self._now() + KEEP_UP_S
        else:
            self._registration.prepared.discard(version)
            beside.due_at = 0.0

    def _is_written(self, coming: Coming) -> bool:
        try:
            state = self._copies.manifest(coming.table_version).load()
        except TableNotFound:
            return False
        return push_mark(coming.push_id, "data") in state.txns

    def _give_up(self, main: VersionCopy, version: int, beside: _Beside) -> None:
        """Drop what there is of a version that will not come."""
        del self._beside[version]
        self._given_up.add(beside.coming)
        self._registration.prepared.discard(version)
        self._copies.close(version)
        main.forget(version)

    def _drop(self, main: VersionCopy) -> None:
        """Drop copies that nobody will see any more, a while after the switch."""
        if not self._left:
            return
        if self._drop_at is None:
            self._drop_at = self._now() + DROP_AFTER_S
        if self._now() < self._drop_at:
            return
        wish = self._copies.wish
        known = known_versions(self._copies.store, wish.namespace, wish.table)
        for version in sorted(self._left - {main.version, *self._beside}):
            if version not in known or not self._may_count(version):
                main.forget(version)
                self._left.discard(version)
        self._left.discard(main.version)
        self._drop_at = None

    def _may_count(self, version: int) -> bool:
        wish = self._copies.wish
        return may_count(self._copies.store, wish.namespace, wish.table, version)
