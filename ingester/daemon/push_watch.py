"""The pushes that the daemon shows, read from the statuses that their controllers publish.

    _push_status/* ─ listed, the newest 50 ─ changed ones are read ─▶ pushes, for the status

It only reads, in a thread. An unreadable status is reported by its name, and while the store is
unreachable the last pushes stay.
"""

from __future__ import annotations

import heapq
import time
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

import structlog
import trio

from ingester.observability.status import PushReading, SeenPush, UnreadablePush
from ingester.reports.pushes import (
    FOLDER,
    PushStatus,
    decode_push_status,
)
from ingester.shown_text import escaped
from persist.store import ObjectInfo, ObjectNotFound, ObjectStore, StoreError

log = structlog.get_logger(__name__)

SHOWN = 50
"""The most pushes that are shown: the ones published last."""
MAX_BYTES = 128 * 1024
"""The largest push status."""
UNDER_WAY_S = 2.0
IDLE_S = 5.0
"""The pause between two reads while no push is active; ``UNDER_WAY_S`` while one is."""
LED_S = 60.0
"""A push whose status is older than this has no controller; it is published every 20 s."""
SETTLED = timedelta(seconds=2)
"""Some stores' times are whole seconds, and do not show a change within one."""


class Told(NamedTuple):
    """One object, its content, and its age when it was read.

    Attributes:
        settled: whether a listing would show a change of it.
        age_s: its age by the store's clock at ``read_at`` of the monotonic one.
    """

    info: ObjectInfo
    content: PushStatus | UnreadablePush
    settled: bool
    age_s: float
    read_at: float

    def told_s(self) -> float:
        """Return the seconds since it was published."""
        return self.age_s + time.monotonic() - self.read_at


class PushLook(NamedTuple):
    """The result of one read of the store."""

    told: tuple[Told, ...] = ()
    left_out: int = 0


class PushReader:
    """Reads the statuses of pushes, each once. Not thread-safe; its calls block.

    The store's time is requested only if there is something to read: that is a request, and with
    some stores a write. Otherwise a read is one listing.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: dict[str, Told] = {}

    def look(self) -> PushLook:
        """Return the pushes published last, the newest first.

        Raises:
            StoreError: the store is unreachable.
        """
        count = 0

        def counted(info: ObjectInfo) -> tuple[object, ...]:
            nonlocal count
            count += 1
            return (info.at, info.path)

        newest = heapq.nlargest(SHOWN, self._store.list(f"{FOLDER}/"), key=counted)
        known = {info.path: self._known.get(info.path) for info in newest}
        if not all(_is_known(known[info.path], info) for info in newest):
            now, at = self._store.now(), time.monotonic()
            for info in newest:
                if not _is_known(known[info.path], info):
                    known[info.path] = self._read(info, now, at)
        self._known = {path: told for path, told in known.items() if told is not None}
        return PushLook(tuple(self._known.values()), count - len(newest))

    def _read(self, info: ObjectInfo, now: datetime, at: float) -> Told | None:
        try:
            content = self._content(info)
        except ObjectNotFound:
            return None  # it was deleted after the listing
        age_s = max(0.0, (now - info.at).total_seconds())
        return Told(info, content, now - info.at > SETTLED, age_s, at)

    def _content(self, info: ObjectInfo) -> PushStatus | UnreadablePush:
        name = info.path.removeprefix(f"{FOLDER}/")
        refuse = partial(UnreadablePush, path=escaped(info.path))
        if info.bytes > MAX_BYTES:
            return refuse(reason=f"it has {info.bytes} bytes, a push status at most {MAX_BYTES}")
        try:
            status = decode_push_status(self._store.get(info.path))
        except ValueError as exc:
            return refuse(reason=f"it is no push status: {exc}")
        if status.push_id != name:
            return refuse(reason=f"it says that it is of push {status.push_id!r}")
        return status


class PushWatch:
    """The pushes at the last read. On the loop."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._reader = PushReader(store)
        self._seen = PushLook()
        self._read_at: str | None = None
        self._failure: str | None = None

    async def run(self) -> None:
        """Read the store until cancelled."""
        while True:
            await self.look()
            await trio.sleep(UNDER_WAY_S if self._under_way() else IDLE_S)

    async def look(self) -> None:
        """Read the store once; if it is unreachable, the last result stays."""
        try:
            look = partial(trio.to_thread.run_sync, self._reader.look, abandon_on_cancel=True)
            self._seen = await look()
        except (StoreError, OSError) as exc:
            if self._failure is None:
                log.warning(
                    "pushes not read, trying again",
                    store=self._store.url,
                    error=str(exc),
                    runbook="store-away",
                )
            self._failure = str(exc)
            return
        self._failure = None
        self._read_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    def pushes(self) -> list[SeenPush]:
        """Return the pushes: active ones first, the newest first of each."""
        found = [
            _seen_push(each.content, each.told_s())
            for each in self._seen.told
            if isinstance(each.content, PushStatus)
        ]
        return sorted(found, key=lambda push: (push.ended_at is None, push.began_at), reverse=True)

    def statistics(self) -> PushReading:
        """Return how the reading works."""
        contents = (each.content for each in self._seen.told)
        return PushReading(
            read_at=self._read_at,
            failure=self._failure,
            left_out=self._seen.left_out,
            unreadable=[each for each in contents if isinstance(each, UnreadablePush)],
        )

    def _under_way(self) -> bool:
        return any(push.led for push in self.pushes())


def _is_known(told: Told | None, info: ObjectInfo) -> bool:
    return told is not None and told.settled and told.info == info


def _seen_push(status: PushStatus, told_s: float) -> SeenPush:
    fields = {name: getattr(status, name) for name in status.__struct_fields__}
    led = status.ended_at is None and told_s <= LED_S
    return SeenPush(**fields, led=led, told_s=round(told_s, 3))
