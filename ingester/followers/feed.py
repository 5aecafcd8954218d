"""The daemon's live feed of one table: what follows a position, or what a version's files lack.

An answer is returned whole or not at all; one that breaks off is requested again from the position
before it. :class:`InterruptibleFeed` asks in a thread of its own, so that closing a follower does
not wait for the daemon.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec
import pyarrow as pa

from ingester.client import arguments
from ingester.client.connection import Connection
from ingester.client.errors import InvalidRequest
from ingester.client.streams import QueryStream
from ingester.client.wire import encode, given
from ingester.followers.place import Closed, Closing
from ingester.followers.state import FeedPosition
from persist.manifest import PartitionKey, Values

OPERATION = "_op"
"""The last column in the feed of a keyed table: ``upsert`` or ``delete``."""

ANSWERED_WITHIN_S = 60.0
"""The time for an answer beyond the requested wait. Nothing else detects a daemon that is paused
or a network that drops everything."""


class GroupOf(msgspec.Struct, frozen=True):
    """The metadata of a batch: the operations and the partition of its rows."""

    spec_id: int
    values: Values
    epoch: int
    first_seq: int
    last_seq: int
    buffer: int | None = None
    """Identifies a buffer of the partition."""

    @property
    def partition(self) -> PartitionKey:
        """The partition, as in the manifest."""
        return (self.spec_id, self.values)


class LiveBatch(NamedTuple):
    """Rows of one group; a group may have several consecutive batches."""

    group: GroupOf
    rows: pa.RecordBatch


class ComingVersion(msgspec.Struct, frozen=True):
    """A table version that a push makes and that followers should prepare."""

    table_version: int
    push_id: str


@dataclass(slots=True)
class Registration:
    """What a follower reports with its questions, and the coming versions it learns from answers.

    Attributes:
        table_version: The version that the copy's readers see.
        prepared: Other versions that have a copy.
    """

    name: str
    table_version: int = 1
    prepared: set[int] = field(default_factory=set)
    coming: tuple[ComingVersion, ...] = ()

    def said(self) -> dict[str, Any]:
        """The form in a ticket."""
        prepared = sorted(self.prepared)
        return {"name": self.name, "table_version": self.table_version, "prepared": prepared}


@dataclass(frozen=True, slots=True)
class LiveAnswer:
    """One answer of the feed.

    Attributes:
        position: With the batches, the copy has every operation up to here.
        newest: The daemon's newest operation, if it is of the position's epoch.
        version: The manifest version from which the daemon's table answers.
        rows_behind: The number of rows that follow this answer, before any filter.
        coming: Table versions to prepare.
        table_version: The table version of the whole answer.
        more: The answer was cut. Otherwise no file of the daemon in ``version`` has anything after
            ``position``.
    """

    ingester_id: str
    position: FeedPosition
    newest: int | None
    version: int
    more: bool
    schema: pa.Schema
    batches: Sequence[LiveBatch]
    rows_behind: int = 0
    coming: tuple[ComingVersion, ...] = ()
    table_version: int = 1

    @property
    def nbytes(self) -> int:
        """The bytes of its rows."""
        return sum(batch.rows.nbytes for batch in self.batches)


class Feed(Protocol):
    """The operations after a position, or those that a version's files lack."""

    def ask(self, after: FeedPosition | None, version: int | None, wait_s: float) -> LiveAnswer:
        """The answer; empty if nothing arrives within ``wait_s`` seconds.

        Args:
            after: A position; None asks for everything that the version's files lack.
            version: The version whose files the copy has; their rows are left out. If both are
                None, the answer is the current position.

        Raises:
            Unavailable: ``stale``: an exact answer is no longer possible; continue from the files
                of a newer version.
            ClientError: Any other failure.
        """


class DaemonFeed:
    """The feed of one table at a daemon. One call at a time.

    Attributes:
        table_version: The table version to which versions and positions refer.
        ingester_id: The daemon that positions belong to; another one refuses them.
        registration: What the follower reports, if it can prepare coming versions.
    """

    def __init__(
        self,
        connection: Connection,
        table: tuple[str, str],
        columns: Sequence[str] | None = None,
        filter_: Any = None,
    ) -> None:
        """``filter_`` is in the protocol's form."""
        self._connection = connection
        namespace, name = table
        self.table_version: int | None = None
        self.ingester_id: str | None = None
        self.registration: Registration | None = None
        self._question: dict[str, Any] = given(
            {
                "namespace": arguments.text("namespace", namespace),
                "table": arguments.text("table", name),
                "scope": "live",
                "columns": None if columns is None else list(columns),
                "filter": filter_,
            }
        )

    def ask(self, after: FeedPosition | None, version: int | None, wait_s: float) -> LiveAnswer:
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


class InterruptibleFeed:
    """Asks another feed in a thread and stops waiting when the follower closes.

    One question at a time. An abandoned question ends by itself within its ``wait_s``.
    """

    def __init__(self, feed: Feed, closing: Closing) -> None:
        self._feed = feed
        self._closing = closing

    def ask(self, after: FeedPosition | None, version: int | None, wait_s: float) -> LiveAnswer:
        """See :class:`Feed`. Raises :class:`Closed` as well."""
        asked: Future[LiveAnswer] = Future()

        def ask() -> None:
            try:
                asked.set_result(self._feed.ask(after, version, wait_s))
            except BaseException as exc:
                asked.set_exception(exc)
            self._closing.wake()

        threading.Thread(target=ask, name="follower-feed", daemon=True).start()
        self._closing.wait_for(lambda: self._closing() or asked.done())
        if not asked.done():
            raise Closed
        return asked.result()


def read_answer(stream: QueryStream) -> LiveAnswer:
    """The whole answer.

    Raises:
        ClientError: The answer broke off, or is not one of a live feed.
    """
    said = _texts(stream.schema.metadata)
    try:
        position = msgspec.json.decode(said["position"], type=FeedPosition)
        head = (said["ingester_id"], int(said["epoch"]), int(said["snapshot_sequence"]))
        version, more = int(said["manifest_version"]), said["more"] == "true"
        behind = int(said.get("rows_behind", 0))
        coming = msgspec.json.decode(said.get("coming", "[]"), type=tuple[ComingVersion, ...])
        table_version = int(said.get("table_version", 1))
    except (KeyError, ValueError, msgspec.DecodeError) as exc:
        raise InvalidRequest(
            f"the answer is not one of a live feed ({exc}): the daemon has an older version"
        ) from exc
    ingester_id, epoch, newest = head
    batches = list(_batches(stream))
    schema = stream.schema.remove_metadata()
    known = newest if epoch == position.epoch else None
    last = (schema, batches, behind, coming, table_version)
    return LiveAnswer(ingester_id, position, known, version, more, *last)


def _batches(stream: QueryStream) -> Iterator[LiveBatch]:
    while (item := stream.read_raw()) is not None:
        rows, metadata = item
        if metadata is None:
            raise InvalidRequest("a batch of the live feed has no metadata")
        yield LiveBatch(msgspec.json.decode(metadata, type=GroupOf), rows)


def _texts(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in (metadata or {}).items()}
