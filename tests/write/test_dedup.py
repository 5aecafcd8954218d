"""Duplicates that arrive while the first copy is being written, or after the log refused it.

The fake log below answers like :mod:`wal.group_commit`: on failure it refuses the group being
written and everything that waits, then accepts new operations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.dml.operation import Operation, Part
from ingester.errors import BadRequest, DiskFull, IngesterError, OwnedElsewhere, Superseded
from ingester.origins.origin_table import Event
from ingester.origins.registry import Origins
from ingester.write.acknowledgement import Acknowledgement
from ingester.write.dedup import Deduplication, uncovered
from persist.manifest import OriginAction, OriginRun, PartitionKey
from persist.manifest.actions import Content
from persist.manifest.origins import fresh, taken_over
from persist.partitioning import PartitionSpec, split_batch
from persist.table import TableDefinition
from wal import Route, RouteState

TABLE = ("ns", "t")
ME = ("me", 1)
NAMED = TableDefinition(
    pa.schema({"name": pa.string(), "n": pa.int64()}), PartitionSpec.parse(["identity(name)"])
)


def operation(sequence: int) -> Operation:
    return Operation(
        table=TABLE, parts=(), rows=1, nbytes=1, schema_number=1, spec_id=1, origin="o",
        origin_sequence=sequence,
    )  # fmt: skip


Answer = Callable[[Operation, BaseException | None], None]


class Told(Acknowledgement):
    """An operation's acknowledgement that passes the outcome to its stream."""

    def __init__(
        self,
        operation: Operation,
        tell: Answer = lambda op, error: None,
        stream: object = None,
    ) -> None:
        super().__init__(operation, None)
        self._tell = tell
        self._stream = stream

    @property
    def whose(self) -> object:
        return self._stream

    def answer(self, error: BaseException | None) -> None:
        self._tell(self.operation, error)


class Log:
    """A fake log that commits or refuses its operations when the test says so."""

    def __init__(self, origins: Origins) -> None:
        self.applied: list[int] = []
        self.barriers: list[Callable[[BaseException | None], None]] = []
        self._origins = origins
        self._pending: deque[Acknowledgement] = deque()
        self._group: list[Acknowledgement] = []

    def append(self, acknowledgement: Acknowledgement) -> None:
        self._pending.append(acknowledgement)

    def await_store(
        self, routes: tuple[Route, ...], answer: Callable[[BaseException | None], None]
    ) -> None:
        assert routes
        self.barriers.append(answer)

    @property
    def waiting(self) -> int:
        return len(self._pending) + len(self._group)

    def form(self, size: int) -> None:
        while self._pending and len(self._group) < size:
            self._group.append(self._pending.popleft())

    def commit(self) -> None:
        group, self._group = self._group, []
        for each in group:
            op = each.operation
            assert op.origin_sequence is not None
            seq = len(self.applied) + 1
            self.applied.append(op.origin_sequence)
            self._origins.note_applied(
                "o", TABLE, op.origin_sequence, seq, (), ME, content=op.content
            )
        for each in group:
            each.finish(None)

    def refuse_unfit(self, stream: object) -> None:
        """Refuse what a stream has pending: its first batch turns out to be bad."""
        pending, self._pending = self._pending, deque()
        self._pending += (each for each in pending if each.whose is not stream)
        for each in pending:
            if each.whose is stream:
                each.finish(BadRequest("bad"))

    def refuse(self) -> None:
        error = DiskFull("no room", retry_after_s=1.0)
        group, self._group = self._group, []
        for each in group:
            each.finish(error)
        waiting, self._pending = self._pending, deque()
        for each in waiting:
            each.finish(error)


class Pipeline:
    def __init__(self) -> None:
        self.origins = Origins()
        self.log = Log(self.origins)
        self.dedup = Deduplication(
            self.origins,
            self.log.append,
            lambda op, left: None,
            lambda table: NAMED,
            self.log.await_store,
        )


class Stream:
    """One stream as :class:`ingester.write.stream.WriteStream` sees it; a refusal ends it."""

    def __init__(self, pipeline: Pipeline, first: int) -> None:
        self.first = self.next = first
        self.acknowledged: dict[int, bool] = {}
        self.refusal: BaseException | None = None
        self._pipeline = pipeline

    def send(self) -> None:
        if self.refusal is not None:
            return
        sequence, self.next = self.next, self.next + 1
        self._pipeline.dedup.submit(Told(operation(sequence), self._answered, self))

    def _answered(self, op: Operation, error: BaseException | None) -> None:
        assert op.origin_sequence is not None
        if error is not None:
            self.refusal = self.refusal or error
        elif self.refusal is None:
            self.acknowledged[op.origin_sequence] = op.duplicate


def test_a_repeat_waits_for_its_first_copy_and_is_a_duplicate_then() -> None:
    pipeline = Pipeline()
    first, second = Stream(pipeline, 1), Stream(pipeline, 1)
    first.send()
    second.send()
    assert (first.acknowledged, second.acknowledged) == ({}, {})
    assert pipeline.log.waiting == 1
    pipeline.log.form(1)
    pipeline.log.commit()
    assert (first.acknowledged, second.acknowledged) == ({1: False}, {1: True})
    assert pipeline.log.applied == [1]


def test_a_repeat_takes_the_place_of_a_first_copy_that_was_refused() -> None:
    pipeline = Pipeline()
    first, second = Stream(pipeline, 1), Stream(pipeline, 1)
    first.send()
    second.send()
    pipeline.log.refuse()
    assert isinstance(first.refusal, DiskFull)
    pipeline.log.form(1)
    pipeline.log.commit()
    assert (second.acknowledged, pipeline.log.applied) == ({1: False}, [1])


def test_a_repeat_with_other_rows_is_refused_once_the_first_copy_is_durable() -> None:
    pipeline, outcomes = Pipeline(), dict[int, BaseException | None]()

    def send(digest: int) -> None:
        made = operation(1)
        made.content = Content(1, digest)
        pipeline.dedup.submit(Told(made, lambda op, error: outcomes.update({digest: error})))

    send(1)
    send(2)
    assert not outcomes
    pipeline.log.form(1)
    pipeline.log.commit()
    send(3)
    assert outcomes[1] is None
    for other in (2, 3):
        assert isinstance(outcomes[other], BadRequest)
        assert "sequence 1 of table ns/t was written before with other" in str(outcomes[other])
    assert pipeline.log.applied == [1]


def test_a_repeat_of_a_bad_batch_is_told_though_the_batch_before_is_stored_later() -> None:
    pipeline = Pipeline()
    first, second = Stream(pipeline, 1), Stream(pipeline, 1)
    for _ in range(2):
        first.send()
        second.send()
    pipeline.log.form(1)
    pipeline.log.refuse_unfit(first)
    pipeline.log.commit()
    pipeline.log.form(1)
    pipeline.log.commit()
    assert second.acknowledged == {1: True, 2: False}
    assert pipeline.log.applied == [1, 2]


def test_nothing_passes_a_batch_of_another_stream_that_may_turn_out_to_be_bad() -> None:
    pipeline = Pipeline()
    first, second = Stream(pipeline, 1), Stream(pipeline, 1)
    first.send()
    second.send()
    second.send()
    pipeline.log.refuse_unfit(first)
    pipeline.log.form(2)
    pipeline.log.commit()
    assert second.acknowledged == {1: False, 2: False}
    assert pipeline.log.applied == [1, 2]


def test_repeats_of_a_pipeline_refused_in_its_middle_go_in_in_their_order() -> None:
    """Writing a later sequence over the refused one would mark that as a duplicate and lose it."""
    pipeline = Pipeline()
    first, second = Stream(pipeline, 1), Stream(pipeline, 1)
    for _ in range(3):
        first.send()
        second.send()
    pipeline.log.form(1)
    pipeline.log.refuse()
    assert pipeline.log.applied == []
    pipeline.log.form(10)
    pipeline.log.commit()
    assert pipeline.log.applied == [1, 2, 3]
    assert second.acknowledged == {1: False, 2: False, 3: False}


def test_nothing_of_a_stream_goes_in_over_what_was_refused_and_is_not_repeated() -> None:
    pipeline = Pipeline()
    older, newer = Stream(pipeline, 2), Stream(pipeline, 1)
    newer.send()  # sequence 1, its own
    older.send()  # sequence 2
    newer.send()  # sequence 2, waits for the older stream's copy
    pipeline.log.refuse()
    assert isinstance(newer.refusal, DiskFull)
    assert pipeline.log.waiting == 0
    again = Stream(pipeline, 1)
    again.send()
    again.send()
    pipeline.log.form(2)
    pipeline.log.commit()
    assert pipeline.log.applied == [1, 2]


def test_a_late_sequence_below_one_under_way_waits_for_that() -> None:
    pipeline = Pipeline()
    first, late = Stream(pipeline, 5), Stream(pipeline, 3)
    first.send()
    late.send()
    pipeline.log.form(1)
    pipeline.log.commit()
    assert (late.acknowledged, pipeline.log.applied) == ({3: True}, [5])


def test_a_late_sequence_that_another_daemon_has_lost_is_written_after_the_one_under_way() -> None:
    pipeline = Pipeline()
    origin_table = pipeline.origins.table("o", TABLE)
    from_ten = taken_over(fresh("o", ("other", 1)), ME, 10, None)
    pipeline.origins.claim(origin_table, from_ten, ME)
    newer = Stream(pipeline, 10)
    newer.send()
    pipeline.origins.claim(origin_table, taken_over(from_ten, ME, 5, None), ME)
    again = Stream(pipeline, 5)
    again.send()
    pipeline.log.form(1)
    pipeline.log.commit()
    assert (newer.acknowledged, again.acknowledged) == ({10: False}, {})
    pipeline.log.form(1)
    pipeline.log.commit()
    assert (again.acknowledged, pipeline.log.applied) == ({5: False}, [10, 5])


@given(st.data())
def test_whatever_is_refused_each_sequence_goes_in_once_and_in_order(data: st.DataObject) -> None:
    """Several concurrent senders restart at their first unacknowledged sequence."""
    pipeline = Pipeline()
    streams = [Stream(pipeline, 1)]
    every = [*streams]
    acknowledged: set[int] = set()
    for _ in range(data.draw(st.integers(1, 40))):
        steps = ["send", "send", "open", "form", "commit", "refuse", "refuse unfit"]
        match data.draw(st.sampled_from(steps)):
            case "send":
                data.draw(st.sampled_from(streams)).send()
            case "open":
                for stream in streams:
                    acknowledged |= stream.acknowledged.keys()
                first = next(n for n in range(1, 1000) if n not in acknowledged)
                streams = [*streams[-1:], Stream(pipeline, first)]
                every.append(streams[-1])
            case "form":
                pipeline.log.form(data.draw(st.integers(1, 3)))
            case "commit":
                pipeline.log.commit()
            case "refuse":
                pipeline.log.refuse()
            case "refuse unfit":
                pipeline.log.refuse_unfit(data.draw(st.sampled_from(streams)))
        assert pipeline.log.applied == list(range(1, len(pipeline.log.applied) + 1))
        for stream in streams:
            assert all(sequence in pipeline.log.applied for sequence in stream.acknowledged)
    while pipeline.log.waiting:
        pipeline.log.form(100)
        pipeline.log.commit()
    for stream in every:
        assert stream.refusal or list(stream.acknowledged) == list(range(stream.first, stream.next))


@pytest.mark.parametrize("sequence", [0, 3, 9])
def test_what_another_daemon_has_taken_below_is_refused_until_a_stream_begins_there(
    sequence: int,
) -> None:
    pipeline = Pipeline()
    origin_table = pipeline.origins.table("o", TABLE)
    theirs = fresh("o", ("other", 4))
    origin_table.claim(taken_over(theirs, ME, 10, "now"), ME)
    told: list[BaseException | None] = []
    pipeline.dedup.submit(Told(operation(sequence), lambda op, error: told.append(error)))
    assert isinstance(told[0], OwnedElsewhere)
    assert not origin_table.owns(sequence)
    assert origin_table.owns(10)
    origin_table.claim(taken_over(taken_over(theirs, ME, 10, "now"), ME, sequence, "now"), ME)
    assert origin_table.owns(sequence)


def test_once_another_daemon_has_the_origin_its_writes_are_refused() -> None:
    pipeline = Pipeline()
    origin_table = pipeline.origins.table("o", TABLE)
    origin_table.claim(fresh("o", ME), ME)
    origin_table.move(Event.LOSE)
    told: list[BaseException | None] = []
    pipeline.dedup.submit(Told(operation(1), lambda op, error: told.append(error)))
    assert isinstance(told[0], IngesterError)
    assert not isinstance(told[0], Superseded)
    assert "through another daemon" in str(told[0])


def test_a_part_that_is_in_files_is_left_out_and_the_others_go_in() -> None:
    left: list[tuple[Any, ...]] = []
    origins = Origins()
    log = Log(origins)
    dedup = Deduplication(
        origins,
        log.append,
        lambda op, parts: left.append(parts),
        lambda table: NAMED,
        log.await_store,
    )
    known = OriginAction("o", "old", 1, 4, (), (OriginRun(0, "old", 1),))
    ahead: dict[PartitionKey, int] = {(1, ("p",)): 6, (1, ("q",)): 5}
    origin_table = origins.table("o", TABLE)
    origin_table.claim(taken_over(known, ME, 5, "now"), ME)
    origin_table.tenures[0].ahead = dict(ahead)
    for sequence in (4, 5, 6, 7):
        op = operation(sequence)
        op.parts = parts_of([{"name": name} for name in "pqr"], NAMED.spec)
        dedup.submit(Told(op))
    assert [[part.values[0] for part in parts] for parts in left] == [["r"], ["q", "r"]]
    assert log.waiting == 3


def test_rows_that_are_in_files_by_an_earlier_spec_are_left_out_of_todays_parts() -> None:
    """Sequence 5 was flushed under the old partition spec, and then the spec changed."""
    left: list[tuple[Part, ...]] = []
    origins = Origins()
    definition = NAMED.with_spec(["identity(n)"])
    log = Log(origins)
    dedup = Deduplication(
        origins,
        log.append,
        lambda op, parts: left.append(parts),
        lambda table: definition,
        log.await_store,
    )
    origin_table = origins.table("o", TABLE)
    origin_table.claim(
        taken_over(OriginAction("o", "old", 1, 4, (), (OriginRun(0, "old", 1),)), ME, 5, "now"), ME
    )
    origin_table.tenures[0].ahead = {(1, ("p",)): 5, (2, (3,)): 5}
    op = operation(5)
    op.spec_id = definition.spec_id
    rows = [{"name": "p", "n": 1}, {"name": "q", "n": 1}, {"name": "p", "n": 2}]
    op.parts = parts_of([*rows, {"name": "q", "n": 3}], definition.spec)
    dedup.submit(Told(op))
    assert [(part.values, part.batch.to_pylist()) for part in left[0]] == [
        ((1,), [{"name": "q", "n": 1}])
    ]


def test_a_part_that_lacks_a_column_of_the_earlier_spec_was_in_its_partition_of_nulls() -> None:
    definition = NAMED.with_spec([])
    rows = pa.record_batch({"n": pa.array([1, 2], pa.int64())})
    parts = (Part((), rows, rows.nbytes),)
    assert uncovered(parts, 2, {(1, ("p",))}, definition) == parts
    assert uncovered(parts, 2, {(1, (None,))}, definition) == ()


def parts_of(rows: list[dict[str, Any]], spec: PartitionSpec) -> tuple[Part, ...]:
    batch = pa.RecordBatch.from_pylist(rows, schema=NAMED.schema)
    return tuple(Part(values, part, part.nbytes) for values, part in split_batch(batch, spec))


def repeat_of(pipeline: Pipeline, route: Route, *, at_store: bool) -> tuple[Told, list[object]]:
    """Submit a repeat of sequence 1, which is written at the level of the table's route."""
    told: list[object] = []
    repeat = Told(operation(1), lambda op, error: told.append(error or op.duplicate))
    repeat.routes, repeat.at_store = (route,), at_store
    pipeline.dedup.submit(repeat)
    return repeat, told


@pytest.mark.parametrize("state", [RouteState.LOCAL, RouteState.HELD])
def test_a_repeat_at_store_is_answered_when_the_store_has_what_the_disk_has(
    state: RouteState,
) -> None:
    pipeline, route = Pipeline(), Route("ns/t")
    Stream(pipeline, 1).send()
    pipeline.log.form(1)
    pipeline.log.commit()
    route.state = state
    repeat, told = repeat_of(pipeline, route, at_store=True)
    assert told == []
    [stored] = pipeline.log.barriers
    stored(None)
    assert (told, repeat.shipped) == ([True], True)


def test_a_repeat_at_store_is_refused_if_the_store_does_not_take_it() -> None:
    pipeline = Pipeline()
    Stream(pipeline, 1).send()
    pipeline.log.form(1)
    pipeline.log.commit()
    _, told = repeat_of(pipeline, Route("ns/t"), at_store=True)
    refusal = DiskFull("no room", retry_after_s=1.0)
    pipeline.log.barriers[0](refusal)
    assert told == [refusal]


def test_a_repeat_at_store_waits_for_a_first_copy_under_way_and_then_for_the_store() -> None:
    pipeline = Pipeline()
    Stream(pipeline, 1).send()
    _, told = repeat_of(pipeline, Route("ns/t"), at_store=True)
    assert (told, pipeline.log.barriers) == ([], [])
    pipeline.log.form(1)
    pipeline.log.commit()
    assert told == []
    pipeline.log.barriers[0](None)
    assert told == [True]


@pytest.mark.parametrize(
    ("state", "at_store", "shipped"),
    [
        (RouteState.LOCAL, False, False),
        (RouteState.HELD, False, False),
        (RouteState.SHIPPED, False, True),
        (RouteState.SHIPPED, True, True),
    ],
)
def test_other_repeats_are_answered_at_once_with_the_level_that_all_of_the_table_has(
    state: RouteState, at_store: bool, shipped: bool
) -> None:
    pipeline, route = Pipeline(), Route("ns/t")
    Stream(pipeline, 1).send()
    pipeline.log.form(1)
    pipeline.log.commit()
    route.state = state
    repeat, told = repeat_of(pipeline, route, at_store=at_store)
    assert (told, repeat.shipped, pipeline.log.barriers) == ([True], shipped, [])
