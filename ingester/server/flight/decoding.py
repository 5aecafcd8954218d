"""Messages that may be compressed are decompressed into a pool of fixed size, and copied out.

    message ─ decompressed into the pool ─ size seen ─ let in ─ copied to where rows live
              does not fit: refused          too large, no memory: refused

Each stream has an account of the pool: the bytes that it holds there, and all that it asked for.
What it keeps between its batches is in :mod:`ingester.server.flight.hoards`.

Law of this file: what was decompressed leaves the pool before it waits for anything, so that the
pool has space again within the time that a batch takes to be copied. Batches that were not
compressed are never there, and cost two looks at a number.
"""

from __future__ import annotations

import re
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ingester.errors import IngesterError, InvalidRequest, MemoryFull
from ingester.memory.allocator import pool_slack_bytes
from ingester.schema.limits import ShapeLimits
from ingester.server.flight.hoards import Hoard, Hoards, has_dictionary
from ingester.server.flight.reception import decompress_into, tell_unbounded

RETRY_S = 0.25
WAIT_S = 2.0
"""The time that a stream of compressed batches waits for space before its next one is read."""
LOOK_S = 0.005
STILL_S = 0.05
"""The time in which a batch is decompressed, checked and copied out, at the most."""

_ASKED = re.compile(r"of size (\d+)")
_TOO_LARGE, _NEVER = "capacity too large", 2**63 - 1
"""Arrow's message where it does not even ask for so much, and the size that it stands for."""


class Decoding:
    """The pool into which batches are decompressed, and the accounts of its streams. Any thread.

    Args:
        pool: a memory pool; None where there is none with a bound.
        pool_bytes: the size of the pool.
        max_batch_bytes: ``flight.max_batch_bytes``.
        hoards: what streams hold between their batches.
    """

    def __init__(self, pool: Any, pool_bytes: int, max_batch_bytes: int, hoards: Hoards) -> None:
        self._pool = pool
        self.hoards = hoards
        self._enough_bytes = pool_bytes - pool_slack_bytes() - max_batch_bytes
        self.max_batch_bytes = max_batch_bytes
        # They are used again: memory that was taken by way of one goes back by way of it.
        self._accounts: deque[Any] = deque()
        # By thread. A thread-local would not do: what Python knows of a thread of gRPC's lasts only
        # until it leaves Python again.
        self._begun: dict[int, Any] = {}
        self._callers: dict[int, str] = {}
        if pool is None:
            tell_unbounded("decompression", "there is no allocator with a pool of fixed size")
        elif not decompress_into(self._begin):
            self._pool = None

    @property
    def nbytes(self) -> int:
        """The bytes that are in the pool now."""
        return 0 if self._pool is None else int(self._pool.bytes_allocated())

    def called_by(self, peer: str) -> None:
        """Take note of whose call this thread has: the peer as its context names it."""
        self._callers[threading.get_ident()] = peer

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        """Account for the stream of this thread's call, around everything that is read of it."""
        thread = threading.get_ident()
        account = self._begun.pop(thread, None)
        hoard = self.hoards.join(self._callers.pop(thread, ""), account)
        try:
            yield Reading(self, account, hoard)
        except BaseException as exc:
            _let_go(exc)
            raise
        finally:
            self.hoards.leave(hoard)
            if account is not None:
                self._accounts.append(account)

    def wait_for_space(self) -> None:
        """Return when a batch has space, or when waiting does not help.

        A batch that does not fit then is refused. Bytes that stay are those of dictionaries, which
        are there as long as their streams: one that is silent is cut.
        """
        now = still_since = time.monotonic()
        give_up_at, before = now + WAIT_S, -1
        while (held := self.nbytes) > self._enough_bytes and now < give_up_at:
            if held != before:
                still_since, before = now, held
            elif now - still_since > STILL_S:
                if not self.hoards.free_pool():
                    return
                still_since = now
            time.sleep(LOOK_S)
            now = time.monotonic()

    def _begin(self) -> Any:
        """Open the account of a stream that begins in this thread."""
        # A call that no handler of ours had is over.
        thread = threading.get_ident()
        before = self._begun.pop(thread, None)
        if before is not None:
            self._accounts.append(before)
        account = self._begun[thread] = self._account()
        return account

    def _account(self) -> Any:
        for _ in range(len(self._accounts)):
            try:
                account = self._accounts.popleft()
            except IndexError:
                break
            if not account.bytes_allocated():
                return account
            self._accounts.append(account)
        return pa.proxy_memory_pool(self._pool)


@dataclass(frozen=True, slots=True)
class PutLimits:
    """``flight.max_batch_bytes`` and ``flight.max_unanswered``, where batches are decoded, and the
    limits of what they look like."""

    max_batch_bytes: int
    max_unanswered: int
    decoding: Decoding
    shapes: ShapeLimits


class Reading:
    """Reads one stream, and knows what it has in the pool. In the thread that reads it."""

    def __init__(self, decoding: Decoding, account: Any, hoard: Hoard) -> None:
        self._decoding = decoding
        self._hoard = hoard
        self._account = account
        self._asked_before = 0
        self._compressed = False

    def begin(self) -> None:
        """Prepare to read a message; called before each."""
        if self._account is not None:
            if self._compressed:
                self._decoding.wait_for_space()
            self._asked_before = self._account.total_bytes_allocated()
        self._hoard.at = time.monotonic()
        self._hoard.waits = True

    def took(self, batch: pa.RecordBatch) -> None:
        """Take note of a batch that was read. ``MemoryFull`` where it keeps too much."""
        hoard = self._hoard
        hoard.waits = False
        hoard.batches += 1
        if hoard.dictionaries is None or hoard.dictionaries:
            self._decoding.hoards.took(hoard, batch, self.holds_batch())

    def holds_batch(self) -> bool:
        """Whether the message that was read lies in the pool, in whole or in part."""
        if self._account is None:
            return False
        self._compressed = self._account.total_bytes_allocated() > self._asked_before
        return self._compressed

    def refusal(self, error: MemoryError) -> IngesterError:
        """The refusal of a message for which there was no memory."""
        most = self._decoding.max_batch_bytes
        asked = _ASKED.search(str(error))
        nbytes = int(asked[1]) if asked else _NEVER * (_TOO_LARGE in str(error))
        if self._account is not None:
            nbytes += self._account.total_bytes_allocated() - self._asked_before
        if nbytes <= most:
            self._decoding.hoards.free_pool()
        else:
            return InvalidRequest(
                f"a batch of the stream has {nbytes} B or more once it is decompressed;"
                f" flight.max_batch_bytes is {most}: send smaller batches"
            )
        return MemoryFull(
            "memory: no room to decompress a batch of the stream beside others, and beside the"
            " dictionaries of open streams; without compression it needs none, and one of more than"
            f" flight.max_batch_bytes ({most}) never finds any",
            retry_after_s=RETRY_S,
        )


def moved(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy rows out of the pool to where rows live, in one piece.

    The batch has to be valid: Arrow's writer goes by its offsets, wherever they lead. Columns with
    dictionaries stay: those are their stream's, and their values are made anew.
    """
    whole = [index for index, kind in enumerate(batch.schema.types) if not has_dictionary(kind)]
    kept = batch.select(whole)
    rows = pa.ipc.read_record_batch(kept.serialize(), kept.schema)
    if len(whole) == batch.num_columns:
        return rows
    columns = batch.columns
    for index, column in zip(whole, rows.columns, strict=True):
        columns[index] = column
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _let_go(error: BaseException | None) -> None:
    """Clear the frames that an error has left, so that whoever keeps it keeps no batch."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
