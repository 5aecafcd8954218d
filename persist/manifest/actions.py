"""The actions of a manifest version: plain values, one JSON object per line of a changelog.

The key ``action`` names the kind. Fields are never renamed or reused. An unknown field or action is
refused, because a reader that skipped it would show a table that nobody committed.

Paths of data files are relative to the table version's folder (``data/time_day=…/….parquet``).
Partition values follow the order of the spec's fields. Sequences are inclusive. Times are ISO 8601
by the store's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import msgspec

Value = str | int | bool | None
Values = tuple[Value, ...]
PartitionKey = tuple[int, Values]
AppliedKey = tuple[str, int, int, Values]


class ColumnStats(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Bounds of one column of one file. A bound of None is unknown and prunes nothing.

    Values without a JSON form (timestamps, decimals, binary) are converted by the encoder of the
    file. Infinities and NaN become None in JSON.
    """

    min: str | int | float | bool | None = None
    max: str | int | float | bool | None = None
    nulls: int | None = None


# gc=False: a state holds one of these per file. They cannot be part of a cycle, and each garbage
# collection would walk them all.
class Add(
    msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag_field="action", tag="add"
):
    """A data file becomes part of the table.

    ``footer_crc32c``: the checksum from the first byte of the Parquet footer to the end of the
    file; None in entries older than this field.
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
        """The file's partition: (spec id, values)."""
        return (self.spec_id, self.values)

    @property
    def applied_key(self) -> AppliedKey:
        """The key of :class:`Applied` for the file's operations."""
        return (self.writer, self.epoch, self.spec_id, self.values)


class _Action(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="action"):
    """The base of all other actions: immutable, strict, tagged."""


class Remove(_Action, frozen=True, tag="remove"):
    """A data file is no longer part of the table."""

    path: str
    reason: str


class Schema(_Action, frozen=True, tag="schema"):
    """The current schema. ``arrow``: base64 of the schema as an Arrow IPC message."""

    schema_id: int
    arrow: str


class Spec(_Action, frozen=True, tag="spec"):
    """The current partition spec, as ``("day(time)",)``; existing files keep theirs."""

    spec_id: int
    fields: tuple[str, ...]


TRANSFORMERS = "transformers"
"""The property that holds the classes that transform the table's batches."""
PUBLISH = "publish"
"""The property that holds the formats that the table is published in."""
MAX_AGE = "max_age_s"
"""The property that holds the age of buffered rows, in seconds, at which they are flushed."""
ACK = "ack"
"""The property that holds the acknowledgement level of writes, ``disk`` or ``store``."""
CHANGEABLE = frozenset({TRANSFORMERS, PUBLISH, MAX_AGE, ACK})
"""The properties that can change; all others are fixed when the table is defined."""


class Properties(_Action, frozen=True, tag="properties"):
    """All properties of the table: primary_key, sort_by, timestamp_unit, …"""

    values: dict[str, Any]


class WriterAction(_Action, frozen=True, tag="writer"):
    """The newest process of this ingester id; it fences those with lower epochs."""

    ingester_id: str
    incarnation: str
    epoch: int
    state: Literal["open", "closed"]


class Owner(_Action, frozen=True, tag="owner"):
    """The one daemon that takes writes of a keyed table, and its address for clients."""

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
        """Ingester, epoch and partition: everything but the sequence."""
        return (self.ingester_id, self.epoch, self.spec_id, self.values)


class EpochComplete(_Action, frozen=True, tag="epoch_complete"):
    """Everything that the ingester logged under this epoch is in files; replaces its
    ``applied``.
    """

    ingester_id: str
    epoch: int


class OriginAhead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An origin's sequences up to ``seq`` are in files of one partition of this table."""

    spec_id: int
    values: Values
    seq: int


class OriginRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The owner of an origin's sequences from ``first`` up to the next run's.

    No other process commits them. ``complete`` and ``ahead`` of the first run are those of the
    :class:`OriginAction` itself.
    """

    first: int
    owner_id: str
    owner_epoch: int
    complete: int | None = None
    ahead: tuple[OriginAhead, ...] = ()


class Content(NamedTuple):
    """What an operation contained, so that a repeat with other rows is recognised."""

    rows: int
    digest: int
    """A checksum of the values."""


class SequenceContent(NamedTuple):
    """The content of one sequence of an origin, or of one version of a :class:`Txn`."""

    sequence: int
    rows: int
    digest: int


# Default values are left out, so that an older reader accepts an origin without contents.
class OriginAction(_Action, frozen=True, tag="origin", omit_defaults=True):
    """An origin's progress in files: everything up to ``complete``, and further per partition.

    ``runs``: the sequences of each process, if the origin moved between processes; those below the
    first run are in files. ``at``: the time of the last write, by the store's clock. ``contents``:
    what its newest sequences in files contained, by sequence.
    """

    name: str
    owner_id: str
    owner_epoch: int
    complete: int | None
    ahead: tuple[OriginAhead, ...]
    runs: tuple[OriginRun, ...] = ()
    at: str | None = None
    contents: tuple[SequenceContent, ...] = ()


class OriginExpired(_Action, frozen=True, tag="origin_expired"):
    """An origin whose last write was at this time is forgotten, unless it was written since."""

    name: str
    at: str | None


class SharedState(_Action, frozen=True, tag="shared_state"):
    """Bytes (base64) that checkpoints refer to by SHA-256; kept while one of them does."""

    id: str
    state: str


class CheckpointAction(_Action, frozen=True, tag="checkpoint"):
    """A client's own state (base64) for a partition of its source; None if it was deleted.

    The operation that carried it is (``ingester_id``, ``epoch``, ``seq``), at the time ``at`` by
    that daemon's clock. ``origin`` and ``sequence`` are the client's name and number of it, if any.
    ``shared``: the id of its :class:`SharedState`.
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

    def replaces(self, other: CheckpointAction | None) -> bool:
        """Whether this is the newer of two checkpoints of a partition; True without another one.

        Of one origin the higher sequence counts, of one daemon the later operation. Between two
        daemons without a common origin the clock decides.
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
    """The size in bytes of a base64 state; 0 for None."""
    return 0 if state is None else len(state) // 4 * 3 - state[-2:].count("=")


class Horizon(_Action, frozen=True, tag="horizon"):
    """Garbage collection may delete unlisted files uploaded before this time."""

    at: str


# Default values are left out, so that an older reader accepts a writer without contents.
class Txn(_Action, frozen=True, tag="txn", omit_defaults=True):
    """A foreign exactly-once writer (Spark) has committed up to this version of its own.

    ``contents``: what this version, or in a snapshot the newest versions, contained.
    """

    app_id: str
    version: int
    contents: tuple[SequenceContent, ...] = ()


_PUSHES = "_push/"


def push_mark(push_id: str, name: str) -> str:
    """The ``app_id`` under which a push records something about the table version that it makes."""
    return f"{_PUSHES}{push_id}/{name}"


def is_push_mark(app_id: str) -> bool:
    """Whether a :class:`Txn` concerns only its own table version."""
    return app_id.startswith(_PUSHES)


Why = Literal["swap", "rollback"]


# Default values are left out, so that an older reader accepts the action.
class Sealed(_Action, frozen=True, tag="sealed", omit_defaults=True):
    """This table version takes no more commits: the table version ``next`` replaces it.

    ``switch``: the number of the switch under ``_current/``. ``carry``: whether the rows streamed
    into this version since it came from ``next`` go back there. ``since``: rows that came after
    this version of its manifest go to a new table version. ``reshape``: ``next`` has its own
    columns, partitions and key.
    """

    next: int
    switch: int
    push_id: str | None = None
    why: Why = "swap"
    carry: bool = False
    since: int | None = None
    reshape: bool = False


class Unsealed(_Action, frozen=True, tag="unsealed"):
    """This table version is current again, by the switch of this number."""

    switch: int


class Imported(_Action, frozen=True, tag="imported", rename={"table_version": "from"}):
    """This version knows all that the table version ``from`` knew of its writers when it was
    sealed.

    ``manifest_version`` and ``uid`` are those of the seal; ``into``: the version of this manifest
    that contains this action.
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
    | WriterAction
    | Owner
    | Applied
    | EpochComplete
    | OriginAction
    | OriginExpired
    | SharedState
    | CheckpointAction
    | Horizon
    | Txn
    | Imported
    | Unsealed
    | Sealed
)
Action = Add | OtherAction


class WriterIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The process that commits: its name, this run of it, and its claimed epoch."""

    ingester_id: str
    incarnation: str
    epoch: int


def parse_time(text: str) -> datetime | None:
    """The time that ``text`` names, in UTC, or None.

    Times are compared as instants and not as text, because stores differ in their clocks'
    precision.
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
    """Whether the time ``text`` is before ``horizon``, or unknown."""
    at, limit = parse_time(text), parse_time(horizon)
    return at is None or limit is None or at < limit
