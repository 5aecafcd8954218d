"""The C library's heap has the daemon's settings, except those that the operator has set."""

from __future__ import annotations

import pytest

from ingester.memory.heap_settings import heap_tunables

DEFAULT = heap_tunables({})


def _settings(tunables: str) -> dict[str, str]:
    return dict(each.rsplit("=", 1) for each in tunables.split(":"))


def test_large_messages_lie_on_their_own_and_arenas_are_few() -> None:
    settings = _settings(DEFAULT)
    assert int(settings["glibc.malloc.arena_max"]) <= 4
    assert int(settings["glibc.malloc.mmap_threshold"]) < 24 << 20, "a message of the campaign"


@pytest.mark.parametrize("own", ["glibc.malloc.hugetlb=0", "glibc.malloc.arena_max=9", "glibc.x=1"])
def test_what_the_operator_has_set_stays(own: str) -> None:
    tunables = heap_tunables({"GLIBC_TUNABLES": own})
    assert tunables.startswith(own)
    assert _settings(tunables) == _settings(DEFAULT) | _settings(own)
    assert heap_tunables({"GLIBC_TUNABLES": tunables}) == tunables, "the program starts anew once"


def test_the_older_names_are_those_of_the_operator_too() -> None:
    tunables = heap_tunables({"MALLOC_ARENA_MAX": "9"})
    assert "arena_max" not in tunables
    assert "mmap_threshold" in tunables
