"""All namespaces of a daemon: what each uses, and whether it may use more.

A part asks here before it takes something. A refusal names the quota's setting, the namespace, and
when to retry. A refused namespace counts as a sharer for ``WANTED_S``, so that what it waits for is
kept for it. The questions of every batch are asked in the thread that reads it, so they use a count
of the sharers that is up to ``COUNT_HOLDS_S`` old instead of a pass over all namespaces.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from ingester.config.settings import QuotasSettings
from ingester.errors import BadRequest, IngesterError, MemoryFull, OverQuota, Saturated
from ingester.quotas.fair_shares import equal_share
from ingester.quotas.use import NO_QUOTA, NamespaceUse, Quota, QuotaName

RETRY_S = 0.25
TABLES_RETRY_S = 60.0
"""Tables are rarely dropped, so clients report the refusal at once."""
COUNT_HOLDS_S = 0.05
"""How long a count of the sharers is used."""
WANTED_S = 2.0
"""How long a refused namespace counts as a sharer."""
MAX_NAME = 255
"""The longest name of a namespace, in characters; longer ones are not stored."""
MAX_KNOWN = 10_000
"""The number of namespaces from which idle ones are forgotten."""

NO_QUOTAS = QuotasSettings()
QUOTA_NAMES: tuple[QuotaName, ...] = (
    "buffer_bytes",
    "bytes_per_s",
    "requests_per_s",
    "tables",
    "partitions",
    "streams",
)
SHARE_NAMES = ("share_of_memory", "share_of_queue", "share_of_streams")
"""The names under which refusals by fair shares are counted."""


class Sharing(NamedTuple):
    """The sharers of memory and of the flush queue: their number, and the smallest use."""

    of_memory: int
    least_bytes: int
    of_queue: int
    least_queued: int


class Namespaces:
    """The namespaces that use something. Any thread, except where noted.

    Args:
        on_refused: receives namespace and quota, or share, of each refusal. Any thread.
    """

    def __init__(
        self,
        settings: QuotasSettings = NO_QUOTAS,
        on_refused: Callable[[str, str], None] = lambda namespace, quota: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._on_refused = on_refused
        self._clock = clock
        self._uses: dict[str, NamespaceUse] = {}
        self._none = NamespaceUse("")
        self._lock = threading.Lock()
        self._counted = Sharing(1, 0, 1, 0)
        self._counted_at = float("-inf")

    def of(self, name: str) -> NamespaceUse:
        """Return the counts of a namespace, the same object while it uses anything."""
        found = self._uses.get(name)
        if found is None:
            if len(name) > MAX_NAME:
                return self._none
            with self._lock:
                if len(self._uses) >= MAX_KNOWN:
                    self._uses = {n: use for n, use in self._uses.items() if not use.idle}
                made = NamespaceUse(name, self._quota_of(name), self._clock())
                found = self._uses.setdefault(name, made)
        return found

    def known(self) -> list[NamespaceUse]:
        """Return all namespaces that use something, or did recently."""
        return list(self._uses.values())

    def set_quotas(self, settings: QuotasSettings) -> None:
        """Use other quotas from now on. Existing use stays."""
        now = self._clock()
        with self._lock:
            self._settings = settings
            for use in self._uses.values():
                use.quota = self._quota_of(use.name)
                use.byte_rate.set_rate(use.quota.bytes_per_s, now)
                use.request_rate.set_rate(use.quota.requests_per_s, now)

    # What is asked before something is taken

    def request(self, name: str) -> None:
        """Count a request.

        Raises:
            OverQuota: the namespace is over its quota of requests.
        """
        use = self.of(name)
        if use.quota.requests_per_s and (refusal := self.over_requests(use)) is not None:
            raise refusal

    def over_requests(self, use: NamespaceUse) -> IngesterError | None:
        """Count a request, or return its refusal."""
        now = self._clock()
        with self._lock:
            wait_s = use.request_rate.wait_s(now)
            if not wait_s:
                use.request_rate.take(1, now)
                return None
        return self._over(use, "requests_per_s", "too many requests of late", wait_s)

    def over_write(self, use: NamespaceUse, nbytes: int) -> IngesterError | None:
        """Return the refusal of a batch by a quota of bytes, or None. Under admission's lock."""
        quota, held = use.quota, use.bytes
        if quota.buffer_bytes and held and held + nbytes > quota.buffer_bytes:
            return self.refused(
                use,
                "buffer_bytes",
                MemoryFull(
                    f"namespace {use.name!r}: {held} bytes are in buffers, this batch has"
                    f" {nbytes}, {self._said(use, 'buffer_bytes')}; rows are being persisted",
                    retry_after_s=RETRY_S,
                    details=_details(use, "buffer_bytes"),
                ),
            )
        return self.over_rate(use)

    def over_rate(self, use: NamespaceUse) -> IngesterError | None:
        """Return the refusal of a batch by the quota of bytes per second. Under admission's
        lock."""
        if use.quota.bytes_per_s and (wait_s := use.byte_rate.wait_s(self._clock())):
            return self._over(use, "bytes_per_s", "too many bytes written of late", wait_s)
        return None

    def wrote(self, use: NamespaceUse, nbytes: int) -> None:
        """Count the bytes of an admitted batch. Under admission's lock."""
        if use.quota.bytes_per_s:
            use.byte_rate.take(nbytes, self._clock())

    def over_share(self, use: NamespaceUse | None, nbytes: int, high: int) -> bool:
        """Return whether a namespace is above its share of memory, with this batch.

        ``use`` is None for the sharer with the smallest use.
        """
        sharing = self._sharing(COUNT_HOLDS_S if use else 0.0)
        own = sharing.least_bytes if use is None else use.bytes
        # Who has nothing is a newcomer, whatever the batch.
        return bool(own) and own + nbytes > equal_share(high, sharing.of_memory)

    def over_shares(self, limit: int) -> set[str]:
        """Return the names of those above their share of a limit of memory."""
        share = self.share_of(limit)
        return {use.name for use in self.known() if use.bytes > share}

    def share_of(self, limit: int) -> int:
        """Return an equal share of a limit of memory, among its current users."""
        return equal_share(limit, self._sharing(0.0).of_memory)

    def over_queue(self, use: NamespaceUse | None, queued: int, most: int) -> IngesterError | None:
        """Return the refusal if the flush queue is full; None for those below their share.

        ``use`` is None for the sharer with the smallest use.
        """
        if queued <= most:
            return None
        sharing = self._sharing(COUNT_HOLDS_S if use else 0.0)
        share = equal_share(most, sharing.of_queue)
        own = sharing.least_queued if use is None else use.queued_bytes
        if own <= share:
            return None
        said = f"persist queue: {queued} bytes wait, persist.queue_bytes is {most}"
        asks = "is the object store away or slow?"
        if use is None:
            return Saturated(f"{said}; {asks}", retry_after_s=RETRY_S * 4)
        said = f"{said}; {own} are of namespace {use.name!r}, whose share is {share}; {asks}"
        details = _details(use, "share_of_queue")
        refusal = Saturated(said, retry_after_s=RETRY_S * 4, details=details)
        return self.refused(use, "share_of_queue", refusal)

    def no_memory(self, use: NamespaceUse, message: str, *, unfair: bool) -> IngesterError:
        """Return the refusal of a batch for memory; ``unfair`` if it is above its share."""
        if not unfair:
            use.wanted_until = self._clock() + WANTED_S
            return MemoryFull(message, retry_after_s=RETRY_S)
        details = _details(use, "share_of_memory")
        refusal = MemoryFull(message, retry_after_s=RETRY_S, details=details)
        return self.refused(use, "share_of_memory", refusal)

    def check_streams(self, use: NamespaceUse, number: int) -> None:
        """Check that a namespace with this many streams may open another.

        Raises:
            OverQuota: it may not.
        """
        if use.quota.streams and number >= use.quota.streams:
            raise self._over(use, "streams", f"{number} streams are open", 1.0)

    def check_tables(self, use: NamespaceUse, number: int) -> None:
        """Check that a namespace with this many tables may create another.

        Raises:
            OverQuota: it may not.
        """
        if use.quota.tables and number >= use.quota.tables:
            raise self._over(use, "tables", f"{number} tables exist", TABLES_RETRY_S)

    def over_partitions(
        self, use: NamespaceUse, coming: int, more: int, in_all: int | None = None
    ) -> IngesterError | None:
        """Return the refusal if this many more partitions may not have a buffer, or None.

        Args:
            in_all: the batch's partitions, of which more than ``more`` may be new; None if all new
                ones are known.
        """
        most, there = use.quota.partitions, use.partitions + coming
        if not most or not more or there + more <= most:
            return None
        if (at_once := more if in_all is None else in_all) > most:
            said = (
                f"namespace {use.name!r}: this batch needs {at_once} partitions,"
                f" {self._said(use, 'partitions')}: send rows of fewer partitions at a time"
            )
            refusal = BadRequest(said, details=_details(use, "partitions"))
            return self.refused(use, "partitions", refusal)
        at_least = "at least " if in_all not in (None, more) else ""
        what = f"{there} partitions are buffered, this batch needs {at_least}{more} more"
        return self._over(use, "partitions", what, 1.0)

    # Inside

    def _quota_of(self, name: str) -> Quota:
        found = Quota(*(self._settings.quota(name, each)[0] for each in QUOTA_NAMES))
        return NO_QUOTA if found == NO_QUOTA else found

    def _said(self, use: NamespaceUse, name: QuotaName) -> str:
        value, setting = self._settings.quota(use.name, name)
        return f"{setting} is {value}"

    def _over(
        self, use: NamespaceUse, name: QuotaName, what: str, retry_after_s: float
    ) -> IngesterError:
        said = f"namespace {use.name!r}: {what}"
        return self.refused(
            use,
            name,
            OverQuota(
                f"{said}, {self._said(use, name)}",
                retry_after_s=round(retry_after_s, 4),
                details=_details(use, name),
            ),
        )

    def refused(self, use: NamespaceUse, name: str, refusal: IngesterError) -> IngesterError:
        """Count a refusal by a quota or a share, and return it."""
        use.refused += 1
        use.wanted_until = self._clock() + WANTED_S
        self._on_refused(use.name, name)
        return refusal

    def _sharing(self, holds_s: float) -> Sharing:
        now = self._clock()
        if now - self._counted_at >= holds_s:
            uses = self.known()
            held = [use.bytes for use in uses if use.bytes or use.wanted_until > now]
            queued = [use.queued_bytes for use in uses if use.queued_bytes or use.bytes]
            least = (min(held, default=0), min(queued, default=0))
            self._counted = Sharing(len(held), least[0], len(queued), least[1])
            self._counted_at = now
        return self._counted


def _details(use: NamespaceUse, quota: str) -> dict[str, object]:
    return {"namespace": use.name, "quota": quota}
