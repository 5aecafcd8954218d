"""Random lives on one machine, ended at every call that changes something: each row once.

``INGESTER_TEST_LIVES=N`` asks for N examples of the random form.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.lifetimes.life import Machine, Step
from tests.lifetimes.model import Model
from tests.wal.disks import CrashDisk
from wal import LogError

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
    ("clean", 0),
    ("write", 2),
    ("persist", 0),
    ("write", 1),
]
AGAIN: list[Step] = [("write", 2), ("persist", 0), ("write", 1)]

steps = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 12)),
    st.tuples(st.just("burst"), st.integers(1, 6)),
    st.tuples(st.just("drain"), st.integers(0, 1)),
    st.tuples(st.sampled_from(["persist", "rotate", "clean", "query"]), st.just(0)),
)
# A life begins with a write: a missing table cannot be flushed.
scripts = st.lists(steps, max_size=8).map(lambda rest: [("write", 3), *rest])
lives = st.lists(
    st.tuples(scripts, st.integers(0, 160), st.sampled_from(["stop", "kill"])),
    min_size=1,
    max_size=4,
)


def check_at_rest(machine: Machine, scratch: Path) -> None:
    """An undisturbed life keeps its promises; after its stop the files have all rows."""
    assert machine.live(scratch, AGAIN, None, "stop")
    numbers = machine.rows_in_files()
    machine.model.in_files(numbers)
    machine.model.seen(numbers)


@pytest.mark.slow
@pytest.mark.parametrize("keyed", [False, True], ids=["no key", "keyed"])
def test_power_is_lost_at_every_call_of_a_life_and_each_row_is_there_once(
    keyed: bool, tmp_path: Path
) -> None:
    """And again at some call of the next life, which replays the first life's log."""
    at = 0
    while True:
        machine = Machine(seed=at, keyed=keyed)
        came_to_its_end = machine.live(tmp_path, SCRIPT, at, "stop")
        machine.model.in_files(machine.rows_in_files())
        if came_to_its_end:
            break
        machine.live(tmp_path, AGAIN, at * 7 % 40, "kill")
        machine.model.in_files(machine.rows_in_files())
        check_at_rest(machine, tmp_path)
        at += 1
    assert at > 60


@pytest.mark.slow
@settings(
    max_examples=int(os.environ.get("INGESTER_TEST_LIVES", "25")),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(lives, st.integers(0, 1 << 32), st.booleans())
def test_random_lives_keep_every_promise(
    tmp_path: Path, each: list[tuple[list[Step], int, str]], seed: int, keyed: bool
) -> None:
    machine = Machine(seed=seed, keyed=keyed)
    for script, calls, end in each:
        machine.live(tmp_path, script, calls, end)
        machine.model.in_files(machine.rows_in_files())
    check_at_rest(machine, tmp_path)


class NoSync(CrashDisk):
    """A disk whose syncs are answered and do nothing."""

    def fdatasync(self, fd: int) -> None:
        self.spend()


def test_a_log_that_is_not_synced_is_caught(tmp_path: Path) -> None:
    caught = 0
    for at in range(8, 60, 4):
        machine = Machine(disk=NoSync(), seed=at)
        machine.live(tmp_path, [("write", 5), ("burst", 4), ("write", 3)], at, "kill")
        try:
            check_at_rest(machine, tmp_path)
        except (AssertionError, LogError):
            caught += 1
    assert caught > 3


def test_the_model_notices_what_is_lost_doubled_torn_or_invented() -> None:
    for there in ([], [0, 0, 1], [0], [0, 1, 2]):
        model = Model()
        model.acknowledged(model.send(2))
        with pytest.raises(AssertionError):
            model.seen(there)
    model = Model()
    model.send(2)
    model.seen([0, 1])
    with pytest.raises(AssertionError, match="promised"):
        model.seen([])
