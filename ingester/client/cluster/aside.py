"""What a writer keeps of batches that a daemon has acknowledged which it has left since.

    acknowledged, and left ─┬─ in files, as another daemon says ──▶ let go of
                            ├─ the daemon has it ─────────────────▶ stays there, and is looked after
                            ├─ the daemon lacks it: a lost disk ──▶ sent again
                            └─ no answer of it for ``AWAY_S`` ────▶ sent again

Law of this file: what a daemon has acknowledged and has stays its own to bring into files. Whoever
sends it to another daemon has the first one hide it until it is there again, so that is done only
where the first one lacks it, or is away and can be asked by nobody.
"""

import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from ..checkpoints.checkpoint import Checkpoint
from ..connection import Process
from ..errors import ClientError, NotFound, Unavailable, Unimplemented, Unreachable
from ..retry import is_retryable
from ..window import Pending
from ..wire import OriginState, given
from .asking import is_away
from .members import Members

AWAY_S = 30.0
"""How long a daemon may be away before what it has acknowledged is sent to another one."""
LOOK_S = 5.0
"""The time in which a daemon has to say what it has."""
SETTLE_S = 60.0
"""The time that a writer waits at its close for its batches to be in object storage."""
LATE_AGAIN_S = 0.25
"""Before a daemon that is late is asked again to put into files what it has."""
AGAIN_S = 0.05
"""Between two looks of a query that waits for its own client's writers."""


NOTHING = 2**63
"""A bound above all sequences."""
_HAS_ALL = OriginState("", marks=(NOTHING,), there=(True,))
"""What a process has of what it has acknowledged itself."""


@dataclass
class _Group:
    """Batches that one daemon has acknowledged, by rising sequence."""

    endpoint: str
    batches: list[Pending]
    fenced: bool = False
    away_since: float | None = None
    error: ClientError | None = None
    """What the daemon, which is there, answers in place of what it has."""
    error_since: float = 0.0
    held: bool = False
    """Whether the daemon said at the last look that it has them."""
    process: Process | None = None
    """The process that has acknowledged them: as long as it runs, it has them."""


class Aside:
    """The batches of one writer that it has left at daemons. Any thread."""

    def __init__(self, members: Members, table: tuple[str, str], origin: str) -> None:
        self.table = table
        self.origin = origin
        self._members = members
        self._lock = threading.Lock()
        self._groups: list[_Group] = []
        self._lost: list[Pending] = []
        self._again = False
        self._ordered = False
        """Whether the daemon of the open stream takes the writes of a table with a primary key."""

    @property
    def empty(self) -> bool:
        """Whether nothing is here, or on its way from here."""
        return not self._groups and not self._lost

    @property
    def idle(self) -> bool:
        """Whether nothing is here, nor on its way again."""
        with self._lock:
            return not (self._groups or self._lost or self._again)

    @property
    def owes(self) -> bool:
        """Whether something is lost, and has to be sent again."""
        return bool(self._lost)

    @property
    def arrives(self) -> bool:
        """Whether something is being sent again."""
        return self._again

    @property
    def certain(self) -> bool:
        """Whether all of it was there at the last look."""
        return not self._lost and all(group.held for group in self._groups)

    @property
    def refusal(self) -> ClientError | None:
        """What a daemon that is there has answered for ``AWAY_S`` in place of what it has."""
        began = time.monotonic() - AWAY_S
        with self._lock:
            errors = (each.error for each in self._groups if each.error_since <= began)
            return next(filter(None, errors), None)

    def endpoints(self) -> Sequence[str]:
        """The daemons that have acknowledged what is here."""
        with self._lock:
            return list(dict.fromkeys(group.endpoint for group in self._groups))

    def put(
        self,
        endpoint: str,
        batches: list[Pending],
        error: ClientError | None,
        process: Process | None = None,
    ) -> None:
        """Put aside what a daemon's process has acknowledged; ``error`` is why it was left."""
        fenced = error is not None and error.code == "fenced"
        with self._lock:
            self._groups.append(_Group(endpoint, batches, fenced, process=process))

    def spare(self, first: int | None, endpoint: str) -> None:
        """Have other daemons put into files what a stream to ``endpoint`` would take from them.

        What is taken from one it leaves out of its answers at once, and nobody finds it until it is
        sent again. So one that is there and cannot do it now is waited for, ``AWAY_S`` at most. One
        that is away has it taken all the same.

        Args:
            first: as for :meth:`take`.
        """
        began = time.monotonic()
        while not self._ordered and (others := self._gives(first, endpoint)):
            if not [each for each in others if self._is_waited_for(each, began)]:
                self.look()
                return
            time.sleep(LATE_AGAIN_S)

    def _gives(self, first: int | None, endpoint: str) -> set[str]:
        """The daemons from which a stream to ``endpoint`` would take something."""
        with self._lock:
            least = self._least(first)
            return {
                each.endpoint
                for each in self._groups
                if each.endpoint != endpoint and _sequence(each.batches[-1]) >= least
            }

    def _is_waited_for(self, endpoint: str, began: float) -> bool:
        """Have a daemon put into files what it has; whether it is there and could not do it now.

        What was seen of it before does not count: under load a daemon that is there is late.

        Args:
            began: when it was asked first.
        """
        left_s = began + AWAY_S - time.monotonic()
        try:
            self._state(endpoint)  # whether it is there at all is said soon
            self.persist(endpoint, max(0.0, left_s))
        except ClientError as exc:
            if isinstance(exc, Unreachable):
                left_s += LOOK_S - AWAY_S
            return left_s > 0 and is_retryable(exc) and exc.code != "fenced"
        return False

    def precedes(self, sequence: int, endpoint: str) -> bool:
        """Whether something that came before a sequence is lost, or at another daemon than this."""
        with self._lock:
            oldest = [each.batches[0] for each in self._groups if each.endpoint != endpoint]
            return any(_sequence(each) < sequence for each in (*oldest, *self._lost[:1]))

    def take(self, first: int | None, endpoint: str) -> list[Pending]:
        """What a stream to ``endpoint`` has to begin with: the lost, and what it takes from others.

        Of a table with a primary key that is all that others have: of two rows of a key the one
        that comes last is the one that stays.

        Args:
            first: the sequence with which the stream would begin.
        """
        with self._lock:
            least = self._least(first)
            if self._ordered:
                least = 0  # whoever takes the table now knows files alone of what others had
            taken, self._lost = self._lost, []
            for group in self._groups:
                if group.endpoint != endpoint:
                    taken += [each for each in group.batches if _sequence(each) >= least]
                    group.batches = [each for each in group.batches if _sequence(each) < least]
            self._groups = [group for group in self._groups if group.batches]
            self._again |= bool(taken)
            return taken

    def _least(self, first: int | None) -> int:
        """The sequence with which a stream begins that sends the lost, too."""
        return min([*map(_sequence, self._lost), NOTHING if first is None else first])

    def arrived(self) -> None:
        """Note that everything that was sent again is acknowledged."""
        self._again = False

    def forget(self) -> None:
        """Let go of everything: the writer has ended."""
        with self._lock:
            self._groups, self._lost, self._again = [], [], False

    def look(self) -> None:
        """Ask what became of all that is here: what is in files goes, what is lost is owed."""
        with self._lock:
            groups = list(self._groups)
        for group in groups:
            in_files = self._in_files(group)
            self._judge(group, in_files, *self._asked(group))

    def rejoined(self, endpoint: str, process: Process | None) -> None:
        """Ask a daemon, to which a stream is open, for what it has acknowledged before.

        What it lacks is owed from here on, so that it goes out before anything newer.

        Args:
            process: the daemon's process; None where it does not say.

        Raises:
            ClientError: it does not say.
        """
        with self._lock:
            groups = [group for group in self._groups if group.endpoint == endpoint]
            elsewhere = len(groups) < len(self._groups)
        asked = [each for each in groups if process is None or each.process != process]
        self._ask(endpoint, asked)
        self._ordered = elsewhere and self._is_keyed(endpoint)

    def ask(self, endpoint: str) -> None:
        """Ask a daemon, to which a stream is about to go, for what it has acknowledged before.

        Raises:
            ClientError: it does not say.
        """
        with self._lock:
            groups = [group for group in self._groups if group.endpoint == endpoint]
        self._ask(endpoint, groups)

    def _ask(self, endpoint: str, groups: Sequence[_Group]) -> None:
        if groups:
            state = self._state(endpoint)
            for group in groups:
                self._judge(group, None, state, False)

    def _judge(
        self, group: _Group, in_files: OriginState | None, state: OriginState | None, gone: bool
    ) -> None:
        """Let go of what is in files, and owe what is lost.

        Args:
            in_files: what a daemon says that has never had the group.
            state: what the group's own daemon says, if it does.
            gone: whether that counts as gone.
        """
        with self._lock:
            if group not in self._groups:
                return
            left = group.batches
            if in_files is not None:
                left = [each for each in left if not in_files.has(_sequence(each))]
            if state is not None:
                lost = [each for each in left if not state.has(_sequence(each))]
                if in_files is None:  # nobody else can say it
                    durable = state.durable_sequence or -1
                    left = [each for each in left if _sequence(each) > durable]
            else:
                lost = left if gone else []
            missing = {id(each) for each in lost}
            group.batches = [each for each in left if id(each) not in missing]
            group.held = state is not None
            self._lost = sorted([*self._lost, *lost], key=_sequence)
            self._groups = [each for each in self._groups if each.batches]

    def persist(self, endpoint: str, within_s: float = SETTLE_S) -> None:
        """Have a daemon put the table into files.

        Raises:
            ClientError: that cannot be had.
        """
        namespace, table = self.table
        body = {"namespace": namespace, "table": table, "timeout_s": within_s}
        connection = self._members.connection(endpoint)
        connection.act("persist", body, within_s + connection.timeout_s)

    def put_state(self, endpoint: str, state: Checkpoint) -> None:
        """Give a daemon a source's state without rows.

        Raises:
            ClientError: it may not be there.
        """
        namespace, table = self.table
        body = {"namespace": namespace, "table": table, **given(msgspec.to_builtins(state))}
        self._members.connection(endpoint).act("checkpoint_put", body)

    def visible(self) -> tuple[bool, set[str]]:
        """Whether queries find all of it now, and the daemons that cannot be asked for theirs."""
        with self._lock:
            if self._again or self._lost:
                return False, set()
            wanted = [(group, list(group.batches)) for group in self._groups]
        away: set[str] = set()
        for group, batches in wanted:
            try:
                state = self._state(group.endpoint)
            except ClientError as exc:
                if self._runs_on(group):
                    continue
                if not is_away(exc):
                    return False, set()
                away.add(group.endpoint)
                continue
            if not all(state.has(_sequence(each)) for each in batches):
                return False, set()
        return True, away

    def _asked(self, group: _Group) -> tuple[OriginState | None, bool]:
        """What the daemon says, and whether it is to be counted as gone."""
        if group.fenced:
            return None, True
        try:
            state = self._state(group.endpoint)
        except ClientError as exc:
            now = time.monotonic()
            if self._runs_on(group):
                group.error = group.away_since = None
                return _HAS_ALL, False
            if not is_away(exc):
                group.error_since = now if group.error is None else group.error_since
                group.error = exc
                return None, False
            group.error, group.away_since = None, group.away_since or now
            return None, now - group.away_since >= AWAY_S
        group.error = group.away_since = None
        return state, False

    def _in_files(self, group: _Group) -> OriginState | None:
        """What another daemon says: of what it never had, it knows what is in files alone."""
        for endpoint in self._members.known:
            if endpoint != group.endpoint and self._members.usable(endpoint):
                try:
                    return self._state(endpoint)
                except ClientError:
                    continue
        return None

    def _runs_on(self, group: _Group) -> bool:
        """Whether the process runs that has acknowledged a group: it has it, store or no store."""
        if group.process is None:
            return False
        return self._members.connection(group.endpoint).process(LOOK_S) == group.process

    def _is_keyed(self, endpoint: str) -> bool:
        """Whether the table has a primary key."""
        namespace, table = self.table
        body = {"namespace": namespace, "table": table}
        try:
            (found,) = self._members.connection(endpoint).act(
                "describe_table", body, LOOK_S, once=True
            )
        except (NotFound, Unimplemented):
            return False
        return bool(found.get("primary_key"))

    def _state(self, endpoint: str) -> OriginState:
        namespace, table = self.table
        body = {"origin": self.origin, "namespace": namespace, "table": table}
        connection = self._members.connection(endpoint)
        (found,) = connection.act("origins", body, LOOK_S, once=True)[:1] or [{}]
        return msgspec.convert({"origin": self.origin, **found}, OriginState)


def _sequence(batch: Pending) -> int:
    return batch.sequence or 0


class OwnWrites:
    """The writers of one client, for its queries. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asides: weakref.WeakSet[Aside] = weakref.WeakSet()

    def add(self, aside: Aside) -> None:
        """Note another writer."""
        with self._lock:
            self._asides.add(aside)

    def wait(self, table: tuple[str, str], until: float) -> set[str]:
        """Wait until queries find what the client's writers have acknowledged.

        Returns:
            The daemons that are away and may have some of it.

        Raises:
            Unavailable: some of it is still being sent again at ``until``.
        """
        with self._lock:
            asides = [each for each in self._asides if each.table == table and not each.idle]
        return {away for each in asides for away in _waited(each, until)}


def _waited(aside: Aside, until: float) -> Iterable[str]:
    while True:
        visible, away = aside.visible()
        if visible:
            return away
        if time.monotonic() >= until:
            raise Unavailable(
                f"origin {aside.origin!r}: rows that this client has written to"
                f" {'/'.join(aside.table)} may be lost with a daemon and are being sent again, and"
                " no answer has them yet: ask again, or give the query more time (timeout_s)",
                code="unavailable",
                details={"origin": aside.origin},
            )
        time.sleep(AGAIN_S)
