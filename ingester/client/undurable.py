"""Batches that a daemon acknowledged, that may not be in files, and whose daemon was left since.

    acknowledged, and left ─┬─ in files, as another daemon reports ──▶ dropped
                            ├─ the daemon has them ──────────────────▶ stay there, and are watched
                            ├─ the daemon lacks them: a lost disk ───▶ sent again
                            └─ unreachable for ``UNREACHABLE_S`` ────▶ sent again

A daemon flushes the batches that it has acknowledged itself. Sending them to another
daemon makes the first one hide them, so that is done only if it lacks them or is unreachable.
"""

import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from .checkpoints import Checkpoint
from .connection import Connection, Process
from .delivery import Pending
from .errors import (
    ClientError,
    NotFound,
    Unavailable,
    Unimplemented,
    Unreachable,
    is_unavailable,
)
from .retry import is_retryable
from .wire import OriginState, given

UNREACHABLE_S = 30.0
"""How long a daemon may be unreachable before its batches are sent to another one."""
LOOK_S = 5.0
"""Timeout for asking a daemon what it has."""
SETTLE_S = 60.0
"""How long a closing writer waits for its batches to reach object storage."""
LATE_AGAIN_S = 0.25
"""The pause before a slow daemon is asked again to flush."""
AGAIN_S = 0.05
"""The interval at which a query checks its own client's writers."""

NOTHING = 2**63
"""A bound above all sequences."""
_HAS_ALL = OriginState("", marks=(NOTHING,), there=(True,))
"""The state of a running process for the batches that it has acknowledged."""


@dataclass
class _LeftGroup:
    """Batches that one daemon has acknowledged, by rising sequence.

    Attributes:
        fenced: The daemon was fenced; its batches are lost.
        error: The error of the reachable daemon, which does not report what it has.
        held: The daemon reported all of them at the last check.
        process: The process that has acknowledged them; while it runs, it has them.
    """

    endpoint: str
    batches: list[Pending]
    fenced: bool = False
    unreachable_since: float | None = None
    error: ClientError | None = None
    error_since: float = 0.0
    held: bool = False
    process: Process | None = None


class KnownDaemons(Protocol):
    """The daemons of a client of several (:class:`ingester.client.cluster.members.Members`)."""

    @property
    def known(self) -> Sequence[str]:
        """The known endpoints."""

    def connection(self, endpoint: str) -> Connection:
        """The connection to a daemon."""

    def usable(self, endpoint: str) -> bool:
        """Whether a daemon is reachable, as far as it is known."""


class UndurableBatches:
    """The batches of one writer that it has left at daemons. Any thread.

    :meth:`look`, :meth:`rejoined`, :meth:`ask`, :meth:`spare`, :meth:`persist` and
    :meth:`put_state` wait for the network.
    """

    def __init__(self, daemons: KnownDaemons, table: tuple[str, str], origin: str) -> None:
        self.table = table
        self.origin = origin
        self._daemons = daemons
        self._lock = threading.Lock()
        self._groups: list[_LeftGroup] = []
        self._lost: list[Pending] = []
        self._again = False
        self._keyed_owner = False
        """The daemon of the open stream takes the writes of a table with a primary key."""

    @property
    def empty(self) -> bool:
        """Whether there are none."""
        return not self._groups and not self._lost

    @property
    def idle(self) -> bool:
        """Whether there are none, and none is being sent again."""
        with self._lock:
            return not (self._groups or self._lost or self._again)

    @property
    def owes(self) -> bool:
        """Whether some are lost and have to be sent again."""
        return bool(self._lost)

    @property
    def sends_again(self) -> bool:
        """Whether some are being sent again."""
        return self._again

    @property
    def certain(self) -> bool:
        """Whether daemons had all of them at the last check."""
        return not self._lost and all(group.held for group in self._groups)

    @property
    def refusal(self) -> ClientError | None:
        """The error that a reachable daemon has returned for ``UNREACHABLE_S``."""
        began = time.monotonic() - UNREACHABLE_S
        with self._lock:
            errors = (each.error for each in self._groups if each.error_since <= began)
            return next(filter(None, errors), None)

    def endpoints(self) -> Sequence[str]:
        """The daemons that have acknowledged the batches."""
        with self._lock:
            return list(dict.fromkeys(group.endpoint for group in self._groups))

    def put(
        self,
        endpoint: str,
        batches: list[Pending],
        error: ClientError | None,
        process: Process | None = None,
    ) -> None:
        """Add batches that a daemon's process has acknowledged; ``error`` is why it was left."""
        fenced = error is not None and error.code == "fenced"
        with self._lock:
            self._groups.append(_LeftGroup(endpoint, batches, fenced, process=process))

    def spare(self, first: int | None, endpoint: str) -> None:
        """Make other daemons flush what a stream to ``endpoint`` would take from them.

        A daemon stops answering with rows that are taken from it, and queries lack them until they
        are sent again. So a reachable daemon that cannot flush now is waited for, at most
        ``UNREACHABLE_S``. Rows of an unreachable one are taken nevertheless.

        Args:
            first: As for :meth:`take`.
        """
        began = time.monotonic()
        while not self._keyed_owner and (others := self._gives(first, endpoint)):
            if not [each for each in others if self._is_waited_for(each, began)]:
                self.look()
                return
            time.sleep(LATE_AGAIN_S)

    def _gives(self, first: int | None, endpoint: str) -> set[str]:
        """The daemons from which a stream to ``endpoint`` would take batches."""
        with self._lock:
            least = self._least(first)
            return {
                each.endpoint
                for each in self._groups
                if each.endpoint != endpoint and _sequence(each.batches[-1]) >= least
            }

    def _is_waited_for(self, endpoint: str, began: float) -> bool:
        """Make a daemon flush; true if it is reachable but could not do so yet.

        Earlier failures do not count: under load a reachable daemon is slow.

        Args:
            began: When it was first asked.
        """
        left_s = began + UNREACHABLE_S - time.monotonic()
        try:
            self._state(endpoint)  # a short timeout detects an unreachable daemon
            self.persist(endpoint, max(0.0, left_s))
        except ClientError as exc:
            if isinstance(exc, Unreachable):
                left_s += LOOK_S - UNREACHABLE_S
            return left_s > 0 and is_retryable(exc) and exc.code != "fenced"
        return False

    def precedes(self, sequence: int, endpoint: str) -> bool:
        """Whether an earlier batch is lost or at another daemon."""
        with self._lock:
            oldest = [each.batches[0] for each in self._groups if each.endpoint != endpoint]
            return any(_sequence(each) < sequence for each in (*oldest, *self._lost[:1]))

    def take(self, first: int | None, endpoint: str) -> list[Pending]:
        """Remove and return what a stream to ``endpoint`` must send first.

        These are the lost batches and the later ones of other daemons. In a table with a primary
        key, they are all batches of other daemons, because the last row of a key wins.

        Args:
            first: The sequence with which the stream would begin.
        """
        with self._lock:
            least = self._least(first)
            if self._keyed_owner:
                least = 0  # the new owner knows only what others have put into files
            taken, self._lost = self._lost, []
            for group in self._groups:
                if group.endpoint != endpoint:
                    taken += [each for each in group.batches if _sequence(each) >= least]
                    group.batches = [each for each in group.batches if _sequence(each) < least]
            self._groups = [group for group in self._groups if group.batches]
            self._again |= bool(taken)
            return taken

    def _least(self, first: int | None) -> int:
        """The first sequence of a stream that also sends the lost batches."""
        return min([*map(_sequence, self._lost), NOTHING if first is None else first])

    def arrived(self) -> None:
        """Everything that was sent again is acknowledged."""
        self._again = False

    def forget(self) -> None:
        """Drop everything: the writer has ended."""
        with self._lock:
            self._groups, self._lost, self._again = [], [], False

    def look(self) -> None:
        """Ask what became of the batches: those in files are dropped, lost ones are owed."""
        with self._lock:
            groups = list(self._groups)
        for group in groups:
            in_files = self._in_files(group)
            self._judge(group, in_files, *self._asked(group))

    def rejoined(self, endpoint: str, process: Process | None) -> None:
        """Ask a daemon, to which a stream is open, what it has.

        Batches that it lacks are owed from now on, so they are sent before newer ones.

        Args:
            process: The daemon's process; None if it did not say.

        Raises:
            ClientError: It does not answer.
        """
        with self._lock:
            groups = [group for group in self._groups if group.endpoint == endpoint]
            elsewhere = len(groups) < len(self._groups)
        asked = [each for each in groups if process is None or each.process != process]
        self._ask(endpoint, asked)
        self._keyed_owner = elsewhere and self._is_keyed(endpoint)

    def ask(self, endpoint: str) -> None:
        """Ask a daemon, to which a stream is about to be opened, what it has.

        Raises:
            ClientError: It does not answer.
        """
        with self._lock:
            groups = [group for group in self._groups if group.endpoint == endpoint]
        self._ask(endpoint, groups)

    def _ask(self, endpoint: str, groups: Sequence[_LeftGroup]) -> None:
        if groups:
            state = self._state(endpoint)
            for group in groups:
                self._judge(group, None, state, False)

    def _judge(
        self,
        group: _LeftGroup,
        in_files: OriginState | None,
        state: OriginState | None,
        gone: bool,
    ) -> None:
        """Drop what is in files, and owe what is lost.

        Args:
            in_files: The report of a daemon that never had the group.
            state: The report of the group's own daemon, if there is one.
            gone: The group's daemon counts as lost.
        """
        with self._lock:
            if group not in self._groups:
                return
            left = group.batches
            if in_files is not None:
                left = [each for each in left if not in_files.has(_sequence(each))]
            if state is not None:
                lost = [each for each in left if not state.has(_sequence(each))]
                if in_files is None:  # no other daemon can say it
                    in_files_to = state.files_sequence or -1
                    left = [each for each in left if _sequence(each) > in_files_to]
            else:
                lost = left if gone else []
            missing = {id(each) for each in lost}
            group.batches = [each for each in left if id(each) not in missing]
            group.held = state is not None
            self._lost = sorted([*self._lost, *lost], key=_sequence)
            self._groups = [each for each in self._groups if each.batches]

    def persist(self, endpoint: str, within_s: float = SETTLE_S) -> None:
        """Make a daemon flush the table. Raises ClientError."""
        namespace, table = self.table
        body = {"namespace": namespace, "table": table, "timeout_s": within_s}
        connection = self._daemons.connection(endpoint)
        connection.act("persist", body, within_s + connection.timeout_s)

    def put_state(self, endpoint: str, state: Checkpoint) -> None:
        """Store a source's state without rows. Raises ClientError."""
        namespace, table = self.table
        body = {"namespace": namespace, "table": table, **given(msgspec.to_builtins(state))}
        self._daemons.connection(endpoint).act("checkpoint_put", body)

    def visible(self) -> tuple[bool, set[str]]:
        """Whether queries find all batches now, and the daemons that cannot be asked."""
        with self._lock:
            if self._again or self._lost:
                return False, set()
            wanted = [(group, list(group.batches)) for group in self._groups]
        unreachable: set[str] = set()
        for group, batches in wanted:
            try:
                state = self._state(group.endpoint)
            except ClientError as exc:
                if self._runs_on(group):
                    continue
                if not is_unavailable(exc):
                    return False, set()
                unreachable.add(group.endpoint)
                continue
            if not all(state.has(_sequence(each)) for each in batches):
                return False, set()
        return True, unreachable

    def _asked(self, group: _LeftGroup) -> tuple[OriginState | None, bool]:
        """The report of the group's daemon, and whether the daemon counts as lost."""
        if group.fenced:
            return None, True
        try:
            state = self._state(group.endpoint)
        except ClientError as exc:
            now = time.monotonic()
            if self._runs_on(group):
                group.error = group.unreachable_since = None
                return _HAS_ALL, False
            if not is_unavailable(exc):
                group.error_since = now if group.error is None else group.error_since
                group.error = exc
                return None, False
            group.error, group.unreachable_since = None, group.unreachable_since or now
            return None, now - group.unreachable_since >= UNREACHABLE_S
        group.error = group.unreachable_since = None
        return state, False

    def _in_files(self, group: _LeftGroup) -> OriginState | None:
        """The report of another daemon, which knows only what is in files."""
        for endpoint in self._daemons.known:
            if endpoint != group.endpoint and self._daemons.usable(endpoint):
                try:
                    return self._state(endpoint)
                except ClientError:
                    continue
        return None

    def _runs_on(self, group: _LeftGroup) -> bool:
        """Whether the process that acknowledged a group still runs, and so has it."""
        if group.process is None:
            return False
        return self._daemons.connection(group.endpoint).process(LOOK_S) == group.process

    def _is_keyed(self, endpoint: str) -> bool:
        """Whether the table has a primary key."""
        namespace, table = self.table
        body = {"namespace": namespace, "table": table}
        try:
            (found,) = self._daemons.connection(endpoint).act(
                "describe_table", body, LOOK_S, once=True
            )
        except (NotFound, Unimplemented):
            return False
        return bool(found.get("primary_key"))

    def _state(self, endpoint: str) -> OriginState:
        namespace, table = self.table
        body = {"origin": self.origin, "namespace": namespace, "table": table}
        connection = self._daemons.connection(endpoint)
        (found,) = connection.act("origins", body, LOOK_S, once=True)[:1] or [{}]
        return msgspec.convert({"origin": self.origin, **found}, OriginState)


def _sequence(batch: Pending) -> int:
    return batch.sequence or 0


class OwnWrites:
    """The writers of one client, for its queries. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writers: weakref.WeakSet[UndurableBatches] = weakref.WeakSet()

    def add(self, undurable: UndurableBatches) -> None:
        """Add a writer."""
        with self._lock:
            self._writers.add(undurable)

    def wait(self, table: tuple[str, str] | None, until: float) -> set[str]:
        """Wait until queries find everything that the client's writers got acknowledged.

        Args:
            table: The table that the query reads; None for any.

        Returns:
            The unreachable daemons that may have some of it.

        Raises:
            Unavailable: Some of it is still being sent again at ``until``.
        """
        with self._lock:
            writers = [
                each
                for each in self._writers
                if (table is None or each.table == table) and not each.idle
            ]
        return {endpoint for each in writers for endpoint in _waited(each, until)}


def _waited(undurable: UndurableBatches, until: float) -> Iterable[str]:
    while True:
        visible, unreachable = undurable.visible()
        if visible:
            return unreachable
        if time.monotonic() >= until:
            raise Unavailable(
                f"origin {undurable.origin!r}: rows that this client has written to"
                f" {'/'.join(undurable.table)} may have been lost with a daemon, are being sent"
                " again, and are not in any answer yet: try again, or give the query more time"
                " (timeout_s)",
                code="unavailable",
                details={"origin": undurable.origin},
            )
        time.sleep(AGAIN_S)
