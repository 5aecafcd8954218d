"""The versions of a table that a follower has copies of: the followed one and coming ones.

    coming ─▶ data is written ─▶ filled beside, kept up ─▶ prepared ─┐
                                                                    ▼ the table is switched
    main, live ──────────────────────────────────────────▶ closed; main is the other one:
                                   files, tail, shown in one transaction ─▶ live ─▶ former dropped

Readers see the former copy until the new one has everything that the table has. A version that
cannot be prepared leaves the live copy alone and is not confirmed; after a switch it is copied like
any other. A rollback is a switch. A copy is dropped when its version was left or given up and
another copy is shown. ``tests/followers/test_switched_table.py`` covers switches, rollbacks and
kills. One thread.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from ingester.client.errors import ClientError, InvalidRequest
from ingester.followers.errors import TableReplaced, table_recreated
from ingester.followers.feed import ComingVersion, Registration
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
"""The interval of polling for the data of a coming version; no event announces it."""
KEEP_UP_S = 5.0
"""The interval of polling for new files of a prepared version, and for its cancellation."""
TRY_AGAIN_S = 10.0
"""The pause after a failed preparation."""
DROP_AFTER_S = 10.0
"""How long a former copy stays after a switch: readers may still have its Parquet folder open."""
FAILURES = (ClientError, StoreError, ManifestError, FileDamaged)
"""The errors of a copy that do not end the follower at once."""


@dataclass(slots=True)
class _Preparation:
    """The copy of a coming version."""

    coming: ComingVersion
    copy: VersionCopy | None = None
    filled: bool = False
    error: str | None = None
    due_at: float = 0.0


class FollowedVersions:
    """The copies of one table. One thread; ``coming_status`` may be read by any.

    Args:
        name: The follower's name in the daemon's list.
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
        """The followed version; None for the current one at the start."""
        self._former: VersionCopy | None = None
        self._left: set[int] = set()
        """Versions that may have copies that no reader sees."""
        self._drop_at: float | None = None
        self._beside: dict[int, _Preparation] = {}
        self._given_up: set[ComingVersion] = set()

    @property
    def main(self) -> VersionCopy | None:
        """The followed copy; None before it is opened."""
        return self._main

    @property
    def coming_status(self) -> str | None:
        """The progress of coming versions, as text."""
        for version, each in sorted(self._beside.items()):
            if each.error is not None:
                return f"version {version} cannot be prepared: {each.error}"
            return f"version {version} {'is prepared' if each.filled else 'is being prepared'}"
        return None

    def open(self) -> VersionCopy:
        """The followed copy, opened if necessary.

        Raises:
            ClientError, StoreError, ManifestError: The call may be repeated.
        """
        if self._main is None:
            beside = self._beside.pop(self._version or 0, None)
            main = None if beside is None else beside.copy
            main = self._copies.open(self._version) if main is None else main
            if self._former is not None:
                main.copy.progress.continues(self._former.copy.progress)
            ended_before = self._version is None and main.copy.state.complete
            self._main, self._version, self._former = main, main.version, None
            self._left |= set(main.others)
            self._registration.prepared.discard(main.version)
            if main.place.sink.keeps_versions and not main.began_late:
                main.feed.registration = self._registration
            self._drop_at = self._now() if ended_before else None
        return self._main

    def advance(self, wait_s: float) -> None:
        """Advance the followed copy and the coming ones by a step.

        Raises:
            ClientError, StoreError, ManifestError: The call may be repeated.
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
        """Close all sinks. Raises the last error of a sink."""
        self._copies.close()

    def _leave(self, main: VersionCopy, version: int) -> None:
        """Follow another version, to which the table was switched."""
        name = f"{main.table.namespace}/{main.table.table}"
        if main.began_late:
            raise TableReplaced(
                f"table {name} was switched from version {main.version} to {version}, and a copy"
                " that did not begin at the beginning cannot continue in another version; seek to"
                " the beginning, or to the tail"
            )
        request = self._copies.request
        done = [
            each.switch for each in switches(self._copies.store, request.namespace, request.table)
        ]
        if not any(main.version in (each.table_version, each.previous) for each in done):
            raise table_recreated(request.namespace, request.table, main.version)
        self._left.add(main.version)
        self._former, self._main, self._version = main, None, version
        self._copies.close(main.version)

    def _prepare(self, main: VersionCopy) -> float:
        """Advance the coming versions.

        Returns:
            Seconds until the next step is due.
        """
        if main.feed.registration is None or not main.copy.state.complete:
            return LOOK_S if self._beside else float("inf")
        for coming in self._registration.coming:
            if coming not in self._given_up and coming.table_version != main.version:
                self._beside.setdefault(coming.table_version, _Preparation(coming))
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

    def _prepare_one(self, main: VersionCopy, version: int, beside: _Preparation) -> None:
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

    def _is_written(self, coming: ComingVersion) -> bool:
        try:
            state = self._copies.manifest(coming.table_version).load()
        except TableNotFound:
            return False
        return push_mark(coming.push_id, "data") in state.txns

    def _give_up(self, main: VersionCopy, version: int, beside: _Preparation) -> None:
        """Drop the copy of a cancelled version."""
        del self._beside[version]
        self._given_up.add(beside.coming)
        self._registration.prepared.discard(version)
        self._copies.close(version)
        main.forget(version)

    def _drop(self, main: VersionCopy) -> None:
        """Drop copies of versions that cannot become current, some time after the switch."""
        if not self._left:
            return
        if self._drop_at is None:
            self._drop_at = self._now() + DROP_AFTER_S
        if self._now() < self._drop_at:
            return
        request = self._copies.request
        known = known_versions(self._copies.store, request.namespace, request.table)
        for version in sorted(self._left - {main.version, *self._beside}):
            if version not in known or not self._may_count(version):
                main.forget(version)
                self._left.discard(version)
        self._left.discard(main.version)
        self._drop_at = None

    def _may_count(self, version: int) -> bool:
        request = self._copies.request
        return may_count(self._copies.store, request.namespace, request.table, version)
