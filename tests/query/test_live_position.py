"""Released operations, remembered in few facts: no gap goes unnoticed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ingester.query.live_groups import (
    BEGINNING,
    MAX_GONE,
    NO_VERSION,
    GoneOperation,
    GoneOperations,
    LogPast,
    Position,
)

positions = st.builds(Position, st.integers(1, 3), st.integers(0, 12))
gone = st.builds(GoneOperation, positions, st.integers(1, 12))


@given(st.lists(gone, max_size=30), positions, st.integers(NO_VERSION, 13))
def test_an_answer_is_refused_exactly_where_something_is_missing(
    facts: list[GoneOperation], after: Position, version: int
) -> None:
    noted = GoneOperations()
    for fact in facts:
        noted.note(*fact)
    missing = [f for f in facts if f.last > after and f.version > version]
    found = noted.behind(after, version)
    assert (found is not None) == bool(missing)
    assert found is None or (found.last > after and found.version > version)


@given(st.lists(gone, min_size=1, max_size=30))
def test_who_has_nothing_is_told_that_something_is_gone(facts: list[GoneOperation]) -> None:
    noted = GoneOperations()
    for fact in facts:
        noted.note(*fact)
    assert noted.behind(BEGINNING, NO_VERSION) is not None
    assert noted.behind(Position(4, 0), NO_VERSION) is None
    assert noted.behind(BEGINNING, 12) is None


def test_few_facts_are_kept_and_none_is_forgotten() -> None:
    noted = GoneOperations()
    # None of these facts implies another: later operations are in earlier versions.
    facts = [GoneOperation(Position(1, 1000 - n), n) for n in range(1, 500)]
    for fact in facts:
        noted.note(*fact)
    assert len(noted._facts) <= MAX_GONE  # no public API shows the number
    for last, version in facts:
        assert noted.behind(Position(1, last.sequence - 1), version - 1) is not None
    assert noted.behind(Position(1, 1000), NO_VERSION) is None


def test_a_log_knows_the_positions_that_it_had_at_the_start() -> None:
    past = LogPast("here", 5, {3: 70, 4: 90})
    assert past.knows(Position(4, 90))
    assert past.knows(Position(3, 1))
    assert not past.knows(Position(4, 91)), "a power loss has taken it"
    assert not past.knows(Position(2, 1)), "nobody knows how that epoch ended"
    assert not past.knows(Position(6, 1))
