"""Lives at the level ``store``, ended at every call that changes something: each row once.

The machine is lost with its disk, or has none; what a batch was acknowledged for is in the store.
Every call of shipping, fencing, replay and deletion is cut before and after, twice in a row.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lifetimes.life import Machine, Step
from tests.lifetimes.test_lifetimes import check_at_rest

# A replay that a power loss interrupts is abandoned: a real process would be gone.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator 'wal.replay.read_ahead'")

SCRIPT: list[Step] = [
    ("write", 5),
    ("burst", 4),
    ("persist", 0),
    ("write", 3),
    ("rotate", 0),
    ("query", 0),
    ("write", 4),
    ("persist", 0),
    ("rotate", 0),
    ("write", 2),
]
AGAIN: list[Step] = [("write", 2), ("persist", 0), ("rotate", 0), ("write", 1)]


@pytest.mark.slow
@pytest.mark.parametrize(("level", "keyed"), [("store", True), ("off", False)])
def test_a_machine_is_lost_at_every_call_of_a_life_and_each_row_is_there_once(
    level: str, keyed: bool, tmp_path: Path
) -> None:
    """And again at some call of the next life, which replays the first life's log objects."""
    at = 0
    while True:
        machine = Machine(seed=2 * at, keyed=keyed, level=level)
        came_to_its_end = machine.live(tmp_path, SCRIPT, at, "stop")
        machine.model.in_files(machine.rows_in_files())
        if came_to_its_end:
            break
        machine.seed += at % 2
        machine.live(tmp_path, AGAIN, at * 7 % 40, "kill")
        machine.model.in_files(machine.rows_in_files())
        check_at_rest(machine, tmp_path)
        at += 1
    assert at > 40
