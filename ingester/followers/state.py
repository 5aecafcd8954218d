"""The state of a copy: the manifest version whose files it has, and the operations after them.

    "INGFOLW" | format (1 byte) | CRC-32 of the rest (4, big-endian) | zlib of msgpack

The bytes describe the copy's content completely: the rows of all files of ``version`` (or of the
first ``filled`` of them), and for each partition the ``groups`` that follow. A group holds rows of
one buffer of the daemon that arrived live: operations ``first..last`` of one partition and epoch.
It is retired when its rows are in a file of ``version``.

Pure. ``tests/followers/test_state.py`` checks the round trip and the refusal of other bytes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from ingester.followers.errors import StateDamaged
from persist.manifest import PartitionKey

MAGIC, FORMAT = b"INGFOLW", 1
_HEAD = struct.Struct(">7sBI")


class FeedPosition(msgspec.Struct, frozen=True, order=True):
    """A position in a daemon's log, ordered by epoch, then by sequence."""

    epoch: int
    sequence: int


class FollowedGroup(NamedTuple):
    """The rows of operations ``first..last`` in a partition; the sink knows them by ``at``.

    ``buffer`` identifies the daemon's buffer, which a flush takes whole.
    """

    partition: PartitionKey
    epoch: int
    first: int
    last: int
    rows: int
    at: int
    buffer: int | None = None

    def followed_by(self, other: FollowedGroup) -> bool:
        """Whether both are of one buffer and can be one group."""
        return self.buffer is not None and (self.partition, self.epoch, self.buffer) == (
            other.partition,
            other.epoch,
            other.buffer,
        )


class CopySelection(msgspec.Struct, frozen=True):
    """The selected part of the table and the sink's fingerprint; a change rebuilds the copy."""

    sink: str
    columns: tuple[str, ...] | None = None
    filter: str | None = None
    """In the protocol's form."""


class FollowState(msgspec.Struct, frozen=True):
    """The state of a copy.

    Attributes:
        version: The manifest version whose files the copy has; ``uid`` identifies it.
        position: The operations up to here are in the copy. None: only the version's files are.
        filled: The number of files put so far, in order of paths; None: all.
        next_at: The number of the next group.
        complete: Readers see this copy.
        replaces: Until then, readers see an earlier copy.
        floor: The position after which the copy began, if it did not begin with all files.
    """

    namespace: str
    table: str
    table_version: int
    ingester_id: str
    selection: CopySelection
    version: int
    uid: str
    position: FeedPosition | None = None
    filled: int | None = None
    next_at: int = 1
    complete: bool = False
    replaces: bool = False
    floor: FeedPosition | None = None


class Ledger:
    """The groups that are not in a file yet, by partition and epoch, in order. One thread."""

    def __init__(self, groups: Iterable[FollowedGroup] = ()) -> None:
        self._groups: dict[tuple[PartitionKey, int], list[FollowedGroup]] = {}
        for group in groups:
            self.add(group)

    def __iter__(self) -> Iterator[FollowedGroup]:
        """All groups; those of a partition and epoch in log order."""
        for groups in self._groups.values():
            yield from groups

    def __len__(self) -> int:
        return sum(len(groups) for groups in self._groups.values())

    def keys(self) -> list[tuple[PartitionKey, int]]:
        """The partitions and epochs that have groups."""
        return list(self._groups)

    def of(self, partition: PartitionKey, epoch: int) -> list[FollowedGroup]:
        """The groups of one partition and epoch, in log order."""
        return self._groups.get((partition, epoch), [])

    def of_partition(self, partition: PartitionKey) -> list[FollowedGroup]:
        """The groups of one partition, of all epochs."""
        return [group for group in self if group.partition == partition]

    def number(self, group: FollowedGroup, free: int) -> int:
        """The number for a group: that of its buffer if known, else ``free``."""
        known = self.of(group.partition, group.epoch)
        return known[-1].at if known and known[-1].followed_by(group) else free

    def add(self, group: FollowedGroup) -> None:
        """Add a group; it extends the last one if both have the same number."""
        known = self._groups.setdefault((group.partition, group.epoch), [])
        if known and known[-1].at == group.at:
            last = known.pop()
            group = last._replace(last=group.last, rows=last.rows + group.rows)
        known.append(group)

    def drop(self, groups: Iterable[FollowedGroup]) -> None:
        """Forget groups."""
        gone: dict[tuple[PartitionKey, int], set[int]] = {}
        for group in groups:
            gone.setdefault((group.partition, group.epoch), set()).add(group.at)
        for key, numbers in gone.items():
            left = [group for group in self._groups.get(key, ()) if group.at not in numbers]
            if left:
                self._groups[key] = left
            else:
                self._groups.pop(key, None)


class _EncodedState(msgspec.Struct, frozen=True, array_like=True):
    """The encoded form: groups refer to their partition by its index in a list."""

    state: FollowState
    partitions: list[PartitionKey]
    groups: list[tuple[int, int, int, int, int, int, int | None]]


_decode = msgspec.msgpack.Decoder(_EncodedState).decode
_encode = msgspec.msgpack.Encoder().encode


def encode_state(state: FollowState, groups: Iterable[FollowedGroup] = ()) -> bytes:
    """The bytes of a state and its groups."""
    places: dict[PartitionKey, int] = {}
    rows = [
        (places.setdefault(group.partition, len(places)), *group[1:])
        for group in sorted(groups, key=lambda group: group.at)
    ]
    body = zlib.compress(_encode(_EncodedState(state, list(places), rows)), 1)
    return _HEAD.pack(MAGIC, FORMAT, zlib.crc32(body)) + body


def decode_state(data: bytes) -> tuple[FollowState, Ledger]:
    """A state and the groups that are not in a file yet.

    Raises:
        StateDamaged: The bytes are not a state, are corrupt, or come from a newer version.
    """
    if len(data) < _HEAD.size:
        raise StateDamaged(f"{len(data)} bytes are not a follower's state; {_HELP}")
    magic, form, crc = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise StateDamaged(f"{data[:7]!r}… is not a follower's state; {_HELP}")
    if form != FORMAT:
        raise StateDamaged(
            f"the state has format {form} and this version reads {FORMAT}: use the version of the"
            " ingester that wrote it"
        )
    body = data[_HEAD.size :]
    if zlib.crc32(body) != crc:
        raise StateDamaged(f"the state's checksum does not match: it is corrupt; {_HELP}")
    try:
        kept = _decode(zlib.decompress(body))
        groups = [FollowedGroup._make((kept.partitions[g[0]], *g[1:])) for g in kept.groups]
    except (msgspec.DecodeError, zlib.error, IndexError) as exc:
        raise StateDamaged(f"the state cannot be read: {exc}; {_HELP}") from exc
    return kept.state, Ledger(groups)


_HELP = "to rebuild the copy, seek to the beginning"


def part_name(partition: PartitionKey) -> str:
    """The permanent, unique name of a partition for sinks."""
    spec_id, values = partition
    return msgspec.json.encode([spec_id, *values]).decode()
