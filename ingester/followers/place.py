"""The place of a copy: its sink, called and timed, and its state.

A state never claims more than the rows that are in the sink. A state kept by the sink is written in
the transaction of its rows; a state kept at the daemon is written after it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from ingester.client.checkpoints import DaemonCheckpointStore
from ingester.client.connection import Connection
from ingester.client.errors import ClientError, InvalidRequest
from ingester.followers.errors import SinkFailed
from ingester.followers.fold import Seen
from ingester.followers.sink import (
    CheckpointStore,
    FileRows,
    FollowerSink,
    KeepsVersions,
    Rows,
    StateKey,
    TakesBack,
    TakesFiles,
    Transactional,
)
from ingester.followers.state import (
    FeedPosition,
    FollowState,
    Ledger,
    decode_state,
    encode_state,
)

STATES = "follower/"
"""The prefix of a state's name at the daemon, where sources keep their states as well."""
LATER_STATES = "follower-v{}/"
"""The same for table versions after the first. A switch keeps the states of all versions."""

T = TypeVar("T")
CallObserver = Callable[[str, float, BaseException | None], None]
"""Called after each call of a sink with its name, its seconds, and its error."""


class RebuildNeeded(Exception):
    """The copy cannot be corrected in place and has to be filled from the beginning."""


class Closed(Exception):
    """The follower is closing; the current work is abandoned."""


class Closing:
    """Tells the threads of a follower to stop, and wakes them. Any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._closed = False

    def __call__(self) -> bool:
        """Whether the follower is closing."""
        return self._closed

    def close(self) -> None:
        """Tell all threads to stop."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Sleep. Raises :class:`Closed` as soon as the follower is closing."""
        with self._changed:
            if self._changed.wait_for(lambda: self._closed, seconds):
                raise Closed

    def wake(self) -> None:
        """Make :meth:`wait_for` check its condition again."""
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, holds: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until a condition holds; it is checked after each :meth:`wake`."""
        with self._changed:
            return self._changed.wait_for(holds, timeout_s)


class SinkCalls:
    """Calls one sink. Each call is timed, and an error names the call that raised it.

    An error of a sink is never mistaken for one of the daemon or the store.
    """

    def __init__(
        self,
        sink: FollowerSink,
        observer: CallObserver,
        closing: Callable[[], bool] = lambda: False,
    ) -> None:
        """Once ``closing`` returns true, calls raise :class:`Closed`."""
        self._sink = sink
        self._observer = observer
        self._closing = closing
        self.transactional = isinstance(sink, Transactional)
        self.takes_back = isinstance(sink, TakesBack)
        self.takes_files = isinstance(sink, TakesFiles)
        self.keeps_versions = isinstance(sink, KeepsVersions)

    def start_version(self, partitions: Sequence[str], is_current: bool) -> None:
        self._call("on_start_version", self._sink.on_start_version, partitions, is_current)

    def end_version(self) -> None:
        self._call("on_end_version", self._sink.on_end_version, True)

    def recovery(self) -> None:
        self._call("on_recovery", self._sink.on_recovery)

    def put(self, rows: Rows) -> None:
        if rows.batch.num_rows:
            self._call("put", self._sink.put, rows)

    def put_files(self, files: Sequence[FileRows]) -> None:
        assert isinstance(self._sink, TakesFiles)
        self._call("put_files", self._sink.put_files, files)

    def delete(self, keys: pa.Table) -> None:
        if keys.num_rows:
            self._call("delete", self._sink.delete, keys)

    def take_back(self, part: str, groups: Sequence[int]) -> None:
        assert isinstance(self._sink, TakesBack)
        self._call("take_back", self._sink.take_back, part, groups)

    def take_back_all(self, part: str, keep: Sequence[int]) -> None:
        assert isinstance(self._sink, TakesBack)
        self._call("take_back_all", self._sink.take_back_all, part, keep)

    def drop_version(self, table_version: int) -> None:
        assert isinstance(self._sink, KeepsVersions)
        self._call("drop_version", self._sink.drop_version, table_version)

    def own_store(self) -> CheckpointStore | None:
        return self._call("checkpoint_store", self._sink.checkpoint_store)

    def fingerprint(self) -> str:
        return self._call("fingerprint", self._sink.fingerprint)

    def close(self) -> None:
        self._closing = lambda: False
        self._call("close", self._sink.close)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction of the sink; without effect if it has none."""
        if not isinstance(self._sink, Transactional):
            yield
            return
        inside, began = True, 0.0
        try:
            with self._sink.transaction():
                yield
                inside, began = False, time.monotonic()
        except Exception as exc:
            if inside or isinstance(exc, ClientError):
                raise
            self._observer("commit", time.monotonic() - began, exc)
            raise self._failed("transaction", exc) from exc
        self._observer("commit", time.monotonic() - began, None)

    def _call(self, name: str, call: Callable[..., T], *arguments: Any) -> T:
        if self._closing():
            raise Closed
        began = time.monotonic()
        error: BaseException | None = None
        try:
            return call(*arguments)
        except ClientError as exc:
            error = exc
            raise
        except Exception as exc:
            error = exc
            raise self._failed(name, exc) from exc
        finally:
            self._observer(name, time.monotonic() - began, error)

    def _failed(self, name: str, exc: BaseException) -> SinkFailed:
        return SinkFailed(
            f"sink {type(self._sink).__qualname__}, {name}: {str(exc) or type(exc).__name__}"
        )


class DaemonStates:
    """The :class:`CheckpointStore` of one follower at the daemon.

    Names distinguish followers and table versions, so a state is found whichever version the table
    is at.

    Raises:
        InvalidRequest: The follower has no name.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        if not name:
            raise InvalidRequest(
                "a follower whose states are kept at the daemon needs a name, such as"
                " name='reports', which distinguishes its states from those of others"
            )
        self._connection = connection

    def get(self, key: StateKey) -> bytes | None:
        return self._of(key).get(key)

    def put(self, key: StateKey, state: bytes) -> None:
        self._of(key).put(key, state)

    def delete(self, key: StateKey) -> None:
        self._of(key).delete(key)

    def versions(self, key: StateKey, upto: int) -> list[int]:
        """The versions, up to one, that have a state under the key's name; a single call."""
        table = {"namespace": key.namespace, "table": key.table}
        known = {each["partition"] for each in self._connection.act("checkpoints", table)}
        names = {version: _prefix(version) + key.partition for version in range(1, upto + 1)}
        return [version for version, name in names.items() if name in known]

    def _of(self, key: StateKey) -> CheckpointStore:
        prefix = _prefix(key.table_version)
        return DaemonCheckpointStore(self._connection.act, prefix, of_any_version=True)


def _prefix(version: int) -> str:
    return STATES if version == 1 else LATER_STATES.format(version)


@dataclass(frozen=True, slots=True)
class SinkPlace:
    """The sink of a copy and the store of its state.

    Attributes:
        own: The sink keeps the states itself, in its transactions if it has any.
        name: Distinguishes copies whose states are in one store.
    """

    sink: SinkCalls
    states: CheckpointStore
    own: bool = True
    name: str = ""


class StateKeeper:
    """The state of a copy and its ledger of groups, written with the rows. One thread."""

    def __init__(self, place: SinkPlace, key: StateKey, state: FollowState, ledger: Ledger) -> None:
        self.state = state
        self.ledger = ledger
        self._sink, self._states = place.sink, place.states
        self._key = key
        self._own = place.own
        self._deferred = place.sink.transactional and not place.own
        self._due: list[bytes] = []

    @property
    def seen(self) -> Seen:
        """The operations that the copy has."""
        return Seen(self.state.ingester_id, self.state.position, self.state.floor)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit the sink's calls inside the block and the states, atomically if possible."""
        self._due.clear()
        with self._sink.transaction():
            yield
        for data in self._due[-1:]:
            self._states.put(self._key, data)

    def set(self, **changes: Any) -> None:
        """Change the state and write it with the present groups. Inside a transaction."""
        self.state = msgspec.structs.replace(self.state, **changes)
        data = encode_state(self.state, self.ledger)
        if self._deferred:
            self._due.append(data)
        else:
            self._states.put(self._key, data)

    def pass_over(self, position: FeedPosition) -> bool:
        """Advance over operations that hold nothing for the copy, without writing the state.

        Returns:
            False if the sink keeps the state: then :meth:`set` has to write it. Writing a state to
            the daemon would be an operation itself, followed by another position; the earlier state
            serves as well.
        """
        if not self._own:
            self.state = msgspec.structs.replace(self.state, position=position)
        return not self._own

    def read(self) -> None:
        """Return to the stored state after an error.

        Raises:
            RebuildNeeded: No state is stored, or a file may be partly put.
        """
        with self._sink.transaction():
            data = self._states.get(self._key)
        if data is None:
            raise RebuildNeeded
        self.state, self.ledger = decode_state(data)
        if self.state.filled is not None and not self._sink.transactional:
            raise RebuildNeeded
