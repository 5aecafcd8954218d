"""The gate of the append queue makes only the transitions of its transition table."""

from __future__ import annotations

from itertools import product
from typing import cast

import pytest

from wal.append_queue import TRANSITIONS, AppendQueue, Gate, OnLoop
from wal.segments import SegmentSet


def queue_at(gate: Gate) -> AppendQueue:
    """A queue that neither writes nor wakes the loop."""
    queue = AppendQueue(cast(SegmentSet, None), cast(OnLoop, None), sync=False)
    queue._gate = gate
    return queue


@pytest.mark.parametrize(("event", "gate"), list(product(TRANSITIONS, Gate)))
def test_an_event_that_the_table_does_not_list_is_refused(event: str, gate: Gate) -> None:
    queue = queue_at(gate)
    after = TRANSITIONS[event].get(gate)
    if after is None:
        with pytest.raises(RuntimeError, match=event):
            queue._turn(event)
        assert queue._gate is gate
    else:
        queue._turn(event)
        assert queue._gate is after


def test_every_state_is_held_and_comes_back_to_open() -> None:
    for gate in Gate:
        queue = queue_at(gate)
        queue.hold()
        if queue._gate is Gate.HELD_FAILED:
            queue._turn("resume")
        queue._turn("release")
        assert queue._gate is Gate.OPEN
