"""Start positions of a copy: a state, a time, the tail, the beginning."""

from __future__ import annotations

from typing import Any

import pytest

from ingester.followers.errors import FellBehind
from ingester.followers.followed_copy import FollowedCopy
from tests.followers.memory_sink import Disk, content
from tests.followers.world import World, copy_of


def row(number: int, p: int = 0) -> dict[str, Any]:
    return {"p": p, "id": number, "v": f"v{number}"}


def write(world: World, *numbers: int) -> None:
    world.write({0: ([row(number) for number in numbers], [])})


def ids(disk: Disk, *, keyed: bool = False) -> list[int]:
    found = content(disk, keyed)
    return sorted(dict(one)["id"] for one in found.elements())


def advance(copy: FollowedCopy, times: int = 6) -> None:
    for _ in range(times):
        copy.advance(0.0)


@pytest.mark.parametrize("keyed", [False, True])
def test_a_copy_that_begins_at_the_tail_has_what_comes_after(keyed: bool) -> None:
    world, disk = World(keyed=keyed), Disk()
    write(world, 1)
    world.flush(0)
    write(world, 2)
    copy = copy_of(world, disk, seek="tail")
    advance(copy)
    write(world, 3)
    advance(copy)
    assert ids(disk, keyed=keyed) == [3]
    world.flush(0)
    write(world, 4)
    advance(copy)
    assert ids(disk, keyed=keyed) == [3, 4]
    advance(copy_of(world, disk))
    assert ids(disk, keyed=keyed) == [3, 4]


def test_a_copy_from_the_tail_that_falls_behind_takes_files_of_after_its_beginning() -> None:
    world, disk = World(keyed=False), Disk()
    write(world, 1)
    world.flush(0)
    copy = copy_of(world, disk, seek="tail")
    write(world, 2)
    world.flush(0)
    world.forget()
    advance(copy)
    assert ids(disk) == [2]


def test_a_copy_from_the_tail_says_so_where_files_mix_what_was_before_it() -> None:
    world, disk = World(keyed=False), Disk()
    write(world, 1)
    copy = copy_of(world, disk, seek="tail")
    write(world, 2)
    world.flush(0)
    world.forget()
    with pytest.raises(FellBehind, match="seek to the tail, or to the beginning"):
        advance(copy)


def test_a_copy_that_begins_at_a_time_has_what_came_into_files_since_and_the_tail() -> None:
    world, disk = World(keyed=False), Disk()
    write(world, 1)
    world.flush(0)
    world.clean_up(1)  # the model's oldest kept version stands for every time
    write(world, 2)
    world.flush(0)
    write(world, 3)
    from datetime import UTC, datetime

    copy = copy_of(world, disk, seek=datetime(2026, 11, 21, tzinfo=UTC))
    advance(copy)
    assert ids(disk) == [2, 3]
    world.flush(0)
    write(world, 4)
    advance(copy)
    assert ids(disk) == [2, 3, 4]


def test_a_copy_begins_again_beside_the_one_that_readers_see() -> None:
    world, disk = World(keyed=False), Disk()
    write(world, 1)
    world.flush(0)
    advance(copy_of(world, disk))
    write(world, 2)
    copy = copy_of(world, disk, seek="beginning")
    assert ids(disk) == [1], "readers see the earlier copy until the new one is complete"
    advance(copy)
    assert ids(disk) == [1, 2]


def test_a_copy_goes_on_from_a_state_that_was_kept_elsewhere() -> None:
    world, disk = World(keyed=True), Disk()
    write(world, 1)
    world.flush(0)
    advance(copy_of(world, disk))
    (state,) = disk.states.values()
    write(world, 2)
    advance(copy_of(world, disk))
    write(world, 3)
    copy = copy_of(world, disk, seek=state)
    assert copy.state.position is not None and copy.state.position.sequence == 1
    advance(copy)
    assert ids(disk, keyed=True) == [1, 2, 3]
