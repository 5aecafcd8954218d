"""The rule for which rows of an origin are in files, against a model of every part."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from persist.manifest import (
    OriginAction,
    OriginAhead,
    OriginExpired,
    OriginRun,
    Proposal,
    apply,
    rebase,
)
from persist.manifest.origins import (
    EVERY_PARTITION,
    MAX_RUNS,
    Process,
    SequenceRun,
    durable_of,
    fresh,
    further,
    of_every,
    origin_of,
    owned,
    run_at,
    taken_over,
)
from tests.persist.manifest.samples import in_files, may_commit

A, B, C = ("a", 1), ("b", 1), ("c", 3)
P, Q = (1, ("p",)), (1, ("q",))


def test_a_sequence_belongs_to_the_last_process_that_took_it() -> None:
    origin = taken_over(fresh("o", A), B, 5, "now")
    assert [(run.first, run.owner) for run in owned(origin)] == [(0, A), (5, B)]
    assert (origin.owner_id, origin.owner_epoch) == B
    assert may_commit(origin, 4, A)
    assert not may_commit(origin, 5, A)
    assert may_commit(origin, 5, B)
    assert not may_commit(origin, 4, B)
    assert not may_commit(origin, 7, ("b", 2))


def test_a_takeover_at_the_end_of_the_flushed_sequences_leaves_no_run() -> None:
    origin = origin_of(fresh("o", A), A, [owned(fresh("o", A))[0].advanced(4, {P: 7})], "now")
    assert (origin.complete, origin.ahead) == (4, (OriginAhead(1, ("p",), 7),))
    moved = taken_over(origin, B, 5, "now")
    assert len(owned(moved)) == 1
    assert moved.runs == (OriginRun(5, "b", 1),)
    assert (moved.complete, moved.ahead) == (4, origin.ahead)
    assert in_files(moved, 3, Q)
    assert in_files(moved, 7, P)
    assert not in_files(moved, 5, Q)
    assert not may_commit(moved, 5, A)


def test_a_client_that_returns_takes_over_the_sequences_in_between() -> None:
    jumped = taken_over(fresh("o", A), B, 11, "now")
    jumped = further(jumped, 12, P)
    back = taken_over(jumped, B, 5, "now")
    assert [(run.first, run.owner) for run in owned(back)] == [(0, A), (5, B), (11, B)]
    assert in_files(back, 12, P)
    assert not in_files(back, 8, P)
    assert may_commit(back, 8, B)
    assert not may_commit(back, 8, A)
    assert may_commit(back, 4, A)


def test_the_durable_sequence_is_the_newest_owners() -> None:
    origin = origin_of(fresh("o", A), A, [owned(fresh("o", A))[0].advanced(4, {})], "now")
    jumped = taken_over(origin, B, 11, "now")
    assert durable_of(jumped) == 4
    runs = owned(jumped)
    runs[1] = runs[1].advanced(20, {})
    assert durable_of(origin_of(fresh("o", B), B, runs, "now")) == 20


def test_runs_of_finished_processes_are_merged_and_others_stay() -> None:
    origin, spared = fresh("o", A), fresh("o", A)
    for turn in range(1, 40):
        process = ("d", turn)
        origin = taken_over(origin, process, turn * 10, "now", lambda other: True)
        spared = taken_over(spared, process, turn * 10, "now", lambda other: other != A)
    assert len(owned(origin)) == len(owned(spared)) == MAX_RUNS
    assert not may_commit(origin, 3, A)
    assert may_commit(spared, 3, A)
    assert may_commit(origin, 395, ("d", 39))


def test_a_run_wholly_in_files_is_merged_with_the_next_whatever_its_owner() -> None:
    runs = [
        SequenceRun(0, A, None, {}),
        *(SequenceRun(n * 10, ("d", n), n * 10 + 9, {}) for n in range(1, 40)),
    ]
    origin = origin_of(fresh("o", A), ("d", 39), runs, "now")
    assert len(owned(origin)) == MAX_RUNS
    assert may_commit(origin, 3, A)
    assert all(in_files(origin, sequence, P) for sequence in range(10, 400))


def test_a_merged_run_says_that_what_was_below_the_next_is_in_files() -> None:
    origin = fresh("o", A)
    for turn in range(1, 40):
        origin = taken_over(origin, ("d", turn), turn * 10, "now", lambda other: True)
    assert all(in_files(origin, sequence, key) for sequence in (0, 5, 309) for key in (P, Q))
    assert not in_files(origin, 395, P)
    assert durable_of(origin) is None  # another table may have some of these in buffers
    assert not owned(origin)[0].without_partitions().ahead.keys() - {EVERY_PARTITION}
    # An earlier release reads it as one more partition.
    assert of_every(origin.ahead) == (OriginAhead(-1, (), 319),)


def test_what_a_client_that_went_back_may_still_send_is_not_merged() -> None:
    origin = fresh("o", A)
    for turn in range(1, 7):
        origin = taken_over(origin, ("d", turn), turn * 10, "now")
    for first in (65, 55, 45):
        origin = taken_over(origin, B, first, "now")
    origin = taken_over(origin, B, 5, "now", lambda other: True)
    assert len(owned(origin)) > MAX_RUNS
    assert all(may_commit(origin, sequence, B) for sequence in range(5, 80))


def test_an_origin_without_runs_belongs_to_any_process_with_rows_of_it() -> None:
    plain = OriginAction("o", "me", 2, 10, (OriginAhead(1, ("p",), 12),))
    assert in_files(plain, 10, Q)
    assert in_files(plain, 12, P)
    assert not in_files(plain, 12, Q)
    assert may_commit(plain, 11, A)


def test_an_origin_written_since_does_not_expire() -> None:
    from persist.manifest import EMPTY

    state = apply(EMPTY, [OriginAction("o", "a", 1, 1, (), (), "2026-11-21T00:00:00+00:00")])
    gone = OriginExpired("o", "2026-11-21T00:00:00+00:00")
    assert rebase(state, [gone]) == (gone,)
    assert "o" not in apply(state, [gone]).origins
    newer = apply(state, [OriginAction("o", "a", 1, 2, (), (), "2026-11-21T00:00:01+00:00")])
    assert rebase(newer, [gone]) == ()
    assert Proposal([gone]).actions == (gone,)


class Daemons(RuleBasedStateMachine):
    """Three daemons, one origin, one table. Each daemon has a log, and flushes it in order.

    The client numbers its batches without gaps, each with rows in some partitions, and begins each
    stream at or before its position in the previous one. If it continues to the end, every row
    must be in files exactly once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.origin: OriginAction | None = None
        self.logs: dict[Process, list[tuple[int, set[int]]]] = {A: [], B: [], C: []}
        self.rows: dict[int, frozenset[int]] = {}
        self.in_files: list[tuple[int, int]] = []
        self.daemon: Process | None = None
        self.position = 0

    @rule(daemon=st.sampled_from([A, B, C]), back=st.integers(0, 5))
    def open_a_stream(self, daemon: Process, back: int) -> None:
        first = max(0, self.position - back)
        base = self.origin or fresh("o", daemon)
        # A daemon has dropped rows that it no longer owns before it takes the origin back.
        log = self.logs[daemon] = [
            entry for entry in self.logs[daemon] if may_commit(base, entry[0], daemon)
        ]
        live = {who for who, entries in self.logs.items() if any(left for _, left in entries)}
        unknown = first
        while any(seq == unknown for seq, _ in log):
            unknown += 1  # duplicates by the daemon's own memory
        self.origin = taken_over(base, daemon, unknown, "now", lambda other: other not in live)
        self.daemon, self.position = daemon, first

    @rule(parts=st.frozensets(st.integers(0, 2)))
    def write(self, parts: frozenset[int]) -> None:
        if self.daemon is None:
            return
        sequence, self.position = self.position, self.position + 1
        parts = self.rows.setdefault(sequence, parts)
        log = self.logs[self.daemon]
        if any(seq == sequence for seq, _ in log):
            return
        assert self.origin is not None
        run = run_at(owned(self.origin), sequence)
        if run is not None:
            assert run.owner == self.daemon
        left = {part for part in parts if not in_files(self.origin, sequence, (1, (part,)))}
        log.append((sequence, left))

    @rule(part=st.integers(0, 2), daemon=st.sampled_from([A, B, C]))
    def persist(self, part: int, daemon: Process) -> None:
        """Flush a daemon's rows of a partition, except those that it no longer owns."""
        for sequence, left in sorted(self.logs[daemon], key=lambda entry: entry[0]):
            if self.origin is not None and may_commit(self.origin, sequence, daemon):
                if part in left:
                    self.in_files.append((sequence, part))
                    left.remove(part)
                self.origin = further(self.origin, sequence, (1, (part,)))

    @invariant()
    def no_row_is_in_files_twice(self) -> None:
        assert len(set(self.in_files)) == len(self.in_files)

    @invariant()
    def rows_in_files_are_known(self) -> None:
        for sequence, part in self.in_files:
            assert in_files(self.origin, sequence, (1, (part,)))

    def teardown(self) -> None:
        while self.position < len(self.rows):
            self.write(frozenset())
        for daemon in self.logs:
            for part in range(3):
                self.persist(part, daemon)
        self.no_row_is_in_files_twice()
        wanted = {(sequence, part) for sequence, parts in self.rows.items() for part in parts}
        assert set(self.in_files) == wanted


Daemons.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestDaemons = Daemons.TestCase


@given(st.lists(st.tuples(st.sampled_from([A, B, C]), st.integers(0, 30)), min_size=1, max_size=12))
def test_after_any_takeovers_each_sequence_has_one_process(
    moves: list[tuple[Process, int]],
) -> None:
    origin = fresh("o", A)
    holder = dict.fromkeys(range(40), A)
    for process, first in moves:
        origin = taken_over(origin, process, first, "now")
        for sequence in range(first, 40):
            holder[sequence] = process
    for sequence in range(40):
        owners = [p for p in (A, B, C) if may_commit(origin, sequence, p)]
        assert owners == [holder[sequence]]
