"""The daemon's live feed of one table: what came after a position, or what a version's files lack.

Law of this file: an answer is handed on whole or not at all. One that broke off is asked for again
from the position before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec
import pyarrow as pa

from ingester.client import arguments
from ingester.client.connection import Connection
from ingester.client.errors import InvalidRequest
from ingester.client.query_stream import QueryStream
from ingester.client.wire import encode, given
from ingester.followers.state import Position
from persist.manifest import PartitionKey, Values

OPERATION = "_op"
"""The column behind those of a keyed table: ``upsert`` or ``delete``."""

ANSWERED_WITHIN_S = 60.0
"""The time that an answer may take to come beyond what it was asked to wait: a daemon that stands
still, or a network that lets nothing through, is told by nothing else."""


class GroupOf(msgspec.Struct, frozen=True):
    """The metadata of a batch: which operations of which partition its rows are of."""

    spec_id: int
    values: Values
    epoch: int
    first_seq: int
    last_seq: int
    buffer: int | None = None
    """What tells the buffers of a partition apart."""

    @property
    def partition(self) -> PartitionKey:
        """The partition, as the manifest has it."""
        return (self.spec_id, self.values)


class Batch(NamedTuple):
    """Rows of one group; a group may have several, one after another."""

    group: GroupOf
    rows: pa.RecordBatch


class Coming(msgspec.Struct, frozen=True):
    """A table version that a push makes, and that followers are to prepare."""

    table_version: int
    push_id: str


@dataclass(slots=True)
class Registration:
    """What a follower says of itself with its questions, and what it hears of versions to come.

    Attributes:
        table_version: The one that its readers see.
        prepared: Others of which it has a copy.
    """

    name: str
    table_version: int = 1
    prepared: set[int] = field(default_factory=set)
    coming: tuple[Coming, ...] = ()

    def said(self) -> dict[str, Any]:
        """What a ticket has of it."""
        prepared = sorted(self.prepared)
        return {"name": self.name, "table_version": self.table_version, "prepared": prepared}


@dataclass(frozen=True, slots=True)
class LiveAnswer:
    """One answer of the feed.

    Attributes:
        position: Everything up to here is in the copy once the batches are.
        newest: The daemon's newest operation, where it is of the position's epoch.
        version: The manifest version that the daemon's table answers from.
        rows_behind: The rows that come behind this answer, before any filter.
        coming: Table versions to prepare.
        table_version: The version of the table as a whole that all of it is of.
        more: The answer was cut. Where it was not, no file of the daemon in ``version`` has
            anything behind ``position``.
    """

    ingester_id: str
    position: Position
    newest: int | None
    version: int
    more: bool
    schema: pa.Schema
    batches: Sequence[Batch]
    rows_behind: int = 0
    coming: tuple[Coming, ...] = ()
    table_version: int = 1

    @property
    def nbytes(self) -> int:
        """The bytes of its rows."""
        return sum(batch.rows.nbytes for batch in self.batches)


class Feed(Protocol):
    """What follows a position, or lies behind a version's files."""

    def ask(self, after: Position | None, version: int | None, wait_s: float) -> LiveAnswer:
        """The answer; empty when nothing came within ``wait_s`` seconds.

        Args:
            after: A position; None asks for all that the version's files lack.
            version: The version whose files one has: what they have is left out. None as well
                asks for nothing but the position of now.

        Raises:
            Unavailable: ``stale``: not exact any more; go on from a newer version's files.
            ClientError: Anything else.
        """


class DaemonFeed:
    """The feed of one table at a daemon. One call at a time."""

    def __init__(
        self,
        connection: Connection,
        table: tuple[str, str],
        columns: Sequence[str] | None = None,
        filter_: Any = None,
    ) -> None:
        """Take the columns, and the filter in the protocol's form."""
        self._connection = connection
        namespace, name = table
        self.table_version: int | None = None
        """The version of the table as a whole that versions and positions are of."""
        self.ingester_id: str | None = None
        """The daemon that positions are of: another one refuses them."""
        self.registration: Registration | None = None
        """What is said of the follower, where it can prepare versions that are coming."""
        self._question: dict[str, Any] = given(
            {
                "namespace": arguments.text("namespace", namespace),
                "table": arguments.text("table", name),
                "scope": "live",
                "columns": None if columns is None else list(columns),
                "filter": filter_,
            }
        )

    def ask(self, after: Position | None, version: int | None, wait_s: float) -> LiveAnswer:
        """See :class:`Feed`."""
        question = {**self._question, "wait_s": wait_s}
        registration = self.registration
        if registration is not None:
            question["follower"] = registration.said()
        if after is not None:
            question["after"] = given(
                {
                    "ingester_id": self.ingester_id,
                    "epoch": after.epoch,
                    "sequence": after.sequence,
                }
            )
        if version is not None:
            question["version"] = version
        if (after, version) != (None, None) and self.table_version not in (None, 1):
            question["table_version"] = self.table_version
        with self._connection.stream(encode(question), wait_s + ANSWERED_WITHIN_S) as stream:
            answer = read_answer(stream)
        self.ingester_id = self.ingester_id or answer.ingester_id
        if registration is not None:
            registration.coming = answer.coming
        return answer


def read_answer(stream: QueryStream) -> LiveAnswer:
    """The whole of an answer.

    Raises:
        ClientError: It broke off, or is none of a live feed.
    """
    said = _texts(stream.schema.metadata)
    try:
        position = msgspec.json.decode(said["position"], type=Position)
        head = (said["ingester_id"], int(said["epoch"]), int(said["snapshot_sequence"]))
        version, more = int(said["manifest_version"]), said["more"] == "true"
        behind = int(said.get("rows_behind", 0))
        coming = msgspec.json.decode(said.get("coming", "[]"), type=tuple[Coming, ...])
        table_version = int(said.get("table_version", 1))
    except (KeyError, ValueError, msgspec.DecodeError) as exc:
        raise InvalidRequest(
            f"the daemon's answer is none of a live feed ({exc}): it is of an earlier version"
        ) from exc
    ingester_id, epoch, newest = head
    batches = list(_batches(stream))
    schema = stream.schema.remove_metadata()
    known = newest if epoch == position.epoch else None
    last = (schema, batches, behind, coming, table_version)
    return LiveAnswer(ingester_id, position, known, version, more, *last)


def _batches(stream: QueryStream) -> Any:
    while (item := stream.read_raw()) is not None:
        rows, metadata = item
        if metadata is None:
            raise InvalidRequest("a batch of the live feed does not say what it is of")
        yield Batch(msgspec.json.decode(metadata, type=GroupOf), rows)


def _texts(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in (metadata or {}).items()}
