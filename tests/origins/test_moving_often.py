"""An origin moves back and forth; each daemon commits what it has acknowledged."""

from __future__ import annotations

from pathlib import Path

import pyarrow.flight as fl
import pytest

from persist.manifest.origins import MAX_RUNS, MOST_RUNS
from tests.drivers.wire import extra, put
from tests.fencing.pairs import start
from tests.origins.senders import (
    ORIGIN,
    TABLE,
    batch,
    duplicates,
    in_files,
    persisted,
    rows_of,
    seen,
    send,
)


@pytest.mark.parametrize("killed", [False, True])
def test_more_moves_than_runs_are_kept_apart_lose_nothing(tmp_path: Path, killed: bool) -> None:
    """As behind a load balancer, where each connection may lead to the other daemon."""
    with (
        start(tmp_path, "a", id="a", manifest__refresh="10ms") as a,
        start(tmp_path, "b", id="b", manifest__refresh="10ms") as b,
    ):
        moves = 2 * MAX_RUNS + 3
        for move in range(moves):
            answers = send((a, b)[move % 2], [3 * move + 1, 3 * move + 2])
            assert duplicates(answers) == [False, False]
        numbers = [3 * move + more for move in range(moves) for more in (1, 2)]
        if killed:
            a.kill()
            b.kill()
            with a.again() as a, b.again() as b:
                persisted(a)
                persisted(b)
        else:
            persisted(a)
            persisted(b)
        assert in_files(tmp_path) == rows_of(numbers)
    with start(tmp_path, "c", id="c") as c:
        assert seen(c) == rows_of(numbers)
        assert all(duplicates(send(c, numbers)))


def test_an_origin_that_moved_too_often_is_refused_until_its_rows_are_in_files(
    tmp_path: Path,
) -> None:
    with (
        start(tmp_path, "a", id="a", manifest__refresh="10ms") as a,
        start(tmp_path, "b", id="b", manifest__refresh="10ms") as b,
    ):
        sent, refusal = list[int](), None
        while refusal is None and len(sent) < MOST_RUNS + 10:
            number = len(sent)
            with fl.connect((a, b)[number % 2].flight) as client:
                try:
                    metadata = [{"sequence": number}]
                    put(client, TABLE, batch(number), origin=ORIGIN, metadata=metadata)
                    sent.append(number)
                except fl.FlightUnavailableError as error:
                    refusal = extra(error)
        assert refusal is not None, "it is taken over for ever"
        assert refusal["code"] == "saturated"
        assert f"origin '{ORIGIN}' of table ns/t moved between daemons" in refusal["message"]
        assert "run `ingester persist` on a, b" in refusal["message"]
        persisted(a)
        persisted(b)
        assert in_files(tmp_path) == rows_of(sent)
        more = range(len(sent), len(sent) + MOST_RUNS)
        for number in more:
            send((a, b)[number % 2], [number])
            persisted((a, b)[number % 2])
        assert in_files(tmp_path) == rows_of([*sent, *more])


def test_what_a_lost_daemon_had_is_sent_again_across_a_restart(tmp_path: Path) -> None:
    """The daemon already has later batches, and stops between two that it receives again."""
    with start(tmp_path, "a", id="a") as a:
        with start(tmp_path, "b", id="b") as b:
            send(a, [0])
            send(b, [1, 2])
            send(a, [3])
        assert duplicates(send(a, [1])) == [False]
        a.kill()
        with a.again() as again:
            assert duplicates(send(again, [2, 3])) == [False, True]
            persisted(again)
            assert in_files(tmp_path) == rows_of(range(4))


def test_a_daemon_that_takes_back_what_it_once_had_asks_for_it_again(tmp_path: Path) -> None:
    with start(tmp_path, "a", id="a") as a, start(tmp_path, "b", id="b") as b:
        send(a, [0])
        send(b, [1])
        b.kill()
        with b.again() as b:
            send(a, [1])
            assert duplicates(send(b, [0])) == [False]
            b.kill()
            with b.again() as b:
                assert duplicates(send(b, [1])) == [False]
                persisted(b)
                persisted(a)
                assert in_files(tmp_path) == rows_of(range(2))
