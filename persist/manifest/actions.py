"""The actions that a manifest version consists of.

Law of this file: plain values, one JSON object a line in a changelog, told apart by ``action``.
Fields are never renamed or reused; an unknown field or action is refused, because a reader that
skipped it would show a table that nobody committed.

Paths of data files are relative to the table version's folder (``data/time_day=…/….parquet``).
Partition values stand in the order of the spec's fields. Sequences are inclusive. Times are ISO
8601 by the store's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

Value = str | int | bool | None
Values = tuple[Value, ...]
PartitionKey = tuple[int, Values]
AppliedKey = tuple[str, int, int, Values]


class ColumnStats(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Bounds of one column of one file; a bound of None is unknown, and prunes nothing.

    What JSON has no form for (timestamps, decimals, binary) is written as text by the encoder of
    the file. Infinities and NaN become None on the way through JSON.
    """

    min: str | int | float | bool | None = None
    max: str | int | float | bool | None = None
    nulls: int | None = None


# gc=False: a state holds as many of these as there are files, none of them can be part of a cycle,
# and without it each collection would walk them all.
class Add(
    msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag_field="action", tag="add"
):
    """A data file becomes part of the table.

    ``footer_crc32c``: the checksum of the file from the first byte of its Parquet footer to its
    last byte; None in entries that are older than this field.
    """

    path: str
    kind: Literal["persist", "rewrite", "push"]
    rows: int
    bytes: int
    spec_id: int
    values: Values
    stats: Mapping[str, ColumnStats]
    writer: str
    epoch: int
    first_seq: int
    last_seq: int
    schema_id: int
    at: str
    footer_crc32c: int | None = None

    @property
    def partition(self) -> PartitionKey:
        """The partition that the file belongs to: (spec id, values)."""
        return (self.spec_id, self.values)

    @property
    def applied_key(self) -> AppliedKey:
        """The key of :class:`Applied` for the operations that the file holds."""
        return (self.writer, self.epoch, self.spec_id, self.values)


class _Action(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="action"):
    """The root of all other actions: immutable, strict, tagged."""


class Remove(_Action, frozen=True, tag="remove"):
    """A data file is no longer part of the table."""

    path: str
    reason: str


class Schema(_Action, frozen=True, tag="schema"):
    """This schema is the current one. ``arrow``: base64 of the schema as an Arrow IPC message."""

    schema_id: int
    arrow: str


class Spec(_Action, frozen=True, tag="spec"):
    """This partition spec is the current one, ``("day(time)",)``; files keep the one they have."""

    spec_id: int
    fields: tuple[str, ...]


TRANSFORMERS = "transformers"
"""The one property that changes in a table's life: the classes that its batches go through."""


class Properties(_Action, frozen=True, tag="properties"):
    """All properties of the table from now on: primary_key, sort_by, timestamp_unit, …"""

    values: dict[str, Any]


class Writer(_Action, frozen=True, tag="writer"):
    """The newest process under this id; it fences those with lower epochs."""

    ingester_id: str
    incarnation: str
    epoch: int
    state: Literal["open", "closed"]


class Owner(_Action, frozen=True, tag="owner"):
    """The one daemon that takes writes of a keyed table, and where clients find it."""

    ingester_id: str
    epoch: int
    endpoint: str = ""


class Applied(_Action, frozen=True, tag="applied"):
    """The ingester's operations of this epoch and partition up to ``seq`` are in files."""

    ingester_id: str
    epoch: int
    spec_id: int
    values: Values
    seq: int

    @property
    def key(self) -> AppliedKey:
        """The ingester, epoch and partition: everything but the sequence."""
        return (self.ingester_id, self.epoch, self.spec_id, self.values)


class EpochComplete(_Action, frozen=True, tag="epoch_complete"):
    """All that the ingester logged under this epoch is in files; replaces its ``applied``."""

    ingester_id: str
    epoch: int


class OriginAhead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An origin's sequences up to ``seq`` are in files of one partition of this table."""

    spec_id: int
    values: Values
    seq: int


class OriginRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The sequences of an origin from ``first`` up to the next run's, and whose they are.

    No other process commits them. Of the first run ``complete`` and ``ahead`` are those of
    the :class:`Origin` itself.
    """

    first: int
    owner_id: str
    owner_epoch: int
    complete: int | None = None
    ahead: tuple[OriginAhead, ...] = ()


class Origin(_Action, frozen=True, tag="origin"):
    """An origin's progress in files: all up to ``complete``, and further per partition.

    ``runs``: the sequences of each process, where the origin went from one to another; those below
    the first run are in files. ``at``: the time of the last write, by the store's clock.
    """

    name: str
    owner_id: str
    owner_epoch: int
    complete: int | None
    ahead: tuple[OriginAhead, ...]
    runs: tuple[OriginRun, ...] = ()
    at: str | None = None


class OriginExpired(_Action, frozen=True, tag="origin_expired"):
    """An origin that was last written at this time, and not since, is forgotten."""

    name: str
    at: str | None


class SharedState(_Action, frozen=True, tag="shared_state"):
    """Bytes (base64) that checkpoints refer to by their SHA-256; kept while one of them does."""

    id: str
    state: str


class Checkpoint(_Action, frozen=True, tag="checkpoint"):
    """A client's own state (base64) for a partition of its source; None says that it is deleted.

    The operation that brought it is (``ingester_id``, ``epoch``, ``seq``), at the time ``at`` by
    that daemon's clock. ``origin`` and ``sequence`` are the client's name and number of it, where
    it had any. ``shared``: the id of a :class:`SharedState` that belongs to it.
    """

    partition: str
    state: str | None
    shared: str | None = None
    ingester_id: str = ""
    epoch: int = 0
    seq: int = 0
    origin: str | None = None
    sequence: int | None = None
    at: str | None = None

    def replaces(self, other: Checkpoint | None) -> bool:
        """Tell whether this one is the newer of two of a partition; True where there is no other.

        Of one origin the higher sequence counts, of one daemon the later operation. Between two
        daemons and no common origin the clock has to tell.
        """
        if other is None:
            return True
        if (
            self.sequence is not None
            and other.sequence is not None
            and self.origin == other.origin
            and self.sequence != other.sequence
        ):
            return self.sequence > other.sequence
        if self.ingester_id == other.ingester_id:
            return (self.epoch, self.seq) > (other.epoch, other.seq)
        return (_moment(self.at), self.epoch) > (_moment(other.at), other.epoch)


def decoded_size(state: str | None) -> int:
    """Count the bytes of a state that is base64; 0 where there is none."""
    return 0 if state is None else len(state) // 4 * 3 - state[-2:].count("=")


class Horizon(_Action, frozen=True, tag="horizon"):
    """Clean-up may delete unlisted files uploaded before this time."""

    at: str


class Txn(_Action, frozen=True, tag="txn"):
    """A foreign exactly-once writer (Spark) has committed up to this version of its own."""

    app_id: str
    version: int


_PUSHES = "_push/"


def push_mark(push_id: str, name: str) -> str:
    """The ``app_id`` under which a push says something of the table version that it makes."""
    return f"{_PUSHES}{push_id}/{name}"


def is_push_mark(app_id: str) -> bool:
    """Whether a :class:`Txn` says something of its table version alone."""
    return app_id.startswith(_PUSHES)


Why = Literal["swap", "rollback"]


# What has its usual value is left out: an older reader knows it so.
class Sealed(_Action, frozen=True, tag="sealed", omit_defaults=True):
    """This table version takes nothing any more: the table version ``next`` takes its place.

    ``switch``: the number under ``_current/`` that says so next. ``carry``: whether the rows that
    were streamed into this version since it came from ``next`` go back there with it. ``since``:
    those that came after this version of its manifest go along to a version that is new.
    ``reshape``: ``next`` has columns, partitions and a key of its own, and none of these.
    """

    next: int
    switch: int
    push_id: str | None = None
    why: Why = "swap"
    carry: bool = False
    since: int | None = None
    reshape: bool = False


class Unsealed(_Action, frozen=True, tag="unsealed"):
    """This table version is the one that counts again, by the switch of this number."""

    switch: int


class Imported(_Action, frozen=True, tag="imported", rename={"table_version": "from"}):
    """All that the table version ``from`` knew of its writers when it was sealed is known here.

    ``manifest_version`` and ``uid`` are those of the seal; ``into``: the version of this manifest
    that the action itself is in.
    """

    table_version: int
    manifest_version: int
    uid: str
    switch: int
    into: int


OtherAction = (
    Remove
    | Schema
    | Spec
    | Properties
    | Writer
    | Owner
    | Applied
    | EpochComplete
    | Origin
    | OriginExpired
    | SharedState
    | Checkpoint
    | Horizon
    | Txn
    | Imported
    | Unsealed
    | Sealed
)
Action = Add | OtherAction


class WriterIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The process that commits: its name, this one run of it, and its claimed epoch."""

    ingester_id: str
    incarnation: str
    epoch: int


def parse_time(text: str) -> datetime | None:
    """The moment that ``text`` names, in UTC; None where it names none.

    Times are ISO 8601 by the store's clock, compared as moments and not as text: stores differ in
    how fine their clocks are, so the same moment has more than one spelling.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _moment(text: str | None) -> datetime:
    moment = None if text is None else parse_time(text)
    return datetime.min.replace(tzinfo=UTC) if moment is None else moment


def is_before(text: str, horizon: str) -> bool:
    """Whether the time ``text`` is before ``horizon``, or cannot be told not to be."""
    at, limit = parse_time(text), parse_time(horizon)
    return at is None or limit is None or at < limit
