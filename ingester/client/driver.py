"""The threads behind a writer: one sends, one per stream reads the answers.

    append ──► Delivery ──driving thread──► Link ──► daemon
                   ▲                                   │
                   └────────── reading thread ◄── answers

One lock guards the delivery; nobody holds it over the network. What becomes of a batch is decided
in :mod:`.delivery`; here is who waits for what.

Every driving thread belongs to a generation. Giving up on a silent daemon raises the generation,
and what threads of an older one still find is ignored.
"""

import threading
import time
from collections.abc import Callable

import pyarrow as pa

from .ack import Ack
from .delivery import Delivery
from .errors import ClientError, InvalidRequest, TimedOut, Unreachable, from_arrow
from .link import Link
from .window import Pending
from .wire import Answer, Checkpoint, WriteResult


class Driver:
    """Delivers what is appended. Its methods may be called by any number of threads.

    A daemon silent for ``answer_timeout_s`` counts as lost.
    """

    def __init__(
        self,
        open_link: Callable[[], Link],
        delivery: Delivery,
        answer_timeout_s: float,
        position: Callable[[], int | None] = lambda: None,
    ) -> None:
        """``position`` asks the daemon for the last sequence that it has of the origin."""
        self._position = position
        self._open_link = open_link
        self._delivery = delivery
        self._window = delivery.window
        self._answer_timeout_s = answer_timeout_s
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)  # for the driving thread
        self._room = threading.Condition(self._lock)  # for who waits to append
        self._idle = threading.Condition(self._lock)  # for who waits for all answers
        self._generation = 0
        self._thread: threading.Thread | None = None
        self._closing = False

    # ------------------------------------------------------------------------------ for callers

    def total(self) -> WriteResult:
        """What was acknowledged so far."""
        with self._lock:
            return self._delivery.total

    def append(self, batch: pa.RecordBatch, checkpoint: Checkpoint | None) -> Ack | None:
        """The promise of the answer, or None while the window is full.

        Raises:
            ClientError: what ended the writer.
            InvalidRequest: after :meth:`finish`.
        """
        with self._lock:
            if self._delivery.failure is not None:
                raise self._delivery.failure
            if self._closing:
                raise InvalidRequest("the writer is closed")
            if not self._window.has_room(batch.nbytes):
                return None
            ack = Ack(self.check_silence)
            self._delivery.append(batch, checkpoint, ack)
            if self._thread is None:
                self._start(0.0)
            self._work.notify_all()
            return ack

    def wait_for_room(self, nbytes: int) -> None:
        """Wait for a while that a batch of ``nbytes`` may be appended; ask :meth:`append`."""
        with self._room:
            if not (self._delivery.failure or self._window.has_room(nbytes)):
                self._room.wait(Ack.WATCH_EVERY_S)
        self.check_silence()

    def wait_until_idle(self) -> WriteResult:
        """What was acknowledged, once everything appended is answered. Raises what ended it."""
        while True:
            with self._idle:
                if self._delivery.failure is not None:
                    raise self._delivery.failure
                if not len(self._window):
                    return self._delivery.total
                self._idle.wait(Ack.WATCH_EVERY_S)
            self.check_silence()

    def finish(self) -> bool:
        """End the stream once everything is answered. False: it was ended before."""
        with self._lock:
            if self._closing:
                return False
            self._closing = True
            self._work.notify_all()
            thread = self._thread
        if thread is not None:
            # Everything is answered; the stream's end is a courtesy that a stuck daemon may miss.
            thread.join(min(5.0, self._answer_timeout_s))
        return True

    def abort(self, error: ClientError) -> None:
        """Stop without waiting: ``error`` is the outcome of what was not answered."""
        with self._lock:
            self._closing = True
            if self._delivery.failure is None:
                self._fail(error)

    def check_silence(self) -> None:
        """Give up on the stream when the daemon owes an answer for too long. Waiters call this."""
        with self._lock:
            owed_s, limit_s = self._delivery.owed_s(time.monotonic()), self._answer_timeout_s
            if owed_s is None or owed_s < limit_s:
                return
            self._generation += 1  # the stuck threads are left behind
            self._work.notify_all()
            delay_s = self._lost(TimedOut(f"the daemon answered nothing for {limit_s:g} s"))
            if delay_s is not None:
                self._start(delay_s)

    # ----------------------------------------------------------------------- with the lock held

    def _start(self, delay_s: float) -> None:
        self._thread = threading.Thread(
            target=self._drive, args=(self._generation, delay_s), name="ingester-send", daemon=True
        )
        self._thread.start()

    def _learned(self, taken: list[Pending], position: int | None) -> None:
        for pending in taken:
            again, pending.acknowledged = pending.acknowledged, True
            if not again:
                pending.ack.settle(Answer(accepted=True, memory_sequence=position), None)
        self._room.notify_all()
        if not len(self._window):
            self._idle.notify_all()

    def _lost(self, error: ClientError, deaf: bool = False) -> float | None:
        """Seconds to wait before the next stream, or None when that was all."""
        outcome = self._delivery.lost(error, time.monotonic(), deaf=deaf)
        if isinstance(outcome, ClientError):
            self._fail(outcome)
            return None
        return outcome

    def _fail(self, error: ClientError) -> None:
        self._generation += 1
        for pending in self._delivery.fail(error):
            pending.ack.settle(None, error)
        for condition in (self._work, self._room, self._idle):
            condition.notify_all()

    # ------------------------------------------------------------------------- the two threads

    def _drive(self, generation: int, delay_s: float) -> None:
        while self._wait_for_work(generation, delay_s):
            error, unread = self._stream(generation)
            position = self._ask(error) if unread is None else None
            with self._lock:
                if generation != self._generation:
                    return
                if error is None and self._closing and not len(self._window):
                    return
                if position is not None:
                    self._learned(self._delivery.learned(position), position)
                elif unread:
                    self._learned(self._delivery.unread(unread), None)
                ended_early = Unreachable("the daemon ended the stream before it answered")
                deaf = unread is None and position is None
                next_delay_s = self._lost(error or ended_early, deaf)
            if next_delay_s is None:
                return
            delay_s = next_delay_s

    def _wait_for_work(self, generation: int, delay_s: float) -> bool:
        def changed() -> bool:
            return generation != self._generation

        with self._work:
            if delay_s and self._work.wait_for(changed, delay_s):
                return False
            self._work.wait_for(lambda: changed() or self._closing or self._window.has_unsent)
            return not changed() and self._window.has_unsent

    def _ask(self, error: ClientError | None) -> int | None:
        """How far the daemon has come that refused. None: it does not say, or is gone.

        What it says of an origin of others' choosing may be of another table.
        """
        away = error is None or isinstance(error, Unreachable | TimedOut)
        if away or not self._delivery.own_origin:
            return None
        try:
            return self._position()
        except ClientError:
            return None

    def _stream(self, generation: int) -> tuple[ClientError | None, int | None]:
        """Open a stream and send until it ends. None: ended in good order, or given up.

        And how many answers were lost, or None where nobody knows: a batch that is sent when the
        daemon has ended the stream makes pyarrow throw away what was not read yet.
        """
        sending_error: ClientError | None = None
        try:
            self._resume(generation)
            link = self._open_link()
        except Exception as exc:
            return from_arrow(exc), 0
        reader = threading.Thread(
            target=self._read, args=(link, generation), name="ingester-answers", daemon=True
        )
        reader.start()
        try:
            while (pending := self._next(link, generation)) is not None:
                link.send(pending.batch, pending.metadata)
        except (pa.ArrowException, OSError) as exc:
            sending_error = from_arrow(exc)  # the stream's own end says it better, if it does
        link.finish_sending()
        with self._work:
            self._work.wait_for(lambda: link.ended or generation != self._generation)
            if not link.ended:
                return None, 0
        error = link.end() or sending_error
        if sending_error is None or error is None:
            return error, 0
        answered = error.details.get("answered")
        return error, answered - link.answered if isinstance(answered, int) else None

    def _resume(self, generation: int) -> None:
        """Look whether the daemon still has what it answered, where that was kept."""
        if not self._window.has_kept:
            return
        position = self._position()
        with self._lock:
            if generation == self._generation:
                self._window.resume(position)

    def _next(self, link: Link, generation: int) -> Pending | None:
        with self._work:
            self._work.wait_for(
                lambda: (
                    generation != self._generation
                    or link.ended
                    or self._closing
                    or self._window.has_unsent
                )
            )
            if generation != self._generation or link.ended or not self._window.has_unsent:
                return None
            return self._window.take(time.monotonic())

    def _read(self, link: Link, generation: int) -> None:
        try:
            for answer in link.answers():
                self._answered(answer, generation)
        finally:
            with self._work:
                link.ended = True
                self._work.notify_all()

    def _answered(self, answer: Answer, generation: int) -> None:
        with self._lock:
            if generation != self._generation:
                return
            settled = self._delivery.answered(answer, time.monotonic())
            if settled is None:
                return
            ack, error = settled.pending.ack, settled.error
            if error is not None:
                ack.settle(None, error)
                self._fail(error)
                return
            again, settled.pending.acknowledged = settled.pending.acknowledged, True
            self._room.notify()
            if not len(self._window):
                self._idle.notify_all()
        if not again:
            ack.settle(answer, None)
