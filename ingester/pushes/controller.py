"""Finds the pushes that nobody leads, leads each in a thread of its own, and deletes old ones.

    every 5 s    list ``_pushes/`` ─▶ not over, or asked for something, and abandoned ─▶ lead it
    every 10 min                   ─▶ ended long ago ─▶ delete it
                                   ─▶ ended, but for a region ─▶ have that give its version up

Law of this file: any number of controllers may look after one store. Two that take the same push
over at once are told so by its records, and one of them stops. A store that is away, a push that
cannot be read, and a fault in leading one, are logged and hold up no other push.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

import structlog

from ingester.pushes.leading import Leadership, lead, needs_leading
from ingester.pushes.leftovers import Leftover, clean_up, leftovers
from ingester.pushes.pruning import prune
from ingester.pushes.push_folders import PushFolder, push_folders
from ingester.pushes.push_log import PushLog
from ingester.pushes.push_store import Deposed, PushDamaged, PushNotFound, PushStore, Saved
from persist.store import StoreError, StoreRetry

log = structlog.get_logger()

LOOK_EVERY = timedelta(seconds=5)
PRUNE_EVERY = timedelta(minutes=10)
PRUNE_FOR_S = 5.0
"""So long one look deletes; a region that hangs must not keep pushes from being seen."""
END_WITHIN_S = 10.0
"""The time for those who lead to come to an end, once they are told to."""
_ONCE = StoreRetry(first_s=0.1, cap_s=0.1, attempts=1)


class Keeping(NamedTuple):
    """How the controller looks after the pushes that it finds."""

    look_every: timedelta = LOOK_EVERY
    retain: timedelta = timedelta(days=30)
    """A push that ended so long ago is deleted."""
    prune_every: timedelta = PRUNE_EVERY
    forget: Callable[[str], None] | None = None
    """Is called with the id of each push that is deleted."""


KEEPING = Keeping()


class ControllerStatistics(NamedTuple):
    """What the controller has seen and done since it began."""

    pushes: dict[str, int]
    """So many pushes there are of each status, as at the last look."""
    unreadable: int
    led: int
    """So many are led here, now."""
    taken_over: int
    deposed: int
    failed_looks: int
    pruned: int
    looked_ago_s: float | None
    """Seconds since the store was last looked at in full; None before that."""


class Controller:
    """Leads the pushes of a store; ``leadership`` says how."""

    def __init__(self, leadership: Leadership, keeping: Keeping = KEEPING) -> None:
        self._place = leadership
        self._keeping = keeping
        self._looks = PushStore(leadership.store, _ONCE)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._led: dict[str, threading.Thread] = {}
        self._counts: Counter[str] = Counter()
        self._cleaner: threading.Thread | None = None
        # The rest belongs to the thread that looks.
        self._heads: dict[str, Saved] = {}
        self._refused: dict[str, int] = {}
        self._pushes: dict[str, int] = {}
        self._unreadable = 0
        self._looked_at: float | None = None
        self._pruned_at: float | None = None

    def run(self, stop: threading.Event) -> None:
        """Look after the pushes until ``stop`` is set; what is led is left then, to anybody."""
        try:
            while not stop.is_set():
                self._try_to_look()
                stop.wait(self._keeping.look_every.total_seconds())
        finally:
            self._end()

    def run_once(self, stop: threading.Event) -> None:
        """Lead what nobody leads until it is over, or ``stop`` is set.

        Raises:
            StoreError: the store cannot be looked at.
        """
        try:
            self.look()
            while not stop.is_set() and (self._still_led() or self._cleaning()):
                stop.wait(0.05)
        finally:
            self._end()

    def statistics(self) -> ControllerStatistics:
        """Return what was seen and done; from any thread."""
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
        """Look at all pushes once: lead what nobody leads, delete what is old.

        Raises:
            StoreError: the store cannot be looked at.
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

    def _head(self, folder: PushFolder) -> Saved:
        known = self._heads.get(folder.push_id)
        if known is None or known.number != folder.highest:
            known = self._heads[folder.push_id] = self._looks.newest(folder.push_id)
        return known

    def _refuse(self, folder: PushFolder, why: str) -> None:
        """Log, once for each record, that a push cannot be led here."""
        if self._refused.get(folder.push_id) != folder.highest:
            self._refused[folder.push_id] = folder.highest
            log.warning(
                "push not led", push=folder.push_id, error=why, runbook="push-cannot-be-led"
            )

    def _lead(self, folder: PushFolder) -> None:
        """Lead a push in a thread, unless that is done already or was refused."""
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
        except RuntimeError:  # there can be no more threads now
            with self._lock:
                self._led.pop(push_id, None)
            raise

    def _leads(self, folder: PushFolder) -> None:
        told = PushLog(self._place.controller)
        push_id = folder.push_id
        self._count("taken_over")
        try:
            told.ended(lead(self._place, push_id, self._stop, told.hear))
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
        every = self._keeping.prune_every.total_seconds()
        if self._pruned_at is not None and now - self._pruned_at < every:
            return
        self._pruned_at = now
        store = self._place.store
        keep = self._keeping
        self._clean_up(leftovers(folders, self._heads))
        pruned = prune(store, folders, keep.retain, store.now(), keep.forget, PRUNE_FOR_S)
        if pruned.more:
            self._pruned_at = None
        self._count("pruned", len(pruned.pushes))
        if pruned.pushes or pruned.records:
            log.info("pushes pruned", pushes=pruned.pushes, old_records=pruned.records)

    def _clean_up(self, found: list[Leftover]) -> None:
        """Have leftovers given up, in a thread, as a region that hangs holds up nothing else."""
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
        """Let those who lead end; one that does not is left behind, as a killed one would be."""
        self._stop.set()
        deadline = time.monotonic() + END_WITHIN_S
        with self._lock:
            threads = list(self._led.values())
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0))
