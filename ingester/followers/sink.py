"""The interface of a sink, which keeps the local copy of one table and its states.

    on_recovery                     a state was found: later rows follow
    on_start_version                a copy begins, visible (current) or beside the visible one
      put, delete, …                rows and keys, in any number
    on_end_version                  the copy has caught up and becomes what readers see
      put, delete, …                live
    close

The engine calls a sink from one thread at a time and never after ``close``. Consecutive calls may
come from different threads. The sinks of different tables are made and called concurrently, so what
they share needs a lock. An error raised by a call ends the follower of that table with its
state unchanged; the only call that follows is ``close``.

A table without a primary key is a bag of rows: only ``put`` adds to it. Its rows come in groups. A
group holds the rows that arrived live at one time for one partition and has a rising number; rows
read from files have the number 0. If the table's files turn out to differ from what arrived live (a
daemon lost its disk, an origin moved to another daemon), groups are taken back and files are read
instead: see :class:`TakesBack`. In a table with a primary key, ``put`` replaces rows; no key occurs
twice in one ``put``, or in a ``put`` and the ``delete`` before it.

A push may switch a table to another version of the table. The factory makes one sink per version,
and ``FollowedTable.table_version`` names it. The copy of a new version begins beside the visible
one, or is recovered, and replaces it at its ``on_end_version``: that is the switch. The sink of the
former version is closed before. :class:`KeepsVersions` lets a copy be prepared while the former one
is live.

A sink declares optional abilities by having the methods of :class:`Transactional`,
:class:`TakesBack`, :class:`TakesFiles` or :class:`KeepsVersions`.
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
"""The names of the hidden columns of :meth:`Rows.tagged`; no table has columns of these names."""
_ROOM, _FORMER_ROOM = "ingester.followers.", "ingester.client.follower."
"""Stored states name the sinks of this room by the room's former name."""
FROM_FILES = 0
"""The group number of rows that were read from files."""
StateKey = PartitionKey
"""The key of a state: namespace, table, table version and partition."""


@dataclass(frozen=True, slots=True)
class FollowedTable:
    """A followed table and the selected part of it.

    Attributes:
        schema: The columns of the copy, in the table's order and types. If the table gets new
            columns, later rows have them and the sink adds them. Columns never disappear or change
            their type.
        primary_key: Empty for a table without one.
        columns: The selected columns; None selects all, including future ones.
        filter: The selected rows, in the form of :meth:`ingester.client.Client.query`.
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
        """Whether a row replaces an earlier row with the same key."""
        return bool(self.primary_key)

    def key(self, partition: str = "") -> StateKey:
        """The key of a state of this table."""
        return StateKey(self.namespace, self.table, self.table_version, partition)


class Run(NamedTuple):
    """A number of consecutive rows that belong to one partition and one group."""

    part: str
    at: int
    rows: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows to put, and the partition and group of each.

    Attributes:
        batch: The columns of :class:`FollowedTable`, followed by columns the table got since.
        runs: The partition and group of the rows, in row order.
    """

    batch: pa.Table
    runs: tuple[Run, ...]

    def tagged(self) -> pa.Table:
        """The rows with two more columns: :data:`PART` (dictionary) and :data:`AT` (int64)."""
        names = list(dict.fromkeys(run.part for run in self.runs))
        places = {name: place for place, name in enumerate(names)}
        counts = pa.array([run.rows for run in self.runs], pa.int32())
        numbers = _repeated([places[run.part] for run in self.runs], counts, pa.int32())
        part = pa.DictionaryArray.from_arrays(numbers, pa.array(names, pa.string()))
        at = _repeated([run.at for run in self.runs], counts, pa.int64())
        return self.batch.append_column(PART, part).append_column(AT, at)


class FileRows(NamedTuple):
    """A local Parquet file, all rows of which are put as group :data:`FROM_FILES`.

    Columns that the file lacks are null. Columns that the copy does not have are ignored.
    """

    path: str
    part: str
    rows: int
    columns: tuple[str, ...]
    """The columns of the copy that the file has."""


class FollowerSink(ABC):
    """Keeps the copy of one table. A factory makes it from the :class:`FollowedTable`."""

    @abstractmethod
    def on_start_version(self, partitions: Sequence[str], is_current: bool) -> None:
        """Begin an empty copy of these partitions; more partitions may follow.

        Args:
            is_current: Readers see the copy from the start, because there is no earlier one.
                Otherwise they see the earlier copy until :meth:`on_end_version`. A copy that was
                begun and never ended is discarded.
        """

    @abstractmethod
    def put(self, rows: Rows) -> None:
        """Add rows; in a table with a primary key they replace rows with the same key."""

    @abstractmethod
    def delete(self, keys: pa.Table) -> None:
        """Remove the rows with these keys (the primary key's columns); unknown keys are fine."""

    @abstractmethod
    def on_end_version(self, current: bool) -> None:
        """The copy that was begun last now has everything that the table has.

        Args:
            current: The copy becomes what readers see, in place of any earlier one. If false, it
                was given up and is removed.
        """

    def on_recovery(self) -> None:  # noqa: B027 (optional)
        """A state was found and the copy continues from it.

        Without transactions, rows after the state may come twice: the same rows in the same order,
        not always in the same groups.
        """

    def close(self) -> None:  # noqa: B027 (optional)
        """Release everything; the last call."""

    def checkpoint_store(self) -> CheckpointStore | None:
        """The sink's own store for states; with None the daemon keeps them."""
        return None

    def fingerprint(self) -> str:
        """The inputs of the copy besides the table; a changed value rebuilds the copy.

        By default it is the class's ``version`` if it has one, else a hash of its source code.
        """
        kind = type(self)
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name.startswith(_ROOM):
            name = _FORMER_ROOM + name.removeprefix(_ROOM)
        version = getattr(kind, "version", None)
        if version is not None:
            return f"{name}:{version}"
        try:
            source = inspect.getsource(kind)
        except (OSError, TypeError):  # made without a file
            return name
        return hashlib.sha256(source.encode()).hexdigest()


@runtime_checkable
class Transactional(Protocol):
    """A sink that commits rows and states atomically."""

    def transaction(self) -> AbstractContextManager[None]:
        """Commit all calls inside the block, including states in the sink's own store, at its end.

        If the block raises, none of them takes effect. Every call but ``close`` is made inside such
        a block.
        """


@runtime_checkable
class TakesBack(Protocol):
    """A sink that removes rows by partition and group. Without it a copy is rebuilt instead."""

    def take_back(self, part: str, groups: Sequence[int]) -> None:
        """Remove the rows of these groups from a partition."""

    def take_back_all(self, part: str, keep: Sequence[int] = ()) -> None:
        """Remove all rows of a partition except those of the groups to keep."""


@runtime_checkable
class TakesFiles(Protocol):
    """A sink that reads local Parquet files itself. Used only without a filter."""

    def put_files(self, files: Sequence[FileRows]) -> None:
        """Add the rows of files, as :meth:`FollowerSink.put` would."""


@runtime_checkable
class KeepsVersions(Protocol):
    """A sink that keeps copies of several versions of a table, each with its states.

    The sink of a coming version is then called while that of the present one is live: in turns,
    never at once, in transactions of their own. Neither may touch the other's rows. Without this
    ability a new version is copied after the switch, and readers see the former one until then.
    """

    def drop_version(self, table_version: int) -> None:
        """Remove the copy of another version, if there is one. The sink of that one is closed."""


def _repeated(values: Sequence[int], counts: pa.Array, kind: pa.DataType) -> pa.Array:
    ends = pc.cumulative_sum(counts)
    runs = pa.RunEndEncodedArray.from_arrays(ends, pa.array(values, kind))
    return pc.run_end_decode(runs)
