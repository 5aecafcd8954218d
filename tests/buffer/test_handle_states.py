"""A buffer makes only the transitions of its transition table."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ingester.buffer import BufferHandle, BufferState, IllegalTransition, PersistedFiles
from ingester.buffer.handle import TRANSITIONS

FILES = PersistedFiles((), ())
STEPS: dict[str, Callable[[BufferHandle], object]] = {
    "freeze": lambda handle: handle.freeze(1.0),
    "note_files": lambda handle: handle.note_files(FILES),
    "begin_release": lambda handle: handle.begin_release(),
    "abort_release": lambda handle: handle.abort_release(),
    "release": lambda handle: handle.release(),
}
WAYS: dict[BufferState, list[str]] = {
    BufferState.ACTIVE: [],
    BufferState.FROZEN: ["freeze"],
    BufferState.IN_FILES: ["freeze", "note_files"],
    BufferState.RELEASING: ["freeze", "note_files", "begin_release"],
    BufferState.RELEASED: ["freeze", "note_files", "begin_release", "release"],
}


def handle_in(state: BufferState) -> BufferHandle:
    """A buffer that has reached this state."""
    handle = BufferHandle((1, ()), keyed=False, epoch=1, first_seq=1, segment=1)
    for step in WAYS[state]:
        STEPS[step](handle)
    assert handle.state is state
    return handle


@pytest.mark.parametrize("state", BufferState)
@pytest.mark.parametrize("step", STEPS)
def test_a_transition_outside_the_table_raises(state: BufferState, step: str) -> None:
    handle = handle_in(state)
    target = TRANSITIONS[step].get(state)
    if target is not None:
        STEPS[step](handle)
        assert handle.state is target
    else:
        with pytest.raises(IllegalTransition):
            STEPS[step](handle)
        assert handle.state is state


def test_every_transition_of_the_table_is_tested() -> None:
    assert STEPS.keys() == TRANSITIONS.keys()


def test_a_buffer_waiting_to_be_spilled_stays_readable() -> None:
    handle = BufferHandle((1, ()), keyed=True, epoch=1, first_seq=1, segment=1)
    pin = handle.pin()
    handle.freeze(1.0)
    handle.note_files(FILES)
    assert not handle.begin_release()
    assert handle.state is BufferState.IN_FILES
    pin.close()
    assert handle.begin_release()
    handle.release()
    assert handle.released
