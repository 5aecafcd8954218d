"""Who makes room at a full HTTP port."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ingester.server.http.connections import (
    ANSWER_S,
    HttpConnection,
    HttpConnections,
    HttpLimits,
)


class Clock:
    """A clock that a test turns."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.tuples(st.sampled_from("aaab"), st.booleans()), max_size=40))
def test_a_new_connection_has_its_place_and_most_of_all_are_never_more(
    arriving: list[tuple[str, bool]],
) -> None:
    clock = Clock()
    table = HttpConnections(HttpLimits(4), clock)
    held: list[HttpConnection] = []
    for peer, asks in arriving:
        clock.now += 1
        made, leaving = table.open(peer)
        assert (leaving is not None) == (len(held) == 4)
        if leaving is not None:
            held.remove(leaving)
            peers = [each.peer for each in held] + [leaving.peer]
            assert peers.count(leaving.peer) == max(map(peers.count, peers))
            of_same = [each for each in held if each.peer == leaving.peer]
            if leaving.answers:
                assert all(each.answers for each in of_same), "a quiet one goes first"
        held.append(made)
        assert len(table) == len(held) <= 4
        if asks:
            assert table.answering(made, is_health=True)


def test_a_quiet_connection_and_one_that_takes_no_answer_are_overdue() -> None:
    clock = Clock()
    table = HttpConnections(HttpLimits(100, idle_s=15), clock)
    quiet, busy = table.open("a")[0], table.open("a")[0]
    assert table.answering(busy, is_health=False)
    clock.now = 14
    assert list(table.overdue()) == []
    clock.now = 15
    assert list(table.overdue()) == [quiet]
    table.close(quiet)
    table.close(quiet)
    assert list(table.overdue()) == []
    clock.now = ANSWER_S
    assert list(table.overdue()) == [busy]
    table.answered(busy, is_health=False)
    assert list(table.overdue()) == []


def test_health_is_answered_beside_as_many_answers_as_there_may_be() -> None:
    table = HttpConnections(HttpLimits(32), Clock())
    first, second, third = (table.open("a")[0] for _ in range(3))
    assert table.answering(first, is_health=False)
    assert table.answering(second, is_health=False)
    assert not table.answering(third, is_health=False)
    assert table.answering(third, is_health=True)
    table.answered(second, is_health=False)
    assert table.answering(second, is_health=False)
