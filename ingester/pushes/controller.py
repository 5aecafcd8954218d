"""The push controller: leads pushes without a leader, each in a thread, and cleans up old ones.

    every 5 s    list ``_pushes/`` ─▶ unfinished or with a new request, and abandoned ─▶ lead it
    every 10 min                   ─▶ ended long ago ─▶ delete it
                                   ─▶ ended, with a failed region ─▶ discard its generation there

Any number of controllers may run over one store: of two that take the same push over at once, its
records depose one (tests/pushes/test_two_controllers). An unreachable store, a damaged push and an
error in leading one are logged and do not delay other pushes.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

import structlog

from ingester.pushes.cleaning import Leftover, clean_up, leftovers, prune
from ingester.pushes.hook_runner import HookFailure
from ingester.pushes.leading import Leadership, lead, needs_leading
from ingester.pushes.record import PushRecord, new_events
from ingester.pushes.store import (
    Deposed,
    PushDamaged,
    PushFolder,
    PushNotFound,
    PushStore,
    SavedRecord,
    push_folders,
)
from persist.store import StoreError, StoreRetry

log = structlog.get_logger()

LOOK_EVERY = timedelta(seconds=5)
PRUNE_EVERY = timedelta(minutes=10)
PRUNE_FOR_S = 5.0
"""How long one look deletes: an unresponsive region must not delay other pushes."""
END_WITHIN_S = 10.0
"""How long to wait for the leading threads to end."""
_ONCE = StoreRetry(first_s=0.1, cap_s=0.1, attempts=1)


class ControllerSettings(NamedTuple):
    """Intervals of the controller, and the retention of pushes."""

    look_every: timedelta = LOOK_EVERY
    retain: timedelta = timedelta(days=30)
    """A push is deleted this long after its end."""
    prune_every: timedelta = PRUNE_EVERY
    forget: Callable[[str], None] | None = None
    """Called with the id of each deleted push."""


DEFAULTS = ControllerSettings()


class ControllerStatistics(NamedTuple):
    """Counts since the start of the controller."""

    pushes: dict[str, int]
    """The number of pushes in each status, at the last look."""
    unreadable: int
    led: int
    """The number of pushes led here now."""
    taken_over: int
    deposed: int
    failed_looks: int
    pruned: int
    looked_ago_s: float | None
    """Seconds since the last complete look at the store; None before the first."""


class Controller:
    """Leads the pushes of a store."""

    def __init__(self, leadership: Leadership, settings: ControllerSettings = DEFAULTS) -> None:
        self._place = leadership
        self._settings = settings
        self._looks = PushStore(leadership.store, _ONCE)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._led: dict[str, threading.Thread] = {}
        self._counts: Counter[str] = Counter()
        self._cleaner: threading.Thread | None = None
        # Owned by the looking thread.
        self._heads: dict[str, SavedRecord] = {}
        self._refused: dict[str, int] = {}
        self._pushes: dict[str, int] = {}
        self._unreadable = 0
        self._looked_at: float | None = None
        self._pruned_at: float | None = None

    def run(self, stop: threading.Event) -> None:
        """Look at the store until ``stop`` is set; other controllers may take over what was led."""
        try:
            while not stop.is_set():
                self._try_to_look()
                stop.wait(self._settings.look_every.total_seconds())
        finally:
            self._end()

    def run_once(self, stop: threading.Event) -> None:
        """Lead the pushes without a leader until they are over, or ``stop`` is set.

        Raises:
            StoreError: the store is unreachable.
        """
        try:
            self.look()
            while not stop.is_set() and (self._still_led() or self._cleaning()):
                stop.wait(0.05)
        finally:
            self._end()

    def statistics(self) -> ControllerStatistics:
        """Return the counts; from any thread."""
        ago = None if self._looked_at is None else time.monotonic() - self._looked_at
        return ControllerStatistics(
            pushes=dict(self._pushes),
            unreadable=self._unreadable,
            led=len(self._still_led()),
            taken_over=self._counts["taken_over"],
            deposed=self._counts["deposed"],
            failed_looks=self._counts["failed_looks"],
            pruned=self._counts["pruned"],
            looked_ago_s=ago,
        )

    def look(self) -> None:
        """Look at all pushes once: lead those without a leader, and clean up.

        Raises:
            StoreError: the store is unreachable.
        """
        store = self._place.store
        folders = push_folders(store)
        now = store.now()
        statuses: Counter[str] = Counter()
        unreadable = 0
        for folder in folders:
            try:
                saved = self._head(folder)
            except PushNotFound:
                continue  # it is being deleted
            except PushDamaged as exc:
                unreadable += 1
                self._refuse(folder, str(exc))
                continue
            statuses[saved.record.status.value] += 1
            gone_after = self._place.heartbeat.gone_after
            if needs_leading(saved, folder.requests) and folder.abandoned(now, gone_after):
                self._lead(folder)
        self._heads = {
            f.push_id: self._heads[f.push_id] for f in folders if f.push_id in self._heads
        }
        self._pushes, self._unreadable = dict(statuses), unreadable
        self._looked_at = time.monotonic()
        self._prune(folders)

    def _try_to_look(self) -> None:
        try:
            self.look()
        except StoreError as exc:
            self._count("failed_looks")
            log.warning("pushes not seen", error=str(exc), runbook="store-away")
        except Exception:
            self._count("failed_looks")
            log.exception("pushes not seen", runbook="internal-error")

    def _head(self, folder: PushFolder) -> SavedRecord:
        known = self._heads.get(folder.push_id)
        if known is None or known.number != folder.highest:
            known = self._heads[folder.push_id] = self._looks.newest(folder.push_id)
        return known

    def _refuse(self, folder: PushFolder, why: str) -> None:
        """Log that a push cannot be led here, once for each record."""
        if self._refused.get(folder.push_id) != folder.highest:
            self._refused[folder.push_id] = folder.highest
            log.warning(
                "push not led", push=folder.push_id, error=why, runbook="push-cannot-be-led"
            )

    def _lead(self, folder: PushFolder) -> None:
        """Lead a push in a thread, unless it is led already or was refused."""
        push_id = folder.push_id
        if self._refused.get(push_id) == folder.highest or push_id in self._still_led():
            return
        thread = threading.Thread(
            target=self._leads, args=(folder,), daemon=True, name=f"push {push_id}"
        )
        with self._lock:
            self._led[push_id] = thread
        try:
            thread.start()
        except RuntimeError:  # no more threads can be started now
            with self._lock:
                self._led.pop(push_id, None)
            raise

    def _leads(self, folder: PushFolder) -> None:
        push_log = PushLog(self._place.controller)
        push_id = folder.push_id
        self._count("taken_over")
        try:
            push_log.ended(lead(self._place, push_id, self._stop, push_log.hear))
        except Deposed as exc:
            self._count("deposed")
            log.info("push led elsewhere", push=push_id, why=str(exc))
        except StoreError as exc:
            log.warning("push left", push=push_id, error=str(exc), runbook="store-away")
        except PushNotFound:
            log.info("push gone", push=push_id)
        except (ValueError, PushDamaged) as exc:
            self._refuse(folder, str(exc))
        except Exception:
            log.exception("push left", push=push_id, runbook="internal-error")
        finally:
            with self._lock:
                self._led.pop(push_id, None)

    def _still_led(self) -> list[str]:
        with self._lock:
            return list(self._led)

    def _prune(self, folders: list[PushFolder]) -> None:
        now = time.monotonic()
        every = self._settings.prune_every.total_seconds()
        if self._pruned_at is not None and now - self._pruned_at < every:
            return
        self._pruned_at = now
        store = self._place.store
        keep = self._settings
        self._clean_up(leftovers(folders, self._heads))
        pruned = prune(store, folders, keep.retain, store.now(), keep.forget, PRUNE_FOR_S)
        if pruned.more:
            self._pruned_at = None
        self._count("pruned", len(pruned.pushes))
        if pruned.pushes or pruned.records:
            log.info("pushes pruned", pushes=pruned.pushes, old_records=pruned.records)

    def _clean_up(self, found: list[Leftover]) -> None:
        """Discard leftovers in a thread: an unresponsive region must not delay pushes."""
        if not found or self._cleaning():
            return

        def work() -> None:
            try:
                clean_up(self._place, found)
            except StoreError as exc:
                log.warning("leftovers stay", error=str(exc), runbook="store-away")
            except Exception:
                log.exception("leftovers stay", runbook="internal-error")

        self._cleaner = threading.Thread(target=work, daemon=True, name="push-leftovers")
        self._cleaner.start()

    def _cleaning(self) -> bool:
        return self._cleaner is not None and self._cleaner.is_alive()

    def _count(self, what: str, by: int = 1) -> None:
        with self._lock:
            self._counts[what] += by

    def _end(self) -> None:
        """Wait for the leading threads to end; abandon those that do not."""
        self._stop.set()
        deadline = time.monotonic() + END_WITHIN_S
        with self._lock:
            threads = list(self._led.values())
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0))


class PushLog:
    """Logs the events of one push."""

    def __init__(self, controller: str) -> None:
        self._controller = controller
        self._last: PushRecord | None = None

    def hear(self, record: PushRecord) -> None:
        """Log the new events of a record; the first record logs its leader."""
        table = f"{record.namespace}/{record.table}"
        if self._last is None:
            log.info(
                "push led",
                push=record.push_id,
                table=table,
                status=record.status.value,
                controller=self._controller,
            )
        else:
            for event in new_events(self._last, record):
                log.info(
                    "push changed",
                    push=record.push_id,
                    table=table,
                    region=event.region,
                    what=event.what,
                )
        self._last = record

    def ended(self, record: PushRecord) -> None:
        """Log that the push is no longer led here, and its status."""
        reason = record.ending.reason if record.ending is not None else ""
        log.info(
            "push ended" if record.over else "push left",
            push=record.push_id,
            table=f"{record.namespace}/{record.table}",
            status=record.status.value,
            reason=reason,
        )


def log_hook_failure(failure: HookFailure) -> None:
    """Log a failed hook call, and what it counts as."""
    log.warning(
        "hook failed",
        push=failure.push_id,
        region=failure.region,
        hook=failure.hook,
        method=failure.method,
        outcome=failure.outcome,
        error=failure.error,
        counts_as=failure.counts_as.value,
        runbook="hook-failed",
    )
