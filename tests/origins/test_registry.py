"""Origins against a model that records every operation and the location of its rows."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ingester.origins.registry import Origins
from persist.manifest.actions import OriginAction
from persist.manifest.origins import OriginVerdict

TABLES = [("n", "a"), ("n", "b")]


class OriginMachine(RuleBasedStateMachine):
    """One origin writes rising sequences into two tables; buffers are released in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.origins = Origins()
        self.sequence = 0
        self.op_seq = 0
        self.applied: dict[tuple[str, str], int] = {}
        # sequence -> the buffers that hold its rows
        self.holders: dict[int, set[str]] = {}
        self.open = {table: [f"{table}-{part}-0" for part in range(2)] for table in TABLES}
        self.released: set[str] = set()
        self.shipped: set[int] = set()
        self.written: dict[tuple[str, str], set[int]] = {table: set() for table in TABLES}

    @rule(
        table=st.sampled_from(TABLES),
        step=st.integers(1, 3),
        parts=st.sets(st.integers(0, 1)),
        in_store=st.booleans(),
    )
    def write(self, table: tuple[str, str], step: int, parts: set[int], in_store: bool) -> None:
        self.sequence += step
        self.op_seq += 1
        holders: list[Any] = [self.open[table][part] for part in sorted(parts)]
        origin_table = self.origins.table("o", table)
        assert origin_table.verdict(self.sequence) is OriginVerdict.NEW
        assert origin_table.fates.begin(self.sequence)
        assert not origin_table.fates.begin(self.sequence)
        told: list[BaseException | None] = []
        origin_table.fates.await_first(self.sequence, told.append)
        assert not self.origins.is_applied("o", table, self.sequence)
        self.origins.note_applied(
            "o", table, self.sequence, self.op_seq, holders, in_store=in_store
        )
        origin_table.fates.end(self.sequence, None)
        assert told == [None]
        self.applied[table] = self.sequence
        self.written[table].add(self.sequence)
        self.holders[self.sequence] = set(holders)
        if in_store:
            self.shipped.add(self.sequence)

    @rule(table=st.sampled_from(TABLES))
    def fail(self, table: tuple[str, str]) -> None:
        """A write that never becomes durable leaves its sequence free."""
        sequence = self.sequence + 1
        origin_table = self.origins.table("o", table)
        assert origin_table.fates.begin(sequence)
        told: list[BaseException | None] = []
        origin_table.fates.await_first(sequence, told.append)
        error = RuntimeError("the disk is full")
        origin_table.fates.end(sequence, error)
        assert told == [error]
        assert not self.origins.is_applied("o", table, sequence)

    @rule(table=st.sampled_from(TABLES), part=st.integers(0, 1))
    def release(self, table: tuple[str, str], part: int) -> None:
        """A buffer's rows are in committed files; the next rows go into another buffer."""
        holder = self.open[table][part]
        self.open[table][part] = f"{holder}+"
        self.released.add(holder)
        origin = self.origins.find("o")
        if origin is not None:
            for tenure in origin.tables[table].tenures if table in origin.tables else ():
                tenure.note_released(holder)
            origin.note_settled()

    @invariant()
    def duplicates_are_what_was_applied(self) -> None:
        for table in TABLES:
            for sequence in range(self.sequence + 2):
                expected = sequence <= self.applied.get(table, -1)
                assert self.origins.is_applied("o", table, sequence) == expected

    def upto(self, shipped: set[int]) -> int | None:
        expected = None
        for sequence, holders in sorted(self.holders.items()):
            if not holders <= self.released and sequence not in shipped:
                break
            expected = sequence
        return expected

    @invariant()
    def durable_is_what_the_store_has_and_everything_before_it(self) -> None:
        origin = self.origins.find("o")
        files, durable = self.upto(set()), self.upto(self.shipped)
        assert (origin.files_sequence if origin is not None else None) == files
        assert (origin.durable_sequence if origin is not None else None) == durable
        memory = max(self.holders, default=None)
        assert (origin.memory_sequence if origin is not None else None) == memory

    @invariant()
    def what_is_carried_restores_the_duplicates(self) -> None:
        restored = Origins()
        restored.restore_all(self.origins.carried() or [], ("me", 1))
        for table in TABLES:
            for sequence in range(self.sequence + 2):
                assert restored.is_applied("o", table, sequence) == self.origins.is_applied(
                    "o", table, sequence
                )

    @invariant()
    def what_the_store_carries_restores_what_it_has(self) -> None:
        restored, durable = Origins(), self.upto(self.shipped)
        restored.restore_all(self.origins.carried_in_store() or [], ("me", 1))
        for table in TABLES:
            for sequence in range(self.sequence + 2):
                there = self.origins.is_applied("o", table, sequence)
                in_store = durable is not None and sequence <= durable
                if restored.is_applied("o", table, sequence):
                    assert there
                    assert in_store
                assert restored.is_applied("o", table, sequence) or not (
                    in_store and sequence in self.written[table]
                )
        if (origin := restored.find("o")) is not None:
            assert origin.durable_sequence == durable


TestOrigins = OriginMachine.TestCase


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=20, unique=True))
def test_origins_of_different_names_know_nothing_of_each_other(sequences: list[int]) -> None:
    origins = Origins()
    for number, sequence in enumerate(sequences):
        origins.note_applied(f"o{number}", TABLES[0], sequence, number, [])
    for number, sequence in enumerate(sequences):
        assert origins.is_applied(f"o{number}", TABLES[0], sequence)
        assert not origins.is_applied(f"o{number}", TABLES[0], sequence + 1)
        assert not origins.is_applied(f"o{number}", TABLES[1], sequence)
        assert origins.get(f"o{number}").durable_sequence == sequence
    assert [origin.name for origin in origins] == [f"o{n}" for n in range(len(sequences))]


def test_what_is_in_files_of_one_table_says_nothing_of_rows_that_wait_in_another() -> None:
    origins = Origins()
    durable = []
    origins.note_applied("o", TABLES[0], 100, 1, ())
    durable.append(origins.get("o").durable_sequence)
    origins.note_applied("o", TABLES[1], 7, 2, ("buffer",))
    durable.append(origins.get("o").durable_sequence)
    origins.note_released("buffer", origins.table("o", TABLES[1]).tenures)
    durable.append(origins.get("o").durable_sequence)
    assert durable == [100, None, 100]


def test_what_a_manifest_tells_of_one_table_is_not_told_over_rows_that_wait_in_another() -> None:
    """Also to those who do not look for such rows, as the threads of streams do not."""
    origins = Origins()
    origins.note_applied("o", TABLES[1], 7, 2, ("buffer",))
    told = OriginAction("o", "i", 1, complete=9, ahead=())
    origins.load(origins.table("o", TABLES[0]), told, "i")
    assert origins.get("o").settled_sequence is None
    origins.note_released("buffer", origins.table("o", TABLES[1]).tenures)
    assert origins.get("o").settled_sequence == 9


def test_rows_that_a_replay_brings_back_below_it_lower_what_is_told_as_durable() -> None:
    origins = Origins()
    origins.load(
        origins.table("o", TABLES[0]), OriginAction("o", "i", 1, complete=9, ahead=()), "i"
    )
    assert origins.get("o").settled_sequence == 9
    origins.note_applied("o", TABLES[1], 7, 2, ("buffer",))
    assert origins.get("o").settled_sequence is None
