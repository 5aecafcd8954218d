"""The log of a fenced daemon is adopted after its client has moved to the successor."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fencing.pairs import adopt, adopted_rows, pause, start
from tests.origins.senders import TABLE, duplicates, in_files, persisted, rows_of, seen, send


@pytest.mark.parametrize("persisted_before", [False, True])
def test_what_was_logged_unanswered_and_sent_again_is_not_doubled_by_an_adoption(
    tmp_path: Path, persisted_before: bool
) -> None:
    with start(tmp_path, "first") as first:
        send(first, range(1, 5))
        pause(first)
        with start(tmp_path, "second", manifest__refresh="10ms") as second:
            # The answers to 3 and 4 were lost.
            assert duplicates(send(second, range(3, 7))) == [False] * 4
            if persisted_before:
                persisted(second)
            first.kill()
            found = adopt(tmp_path, "first")[TABLE]
            assert (found["rows"], found["taken_over_rows"]) == (20, 20)
            assert adopted_rows(tmp_path, "first") == 0
            persisted(second)
            assert seen(second) == in_files(tmp_path) == rows_of(range(1, 7))
            # The adopted sequences are recognized as duplicates.
            assert duplicates(send(second, range(1, 8))) == [True] * 6 + [False]
            assert seen(second) == rows_of(range(1, 8))
            persisted(second)
            assert in_files(tmp_path) == rows_of(range(1, 8))
