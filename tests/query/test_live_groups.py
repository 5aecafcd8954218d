"""Bounded answers of the live feed: whole operations, each once, in order, from any buffers."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ingester.buffer import BufferHandle
from ingester.dml.operation import RowCounts
from ingester.query.live_groups import BEGINNING, BufferTail, Groups, Position, groups_after

LIMIT = 4000


class Log:
    """Operations over several buffers, as a table has them."""

    def __init__(self, buffers: int, epoch: int = 1, first_seq: int = 1) -> None:
        self.seq = first_seq - 1
        self.epoch = epoch
        self.tails = []
        for number in range(buffers):
            handle = BufferHandle(
                (0, (number,)), keyed=False, epoch=epoch, first_seq=first_seq, segment=0
            )
            handle.last_seq = -1
            self.tails.append(BufferTail(handle, handle.rows))

    @property
    def now(self) -> Position:
        return Position(self.epoch, self.seq)

    def operation(self, sizes: dict[int, int], rows: int = 1) -> None:
        """Append one operation with rows of these sizes in these buffers."""
        self.seq += 1
        for buffer, size in sizes.items():
            self._append(buffer, [self.seq] * rows, size, None)

    def coalesced(self, buffer: int, count: int, size: int) -> None:
        """Append many one-row operations in one batch."""
        seqs = list(range(self.seq + 1, self.seq + count + 1))
        self._append(buffer, seqs, size, tuple((n, 1) for n in range(count)))
        self.seq += count

    def _append(
        self, buffer: int, seqs: list[int], size: int, row_counts: RowCounts | None
    ) -> None:
        batch = pa.record_batch({"seq": seqs, "filling": ["x" * size] * len(seqs)})
        handle, rows = self.tails[buffer]
        rows.append(batch, seq=seqs[0], nbytes=batch.nbytes, schema_number=1, row_counts=row_counts)
        handle.last_seq = seqs[-1]

    def after(self, position: Position, limit: int = LIMIT) -> Groups:
        tails = [tail for tail in self.tails if tail.last > position]
        return groups_after(tails, position, self.now, limit)

    def all(self) -> list[tuple[int, int]]:
        """(sequence, buffer) of every row."""
        return sorted(
            (seq, number)
            for number, tail in enumerate(self.tails)
            for batch in tail.rows.batches()
            for seq in batch["seq"].to_pylist()
        )


def rows_of(found: Groups) -> list[tuple[int, int]]:
    """(sequence, buffer) of every row of an answer; asserts that its groups are correct."""
    rows: list[tuple[int, int]] = []
    for handle, begin, end, first_seq, last_seq in found.groups:
        table = pa.Table.from_batches(handle.rows.batches()).slice(begin, end - begin)
        seqs = table["seq"].to_pylist()
        assert (seqs[0], seqs[-1]) == (first_seq, last_seq)
        assert seqs == sorted(seqs)
        (number,) = handle.partition[1]
        assert isinstance(number, int)
        rows += [(seq, number) for seq in seqs]
    return rows


def bytes_of(found: Groups) -> int:
    return sum(
        pa.Table.from_batches(g.handle.rows.batches()).slice(g.begin, g.end - g.begin).nbytes
        for g in found.groups
    )


steps = st.lists(
    st.one_of(
        st.tuples(
            st.dictionaries(st.integers(0, 2), st.integers(0, 3000), min_size=1),
            st.integers(1, 3),
        ),
        st.tuples(st.integers(0, 2), st.integers(1, 30), st.integers(0, 200)),
    ),
    max_size=30,
)


@given(steps, st.integers(100, 8000))
def test_answers_have_every_operation_once_and_whole(steps: list[tuple], limit: int) -> None:  # type: ignore[type-arg]
    log = Log(3)
    for step in steps:
        if len(step) == 2:
            log.operation(*step)
        else:
            log.coalesced(*step)
    position, found = BEGINNING, list[tuple[int, int]]()
    for _ in range(log.seq + 1):
        answer = log.after(position, limit)
        rows = rows_of(answer)
        seqs = {seq for seq, _ in rows}
        # Operations are whole: none of their rows came earlier or comes later.
        assert sorted(rows) == [row for row in log.all() if row[0] in seqs]
        assert all(position.sequence < seq <= answer.position.sequence for seq in seqs)
        found += rows
        assert answer.rows_behind == len(log.all()) - len(found)
        position = answer.position
        if not answer.more:
            break
    assert sorted(found) == log.all()
    assert position == max(log.now, BEGINNING)


def test_an_answer_is_of_about_the_size_that_it_may_have() -> None:
    log = Log(2)
    for number in range(400):
        log.operation({number % 2: 100})
    sizes, position, more = [], BEGINNING, True
    while more:
        answer = log.after(position, 10_000)
        sizes.append(bytes_of(answer))
        position, more = answer.position, answer.more
    assert max(sizes) <= 10_000
    assert min(sizes[:-1]) >= 9_000


def test_a_larger_operation_goes_alone() -> None:
    log = Log(2)
    log.operation({0: 10})
    log.operation({0: 10 * LIMIT, 1: 10 * LIMIT})
    log.operation({1: 10})
    found, position = [], BEGINNING
    for _ in range(3):
        answer = log.after(position)
        found.append(sorted({seq for seq, _ in rows_of(answer)}))
        position = answer.position
    assert found == [[1], [2], [3]]


def test_an_answer_has_one_epoch() -> None:
    old, new = Log(2, epoch=1), Log(2, epoch=2, first_seq=11)
    old.operation({0: 10, 1: 10})
    old.operation({1: 10})
    new.operation({0: 10})
    tails = [*old.tails, *new.tails]
    first = groups_after([t for t in tails if t.last > BEGINNING], BEGINNING, new.now)
    assert sorted(rows_of(first)) == [(1, 0), (1, 1), (2, 1)]
    assert (first.position, first.more, first.rows_behind) == (Position(1, 2), True, 1)
    rest = groups_after([t for t in tails if t.last > first.position], first.position, new.now)
    assert rows_of(rest) == [(11, 0)]
    assert (rest.position, rest.more) == (Position(2, 11), False)


def test_what_comes_while_an_answer_is_made_is_left_for_the_next() -> None:
    log = Log(1)
    log.operation({0: 10})
    now = log.now
    log.operation({0: 10})
    answer = groups_after(log.tails, BEGINNING, now)
    assert rows_of(answer) == [(1, 0)]
    assert (answer.position, answer.more) == (now, False)
