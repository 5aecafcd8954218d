"""The state of a copy: which version's files it has, and which operations behind them.

    "INGFOLW" | format (1 byte) | CRC-32 of the rest (4, big-endian) | zlib of msgpack

Law of this file: pure. What was encoded decodes to the same value; anything else is refused by
name. The bytes are the whole truth about a copy's content: the rows of ``version``'s files in all
partitions (or the first ``filled`` files of it), and of each partition the ``groups`` behind them.

A group is the rows that came live of one buffer of the daemon: operations ``first..last`` of one
partition and epoch. It is known as long as its rows are in no file of ``version``; then they are
the file's rows, and the group is retired.
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


class Position(msgspec.Struct, frozen=True, order=True):
    """A place in a daemon's log; a later epoch is later, whatever its sequences."""

    epoch: int
    sequence: int


class Group(NamedTuple):
    """The rows of operations ``first..last`` in a partition; the sink knows them by ``at``.

    ``buffer`` tells the daemon's buffers apart: a flush takes one whole.
    """

    partition: PartitionKey
    epoch: int
    first: int
    last: int
    rows: int
    at: int
    buffer: int | None = None

    def followed_by(self, other: Group) -> bool:
        """Whether both are of one buffer, so that they can be one group."""
        return self.buffer is not None and (self.partition, self.epoch, self.buffer) == (
            other.partition,
            other.epoch,
            other.buffer,
        )


class Selection(msgspec.Struct, frozen=True):
    """What of the table the copy has, and how its sink keeps it: another one is another copy."""

    sink: str
    columns: tuple[str, ...] | None = None
    filter: str | None = None
    """As the protocol has it."""


class FollowState(msgspec.Struct, frozen=True):
    """The state of a copy; see the module.

    Attributes:
        version: The manifest version whose files the copy has; ``uid`` tells it from another.
        position: The operations up to here are in the copy. None: only the version's files are.
        filled: The number of files put so far, in order of paths; None: all.
        next_at: The number of the next group.
        complete: Whether the copy is what readers see.
        replaces: Whether readers see an earlier copy until then.
        floor: What the copy began behind, where it did not begin with all files.
    """

    namespace: str
    table: str
    table_version: int
    ingester_id: str
    selection: Selection
    version: int
    uid: str
    position: Position | None = None
    filled: int | None = None
    next_at: int = 1
    complete: bool = False
    replaces: bool = False
    floor: Position | None = None


class Ledger:
    """The groups that are in no file yet, by partition and epoch, in order. One thread."""

    def __init__(self, groups: Iterable[Group] = ()) -> None:
        self._groups: dict[tuple[PartitionKey, int], list[Group]] = {}
        for group in groups:
            self.add(group)

    def __iter__(self) -> Iterator[Group]:
        """All groups, those of a partition and epoch in log order."""
        for groups in self._groups.values():
            yield from groups

    def __len__(self) -> int:
        return sum(len(groups) for groups in self._groups.values())

    def keys(self) -> list[tuple[PartitionKey, int]]:
        """The partitions and epochs that there are groups of."""
        return list(self._groups)

    def of(self, partition: PartitionKey, epoch: int) -> list[Group]:
        """The groups of one partition and epoch, in log order."""
        return self._groups.get((partition, epoch), [])

    def of_partition(self, partition: PartitionKey) -> list[Group]:
        """The groups of one partition, of all epochs."""
        return [group for group in self if group.partition == partition]

    def number(self, group: Group, free: int) -> int:
        """The number that a group gets: that of its buffer, or ``free`` for a new one."""
        there = self.of(group.partition, group.epoch)
        return there[-1].at if there and there[-1].followed_by(group) else free

    def add(self, group: Group) -> None:
        """Remember a group: it extends the last one where both have one number."""
        there = self._groups.setdefault((group.partition, group.epoch), [])
        if there and there[-1].at == group.at:
            last = there.pop()
            group = last._replace(last=group.last, rows=last.rows + group.rows)
        there.append(group)

    def drop(self, groups: Iterable[Group]) -> None:
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


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """What is encoded: groups name their partition by its place in a list."""

    state: FollowState
    partitions: list[PartitionKey]
    groups: list[tuple[int, int, int, int, int, int, int | None]]


_decode = msgspec.msgpack.Decoder(_Kept).decode
_encode = msgspec.msgpack.Encoder().encode


def encode_state(state: FollowState, groups: Iterable[Group] = ()) -> bytes:
    """The bytes of a state."""
    places: dict[PartitionKey, int] = {}
    rows = [
        (places.setdefault(group.partition, len(places)), *group[1:])
        for group in sorted(groups, key=lambda group: group.at)
    ]
    body = zlib.compress(_encode(_Kept(state, list(places), rows)), 1)
    return _HEAD.pack(MAGIC, FORMAT, zlib.crc32(body)) + body


def decode_state(data: bytes) -> tuple[FollowState, Ledger]:
    """A state, and the groups that are in no file yet.

    Raises:
        StateDamaged: These are not the bytes of a state, or those of a newer version's.
    """
    if len(data) < _HEAD.size:
        raise StateDamaged(f"a state of {len(data)} bytes is none of a follower; {_HELP}")
    magic, form, crc = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise StateDamaged(f"a state that begins with {data[:7]!r} is none of a follower; {_HELP}")
    if form != FORMAT:
        raise StateDamaged(
            f"the state has format {form}, and this version knows {FORMAT}: it was written by"
            " another version of the ingester, use that"
        )
    body = data[_HEAD.size :]
    if zlib.crc32(body) != crc:
        raise StateDamaged(f"the state's checksum does not fit: it is damaged; {_HELP}")
    try:
        kept = _decode(zlib.decompress(body))
        groups = [Group._make((kept.partitions[g[0]], *g[1:])) for g in kept.groups]
    except (msgspec.DecodeError, zlib.error, IndexError) as exc:
        raise StateDamaged(f"the state cannot be read: {exc}; {_HELP}") from exc
    return kept.state, Ledger(groups)


_HELP = "to build the copy anew, seek to the beginning"


def part_name(partition: PartitionKey) -> str:
    """A partition's name for sinks: the same for ever, and of no other partition."""
    spec_id, values = partition
    return msgspec.json.encode([spec_id, *values]).decode()
