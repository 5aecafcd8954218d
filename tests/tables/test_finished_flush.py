"""A finished flush makes only the transitions of its transition table."""

from __future__ import annotations

import pytest

from ingester.buffer import IllegalTransition
from ingester.tables.commit_schedule import TRANSITIONS, FlushState
from tests.tables.flushes import finished, frozen, job_of

WAY = {
    FlushState.UPLOADED: (),
    FlushState.LINGERING: (FlushState.LINGERING,),
    FlushState.ASSEMBLING: (FlushState.LINGERING, FlushState.ASSEMBLING),
    FlushState.DUE: (FlushState.LINGERING, FlushState.DUE),
    FlushState.REFUSED: (FlushState.LINGERING, FlushState.DUE, FlushState.REFUSED),
    FlushState.LEFT_OUT: (FlushState.LINGERING, FlushState.DUE, FlushState.LEFT_OUT),
    FlushState.COMMITTED: (FlushState.LINGERING, FlushState.DUE, FlushState.COMMITTED),
}


@pytest.mark.parametrize("before", FlushState)
@pytest.mark.parametrize("after", FlushState)
def test_a_flush_goes_where_the_table_allows_it_and_raises_elsewhere(
    before: FlushState, after: FlushState
) -> None:
    flush = finished(job_of(frozen(1)))
    for state in WAY[before]:
        flush.become(state)
    assert flush.state is before
    if after in TRANSITIONS[before]:
        flush.become(after)
        assert flush.state is after
    else:
        with pytest.raises(IllegalTransition):
            flush.become(after)
        assert flush.state is before
