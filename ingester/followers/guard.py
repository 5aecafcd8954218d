"""A sink as the engine calls it: every call is timed, and what it raises says which call it was.

Law of this file: an error of a sink is never taken for one of the daemon or the store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa

from ingester.client.errors import ClientError
from ingester.followers.errors import SinkFailed
from ingester.followers.sink import (
    CheckpointStore,
    FileRows,
    FollowerSink,
    KeepsVersions,
    Rows,
    TakesBack,
    TakesFiles,
    Transactional,
)

T = TypeVar("T")
Observer = Callable[[str, float, BaseException | None], None]
"""Is told of each call: its name, its seconds, and what it raised."""


class Closed(Exception):
    """The follower is to end: what it does is broken off."""


class Guard:
    """Calls one sink."""

    def __init__(
        self, sink: FollowerSink, observer: Observer, closing: Callable[[], bool] = lambda: False
    ) -> None:
        """``closing`` says when no more is to be called: then calls raise :class:`Closed`."""
        self._sink = sink
        self._observer = observer
        self._closing = closing
        self.transactional = isinstance(sink, Transactional)
        self.takes_back = isinstance(sink, TakesBack)
        self.takes_files = isinstance(sink, TakesFiles)
        self.keeps_versions = isinstance(sink, KeepsVersions)

    def start_version(self, partitions: Sequence[str], is_current: bool) -> None:
        """Begin a copy."""
        self._call("on_start_version", self._sink.on_start_version, partitions, is_current)

    def end_version(self) -> None:
        """Show the copy."""
        self._call("on_end_version", self._sink.on_end_version, True)

    def recovery(self) -> None:
        """Go on from a state."""
        self._call("on_recovery", self._sink.on_recovery)

    def put(self, rows: Rows) -> None:
        """Add rows, if there are any."""
        if rows.batch.num_rows:
            self._call("put", self._sink.put, rows)

    def put_files(self, files: Sequence[FileRows]) -> None:
        """Add the rows of local files."""
        assert isinstance(self._sink, TakesFiles)
        self._call("put_files", self._sink.put_files, files)

    def delete(self, keys: pa.Table) -> None:
        """Remove keys, if there are any."""
        if keys.num_rows:
            self._call("delete", self._sink.delete, keys)

    def take_back(self, part: str, groups: Sequence[int]) -> None:
        """Remove groups of a partition."""
        assert isinstance(self._sink, TakesBack)
        self._call("take_back", self._sink.take_back, part, groups)

    def take_back_all(self, part: str, keep: Sequence[int]) -> None:
        """Empty a partition but for some groups."""
        assert isinstance(self._sink, TakesBack)
        self._call("take_back_all", self._sink.take_back_all, part, keep)

    def drop_version(self, table_version: int) -> None:
        """Throw away the copy of another version of the table."""
        assert isinstance(self._sink, KeepsVersions)
        self._call("drop_version", self._sink.drop_version, table_version)

    def own_store(self) -> CheckpointStore | None:
        """The sink's own store for states."""
        return self._call("checkpoint_store", self._sink.checkpoint_store)

    def fingerprint(self) -> str:
        """What the copy depends on beside the table."""
        return self._call("fingerprint", self._sink.fingerprint)

    def close(self) -> None:
        """Let the sink go."""
        self._closing = lambda: False
        self._call("close", self._sink.close)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What is called inside is kept together, where the sink can."""
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
