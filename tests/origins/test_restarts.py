"""A daemon can commit the acknowledged rows in its log after any number of restarts.

A model of one origin, one table and one daemon that is killed between streams and never flushes.
The manifest only says which process may commit what. Streams begin anywhere, leave gaps and
repeat batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.flight as fl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingester.origins.registry import Origins
from persist.manifest import OriginAction
from persist.manifest.origins import OriginVerdict, taken_over
from tests.drivers.daemon import Daemon
from tests.drivers.wire import events, put, rows
from tests.persist.manifest.samples import may_commit

NAME, TABLE, ID = "w", ("it", "t"), "a"
BUFFER = "buffer"


class Life:
    """A daemon after its start, with the logs of all earlier lives replayed."""

    def __init__(
        self, epoch: int, log: list[tuple[int, int]], manifest: OriginAction | None
    ) -> None:
        self.process = (ID, epoch)
        self.log = log
        self.manifest = manifest
        self.origins = Origins()
        for seq, (written_in, sequence) in enumerate(log):
            origin_table = self.origins.table(NAME, TABLE)
            if manifest is not None and origin_table.owner is None:
                self.origins.load(origin_table, manifest, ID)
            process = (ID, written_in)
            assert may_commit(manifest, sequence, process), (manifest, sequence, process)
            self.origins.note_applied(NAME, TABLE, sequence, seq, [BUFFER], process)

    def open(self, first: int) -> None:
        """Mirrors `OriginTakeover.take`."""
        origin_table = self.origins.table(NAME, TABLE)
        if origin_table.owns(first):
            return
        known = self.manifest or origin_table.unknown_origin(self.process)
        self.origins.load(origin_table, known, ID)
        foreign = origin_table.first_foreign(first, self.process)
        first = first if foreign is None else foreign
        done = self.origins.done(origin_table, self.process, {})
        held = origin_table.held()
        self.manifest = taken_over(known, self.process, first, None, done, held)
        self.origins.claim(origin_table, self.manifest, self.process)
        assert origin_table.owns(first)

    def send(self, sequence: int) -> OriginVerdict:
        verdict = self.origins.table(NAME, TABLE).verdict(sequence)
        if verdict is OriginVerdict.NEW:
            seq = len(self.log)
            self.log.append((self.process[1], sequence))
            self.origins.note_applied(NAME, TABLE, sequence, seq, [BUFFER], self.process)
        return verdict


STREAMS = st.lists(st.integers(0, 30), min_size=1, max_size=5, unique=True).map(sorted)
LIVES = st.lists(st.lists(STREAMS, max_size=3), min_size=1, max_size=6)


@settings(max_examples=500, deadline=None)
@given(LIVES)
def test_what_was_written_is_a_duplicate_and_stays_ours_to_commit(
    lives: list[list[Sequence[int]]],
) -> None:
    log: list[tuple[int, int]] = []
    manifest: OriginAction | None = None
    written: set[int] = set()
    for epoch, streams in enumerate(lives, start=1):
        life = Life(epoch, log, manifest)
        for stream in streams:
            life.open(stream[0])
            for sequence in stream:
                verdict = life.send(sequence)
                if sequence in written:
                    assert verdict.durable
                elif sequence > max(written, default=-1):
                    assert verdict is OriginVerdict.NEW
                if verdict is OriginVerdict.NEW:
                    written.add(sequence)
        manifest = life.manifest
    assert len(log) == len(written)
    for epoch, sequence in log:
        assert may_commit(manifest, sequence, (ID, epoch))


@pytest.mark.parametrize("again", [(0, 1, 14, 15), (1, 14, 15)])
def test_sent_again_over_two_lives_and_a_gap_nothing_is_doubled(
    tmp_path: Path, again: tuple[int, ...]
) -> None:
    def send(daemon: Daemon, *sequences: int) -> list[bool]:
        batches = [events(sequence * 10, 10) for sequence in sequences]
        metadata = [{"sequence": sequence} for sequence in sequences]
        with fl.connect(daemon.flight) as client:
            answers = put(client, TABLE, *batches, origin=NAME, metadata=metadata)
        return [answer["duplicate"] for answer in answers]

    daemon = Daemon.start(tmp_path / "d", persist__max_age="1h")
    for sequences in ((0, 1), (14, 15)):
        assert send(daemon, *sequences) == [False, False]
        daemon.kill()
        daemon = daemon.again()
    with daemon:
        assert all(send(daemon, *again))
        with fl.connect(daemon.flight) as client:
            found = rows(client, TABLE)
        assert len(found) == len(set(found)) == 40
