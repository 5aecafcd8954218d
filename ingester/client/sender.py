"""The threads of a writer: callers append batches and wait, one thread reads the answers.

    callers ──► Delivery ──a caller, or the sending thread──► PutStream ──► daemon
                    ▲                                                         │
                    └──────────────────── reading thread ◄── answers ─────────┘

A caller sends its batch itself if no other thread sends, no earlier batch is unsent, and so little
is on the way that it does not block (``AT_ONCE_BYTES``). Otherwise the sending thread does, which
may be left behind when the daemon is silent. It also opens the streams and finds out why one ended.
A waiting caller checks whether the daemon has been silent for too long.

One lock guards the delivery. It is never held during network calls or callbacks.

Each sending thread belongs to a generation. Giving up on a silent daemon starts a new generation,
and threads of older ones stop without effect. An unexpected error in a thread ends the writer.

A writer:                              Its streams:

    OPEN ──close──▶ CLOSING                NEW ──────────▶ OPEN ──lost──▶ LOST
      │                │                                   │ ▲ ▲            │
      └────failure─────┴──▶ FAILED          better daemon ▼ │ └─────────────┘
                                                          LEFT ──lost──▶ LOST
"""

import enum
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

from . import lifetime
from .ack import Ack
from .checkpoints import Checkpoint
from .connection import Process
from .deferred_states import DeferredStates
from .delivery import Delivery, Pending
from .errors import (
    ClientError,
    InvalidRequest,
    TimedOut,
    UnknownOutcome,
    Unreachable,
    from_arrow,
)
from .route import Route
from .streams import PutStream
from .undurable import UndurableBatches
from .wire import WriteAnswer, WriteResult

T = TypeVar("T")

LOOK_AGAIN_S = 0.5
"""The first interval of checking batches that were left at other daemons; it grows."""
LOOK_AGAIN_MOST_S = 8.0


class Life(enum.Enum):
    """The life of a writer."""

    OPEN = "takes batches"
    CLOSING = "ends once everything is answered"
    FAILED = "ended with an error"


class StreamState(enum.Enum):
    """The state of a writer's streams."""

    NEW = "no stream has been usable yet"
    OPEN = "a stream is usable"
    LEFT = "the last stream was ended for one at a better daemon"
    LOST = "the last stream was lost"


LIVES = {
    Life.OPEN: {Life.CLOSING, Life.FAILED},
    Life.CLOSING: {Life.FAILED},
    Life.FAILED: set[Life](),
}
STREAM_STATES = {
    StreamState.NEW: {StreamState.OPEN},
    StreamState.OPEN: {StreamState.LEFT, StreamState.LOST},
    StreamState.LEFT: {StreamState.OPEN, StreamState.LOST},
    StreamState.LOST: {StreamState.OPEN},
}


class BatchSender:
    """Delivers what is appended, until the writer ends. Any thread.

    A daemon that is silent for ``answer_timeout_s`` counts as lost.
    """

    def __init__(self, route: Route, delivery: Delivery, answer_timeout_s: float) -> None:
        self._route = route
        self.delivery = delivery
        self._window = delivery.window
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)  # the sending thread waits here
        self._room = threading.Condition(self._lock)  # callers wait here to append
        self._idle = threading.Condition(self._lock)  # callers wait here for all answers
        self._life = Life.OPEN
        self._stream_state = StreamState.NEW
        self._stream: PutStream | None = None
        self._generation = 0
        self._thread: threading.Thread | None = None
        """The sending thread; the first batch starts it."""
        self._readers: list[threading.Thread] = []
        """The reading threads of streams that have not ended."""
        self._looker: threading.Thread | None = None
        """The thread that checks batches left at other daemons."""
        self._settled: list[Pending] = []
        """Batches whose callbacks are due."""
        self._states = DeferredStates(self._lock, route, self._window)
        self._answer_timeout_s = answer_timeout_s
        lifetime.end_at_exit(self)

    # ------------------------------------------------------------------------------- callers

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
            if self.delivery.failure is not None:
                raise self.delivery.failure
            if self._life is not Life.OPEN:
                raise InvalidRequest("the writer is closed: open another one")
            ack = Ack(self.check_silence)
            if not self.delivery.append(batch, checkpoint, ack, traceparent):
                return None
            if self._thread is None:
                self._start(0.0)
            stream, pending = self._stream, self._take_own()
            if pending is None:
                self._work.notify_all()
        if pending is not None:
            assert stream is not None
            self._send(stream, pending)
        return ack

    def wait_for_room(self, batch: pa.RecordBatch, checkpoint: Checkpoint | None) -> None:
        """Wait until this batch may fit; the caller then tries :meth:`append` again."""
        wait_s = self.check_silence()
        with self._lock:
            nbytes = self.delivery.weight(batch, checkpoint)
            if not (self.delivery.failure or self._window.has_room(nbytes)):
                self._room.wait(wait_s)

    def wait_until_idle(self) -> WriteResult:
        """The result, once everything appended is answered. Raises the writer's failure."""
        lifetime.check()
        while True:
            wait_s = self.check_silence()
            with self._lock:
                if self.delivery.failure is not None:
                    raise self.delivery.failure
                if not len(self._window) and not self._owes:
                    return self.delivery.total
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
            owed_s = self.delivery.owed_s(time.monotonic())
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

    # ------------------------------------------------------------------------- needing the lock

    def _enter(self, life: Life) -> bool:
        """Change the writer's life if the change is legal."""
        if life not in LIVES[self._life]:
            return False
        self._life = life
        return True

    def _enter_stream(self, state: StreamState) -> None:
        assert state in STREAM_STATES[self._stream_state], (self._stream_state, state)
        self._stream_state = state

    def _started(
        self, name: str, run: Callable[[T, int], None], what: T, generation: int
    ) -> threading.Thread:
        """A thread that calls ``run(what, generation)``."""
        args = (run, what, generation)
        thread = threading.Thread(target=self._guarded, args=args, name=name, daemon=True)
        thread.start()
        return thread

    @property
    def _owes(self) -> bool:
        """Whether acknowledged batches are lost and have to be sent again."""
        undurable = self._route.undurable
        return undurable is not None and undurable.owes and self.delivery.failure is None

    def _has_work(self) -> bool:
        return self._window.has_unsent or self._owes

    def _take_own(self) -> Pending | None:
        """The batch just appended, if its caller may send it: it is next, and does not block."""
        stream = self._stream
        if stream is None or self._stream_state is not StreamState.OPEN or self._owes:
            return None
        if stream.ends or stream.sending or not self._route.stays():
            return None
        pending = self._window.only_unsent()
        return self._take(stream) if pending and stream.takes_at_once(pending) else None

    def _take(self, stream: PutStream) -> Pending:
        """The next batch, weighed, for the calling thread, which has to :meth:`_send` it."""
        # Invariant: batches are sent in the order in which they were taken. No other thread takes
        # one until this one is sent; if that never happens, the stream is given up as silent.
        assert not stream.sending
        stream.sending = True
        pending = self._window.take(time.monotonic())
        return self._states.as_sent(pending)

    def _leave_behind(self, error: ClientError | None = None) -> None:
        """Leave kept batches at the last stream's daemon, and check on them from now on."""
        undurable = self._route.undurable
        if undurable is None:
            return
        if kept := self._window.take_kept():
            self._route.leave_behind(kept, error)
        if undurable.empty or self._looker is not None or self._life is not Life.OPEN:
            return
        try:
            self._looker = self._started(
                "ingester-looking", self._look_after, undurable, self._generation
            )
        except RuntimeError as exc:
            self._fail(thread_failed(exc))

    def _fail(self, error: ClientError) -> None:
        """End the writer: ``error`` is the outcome of all unanswered batches."""
        if not self._enter(Life.FAILED):
            return
        self._generation += 1
        if self._route.undurable is not None:
            self._route.undurable.forget()
        for pending in self.delivery.fail(error):
            self._settle(pending, None, error)
        for condition in (self._work, self._room, self._idle):
            condition.notify_all()

    def _lost(self, error: ClientError, unclear: bool = False) -> float | None:
        """Seconds to wait before the next stream, or None if the writer has failed."""
        stream, self._stream = self._stream, None
        if self._stream_state in (StreamState.OPEN, StreamState.LEFT):
            self._enter_stream(StreamState.LOST)
        sent = bool(self._window.sent_count)
        unanswered = sent and stream is not None and not stream.answered
        error, moves, suspended = self._route.lost(error, unanswered=unanswered)
        self._leave_behind(error)
        self.delivery.keeps |= suspended
        now = time.monotonic()
        outcome = self.delivery.lost(error, now, unclear=unclear, moves=moves, owes=self._owes)
        if isinstance(outcome, ClientError):
            self._fail(outcome)
            return None
        return outcome

    def _acknowledge(self, pending: list[Pending], position: int | None) -> None:
        """Settle batches that the daemon has applied, whose answers were not read."""
        for each in pending:
            again, each.acknowledged = each.acknowledged, True
            if not again:
                self._settle(each, self.delivery.assumed(position), None)
        self._note_arrived()
        self._let_callers_on()

    def _let_callers_on(self) -> None:
        """Wake callers that wait for room or for the last answer, if any."""
        if self._window.is_half_empty:
            self._room.notify_all()
        if not len(self._window):
            self._idle.notify_all()

    def _note_arrived(self) -> None:
        if (undurable := self._route.undurable) is not None and not self._window.sends_again:
            undurable.arrived()

    def _settle(
        self, pending: Pending, answer: WriteAnswer | None, error: ClientError | None
    ) -> None:
        pending.ack.settle(answer, error)
        self._settled.append(pending)

    # --------------------------------------------------------------------------- the threads

    def _tell(self) -> None:
        """Run the callbacks of settled batches. Called after releasing the lock."""
        while True:
            with self._lock:
                settled, self._settled = self._settled, []
            if not settled:
                return
            for pending in settled:
                pending.ack.tell()

    def _guarded(self, run: Callable[[T, int], None], what: T, generation: int) -> None:
        try:
            run(what, generation)
        except BaseException as exc:
            with self._lock:
                if generation == self._generation:
                    self._fail(thread_failed(exc))
        self._tell()

    def _look_after(self, undurable: UndurableBatches, _generation: int) -> None:
        """Check batches left at daemons until all are in files and all states are stored."""
        wait_s = LOOK_AGAIN_S
        while True:
            if undurable.empty:
                self._states.store(undurable)
            with self._work:
                self._work.wait_for(lambda: self._life is not Life.OPEN, wait_s)
                if self._life is not Life.OPEN or (undurable.empty and not self._states):
                    self._looker = None
                    return
            undurable.look()
            with self._lock:
                wait_s = LOOK_AGAIN_S
                if undurable.certain:
                    wait_s = min(LOOK_AGAIN_MOST_S, wait_s * 1.5)
                if undurable.owes:
                    self._work.notify_all()

    def _deliver(self, delay_s: float, generation: int) -> None:
        while self._wait_for_work(generation, delay_s):
            error, unread = self._run_stream(generation)
            position = self._position(error) if unread is None else None
            with self._lock:
                if generation != self._generation:
                    return
                if error is None and self._life is not Life.OPEN and not len(self._window):
                    return
                left = self._stream_state is StreamState.LEFT
                if error is None and left and not self._window.sent_count:
                    delay_s = 0.0
                    self._leave_behind()
                    continue
                if position is not None:
                    self._acknowledge(self.delivery.answered_up_to(position), position)
                elif unread:
                    self._acknowledge(self.delivery.answered_unread(unread), None)
                ended_early = Unreachable("the daemon ended the stream before it answered")
                unclear = unread is None and position is None
                next_delay_s = self._lost(error or ended_early, unclear)
            self._tell()
            if next_delay_s is None:
                return
            delay_s = next_delay_s

    def _wait_for_work(self, generation: int, delay_s: float) -> bool:
        with self._work:
            if delay_s:
                self._work.wait_for(lambda: generation != self._generation, delay_s)
            while generation == self._generation:
                if self._has_work() or self._life is not Life.OPEN:
                    return self._has_work()
                self._work.wait()
            return False

    def _position(self, error: ClientError | None) -> int | None:
        """The position of a daemon that refused; None if it is unreachable or cannot say.

        A daemon's position of a caller's origin may be of another table.
        """
        unreachable = error is None or isinstance(error, Unreachable | TimedOut)
        return None if unreachable or not self.delivery.own_origin else self._route.position()

    def _run_stream(self, generation: int) -> tuple[ClientError | None, int | None]:
        """Open a stream and send until it ends.

        Returns:
            The error, or None if the stream ended normally or was abandoned; and the number of
            unread answers, or None if it is unknown: a batch that is sent after the daemon has
            ended the stream makes pyarrow discard unread answers.
        """
        try:
            stream = self._route.open()
        except (pa.ArrowException, OSError, ClientError) as exc:
            return from_arrow(exc), 0
        try:
            with self._lock:
                # Started for an abandoned stream as well, so that its end is awaited at exit.
                reader = self._started("ingester-answers", self._read, stream, generation)
                self._readers = [*(each for each in self._readers if each.is_alive()), reader]
                if generation != self._generation:
                    return None, 0
                self._stream = stream
            try:
                self._resume(generation)
            except (pa.ArrowException, OSError, ClientError) as exc:
                return from_arrow(exc), 0  # nothing was sent: no need to wait for the end
            while self._send_next(stream, generation):
                pass
        finally:
            with self._work:
                self._work.wait_for(lambda: not stream.sending)
            stream.finish_sending()
        with self._work:
            self._work.wait_for(lambda: stream.ended or generation != self._generation)
            if not stream.ended:
                return None, 0
        if (error := stream.end() or stream.send_error) is None or stream.send_error is None:
            return error, 0
        answered = error.details.get("answered")
        return error, answered - stream.answered if isinstance(answered, int) else None

    def _resume(self, generation: int) -> None:
        """Check what the daemon still has of kept batches, and put lost ones back first.

        The daemon is asked after the stream was opened: if it is lost later with its log, the
        stream is lost as well and its answer no longer counts.
        """
        window = self._window
        process = self._route.ask_process() if self.delivery.keeps else None
        known = None
        if (undurable := self._route.undurable) is not None:
            endpoint = self._route.endpoint
            undurable.rejoined(endpoint, process)
            undurable.spare(window.first_sequence, endpoint)
        elif window.has_kept and not self._runs_on(process):
            known = self._route.known()
        with self._lock:
            if generation == self._generation:
                if undurable is not None:
                    window.send_again(undurable.take(window.first_sequence, self._route.endpoint))
                elif known is not None:
                    window.resume(known)
                self._begin_stream()
        self._route.process = process

    def _begin_stream(self) -> None:
        """Mark the stream as usable. A later stream of numbered rows begins with one row.

        The daemon owns the origin from the stream's first sequence on. If the first batch had rows
        with lower numbers, the daemon would report them as missing.
        """
        if self._stream_state is not StreamState.NEW and self.delivery.numbers_rows:
            self._window.begin_with_one_row()
        self._enter_stream(StreamState.OPEN)

    def _runs_on(self, process: Process | None) -> bool:
        """Whether the daemon's process is that of the last stream and has what it answered."""
        return process is not None and process == self._route.process

    def _send_next(self, stream: PutStream, generation: int) -> bool:
        # A method of its own, so that waiting for the next batch holds no reference to the last.
        with self._work:
            while stream.sending or not self._has_work():
                closing = self._life is not Life.OPEN and not stream.sending
                if closing or generation != self._generation or stream.ends:
                    return False
                self._work.wait()
            if generation != self._generation or stream.ends:
                return False
            if self._route.moves():
                self._enter_stream(StreamState.LEFT)
                return False
            pending = self._take(stream)
            stream.weigh(pending)
        self._send(stream, pending)
        return True

    def _send(self, stream: PutStream, pending: Pending) -> None:
        """Send a batch that this thread has taken. The sending thread's, or a caller's."""
        try:
            stream.send(pending)
        except (pa.ArrowException, OSError) as exc:
            stream.send_error = from_arrow(exc)  # the stream's own end says it better, if it does
        except BaseException as exc:
            stream.send_error = Unreachable(f"a batch was not sent: {type(exc).__name__}: {exc}")
            raise
        finally:
            # Work is announced before a thread looks at this, so one of the two sees the other.
            stream.sending = False
            waited_for = stream.ends or self._stream is not stream or self._life is not Life.OPEN
            if waited_for or self._has_work():
                with self._lock:
                    self._work.notify_all()

    def _read(self, stream: PutStream, generation: int) -> None:
        try:
            for answer in stream.answers():
                self._answered(stream, answer, generation)
        finally:
            with self._work:
                stream.ended = True
                stream.close_load()
                self._work.notify_all()

    def _answered(self, stream: PutStream, answer: WriteAnswer, generation: int) -> None:
        with self._lock:
            if generation != self._generation:
                return
            pending, error = self.delivery.answered(answer, time.monotonic())
            if pending is None:
                return
            stream.weigh(pending, answered=True)
            again, pending.acknowledged = pending.acknowledged, True
            if error is not None:
                self._settle(pending, None, error)
                self._fail(error)
            elif not again:
                pending.ack.settle(answer, None)
            self._note_arrived()
            self._let_callers_on()
        # A waiting thread is woken last: this one then waits for the next answer without the lock.
        if error is not None:
            self._tell()
        elif not again:
            pending.ack.tell()


def thread_failed(exc: BaseException) -> ClientError:
    error = UnknownOutcome(f"the writer's own thread failed: {type(exc).__name__}: {exc}")
    error.__cause__ = exc
    return error
