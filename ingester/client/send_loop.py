"""A writer's callers wait here: for room in the window, for answers, for the end.

Nobody waits for the network, only for what a thread of :mod:`.stream_threads` will tell; and
whoever waits looks whether the daemon owes an answer for too long, at the moment when it may.
"""

import time
import weakref

import pyarrow as pa

from . import lifetime
from .ack import Ack
from .checkpoints.checkpoint import Checkpoint
from .delivery import Delivery
from .errors import ClientError, InvalidRequest, TimedOut, Unreachable
from .route import Route
from .stream_threads import LOOK_AGAIN_S, StreamThreads
from .wire import WriteResult


class SendLoop:
    """Delivers what is appended. Its methods may be called by any number of threads.

    A daemon silent for ``answer_timeout_s`` counts as lost.
    """

    def __init__(self, route: Route, delivery: Delivery, answer_timeout_s: float) -> None:
        self._threads = StreamThreads(route, delivery)
        self._lock = self._threads.lock
        self._delivery = delivery
        self._window = delivery.window
        self._answer_timeout_s = answer_timeout_s
        # A writer that is dropped leaves in order, and no thread behind.
        weakref.finalize(self, _dropped, self._threads).atexit = False

    def total(self) -> WriteResult:
        """The result so far: what was acknowledged."""
        return self._delivery.total

    def append(
        self,
        batch: pa.RecordBatch,
        checkpoint: Checkpoint | None,
        traceparent: str | None = None,
    ) -> Ack | None:
        """The promise of the answer, or None while the window is full.

        Args:
            traceparent: the span of whoever waits for it.

        Raises:
            ClientError: what ended the writer.
            InvalidRequest: after :meth:`finish`, or in a forked process.
        """
        lifetime.check()
        with self._lock:
            if self._delivery.failure is not None:
                raise self._delivery.failure
            if self._threads.closing:
                raise InvalidRequest("the writer is closed: open another one")
            if not self._window.has_room(self._delivery.weight(batch, checkpoint)):
                return None
            ack = Ack(self.check_silence)
            self._delivery.append(batch, checkpoint, ack, traceparent)
            if self._threads.sender is None:
                self._threads.start(0.0)
            self._threads.work.notify_all()
            return ack

    def wait_for_room(self, batch: pa.RecordBatch, checkpoint: Checkpoint | None) -> None:
        """Wait for a while that these may be appended; ask :meth:`append`."""
        wait_s = self.check_silence()
        with self._lock:
            nbytes = self._delivery.weight(batch, checkpoint)
            if not (self._delivery.failure or self._window.has_room(nbytes)):
                self._threads.room.wait(wait_s)

    def wait_until_idle(self) -> WriteResult:
        """The result, once everything appended is answered. Raises what ended the writer."""
        lifetime.check()
        while True:
            wait_s = self.check_silence()
            with self._lock:
                if self._delivery.failure is not None:
                    raise self._delivery.failure
                if not len(self._window) and not self._threads.owes:
                    return self._delivery.total
                self._threads.idle.wait(wait_s)

    def make_certain(self) -> bool:
        """See that what was acknowledged is there, where daemons were left; True: ask again.

        What is lost is being sent again then, or a daemon is waited for that does not answer.

        Raises:
            ClientError: that cannot be known.
        """
        route = self._threads.route
        route.settle()
        if (aside := route.aside) is None:
            return self._sends_lost()
        with self._lock:
            self._threads.put_aside()
        self._threads.say_states(aside, closing=True)
        if aside.empty:
            return False
        aside.look()
        if (refusal := aside.refusal) is not None:
            raise refusal
        with self._lock:
            if not aside.owes and not aside.certain:
                self._threads.idle.wait(LOOK_AGAIN_S)
            self._threads.work.notify_all()
            return not aside.certain

    def _sends_lost(self) -> bool:
        """Whether the one daemon lacks what it has answered, and no file has: it is sent again."""
        with self._lock:
            if not self._window.has_kept:
                return False
        if self._threads.runs_on(self._threads.route.ask_process()):
            return False
        known = self._threads.route.known()
        with self._lock:
            if len(self._window) or self._window.has_all(known):
                return bool(len(self._window))
            self._threads.give_up(Unreachable("the daemon has lost what it had answered"))
            self._window.resume(known)
            self._threads.work.notify_all()
            return True

    def finish(self) -> bool:
        """End the stream once everything is answered. False: it was ended before."""
        with self._lock:
            if self._threads.closing:
                return False
            self._threads.leave()
            thread = self._threads.sender
        if thread is not None:
            # Everything is answered; the stream's end is a courtesy that a stuck daemon may miss.
            thread.join(min(5.0, self._answer_timeout_s))
        self._threads.forget()
        return True

    def abort(self, error: ClientError) -> None:
        """Stop without waiting: ``error`` is the outcome of what was not answered.

        In a forked process nothing happens: what there is to stop is the parent's.
        """
        if not lifetime.alive():
            return
        with self._lock:
            self._threads.closing = True
            if self._delivery.failure is None:
                self._threads.fail(error)
        self._threads.tell()

    def check_silence(self) -> float:
        """Give up on the stream when the daemon owes an answer for too long. Waiters call this.

        Returns:
            Seconds until that may be so: whoever goes on waiting asks again then.
        """
        lifetime.check()
        limit_s = self._answer_timeout_s
        with self._lock:
            owed_s = self._delivery.owed_s(time.monotonic())
            if owed_s is None:
                return limit_s
            if owed_s < limit_s:
                return limit_s - owed_s
            self._threads.give_up(TimedOut(f"the daemon answered nothing for {limit_s:g} s"))
        self._threads.tell()
        return limit_s


def _dropped(threads: StreamThreads) -> None:
    if lifetime.alive():
        threads.leave()
