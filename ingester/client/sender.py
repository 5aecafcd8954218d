"""What callers do with a writer's batches: append them, wait for answers, and end the writer.

Callers never use the network to write: :mod:`.stream_threads` send and read. A waiting caller also
checks whether the daemon has been silent for too long.
"""

import time

import pyarrow as pa

from . import lifetime
from .ack import Ack
from .checkpoints import Checkpoint
from .delivery import Delivery
from .errors import ClientError, InvalidRequest, TimedOut, UnknownOutcome, Unreachable
from .route import Route
from .stream_threads import LOOK_AGAIN_S, Life, StreamThreads, thread_failed
from .wire import WriteResult


class BatchSender(StreamThreads):
    """Delivers what is appended. Any thread.

    A daemon that is silent for ``answer_timeout_s`` counts as lost.
    """

    def __init__(self, route: Route, delivery: Delivery, answer_timeout_s: float) -> None:
        super().__init__(route, delivery)
        self._answer_timeout_s = answer_timeout_s
        lifetime.end_at_exit(self)

    def total(self) -> WriteResult:
        """The acknowledged rows and batches so far."""
        return self._delivery.total

    def append(
        self,
        batch: pa.RecordBatch,
        checkpoint: Checkpoint | None,
        traceparent: str | None = None,
    ) -> Ack | None:
        """The acknowledgement's promise, or None while the window is full.

        Args:
            traceparent: The span that waits for the answer.

        Raises:
            ClientError: The error that ended the writer.
            InvalidRequest: The writer is closed, or the process was forked.
        """
        lifetime.check()
        with self._lock:
            if self._delivery.failure is not None:
                raise self._delivery.failure
            if self._life is not Life.OPEN:
                raise InvalidRequest("the writer is closed: open another one")
            ack = Ack(self.check_silence)
            if not self._delivery.append(batch, checkpoint, ack, traceparent):
                return None
            if self._thread is None:
                self._start(0.0)
            self._work.notify_all()
            return ack

    def wait_for_room(self, batch: pa.RecordBatch, checkpoint: Checkpoint | None) -> None:
        """Wait until this batch may fit; the caller then tries :meth:`append` again."""
        wait_s = self.check_silence()
        with self._lock:
            nbytes = self._delivery.weight(batch, checkpoint)
            if not (self._delivery.failure or self._window.has_room(nbytes)):
                self._room.wait(wait_s)

    def wait_until_idle(self) -> WriteResult:
        """The result, once everything appended is answered. Raises the writer's failure."""
        lifetime.check()
        while True:
            wait_s = self.check_silence()
            with self._lock:
                if self._delivery.failure is not None:
                    raise self._delivery.failure
                if not len(self._window) and not self._owes:
                    return self._delivery.total
                self._idle.wait(wait_s)

    def make_certain(self) -> bool:
        """Check that acknowledged batches still exist after daemons were left.

        Returns:
            True if the caller has to wait until idle and check again: batches are sent again, or a
            daemon does not answer.

        Raises:
            ClientError: It cannot be determined.
        """
        route = self._route
        route.settle()
        if (undurable := route.undurable) is None:
            return self._sends_lost()
        with self._lock:
            self._leave_behind()
        self._states.store(undurable, flush_all=True)
        if undurable.empty:
            return False
        undurable.look()
        if (refusal := undurable.refusal) is not None:
            raise refusal
        with self._lock:
            if not undurable.owes and not undurable.certain:
                self._idle.wait(LOOK_AGAIN_S)
            self._work.notify_all()
            return not undurable.certain

    def _sends_lost(self) -> bool:
        """Whether the one daemon has lost batches that are in no file; they are sent again."""
        with self._lock:
            if not self._window.has_kept:
                return False
        if self._runs_on(self._route.ask_process()):
            return False
        known = self._route.known()
        with self._lock:
            if len(self._window) or self._window.has_all(known):
                return bool(len(self._window))
            self._give_up(Unreachable("the daemon has lost what it had answered"))
            self._window.resume(known)
            self._work.notify_all()
            return True

    def finish(self) -> bool:
        """End the stream once everything is answered. False if the writer has ended already."""
        with self._lock:
            if self._life is not Life.OPEN:
                return False
            self.leave()
            thread = self._thread
        if thread is not None:
            # Everything is answered; a stuck daemon must not delay the caller.
            thread.join(min(5.0, self._answer_timeout_s))
        if self._route.undurable is not None:
            self._route.undurable.forget()
        return True

    def abort(self, error: ClientError) -> None:
        """Stop without waiting: unanswered batches fail with ``error``.

        No-op in a forked process, because the threads are the parent's.
        """
        if not lifetime.alive():
            return
        with self._lock:
            self._fail(error)
        self._tell()

    def check_silence(self) -> float:
        """Give up on the stream if the daemon has owed an answer for too long.

        Waiting callers call this. Returns the seconds until the next check.
        """
        lifetime.check()
        limit_s = self._answer_timeout_s
        with self._lock:
            owed_s = self._delivery.owed_s(time.monotonic())
            if owed_s is None:
                return limit_s
            if owed_s < limit_s:
                return limit_s - owed_s
            self._give_up(TimedOut(f"the daemon answered nothing for {limit_s:g} s"))
        self._tell()
        return limit_s

    def leave(self) -> None:
        """End the stream once everything is answered; returns immediately."""
        with self._lock:
            self._enter(Life.CLOSING)
            self._work.notify_all()

    def left(self, within_s: float) -> None:
        """Wait ``within_s`` seconds for the end, then stop: unanswered batches are unknown."""
        give_up_at = time.monotonic() + within_s
        with self._lock:
            threads = [self._thread, *self._readers]
        for thread in filter(None, threads):
            thread.join(max(0.0, give_up_at - time.monotonic()))
        with self._lock:
            unanswered = len(self._window)
            self._fail(UnknownOutcome("the process ended before the answer came"))
        self._tell()
        if unanswered:
            lifetime.CLIENT_LOG.warning(
                "%d batches had no answer when the process ended", unanswered
            )

    def _give_up(self, error: ClientError) -> None:
        """Abandon the stream and its threads as lost, and start again if that may help."""
        self._generation += 1
        self._work.notify_all()
        delay_s = self._lost(error)
        if delay_s is not None:
            self._start(delay_s)

    def _start(self, delay_s: float) -> None:
        """Start the sending thread, which pauses first."""
        try:
            self._thread = self._started("ingester-send", self._deliver, delay_s, self._generation)
        except RuntimeError as exc:  # no more threads, or the interpreter is ending
            self._fail(thread_failed(exc))
