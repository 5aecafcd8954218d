"""One table that is followed, in a thread: opened, advanced for ever, opened again after errors.

Law of this file: what passes by itself (a daemon that is away or starts anew, a store that does not
answer) is tried again for as long as the follower is there, and told in the status; anything else
ends the table, with the error. The sink is made, called and closed in this thread alone.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field

from ingester.client.errors import ClientError, NotFound
from ingester.client.retry import is_retryable
from ingester.followers.errors import FollowerError, TableReplaced
from ingester.followers.guard import Closed
from ingester.followers.progress import Progress
from ingester.followers.version_copy import VersionCopies
from ingester.followers.versions import FAILURES, FollowedVersions
from persist.backoff import Backoff
from persist.manifest import TableNotFound
from persist.store import StoreUnavailable

_PASSING = frozenset({"stale", "owner", "superseded"})
"""Codes of refusals that pass, beside those that any call is repeated after."""


@dataclass(slots=True)
class Status:
    """Where a followed table stands; read by any thread.

    Attributes:
        phase: ``opening``, ``filling``, ``catching up``, ``live``, ``waiting`` (for what passes by
            itself: ``error`` says what), ``failed`` or ``closed``.
        coming: Where the next version of the table as a whole stands, while one is coming.
    """

    namespace: str
    table: str
    phase: str = "opening"
    error: str | None = None
    version: int = 0
    table_version: int = 0
    coming: str | None = None
    progress: Progress = field(default_factory=Progress)


class Following(threading.Thread):
    """The thread of one table."""

    def __init__(self, copies: VersionCopies) -> None:
        wish, options = copies.wish, copies.options
        super().__init__(name=f"follow {wish.namespace}/{wish.table}", daemon=True)
        self.status = Status(wish.namespace, wish.table)
        self.error: BaseException | None = None
        self._wait_s = options.wait_s
        self._closing = copies.closing
        self._versions = FollowedVersions(copies, options.name)
        self._store_url = copies.store.url

    def run(self) -> None:
        """Follow until the end. The error, if there is one, is kept."""
        try:
            self._follow()
        except Closed:
            self.status.phase = "closed"
        except BaseException as exc:
            self.error = exc
            self.status.phase, self.status.error = "failed", str(exc)
        finally:
            try:
                self._versions.close()
            except BaseException as exc:
                self.error = self.error or exc
            self._closing.wake()

    @property
    def settled(self) -> bool:
        """Whether the copy is complete, or has failed."""
        return self.status.progress.current_at is not None or not self.is_alive()

    def _follow(self) -> None:
        backoff = Backoff(0.1, 2.0, random.Random())
        while True:
            try:
                self._advance()
                backoff = Backoff(0.1, 2.0, random.Random())
            except FAILURES as exc:
                if not _passes(exc):
                    raise self._meant(exc) from exc
                self.status.phase, self.status.error = "waiting", str(exc)
                self._closing.wait(0.05 + backoff.next_s())

    def _advance(self) -> None:
        versions, status = self._versions, self.status
        copy = versions.open().copy
        if copy.state.filled is not None:
            status.phase = "filling"
        elif not copy.state.complete or copy.progress.current_at is None:
            status.phase = "catching up"
        else:
            status.phase = "live"
        status.progress = copy.progress
        was_settled = copy.progress.current_at is not None
        versions.advance(self._wait_s)
        status.version, status.table_version = copy.state.version, copy.state.table_version
        status.error, status.coming = None, versions.told
        if copy.progress.current_at is not None and not was_settled:
            self._closing.wake()
        if self._closing():
            raise Closed

    def _meant(self, exc: Exception) -> Exception:
        """The error as a user is told it."""
        name = f"{self.status.namespace}/{self.status.table}"
        if self._versions.main is not None and isinstance(exc, NotFound | TableNotFound):
            return TableReplaced(f"table {name} was dropped; the copy has what it had at the last")
        if isinstance(exc, ClientError):
            return exc
        return FollowerError(f"table {name} cannot be read from {self._store_url}: {exc}")


def _passes(exc: BaseException) -> bool:
    if isinstance(exc, ClientError):
        return is_retryable(exc) or exc.code in _PASSING
    return isinstance(exc, StoreUnavailable)
