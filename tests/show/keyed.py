"""A table with a primary key under the same faults: its sources and its reader.

    Blocks    writes and deletes blocks of keys, by two writers that keep unflushed rows
    Replica   upserts and deletes in transactions of ``sync``, and resends what its origin lacks

A source resends the changes that were on a lost disk, so no change of this table is lost
permanently. ``KeyedTable.is_whole`` is false while changes may be missing temporarily.
"""

from __future__ import annotations

import time
from collections import deque
from random import Random
from typing import Protocol

import pyarrow as pa

from ingester.client import Client, ClientError, InvalidRequest, RetryPolicy, Writer
from ingester.client.sync_stream import SyncColumn, SyncStream
from tests.show.ledger import Ledger, Value

NAMESPACE, TABLE = "show", "keyed"
COLUMNS = ("source", "k", "v")
SCHEMA = pa.schema(
    [
        pa.field("source", pa.int64(), nullable=False),
        pa.field("k", pa.int64(), nullable=False),
        pa.field("v", pa.int64()),
    ]
)
KEY = ["source", "k"]
PARTITIONS = ["bucket(3, k)"]
BLOCK = 50
LIVE_BLOCKS = 8
RING = 400
"""Keys of a replica."""
EVERY_S = 0.1
PERSIST_S = 60.0
HASTY = RetryPolicy(for_s=0.5, first_delay_s=0.1)
PATIENCE_S = 120.0
"""The time without an accepted transaction after which a source reports a fault."""
_ROLES = [
    *(SyncColumn("old_pk", name) for name in KEY),
    *(SyncColumn("new_pk", name) for name in KEY),
    SyncColumn("value", "v"),
]


class Going(Protocol):
    """The state of the load that a source needs."""

    generation: int
    seen: dict[str, int]
    losses: int
    wrong: list[str]

    @property
    def stopped(self) -> bool:
        """Whether the load is ending."""

    def goes_on(self, generation: int) -> bool:
        """Whether a client of that generation is still current."""

    def wait(self, seconds: float) -> None:
        """Wait, unless the load ends."""


class Place(Protocol):
    """The addresses of the daemons."""

    def client(self, *endpoints: str, retry: RetryPolicy = ...) -> Client:
        """A client of these daemons, or of all."""

    def endpoints(self) -> list[str]:
        """The addresses of the daemons that clients are told of."""


def make_table(client: Client) -> None:
    """Create the table unless it exists."""
    client.create_table(NAMESPACE, TABLE, SCHEMA, primary_key=KEY, partition_by=PARTITIONS)


class Blocks:
    """Writes blocks of keys, each twice, and deletes old ones.

    A written block is deleted once it is in a file, and rewritten once the deletion is in a
    file. Its two writers keep unflushed rows, and their writes have no mutual order.
    """

    number = 0

    def __init__(self, load: Going, place: Place) -> None:
        self.ledger = Ledger()
        self._load = load
        self._place = place
        self._written: deque[tuple[int, int]] = deque()
        """Existing blocks, each with the sequence that wrote it last."""
        self._deleted: deque[tuple[int, int]] = deque()
        self._free: deque[int] = deque()
        self._blocks = 0
        self._sent = {False: 0, True: 0}
        """The last sequence of either writer, by whether it deletes."""
        self._durable = {False: 0, True: 0}

    def work(self) -> None:
        """Write until the load ends."""
        while not self._load.stopped:
            generation = self._load.generation
            with self._place.client() as client:
                make_table(client)
                with self._writer(client, False) as upserts, self._writer(client, True) as deletes:
                    self._load.seen["blocks"] = generation
                    while self._load.goes_on(generation):
                        self._step(upserts, deletes)
                        self._load.wait(EVERY_S)
                if not self._load.stopped:
                    # New writers do not keep the unflushed rows of closed ones.
                    client.persist(NAMESPACE, TABLE, timeout_s=PERSIST_S)

    def _writer(self, client: Client, deletes: bool) -> Writer:
        return client.writer(
            NAMESPACE,
            TABLE,
            pa.schema([SCHEMA.field(name) for name in KEY]) if deletes else SCHEMA,
            origin=f"blocks-{'deletes' if deletes else 'upserts'}",
            first_sequence=self._sent[deletes] + 1,
            keep_until_durable=True,
            deletes=deletes,
        )

    def _step(self, upserts: Writer, deletes: Writer) -> None:
        while self._deleted and self._deleted[0][1] <= self._durable[True]:
            self._free.append(self._deleted.popleft()[0])
        if len(self._written) > LIVE_BLOCKS and self._written[0][1] <= self._durable[False]:
            block, _ = self._written.popleft()
            self._deleted.append((block, self._send(deletes, [block], delete=True)))
            return
        block = self._free.popleft() if self._free else self._blocks
        self._blocks = max(self._blocks, block + 1)
        before = [self._written.pop()[0]] if self._written else []
        sequence = self._send(upserts, [*before, block], delete=False)
        self._written += [(each, sequence) for each in (*before, block)]

    def _send(self, writer: Writer, blocks: list[int], *, delete: bool) -> int:
        keys = [block * BLOCK + n for block in blocks for n in range(BLOCK)]
        value = self.ledger.acknowledged + 1
        step = self.ledger.begin(dict.fromkeys(keys, None if delete else value))
        columns = {"source": [self.number] * len(keys), "k": keys}
        answer = writer.write(columns if delete else columns | {"v": [value] * len(keys)}).result()
        self.ledger.acknowledge(step)
        self._sent[delete] += 1
        self._durable[delete] = max(self._durable[delete], answer.durable_sequence or 0)
        return self._sent[delete]


class Replica:
    """Replicates a continuously changing database: each transaction is sent completely and once."""

    number = 1
    origin = "replica"

    def __init__(self, load: Going, place: Place) -> None:
        self.ledger = Ledger()
        self.owners: list[tuple[float, str]] = []
        self.sent_again = 0
        self._load = load
        self._place = place
        self._random = Random(7)
        self._kept: deque[tuple[int, dict[int, Value], set[int]]] = deque()
        """Unflushed transactions: number, changes, and the keys that existed."""
        self._durable = 0
        self._there: set[int] = set()

    def work(self) -> None:
        """Send to any daemon that accepts it, until the load ends."""
        went_on_at, number = time.monotonic(), 0
        with self._place.client() as client:
            make_table(client)
        while not self._load.stopped:
            self._load.seen["replica"] = self._load.generation
            known, before = self._place.endpoints(), self.ledger.acknowledged
            endpoint = known[number % len(known)]
            try:
                with self._place.client(endpoint, retry=HASTY) as client:
                    self._follow(client.sync(NAMESPACE, self.origin), endpoint)
            except InvalidRequest:
                raise
            except ClientError as exc:
                # Another daemon may own the table now, or this one may return.
                if self.ledger.acknowledged > before:
                    went_on_at = time.monotonic()
                elif time.monotonic() > went_on_at + PATIENCE_S:
                    raise RuntimeError(f"no daemon takes transactions: {exc}") from exc
                number += 1
                self._load.wait(EVERY_S)

    def _follow(self, stream: SyncStream, endpoint: str) -> None:
        generation = self._load.generation
        while self._load.goes_on(generation):
            self._catch_up(stream)
            number, changes, there = self._changes()
            self._kept.append((number, changes, there))
            self._send(stream, number, changes, there)
            self.ledger.acknowledge(number)
            if not self.owners or self.owners[-1][1] != endpoint:
                self.owners.append((time.monotonic(), endpoint))
            self._load.wait(EVERY_S)

    def _catch_up(self, stream: SyncStream) -> None:
        """Resend what the origin lacks, and forget what is in files."""
        standing = stream.standing()
        self._durable = max(self._durable, standing.durable_sequence or 0)
        while self._kept and self._kept[0][0] <= self._durable:
            self._kept.popleft()
        # A daemon that has lost the table's ownership may not know the others' positions.
        memory = max(standing.memory_sequence or 0, self._durable)
        lacking = [each for each in self._kept if each[0] > memory]
        self.ledger.acknowledge(max(memory, self.ledger.acknowledged))
        for number, changes, there in lacking:
            self._send(stream, number, changes, there)
            self.sent_again += number <= self.ledger.acknowledged
            self.ledger.acknowledge(max(number, self.ledger.acknowledged))

    def _changes(self) -> tuple[int, dict[int, Value], set[int]]:
        keys = self._random.sample(range(RING), 20)
        there = self._there & set(keys)
        value = self.ledger.acknowledged + 1
        gone = {key for key in there if self._random.random() < 0.4}
        changes = {key: None if key in gone else value for key in keys}
        self._there = (self._there | set(keys)) - gone
        return self.ledger.begin(changes), changes, there

    def _send(
        self, stream: SyncStream, number: int, changes: dict[int, Value], there: set[int]
    ) -> None:
        """Send a transaction as two messages; raises where another daemon had the first of them."""
        pairs = list(changes.items())
        stream.send(TABLE, _ROLES, self._message(pairs[:10], there), begin=True)
        said = stream.send(TABLE, _ROLES, self._message(pairs[10:], there), sequence=number)
        if not said.accepted:
            raise ClientError("the transaction has to be sent again from its first message on")

    def _message(self, pairs: list[tuple[int, Value]], there: set[int]) -> pa.RecordBatch:
        old = [key if key in there else None for key, _ in pairs]
        new = [None if value is None else key for key, value in pairs]
        source = [[None if key is None else self.number for key in keys] for keys in (old, new)]
        values = [value for _, value in pairs]
        arrays = [source[0], old, source[1], new, values]
        return pa.record_batch([pa.array(each, pa.int64()) for each in arrays], names=list("abcde"))


class KeyedTable:
    """The table, its sources, and its reader.

    Attributes:
        is_whole: Whether no change is being resent.
        looks: How often the whole table was queried and checked.
    """

    def __init__(self, load: Going, place: Place) -> None:
        self.blocks, self.replica = Blocks(load, place), Replica(load, place)
        self.is_whole, self.looks = True, 0
        self._load = load
        self._place = place

    def work(self) -> None:
        """Check until the load ends."""
        while not self._load.stopped:
            generation = self._load.generation
            with self._place.client() as client:
                make_table(client)
                self._load.seen["keyed reader"] = generation
                while self._load.goes_on(generation):
                    losses = self._load.losses
                    told = self.wrong(client)
                    if self.is_whole and self._load.losses == losses:
                        self.looks += 1
                        self._load.wrong += told[:3]
                    self._load.wait(0.3)

    def wrong(self, client: Client) -> list[str]:
        """The table's current faults, one line per key."""
        sources: tuple[Blocks | Replica, ...] = (self.blocks, self.replica)
        since = [source.ledger.acknowledged for source in sources]
        found = client.query(NAMESPACE, TABLE, list(COLUMNS)).to_pydict()
        rows = list(zip(*(found[name] for name in COLUMNS), strict=True))
        told = []
        for source, acknowledged in zip(sources, since, strict=True):
            own = [(k, v) for number, k, v in rows if number == source.number]
            about = f"keyed table, {type(source).__name__.lower()}"
            told += [f"{about}: {text}" for text in source.ledger.wrong(own, acknowledged)]
        return told

    def said(self) -> str:
        """A summary for people."""
        owners = self.replica.owners
        keys = sum(len(each.ledger.now()) for each in (self.blocks, self.replica))
        return (
            f"keyed table: {keys:,} keys by {self.blocks.ledger.acknowledged:,} writes and deletes,"
            f" {self.replica.ledger.acknowledged:,} transactions, {self.replica.sent_again} of them"
            f" sent again; moved {len(owners) - 1} times between"
            f" {len({endpoint for _, endpoint in owners})} daemons; looked at {self.looks:,} times"
        )
