"""From any position and any version's files, a follower gets every row once or a stale error."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from ingester.buffer import BufferHandle
from ingester.errors import StaleVersion
from ingester.query.fair_scheduler import CpuAccount
from ingester.query.live_groups import (
    ANSWER_BYTES,
    BEGINNING,
    NO_VERSION,
    GoneOperation,
    LogPast,
    Position,
)
from ingester.query.live_tail import LiveReader, LiveSnapshot, LiveTails
from ingester.query.read_context import Selection
from ingester.query.ticket import predicate_of
from ingester.schema.align import projected
from tests.drivers.stage import (
    AS_THEY_CAME,
    FILLING,
    KEYED,
    KEYED_PARTITIONED,
    PARTITIONED,
    PARTITIONS,
    SCHEMA,
    SORTED,
    WRITER,
    Stage,
)

KEPT_BYTES = 30 * len(FILLING)
"""Bytes of a few steps' rows."""


class Followed:
    """A stage with retained tails, and a record of the rows in each version."""

    def __init__(self, folder: Path, kind: str, retain_bytes: int = KEPT_BYTES) -> None:
        self.stage = stage = Stage(folder, kind)
        past = LogPast(WRITER.ingester_id, stage.epoch, {})
        self.tails = LiveTails(stage.tree, past, retain_s=3600.0, retain_bytes=retain_bytes)
        stage.catalog.commits.followers.append(self.tails.opened)
        stage.on_release = self.tails.released
        self.seqs: list[int] = []
        """The sequence number of each row's operation."""
        self.versions: dict[int, int] = {}
        """The first version that has each row in a file."""
        self.positions = [BEGINNING]
        self.seen_versions = [NO_VERSION]

    @property
    def rows(self) -> list[tuple[int, int]]:
        """(number, key) of all rows."""
        return self.stage.rows

    def write(self, count: int) -> None:
        self.stage.write(count)
        self.seqs += [self.stage.tree.applied_seq] * count
        self.look()

    async def persist(self, which: int) -> None:
        """Flush one partition, or all."""
        stage = self.stage
        chosen = [
            partition
            for (_, values), partition in stage.table.partitions.items()
            if not values or which in (PARTITIONS, values[0])
        ]
        for partition in chosen:
            stage.tree.freeze(partition)
        with trio.fail_after(30):
            while any(partition.frozen for partition in chosen):
                await trio.sleep(0.0005)
        handles = {values: 1 for (_, values) in stage.table.partitions}
        for number, _ in self.rows:
            values = (number % PARTITIONS,) if stage.table.definition.spec.columns else ()
            if number not in self.versions and values not in handles:
                self.versions[number] = stage.table.state.version
        self.look()

    def look(self) -> None:
        """Record a position and a version where a follower may be."""
        self.positions.append(self.tails.now(self.stage.table))
        self.seen_versions.append(self.stage.table.state.version)

    def missing(self, after: Position, version: int) -> list[int]:
        """Rows missing from a follower at this position with the files of this version."""
        return [
            number
            for number, seq in enumerate(self.seqs)
            if seq > after.sequence and self.versions.get(number, 1 << 60) > version
        ]

    def answer(
        self,
        after: Position,
        version: int,
        filter_: list[Any] | None = None,
        limit: int = ANSWER_BYTES,
    ) -> LiveSnapshot | None:
        """The current answer; None if it is refused, which is asserted to be justified."""
        found = self.tails.snapshot(self.stage.table, after, version, limit)
        if isinstance(found, GoneOperation):
            assert self.missing(after, version), "nothing is missing"
            return None
        return found

    def read(self, snapshot: LiveSnapshot, filter_: list[Any] | None = None) -> list[Any]:
        """The rows of an answer."""
        definition = self.stage.table.definition
        selection = Selection(
            projected(SCHEMA, None, definition.keyed),
            predicate_of(filter_, SCHEMA),
            None,
            marks_operations=definition.keyed,
        )
        reader = LiveReader(
            snapshot, selection, self.stage.groups, self.tails.rows, CpuAccount("ns")
        )
        return [row for part in reader.parts() for row in part.batch.to_pylist()]


Step = tuple[str, int]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 12)),
        st.tuples(st.just("persist"), st.integers(0, PARTITIONS)),
        st.tuples(st.just("follow"), st.just(0)),
        st.tuples(st.just("shrink"), st.just(0)),
    ),
    max_size=14,
)


async def _play(
    folder: Path, kind: str, script: list[Step], check: Callable[[Followed], None]
) -> None:
    followed = Followed(folder, kind)
    async with followed.stage.running():
        followed.look()
        for what, number in script:
            if what == "write":
                followed.write(number)
            elif what == "persist":
                await followed.persist(number)
            elif what == "follow":
                followed.tails.followed(followed.stage.table)
            else:
                followed.tails.shrink()
            check(followed)


def _played(kind: str, script: list[Step], check: Callable[[Followed], None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trio.run(_play, Path(folder), kind, script, check)


def _everywhere(followed: Followed) -> Iterator[tuple[Position, int]]:
    for after in set(followed.positions[-6:]):
        for version in set(followed.seen_versions[-4:]):
            yield after, version


@pytest.mark.parametrize("kind", [AS_THEY_CAME, SORTED, PARTITIONED])
@pytest.mark.parametrize("limit", [ANSWER_BYTES, 7 * len(FILLING)])
def test_every_row_once_from_any_position_with_any_files(kind: str, limit: int) -> None:
    answered: list[int] = []

    def check(followed: Followed) -> None:
        for after, version in _everywhere(followed):
            expected, found, at = followed.missing(after, version), list[int](), after
            for _ in range(len(expected) + 2):
                answer = followed.answer(at, version, limit=limit)
                if answer is None:
                    break
                numbers = [row["n"] for row in followed.read(answer)]
                upto = answer.position.sequence
                assert sorted(numbers) == [
                    n for n in expected if at.sequence < followed.seqs[n] <= upto
                ]
                found += numbers
                at = answer.position
                if not answer.more:
                    assert sorted(found) == expected
                    answered.append(len(found))
                    break

    @given(steps)
    @settings(max_examples=25)
    def play(script: list[Step]) -> None:
        _played(kind, script, check)

    play()
    assert any(answered)


@pytest.mark.parametrize("kind", [KEYED, KEYED_PARTITIONED])
@pytest.mark.parametrize("filtered", [False, True])
def test_a_copy_of_a_keyed_table_is_equal_from_any_position(kind: str, filtered: bool) -> None:
    filter_ = [[["n", ">=", 9]]] if filtered else None

    def state(rows: list[tuple[int, int]]) -> dict[tuple[int, int], int]:
        newest = {_key(kind, n, k): n for n, k in rows}
        return {key: n for key, n in newest.items() if not filtered or n >= 9}

    def check(followed: Followed) -> None:
        for after, version in _everywhere(followed):
            missing = set(followed.missing(after, version))
            has = state([row for row in followed.rows if row[0] not in missing])
            at = after
            for _ in range(len(missing) + 2):
                answer = followed.answer(at, version, filter_, limit=7 * len(FILLING))
                if answer is None:
                    break
                for row in followed.read(answer, filter_):
                    key = (row["p"] if kind == KEYED_PARTITIONED else 0, row["k"])
                    if row["_op"] == "delete":
                        has.pop(key, None)
                    else:
                        has[key] = row["n"]
                at = answer.position
                if not answer.more:
                    assert has == state(followed.rows)
                    break

    @given(steps)
    @settings(max_examples=25)
    def play(script: list[Step]) -> None:
        _played(kind, script, check)

    play()


def _key(kind: str, number: int, key: int) -> tuple[int, int]:
    return (number % PARTITIONS if kind == KEYED_PARTITIONED else 0, key)


def test_nothing_is_kept_while_nobody_follows(tmp_path: Path) -> None:
    def check(followed: Followed) -> None:
        assert followed.tails.nbytes == 0

    script = [("write", 5), ("persist", PARTITIONS)] * 3
    trio.run(_play, tmp_path, SORTED, script, check)


def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    most: list[int] = []

    def check(followed: Followed) -> None:
        most.append(followed.tails.nbytes)

    script = [("follow", 0), *[("write", 12), ("persist", PARTITIONS)] * 6]
    trio.run(_play, tmp_path, SORTED, script, check)
    assert 0 < max(most) <= KEPT_BYTES


def test_a_buffer_that_goes_in_the_middle_of_an_answer_ends_it(tmp_path: Path) -> None:
    async def work() -> None:
        followed = Followed(tmp_path, AS_THEY_CAME)
        async with followed.stage.running():
            followed.write(20)
            snapshot = followed.answer(BEGINNING, NO_VERSION)
            assert snapshot is not None
            selection = Selection(SCHEMA, predicate_of(None, SCHEMA), None)
            reader = LiveReader(
                snapshot, selection, followed.stage.groups, followed.tails.rows, CpuAccount("ns")
            )
            parts = reader.parts()
            assert next(parts).batch.num_rows < 20
            await followed.persist(PARTITIONS)
            with pytest.raises(StaleVersion, match="operations 1 to 1 were flushed while"):
                next(parts)

    trio.run(work)


def test_a_buffer_that_is_kept_is_read_to_its_end(tmp_path: Path) -> None:
    async def work() -> None:
        followed = Followed(tmp_path, AS_THEY_CAME)
        async with followed.stage.running():
            followed.tails.followed(followed.stage.table)
            followed.write(20)
            snapshot = followed.answer(BEGINNING, NO_VERSION)
            assert snapshot is not None
            await followed.persist(PARTITIONS)
            assert [row["n"] for row in followed.read(snapshot)] == list(range(20))

    trio.run(work)


def test_what_was_kept_long_enough_goes(tmp_path: Path) -> None:
    async def work() -> None:
        followed = Followed(tmp_path, AS_THEY_CAME)
        tails = followed.tails = LiveTails(
            followed.stage.tree, followed.tails.past, retain_s=0.05, retain_bytes=1 << 30
        )
        followed.stage.catalog.commits.followers.append(tails.opened)
        followed.stage.on_release = tails.released
        async with followed.stage.running():
            tails.followed(followed.stage.table)
            followed.write(5)
            await followed.persist(PARTITIONS)
            kept_until = time.monotonic() + 0.05
            while tails.sweep():
                assert time.monotonic() < kept_until + 10
                await trio.sleep(0.005)
            assert tails.nbytes == 0
            assert followed.answer(BEGINNING, NO_VERSION) is None
            assert followed.answer(tails.now(followed.stage.table), NO_VERSION) is not None

    trio.run(work)


def test_rows_that_were_taken_back_are_told_to_whoever_had_them(tmp_path: Path) -> None:
    async def work() -> None:
        followed = Followed(tmp_path, AS_THEY_CAME)
        tails, stage = followed.tails, followed.stage

        def left_to_another(handle: BufferHandle) -> None:
            handle.taken_back = True
            tails.released(stage.table, handle)

        stage.on_release = lambda table, handle: left_to_another(handle)
        async with stage.running():
            tails.followed(stage.table)
            followed.write(5)
            had, told = tails.now(stage.table), stage.table.state.version
            assert not tails.were_taken_back(stage.table, had, told)
            await followed.persist(PARTITIONS)
            assert tails.were_taken_back(stage.table, had, told)
            assert tails.were_taken_back(stage.table, had, NO_VERSION)
            assert not tails.were_taken_back(stage.table, had, stage.table.state.version)
            assert tails.nbytes == 0, "rows that are nobody's are kept for nobody"

    trio.run(work)
