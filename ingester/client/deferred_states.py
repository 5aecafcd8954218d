"""Source states that batches were sent without, and that are stored once the rows are in files.

While an earlier batch of the writer is lost or at another daemon, a batch goes without its source's
state. The state would become durable with that batch, and a killed source would continue after it,
although nobody would send the earlier rows again. The newest deferred state of each source
partition is stored when all rows before it are in files.
"""

import threading

import msgspec

from .checkpoints import Checkpoint
from .delivery import Pending, SendWindow
from .errors import ClientError
from .route import Route
from .undurable import UndurableBatches


class DeferredStates:
    """The deferred states of one writer, by source partition. ``lock`` is the writer's lock."""

    def __init__(self, lock: threading.RLock, route: Route, window: SendWindow) -> None:
        self._lock, self._route, self._window = lock, route, window
        self._states: dict[str, tuple[int, Checkpoint]] = {}
        self._storing = False

    def __len__(self) -> int:
        return len(self._states)

    def as_sent(self, pending: Pending) -> Pending:
        """The batch to send: without its state if that is deferred. Needs the lock."""
        carried, sequence, undurable = pending.checkpoint, pending.sequence, self._route.undurable
        if carried is None or sequence is None or undurable is None:
            return pending
        state = carried.checkpoint
        deferred = self._storing or undurable.precedes(sequence, self._route.endpoint)
        if self._states.get(state.partition, (-1, None))[0] <= sequence:
            self._states.pop(state.partition, None)
            if deferred:
                self._states[state.partition] = (sequence, state)
        return msgspec.structs.replace(pending, checkpoint=None) if deferred else pending

    def store(self, undurable: UndurableBatches, *, flush_all: bool = False) -> None:
        """Store the states if all rows before them are in files. Waits for the network.

        The states of batches sent meanwhile are deferred, because the later of two stored states
        counts.

        Args:
            flush_all: Make all daemons flush first, not only that of the stream.
        """
        with self._lock:
            if not self._states or self._storing or len(self._window):
                return
            self._storing, states = True, dict(self._states)
        try:
            for endpoint in undurable.endpoints() if flush_all else ():
                undurable.persist(endpoint)
            if flush_all:
                undurable.look()
            undurable.persist(self._route.endpoint)
            known = self._route.known()
            with self._lock:
                whole = undurable.empty and self._window.has_all(known)
            for partition, (sequence, state) in states.items() if whole else ():
                undurable.put_state(self._route.endpoint, state)
                with self._lock:
                    if self._states.get(partition) == (sequence, state):
                        del self._states[partition]
        except ClientError:
            pass  # an older state remains: a source that begins there sends duplicates
        finally:
            with self._lock:
                self._storing = False
