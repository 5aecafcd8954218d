"""The threads behind a writer: one sends, one per stream reads the answers.

    Delivery ──sending thread──► PutStream ──► daemon
       ▲                                          │
       └────────── reading thread ◄── answers ────┘

One lock guards the delivery; nobody holds it over the network, or while something of the caller's
runs. What becomes of a batch is decided in :mod:`.delivery`.

Every sending thread belongs to a generation. Giving up on a silent daemon raises the generation,
and what threads of an older one still find is ignored. A thread that fails, whatever at, ends the
writer with that as its cause: nobody waits for a thread that is not there.
"""

import threading
import time
from collections.abc import Callable
from functools import partial

import msgspec
import pyarrow as pa

from . import lifetime
from .checkpoints.checkpoint import Checkpoint
from .connection import Process
from .delivery import Delivery
from .errors import ClientError, TimedOut, UnknownOutcome, Unreachable, from_arrow
from .put_stream import PutStream
from .route import Aside, Route
from .window import Pending
from .wire import Answer

LOOK_AGAIN_S = 0.5
"""Between two looks at what was left at other daemons; longer each time, up to the next."""
LOOK_AGAIN_MOST_S = 8.0


class StreamThreads:
    """Delivers what is in the window. Methods of the first part need the lock held."""

    def __init__(self, route: Route, delivery: Delivery) -> None:
        self.route = route
        self.delivery = delivery
        self.lock = threading.RLock()
        self.work = threading.Condition(self.lock)  # for the sending thread
        self.room = threading.Condition(self.lock)  # for who waits to append
        self.idle = threading.Condition(self.lock)  # for who waits for all answers
        self.closing = False
        self.sender: threading.Thread | None = None
        self.readers: list[threading.Thread] = []
        """The reading threads of all streams that have not ended yet."""
        self._generation = 0
        self._stream_now: PutStream | None = None
        self._left = False
        """Whether the last stream was ended for one at a better daemon."""
        self._settled: list[Pending] = []
        self._looking = False
        self._reopened = False
        """Whether there was a stream before."""
        self._unsaid: dict[str, tuple[int, Checkpoint]] = {}
        """The newest state of each source partition that a batch was sent without."""
        self._saying = False
        lifetime.end_at_exit(self)

    # ------------------------------------------------------------------------- needing the lock

    def start(self, delay_s: float) -> None:
        """Begin to send, after a pause."""
        generation = self._generation
        try:
            run = partial(self._deliver, generation, delay_s)
            self.sender = self._started("ingester-send", run, generation)
        except RuntimeError as exc:  # no more threads can be had, or the interpreter ends
            self.fail(_failed(exc))

    def give_up(self, error: ClientError) -> None:
        """Leave the stream and its threads behind as lost, and begin anew if that helps."""
        self._generation += 1
        self.work.notify_all()
        delay_s = self._lost(error)
        if delay_s is not None:
            self.start(delay_s)

    @property
    def owes(self) -> bool:
        """Whether something that was acknowledged is lost, and has to be sent again."""
        aside = self.route.aside
        return aside is not None and aside.owes and self.delivery.failure is None

    def put_aside(self, error: ClientError | None = None) -> None:
        """Leave at the last stream's daemon what it has acknowledged, and look after that."""
        aside = self.route.aside
        if aside is None:
            return
        if kept := self.delivery.window.take_kept():
            self.route.put_aside(kept, error)
        if aside.empty or self._looking or self.closing:
            return
        try:
            self._started("ingester-looking", partial(self._look_after, aside), self._generation)
            self._looking = True
        except RuntimeError as exc:
            self.fail(_failed(exc))

    def _as_sent(self, pending: Pending) -> Pending:
        """A batch without its source's state, while what came before is at another daemon.

        The state is in files as soon as that batch is, and a source that is killed goes on behind
        it. Nobody would send again what the other daemon loses.
        """
        carried, sequence, aside = pending.checkpoint, pending.sequence, self.route.aside
        if carried is None or sequence is None or aside is None:
            return pending
        state = carried.checkpoint
        without = self._saying or aside.precedes(sequence, self.route.endpoint)
        if self._unsaid.get(state.partition, (-1, None))[0] <= sequence:
            self._unsaid.pop(state.partition, None)
            if without:
                self._unsaid[state.partition] = (sequence, state)
        return msgspec.structs.replace(pending, checkpoint=None) if without else pending

    def forget(self) -> None:
        """Let go of what was kept: the writer has ended."""
        if self.route.aside is not None:
            self.route.aside.forget()

    def fail(self, error: ClientError) -> None:
        """End the writer: ``error`` is the outcome of everything that is not answered."""
        self._generation += 1
        self.forget()
        for pending in self.delivery.fail(error):
            self._settle(pending, None, error)
        for condition in (self.work, self.room, self.idle):
            condition.notify_all()

    def _lost(self, error: ClientError, unclear: bool = False) -> float | None:
        """Seconds to wait before the next stream, or None when that was all."""
        stream, self._stream_now = self._stream_now, None
        sent = bool(self.delivery.window.sent_count)
        unanswered = sent and stream is not None and not stream.answered
        error, moves, hangs = self.route.lost(error, unanswered=unanswered)
        self.put_aside(error)
        self.delivery.keeps |= hangs
        now = time.monotonic()
        outcome = self.delivery.lost(error, now, unclear=unclear, moves=moves, owes=self.owes)
        if isinstance(outcome, ClientError):
            self.fail(outcome)
            return None
        return outcome

    def _acknowledge(self, pending: list[Pending], position: int | None) -> None:
        """Settle batches whose answers nobody has read, though the daemon has taken them."""
        for each in pending:
            again, each.acknowledged = each.acknowledged, True
            if not again:
                self._settle(each, Answer(accepted=True, memory_sequence=position), None)
        self._note_arrived()
        self.room.notify_all()
        if not len(self.delivery.window):
            self.idle.notify_all()

    def _note_arrived(self) -> None:
        if (aside := self.route.aside) is not None and not self.delivery.window.sends_again:
            aside.arrived()

    def _settle(self, pending: Pending, answer: Answer | None, error: ClientError | None) -> None:
        pending.ack.settle(answer, error)
        self._settled.append(pending)

    # ------------------------------------------------------------------------------ without it

    def say_states(self, aside: Aside, *, closing: bool = False) -> None:
        """Put the states that batches were sent without, where all of the rows are in files now.

        A batch that comes meanwhile goes without its own: of two that are put the later one counts.

        Args:
            closing: whether daemons are to put into files what they have.
        """
        with self.lock:
            if not self._unsaid or self._saying or len(self.delivery.window):
                return
            self._saying, unsaid = True, dict(self._unsaid)
        try:
            for endpoint in aside.endpoints() if closing else ():
                aside.persist(endpoint)
            if closing:
                aside.look()
            aside.persist(self.route.endpoint)
            known = self.route.known()
            with self.lock:
                whole = aside.empty and self.delivery.window.has_all(known)
            for partition, (sequence, state) in unsaid.items() if whole else ():
                aside.put_state(self.route.endpoint, state)
                with self.lock:
                    if self._unsaid.get(partition) == (sequence, state):
                        del self._unsaid[partition]
        except ClientError:
            pass  # an older one stays: a source that begins there sends again what is known
        finally:
            with self.lock:
                self._saying = False

    def tell(self) -> None:
        """Call back for what was settled. Whoever had the lock calls this after its release."""
        while True:
            with self.lock:
                settled, self._settled = self._settled, []
            if not settled:
                return
            for pending in settled:
                pending.ack.tell()

    def leave(self) -> None:
        """End the stream once everything is answered; does not wait for it."""
        with self.lock:
            self.closing = True
            self.work.notify_all()

    def left(self, within_s: float) -> None:
        """Wait ``within_s`` seconds for the end, then stop: unanswered batches are unclear."""
        give_up_at = time.monotonic() + within_s
        with self.lock:
            threads = [self.sender, *self.readers]
        for thread in filter(None, threads):
            thread.join(max(0.0, give_up_at - time.monotonic()))
        with self.lock:
            unanswered = len(self.delivery.window)
            if self.delivery.failure is None:
                self.fail(UnknownOutcome("the process ended before the answer came"))
        self.tell()
        if unanswered:
            lifetime.CLIENT_LOG.warning(
                "%d batches had no answer when the process ended", unanswered
            )

    def _started(self, name: str, run: Callable[[], None], generation: int) -> threading.Thread:
        args = (run, generation)
        thread = threading.Thread(target=self._guarded, args=args, name=name, daemon=True)
        thread.start()
        return thread

    def _guarded(self, run: Callable[[], None], generation: int) -> None:
        try:
            run()
        except BaseException as exc:
            with self.lock:
                if generation == self._generation:
                    self.fail(_failed(exc))
        self.tell()

    # --------------------------------------------------------------------------- the threads

    def _look_after(self, aside: Aside) -> None:
        """See what becomes of batches that were left at daemons, until all are in files.

        And until the states that batches were sent without meanwhile are there, too.
        """
        wait_s = LOOK_AGAIN_S
        while True:
            if aside.empty:
                self.say_states(aside)
            with self.work:
                self.work.wait_for(lambda: self.closing or self._failed_by_now(), wait_s)
                done = aside.empty and not self._unsaid
                if self.closing or self._failed_by_now() or done:
                    self._looking = False
                    return
            aside.look()
            with self.lock:
                wait_s = min(LOOK_AGAIN_MOST_S, wait_s * 1.5) if aside.certain else LOOK_AGAIN_S
                if aside.owes:
                    self.work.notify_all()

    def _failed_by_now(self) -> bool:
        return self.delivery.failure is not None

    def _deliver(self, generation: int, delay_s: float) -> None:
        while self._wait_for_work(generation, delay_s):
            error, unread = self._stream(generation)
            position = self._ask(error) if unread is None else None
            with self.lock:
                if generation != self._generation:
                    return
                if error is None and self.closing and not len(self.delivery.window):
                    return
                if error is None and self._left and not self.delivery.window.sent_count:
                    delay_s = 0.0
                    self.put_aside()
                    continue
                if position is not None:
                    self._acknowledge(self.delivery.answered_up_to(position), position)
                elif unread:
                    self._acknowledge(self.delivery.answered_unread(unread), None)
                ended_early = Unreachable("the daemon ended the stream before it answered")
                unclear = unread is None and position is None
                next_delay_s = self._lost(error or ended_early, unclear)
            self.tell()
            if next_delay_s is None:
                return
            delay_s = next_delay_s

    def _wait_for_work(self, generation: int, delay_s: float) -> bool:
        def changed() -> bool:
            return generation != self._generation

        def has_work() -> bool:
            return self.delivery.window.has_unsent or self.owes

        with self.work:
            if delay_s and self.work.wait_for(changed, delay_s):
                return False
            self.work.wait_for(lambda: changed() or self.closing or has_work())
            return not changed() and has_work()

    def _ask(self, error: ClientError | None) -> int | None:
        """The position of a daemon that refused; None: it does not say, or is gone.

        What it says of an origin of others' choosing may be of another table.
        """
        away = error is None or isinstance(error, Unreachable | TimedOut)
        if away or not self.delivery.own_origin:
            return None
        try:
            return self.route.position()
        except ClientError:
            return None

    def _stream(self, generation: int) -> tuple[ClientError | None, int | None]:
        """Open a stream and send until it ends.

        Returns:
            The error, or None where it ended in good order or was given up; and how many answers
            were lost, or None where nobody knows: a batch that is sent when the daemon has ended
            the stream makes pyarrow throw away what was not read yet.
        """
        sending_error: ClientError | None = None
        try:
            stream = self.route.open()
        except (pa.ArrowException, OSError, ClientError) as exc:
            return from_arrow(exc), 0
        try:
            run = partial(self._read, stream, generation)
            reader = self._started("ingester-answers", run, generation)
            with self.lock:
                self.readers = [*(each for each in self.readers if each.is_alive()), reader]
                self._stream_now, self._left = stream, False
            try:
                self._resume(generation)
                self._begin_again(generation)
            except (pa.ArrowException, OSError, ClientError) as exc:
                return from_arrow(exc), 0  # nothing was sent: nobody waits for the stream's end
            while self._send_next(stream, generation):
                pass
        except (pa.ArrowException, OSError) as exc:
            sending_error = from_arrow(exc)  # the stream's own end says it better, if it does
        finally:
            stream.finish_sending()
        with self.work:
            self.work.wait_for(lambda: stream.ended or generation != self._generation)
            if not stream.ended:
                return None, 0
        if (error := stream.end() or sending_error) is None or sending_error is None:
            return error, 0
        answered = error.details.get("answered")
        return error, answered - stream.answered if isinstance(answered, int) else None

    def _resume(self, generation: int) -> None:
        """Look whether the daemon still has what it answered, where that was kept.

        It is asked when the stream is open: a daemon that is lost afterwards, with its log, takes
        the stream along, and what it has said does not count any more.
        """
        window = self.delivery.window
        process = self.route.ask_process() if self.delivery.keeps else None
        if (aside := self.route.aside) is not None:
            endpoint = self.route.endpoint
            aside.rejoined(endpoint, process)
            aside.spare(window.first_sequence, endpoint)
            with self.lock:
                if generation == self._generation:
                    window.send_again(aside.take(window.first_sequence, endpoint))
        elif window.has_kept and not self.runs_on(process):
            known = self.route.known()
            with self.lock:
                if generation == self._generation:
                    window.resume(known)
        self.route.process = process

    def runs_on(self, process: Process | None) -> bool:
        """Whether a daemon's process is that of the stream before: it has what it has answered."""
        return process is not None and process == self.route.process

    def _begin_again(self, generation: int) -> None:
        """Have a later stream of numbered rows begin with one row, as the first one does.

        The origin is the daemon's from the stream's first sequence on. Of rows of that batch which
        have lower numbers, it would say that it lacks them.
        """
        with self.lock:
            if generation == self._generation and self._reopened and self.delivery.numbers_rows:
                self.delivery.window.begin_with_one_row()
            self._reopened = True

    def _send_next(self, stream: PutStream, generation: int) -> bool:
        # A function of its own: who waits for the next batch holds on to none.
        window = self.delivery.window

        def ended() -> bool:
            return generation != self._generation or stream.ended

        with self.work:
            self.work.wait_for(lambda: ended() or self.closing or window.has_unsent or self.owes)
            if ended() or not (window.has_unsent or self.owes):
                return False
            if self.route.moves():
                self._left = True
                return False
            pending = self._as_sent(window.take(time.monotonic()))
        stream.send(pending)
        return True

    def _read(self, stream: PutStream, generation: int) -> None:
        try:
            for answer in stream.answers():
                self._answered(answer, generation)
        finally:
            with self.work:
                stream.ended = True
                self.work.notify_all()

    def _answered(self, answer: Answer, generation: int) -> None:
        with self.lock:
            if generation != self._generation:
                return
            settled = self.delivery.answered(answer, time.monotonic())
            if settled is None:
                return
            pending, error = settled
            again, pending.acknowledged = pending.acknowledged, True
            if error is not None:
                self._settle(pending, None, error)
                self.fail(error)
            elif not again:
                pending.ack.settle(answer, None)
            self._note_arrived()
            self.room.notify()
            if not len(self.delivery.window):
                self.idle.notify_all()
        if error is not None:
            self.tell()
        elif not again:
            pending.ack.tell()


def _failed(exc: BaseException) -> ClientError:
    error = UnknownOutcome(f"the writer's own thread failed: {type(exc).__name__}: {exc}")
    error.__cause__ = exc
    return error
