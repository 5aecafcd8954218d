"""An origin moves to another daemon, and the first daemon restarts with its log."""

from __future__ import annotations

from pathlib import Path

import pyarrow.flight as fl
import pytest

from tests.drivers.wire import Stream, extra, writing
from tests.fencing.pairs import start
from tests.origins.senders import (
    ORIGIN,
    TABLE,
    batch,
    duplicates,
    in_files,
    known,
    persisted,
    rows_of,
    seen,
    send,
)


@pytest.mark.parametrize("other_persists_first", [False, True])
def test_a_client_that_sends_again_what_was_not_durable_doubles_nothing(
    tmp_path: Path, other_persists_first: bool
) -> None:
    with start(tmp_path, "a", id="a") as first, start(tmp_path, "b", id="b") as second:
        send(first, range(1, 5))
        persisted(first)
        send(first, range(5, 11))
        first.kill()
        told = known(second)
        assert told is not None
        assert told["durable_sequence"] == 4
        assert duplicates(send(second, range(3, 13))) == [True] * 2 + [False] * 8
        assert seen(second) == rows_of(range(1, 13))
        if other_persists_first:
            persisted(second)
        with first.again() as first:
            if other_persists_first:
                assert seen(first) == rows_of(range(1, 13))
            else:
                assert seen(first) == rows_of(range(1, 5))
            assert first.terminate() == 0
        assert '"rows_of_origins_taken_over": 60' in first.stderr_file.read_text()
        persisted(second)
        assert seen(second) == in_files(tmp_path) == rows_of(range(1, 13))


def test_what_the_client_does_not_send_again_comes_with_the_first_daemon(tmp_path: Path) -> None:
    """The batch was acknowledged, and the client does not guard against a lost disk."""
    with (
        start(tmp_path, "a", id="a") as first,
        start(tmp_path, "b", id="b", manifest__refresh="10ms") as second,
    ):
        send(first, range(1, 5))
        persisted(first)
        send(first, range(5, 11))
        first.kill()
        (answer, *_) = send(second, range(9, 13))
        assert (answer["first"], answer["durable_sequence"]) == (True, 4)
        persisted(second)
        assert in_files(tmp_path) == rows_of([*range(1, 5), *range(9, 13)])
        with first.again() as first:
            assert seen(first) == rows_of(range(1, 13))
            persisted(first)
            assert seen(first) == rows_of(range(1, 13))
        assert seen(second) == in_files(tmp_path) == rows_of(range(1, 13))
        assert duplicates(send(second, range(1, 14))) == [True] * 12 + [False]


def test_an_open_stream_finds_that_its_origin_has_moved(tmp_path: Path) -> None:
    with (
        start(tmp_path, "a", id="a", manifest__refresh="10ms") as first,
        start(tmp_path, "b", id="b", manifest__refresh="10ms") as second,
        fl.connect(first.flight) as client,
    ):
        stream = Stream(client, writing(TABLE, ORIGIN), batch(1).schema)
        for number in range(1, 4):
            stream.write(batch(number), {"sequence": number})
        assert duplicates(send(second, range(2, 6))) == [False] * 4
        persisted(second)
        # The other daemon owns everything from sequence 2, and has it in files.
        while seen(first) != rows_of(range(1, 6)):
            assert len(seen(first)) in (30, 50)
        with pytest.raises(fl.FlightUnavailableError) as error:
            stream.write(batch(9), {"sequence": 9})
        assert extra(error.value)["code"] == "owner"
        with pytest.raises(fl.FlightUnavailableError):
            stream.close()
        # A new stream makes the first daemon the owner again.
        assert duplicates(send(first, range(4, 8))) == [True, True, False, False]
        persisted(first)
        persisted(second)
        assert seen(first) == seen(second) == in_files(tmp_path) == rows_of(range(1, 8))


def test_an_origin_that_moves_to_and_fro_adds_each_batch_once(tmp_path: Path) -> None:
    daemons = [start(tmp_path, "a", id="a"), start(tmp_path, "b", id="b")]
    sent = durable = 0
    for turn in range(6):
        here = turn % 2
        told = known(daemons[here])
        durable = (told["durable_sequence"] or 0) if told is not None else 0
        # Everything that is not durable, and some more.
        send(daemons[here], range(durable + 1, sent + 4), days=3)
        sent += 3
        if turn % 3 == 1:
            persisted(daemons[here])
        if turn % 2:
            daemons[1 - here].kill()
            daemons[1 - here] = daemons[1 - here].again()
    for daemon in daemons:
        assert daemon.terminate() == 0
    assert in_files(tmp_path) == rows_of(range(1, sent + 1))
