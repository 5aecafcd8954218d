"""A source that resumes from its committed state has every batch in files exactly once.

A source writes to two daemons in turn. It keeps no state of its own: for each stream it asks for
its state and resumes after it. Between streams, daemons flush, are killed or lose their disks.
At each moment all rows that belong to the durable state are in files.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from persist.manifest.origins import OriginVerdict
from tests.origins.test_two_daemons import (
    DAEMON,
    PARTITION,
    Kill,
    Lose,
    Op,
    Persist,
    Refresh,
    Roll,
    Stream,
    World,
)
from tests.origins.two_daemons import TABLE

OPS = st.one_of(
    *3 * [st.builds(Stream, DAEMON, st.just(0), st.integers(1, 3), st.integers(0, 2))],
    st.builds(Persist, DAEMON, PARTITION, st.booleans()),
    st.builds(Kill, DAEMON),
    st.builds(Lose, DAEMON),
    st.builds(Roll, DAEMON),
    st.builds(Refresh, DAEMON),
)


class Source(World):
    """The store, both daemons, and a source that keeps no state of its own."""

    def stream(self, op: Stream) -> None:
        daemon = self.daemons[op.daemon]
        state = daemon.state()
        # The source reads known rows again unchanged; new rows leave a gap.
        ahead = [sequence for sequence in self.batches if sequence > state]
        while len(ahead) < op.batches:
            self.newest += 1 + op.gap
            self.batches.append(self.newest)
            ahead.append(self.newest)
        daemon.open(ahead[0])
        for sequence in ahead[: op.batches]:
            verdict = daemon.send(sequence)
            assert verdict is not OriginVerdict.FOREIGN, (sequence, verdict, self.store.origin)
            # A duplicate does not change the state: its own may have made room for newer ones.
            assert verdict is not OriginVerdict.NEW or daemon.state() == sequence

    def lose(self, index: int) -> None:
        self.daemons[index].kill()
        self.daemons[index].lose_disk()

    def check(self) -> None:
        self.check_files()
        upto = self.store.durable_state(self.store.states[TABLE])
        lost = [each for each in self.batches if each <= upto and not self.in_files(each)]
        assert not lost, (upto, lost, self.store.origin)


def live_through(*ops: Op) -> None:
    source = Source()
    for op in ops:
        source.do(op)
        source.check()
    # It writes everything that is missing once more, and no disk is lost after that.
    source.do(Stream(0, 0, max(1, len(source.batches)), 0))
    source.finish()
    source.check()
    assert source.store.durable_state(source.store.states[TABLE]) == source.newest
    assert all(source.in_files(sequence) for sequence in source.batches)


@settings(max_examples=500, deadline=None)
@given(st.lists(OPS, min_size=3, max_size=40))
def test_a_source_that_goes_on_from_its_state_has_all_in_files_once(ops: list[Op]) -> None:
    live_through(*ops)


def test_what_is_in_files_above_rows_that_are_not_makes_no_duplicates_of_these_in_a_replay() -> (
    None
):
    live_through(
        Stream(0, 0, 3, 0),
        Stream(0, 0, 3, 1),
        Persist(0, 1, oldest=False),
        Stream(1, 0, 1, 2),
        Stream(0, 0, 1, 2),
        Kill(0),
    )


def test_a_share_of_which_nothing_is_left_says_nothing_of_what_lies_below_it() -> None:
    live_through(
        Stream(1, 0, 3, 0),
        Kill(1),
        Stream(1, 0, 2, 1),
        Stream(0, 0, 3, 1),
        Stream(1, 0, 1, 0),
        Kill(1),
        Persist(1, 0, oldest=True),
        Stream(0, 0, 5, 0),
    )
