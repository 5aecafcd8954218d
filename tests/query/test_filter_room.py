"""Filters in use are limited by bytes in each namespace, without affecting other namespaces."""

from __future__ import annotations

import pytest

from ingester.errors import TooManyStreams
from ingester.query.stream import FEW_BYTES, FilterRoom

LARGE = 10 * FEW_BYTES


def test_a_namespace_has_so_many_bytes_of_filters_and_others_have_theirs() -> None:
    room = FilterRoom(2 * LARGE)
    for _ in range(2):
        room.take("a", LARGE)
    with pytest.raises(TooManyStreams, match=r"namespace a .*query\.max_filter_bytes"):
        room.take("a", LARGE)
    room.take("a", FEW_BYTES)
    room.take("b", 3 * LARGE)  # a first filter is admitted whatever its size
    assert room.nbytes == 5 * LARGE + FEW_BYTES
    for nbytes in (LARGE, FEW_BYTES):
        room.leave("a", nbytes)
    room.take("a", LARGE)
    for nbytes in (LARGE, LARGE):
        room.leave("a", nbytes)
    room.leave("b", 3 * LARGE)
    assert room.nbytes == 0
