"""A version has a source's state exactly when it has the last row that belongs to the state.

A model of one table: operations with and without sequences go into buffers of three partitions,
some with a state of one of two sources. Buffers are frozen and committed in any order that a
partition allows. After each commit the model assumes a lost disk, and checks what is durable.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from ingester.buffer import BufferTree, FreezeLimits, TableBuffer, TreeHooks
from ingester.buffer.handle import PersistedFiles
from ingester.dml.operation import Operation, Part
from ingester.memory.ledger import MemoryLedger, Watermarks
from ingester.origins.checkpoint_state import SourceCheckpoint
from ingester.origins.registry import Origins
from ingester.tables.claims import CheckpointClaims, OriginClaims, actions_of, covered, shares_of
from persist.manifest import CheckpointAction as CheckpointAction
from persist.manifest import Schema, Spec, TableState, apply
from persist.manifest.draft import StateDraft
from tests.persist.manifest.samples import ME

KEY = ("ns", "t")
ROWS = pa.record_batch({"i": pa.array([1])})
SCHEMA = base64.b64encode(ROWS.schema.serialize().to_pybytes()).decode()
EMPTY = apply(TableState(), [Schema(1, SCHEMA), Spec(1, ("bucket(3, i)",))])

written = st.tuples(
    st.sampled_from([None, "o1", "o2"]),
    st.sets(st.integers(0, 2), max_size=2),
    st.sampled_from([None, "source a", "source b"]),
    st.booleans(),
)
committed = st.sets(st.integers(0, 2), min_size=1)


class World:
    """A daemon's buffers, and the newest version."""

    def __init__(self) -> None:
        ledger = MemoryLedger(Watermarks(1 << 30, 1 << 29, 1 << 30))
        limits = FreezeLimits(1 << 30)
        self.tree = BufferTree(ledger, Origins(), limits, TreeHooks(), ingester_id=ME.ingester_id)
        self.table = self.tree.tables[KEY] = TableBuffer(*KEY, EMPTY)
        self.claims = OriginClaims(self.tree.origins, ME)
        self.checkpoints = CheckpointClaims(self.tree)
        self.operations: list[Operation] = []
        self.sequences = {"o1": 0, "o2": 0}

    def write(
        self, origin: str | None, partitions: set[int], source: str | None, deletes: bool
    ) -> None:
        seq = len(self.operations) + 1
        sequence = None
        if origin is not None:
            sequence = self.sequences[origin] = self.sequences[origin] + 1
        operation = Operation(
            table=KEY,
            parts=tuple(Part((number,), ROWS, 8) for number in sorted(partitions)),
            rows=len(partitions),
            nbytes=8,
            schema_number=1,
            spec_id=1,
            origin=origin,
            origin_sequence=sequence,
            checkpoint=None
            if source is None
            else SourceCheckpoint(source, None if deletes else b"%d" % seq),
            seq=seq,
            epoch=ME.epoch,
        )
        self.operations.append(operation)
        self.tree.apply(operation)

    def commit(self, partitions: set[int]) -> None:
        """Commit everything in the buffers of these partitions."""
        for number in partitions:
            partition = self.table.partitions.get((1, (number,)))
            if partition is not None:
                self.tree.freeze(partition)
        handles = [h for h in self.table.handles() if h.frozen and h.partition[1][0] in partitions]
        base = self.table.state
        ready = self.checkpoints.ready(self.table, base, frozenset(handles))
        claims = self.claims.of(base, handles, (), shares_of(ready))
        ready = covered(ready, claims.actions)
        draft = StateDraft(base)
        draft.apply((*claims.actions, *actions_of(ready)))
        state = draft.finish(base.version + 1, f"{base.version + 1:032x}")
        for each in ready:
            each.committed_in = state.place
        self.shown_is_newest()
        assert not self.tree.install(
            self.table, state, [(handle, PersistedFiles((), ())) for handle in handles]
        )
        self.checkpoints.settle(self.table)
        self.agrees()

    def shown_is_newest(self) -> None:
        """The reported state is the newest one, whether or not it is committed."""
        for source, last in self.newest().items():
            waiting = self.tree.checkpoints.newest(KEY, source, self.table.state)
            there = self.table.state.checkpoints.get(source)
            shown = waiting.given.state if waiting else _decoded(there)
            assert last.checkpoint is not None
            assert shown == last.checkpoint.state

    def newest(self, upto: int = 1 << 60) -> Mapping[str, Operation]:
        return {
            op.checkpoint.partition: op
            for op in self.operations
            if op.checkpoint is not None and op.seq <= upto
        }

    def agrees(self) -> None:
        """Each source's durable state is that of the last operation whose rows are all durable."""
        waiting = [(h.partition[1][0], h.first_seq) for h in self.table.handles()]

        def is_durable(op: Operation) -> bool:
            return all(
                part.values[0] != number or op.seq < first
                for part in op.parts
                for number, first in waiting
            )

        for source in ("source a", "source b"):
            expected: Operation | None = None
            for op in self.operations:
                if op.checkpoint is None or op.checkpoint.partition != source:
                    continue
                before = [
                    each
                    for each in self.operations
                    if each.seq <= op.seq and (op.origin is None or each.origin == op.origin)
                ]
                if all(is_durable(each) for each in before):
                    expected = op
            there = self.table.state.checkpoints.get(source)
            assert (there and there.seq) == (expected and expected.seq), (there, expected)
            state = expected.checkpoint.state if expected and expected.checkpoint else None
            assert _decoded(there) == state


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(written, max_size=8).flatmap(lambda w: st.tuples(st.just(w), committed))))
def test_a_durable_state_is_that_of_the_rows_that_are_durable(
    history: list[tuple[list[tuple[str | None, set[int], str | None, bool]], set[int]]],
) -> None:
    world = World()
    for operations, partitions in history:
        for operation in operations:
            world.write(*operation)
        world.shown_is_newest()
        world.commit(partitions)
        world.shown_is_newest()


def _decoded(there: CheckpointAction | None) -> bytes | None:
    return None if there is None or there.state is None else base64.b64decode(there.state)
