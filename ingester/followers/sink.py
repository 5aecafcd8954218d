"""The interface of a sink: what keeps the local copy of one table, and its states.

    on_recovery                     a state was found: what follows is what came after it
    on_start_version                a copy begins, in place (current) or beside the one there is
      put, delete, …                rows and keys, in any number
    on_end_version                  the copy has caught up: from now on it is what readers see
      put, delete, …                live
    close

Law of this file: an engine calls a sink from one thread at a time, and never again after ``close``.
Two puts of one table may come from two threads, but not at once. What a call raises ends the
follower of that table, with the state as it was; nothing is called again but ``close``.

A table without a primary key is a bag of rows: only ``put`` adds to it. Its rows come in groups: a
group is what came live at one time to one partition, and has a number, which rises; rows of files
have the number 0. Where files of the table turn out to hold something else than what came live (a
daemon that has lost its disk, an origin that went to another daemon), groups are taken back and
files are read instead: see :class:`TakesBack`. In a table with a primary key ``put`` replaces, and
no key comes twice in one put, nor in a put and the ``delete`` before it.

A table may be switched to another of its versions, as a push does. Each version has a sink of its
own from the same factory, and ``FollowedTable.table_version`` says which. A new version's copy
begins beside (not current), or is recovered where there was one, and takes the place of what
readers see at its ``on_end_version``: that is the switch. The former version's sink is closed
before. See :class:`KeepsVersions` for a copy that is prepared while the former one is live.

What a sink can do beyond the six calls it says by having the method: :class:`Transactional`,
:class:`TakesBack`, :class:`TakesFiles`, :class:`KeepsVersions`.
"""

from __future__ import annotations

import hashlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from ingester.client.checkpoints import CheckpointStore as CheckpointStore
from ingester.client.checkpoints import PartitionKey
from ingester.client.wire import Filter

PART, AT = "_part", "_at"
"""The names of the hidden columns of :meth:`Rows.tagged`; no table has columns of such names."""
FROM_FILES = 0
"""The group of rows that were read from files."""
StateKey = PartitionKey
"""The key of a state: states of two of them never meet."""


@dataclass(frozen=True, slots=True)
class FollowedTable:
    """A table that is followed, and what of it.

    Attributes:
        schema: The columns of the copy, in the table's order and types. The table may get more
            later: then rows have them, and a sink adds them. Columns never go or change.
        primary_key: Empty for a table without one.
        columns: The columns that were asked for; None for all, also those that come later.
        filter: The rows that were asked for, as :meth:`ingester.client.Client.query` takes it.
    """

    namespace: str
    table: str
    table_version: int
    schema: pa.Schema
    primary_key: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None
    filter: Filter | None = None

    @property
    def keyed(self) -> bool:
        """Whether a row replaces the one of the same key."""
        return bool(self.primary_key)

    def key(self, partition: str = "") -> StateKey:
        """The key of a state of this table."""
        return StateKey(self.namespace, self.table, self.table_version, partition)


class Run(NamedTuple):
    """So many rows in a row that are of one partition and one group."""

    part: str
    at: int
    rows: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows to put: the user's columns, and beside them which rows are of which partition and group.

    Attributes:
        batch: Columns as in :class:`FollowedTable`; new ones stand behind.
        runs: What the rows are of, in their order.
    """

    batch: pa.Table
    runs: tuple[Run, ...]

    def tagged(self) -> pa.Table:
        """The rows with two columns behind: :data:`PART` (dictionary) and :data:`AT` (int64)."""
        names = list(dict.fromkeys(run.part for run in self.runs))
        places = {name: place for place, name in enumerate(names)}
        counts = pa.array([run.rows for run in self.runs], pa.int32())
        numbers = _repeated([places[run.part] for run in self.runs], counts, pa.int32())
        part = pa.DictionaryArray.from_arrays(numbers, pa.array(names, pa.string()))
        at = _repeated([run.at for run in self.runs], counts, pa.int64())
        return self.batch.append_column(PART, part).append_column(AT, at)


class FileRows(NamedTuple):
    """A local Parquet file whose rows, all of them, are to be put as group :data:`FROM_FILES`.

    It may lack columns, which are null then. What it has and ``FollowedTable`` has not is left out.
    """

    path: str
    part: str
    rows: int
    columns: tuple[str, ...]
    """The columns of the copy that the file has."""


class FollowerSink(ABC):
    """Keeps the copy of one table. Made by a factory that is given the :class:`FollowedTable`."""

    @abstractmethod
    def on_start_version(self, partitions: Sequence[str], is_current: bool) -> None:
        """Begin an empty copy of these partitions; more may come.

        Args:
            is_current: Whether readers see it from the start: nothing was there before. Otherwise
                they see the earlier copy until :meth:`on_end_version`. A copy that was begun and
                never ended is thrown away.
        """

    @abstractmethod
    def put(self, rows: Rows) -> None:
        """Add rows; in a table with a primary key in the place of those with the same key."""

    @abstractmethod
    def delete(self, keys: pa.Table) -> None:
        """Remove the rows of these keys (columns of the primary key); some may not be there."""

    @abstractmethod
    def on_end_version(self, current: bool) -> None:
        """The copy that was begun last has all that the table has.

        Args:
            current: Whether it is now what readers see, in the place of any earlier one; if not,
                it was given up and goes.
        """

    def on_recovery(self) -> None:  # noqa: B027 (optional)
        """A state was found and is gone on from. Without a transaction, what came after it may
        come again: the same rows in the same order, not always in the same groups."""

    def close(self) -> None:  # noqa: B027 (optional)
        """Let go of everything; the last call."""

    def checkpoint_store(self) -> CheckpointStore | None:
        """The store for states, the sink's own; None has them kept at the daemon."""
        return None

    def fingerprint(self) -> str:
        """What the copy depends on beside the table: where it changes the copy is built anew.

        It is the class's ``version`` if it has one, else a hash of its source.
        """
        kind = type(self)
        version = getattr(kind, "version", None)
        if version is not None:
            return f"{kind.__module__}.{kind.__qualname__}:{version}"
        try:
            source = inspect.getsource(kind)
        except (OSError, TypeError):  # made without a file
            return f"{kind.__module__}.{kind.__qualname__}"
        return hashlib.sha256(source.encode()).hexdigest()


@runtime_checkable
class Transactional(Protocol):
    """A sink whose rows and states are kept together or not at all."""

    def transaction(self) -> AbstractContextManager[None]:
        """All calls inside, states in the sink's own store included, are kept at the end; none of
        them where the block raises. Every call but ``close`` then stands in such a block."""


@runtime_checkable
class TakesBack(Protocol):
    """A sink that can take rows out by partition and group. Without it a copy is built anew."""

    def take_back(self, part: str, groups: Sequence[int]) -> None:
        """Remove the rows of these groups from a partition."""

    def take_back_all(self, part: str, keep: Sequence[int] = ()) -> None:
        """Remove all rows of a partition but those of the groups to keep."""


@runtime_checkable
class TakesFiles(Protocol):
    """A sink that reads local Parquet files by itself. Asked only where there is no filter."""

    def put_files(self, files: Sequence[FileRows]) -> None:
        """Add the rows of files, as :meth:`FollowerSink.put` would."""


@runtime_checkable
class KeepsVersions(Protocol):
    """A sink that keeps copies of several versions of a table, and of each its states.

    Only then may the sink of a version that is coming be called while that of the present one is
    live, in turns, never at once, and in transactions of their own. What one does has to leave the
    other's rows alone. Without it a new version is copied after the switch, and until it is there
    readers see the former one.
    """

    def drop_version(self, table_version: int) -> None:
        """Throw away the copy of another version than the sink's own: nobody will see it any more.

        It may not be there, and its sink is closed.
        """


def _repeated(values: Sequence[int], counts: pa.Array, kind: pa.DataType) -> pa.Array:
    ends = pc.cumulative_sum(counts)
    runs = pa.RunEndEncodedArray.from_arrays(ends, pa.array(values, kind))
    return pc.run_end_decode(runs)
