"""What streams of writes hold between their batches: the dictionaries that they have sent.

    a dictionary came ── held as long as its stream ── room for another's? ── yes
                                                            └─ no: the silent stream that holds
                                                               most is cut, else who asks is refused

A dictionary stays for the batches that come, in the decompression pool where it was compressed, or
as gRPC received it. A client that sends some and falls silent would keep others from their share
for ever, at no cost.

Law of this file: what is held is counted, and has a bound for all streams together; only a stream
that waits for its client, and has for ``silent_s``, is cut, and only when somebody waits for what
it holds: dictionaries as they were received, or room in the pool.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import structlog

from ingester.errors import MemoryFull

log = structlog.get_logger(__name__)

SILENT_S = 5.0
WORTH_BYTES = 1 << 20
"""A stream that holds less is not cut: nothing is won."""
RETRY_S = 0.5


@dataclass(eq=False, slots=True)
class Hoard:
    """What one stream holds. Its own thread writes, others read."""

    peer: str
    """The client's connection, as gRPC names it."""
    at: float
    """The time since when its next message is waited for, or was last."""
    waits: bool = False
    """Whether its next message is waited for."""
    batches: int = 0
    """The number of batches that were read of it."""
    account: Any = None
    """The stream's account of the decompression pool; None where there is none."""
    received_bytes: int = 0
    """Bytes of its dictionaries outside the pool."""
    dictionaries: list[int] | None = field(default=None)
    """The columns that have dictionaries; None before the first batch."""

    @property
    def pooled_bytes(self) -> int:
        """Bytes that it holds of the decompression pool."""
        return 0 if self.account is None else int(self.account.bytes_allocated())


class Progress(NamedTuple):
    """What the streams of one peer have come to."""

    batches: int
    waits: bool
    """Whether one of them waits for its client, and not its client for the daemon."""
    streams: int = 1


class Hoards:
    """What all streams hold. Any thread.

    Args:
        most_bytes: of dictionaries outside the pool, of all streams.
        cut: ends the connection of a peer; says whether there was one.
        silent_s: the time after which a stream counts as silent.
        now: the clock.
    """

    def __init__(
        self,
        most_bytes: int,
        cut: Callable[[str], bool],
        silent_s: float = SILENT_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most_bytes = most_bytes
        self._cut = cut
        self._silent_s = silent_s
        self._now = now
        self._lock = threading.Lock()
        self._all: set[Hoard] = set()
        self._received_bytes = 0

    @property
    def nbytes(self) -> int:
        """The bytes of dictionaries that are held outside the pool."""
        return self._received_bytes

    def join(self, peer: str, account: Any) -> Hoard:
        """Open the hoard of a stream that begins."""
        hoard = Hoard(peer, self._now(), account=account)
        with self._lock:
            self._all.add(hoard)
        return hoard

    def leave(self, hoard: Hoard) -> None:
        """Forget a stream that has ended."""
        with self._lock:
            self._all.discard(hoard)
            self._received_bytes -= hoard.received_bytes
            hoard.received_bytes = 0

    def took(self, hoard: Hoard, batch: pa.RecordBatch, is_pooled: bool) -> None:
        """Count the dictionaries of a batch that was read.

        Raises:
            MemoryFull: there is no room for them, and nobody silent holds any.
        """
        if hoard.dictionaries is None:
            kinds = enumerate(batch.schema.types)
            hoard.dictionaries = [index for index, kind in kinds if has_dictionary(kind)]
        if not hoard.dictionaries or is_pooled:
            return
        nbytes = sum(_dictionary_bytes(batch.column(index)) for index in hoard.dictionaries)
        with self._lock:
            self._received_bytes += nbytes - hoard.received_bytes
            hoard.received_bytes = nbytes
            fits = self._received_bytes <= self.most_bytes
        if not fits and not self._cut_silent(lambda each: each.received_bytes):
            raise MemoryFull(
                f"memory: no room for {nbytes} B of dictionaries beside those of open streams; end"
                " streams that are not needed, or send these columns without dictionaries",
                retry_after_s=RETRY_S,
            )

    def progress(self) -> dict[str, Progress]:
        """Tell of each peer with streams what has come out of them."""
        found: dict[str, Progress] = {}
        with self._lock:
            for each in self._all:
                batches, waits, streams = found.get(each.peer, Progress(0, False, 0))
                found[each.peer] = Progress(
                    batches + each.batches, waits or each.waits, streams + 1
                )
        return found

    def free(self) -> bool:
        """Cut the silent stream that holds most of anything; False where none holds much."""
        return self._cut_silent(lambda each: each.pooled_bytes + each.received_bytes)

    def free_pool(self) -> bool:
        """Cut the silent stream that holds most of the decompression pool.

        Returns:
            False where nobody is silent and holds much of it.
        """
        return self._cut_silent(lambda each: each.pooled_bytes)

    def _cut_silent(self, held: Callable[[Hoard], int]) -> bool:
        """Cut the silent stream that holds most of what is wanted; False where none holds much."""
        before = self._now() - self._silent_s
        with self._lock:
            silent = [each for each in self._all if each.waits and each.at <= before]
        found = max(silent, key=held, default=None)
        if found is None:
            return False
        nbytes = held(found)
        if nbytes < WORTH_BYTES or not self._cut(found.peer):
            return False
        log.warning(
            "connection cut: a silent stream held memory that others waited for",
            peer=found.peer,
            held_bytes=nbytes,
            silent_s=round(self._now() - found.at, 1),
            runbook="connection-cut",
        )
        # It ends within moments, and is not to be cut twice.
        found.at = self._now()
        return True


def has_dictionary(kind: pa.DataType) -> bool:
    """Whether values of a type, or some within them, have a dictionary."""
    if isinstance(kind, pa.BaseExtensionType):
        return has_dictionary(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return True
    return any(has_dictionary(kind.field(index).type) for index in range(kind.num_fields))


def _dictionary_bytes(column: pa.Array) -> int:
    """The bytes of a column's dictionary; all of the column's where it lies deeper."""
    if isinstance(column, pa.DictionaryArray):
        return int(column.dictionary.get_total_buffer_size())
    return int(column.get_total_buffer_size())
