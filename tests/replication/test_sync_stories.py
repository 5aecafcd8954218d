"""Random streams of changes, cut at random, with flushes, kills and repetitions."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.drivers.daemon import Daemon, Launch
from tests.drivers.syncing import KEEP, Change, Source, State, apply, state
from tests.drivers.wire import create, describe, persist

_KEY = st.integers(0, 7)
_CELLS = st.fixed_dictionaries(
    {},
    optional={
        "v": st.one_of(st.just(KEEP), st.integers(0, 3).map(float)),
        "s": st.one_of(st.just(KEEP), st.sampled_from("abc")),
    },
)
_CHANGES = st.lists(
    st.tuples(st.one_of(st.none(), _KEY), st.one_of(st.none(), _KEY), _CELLS).filter(
        lambda change: change[:2] != (None, None)
    ),
    max_size=6,
)
_STORY = st.lists(
    st.one_of(
        st.tuples(st.just("message"), _CHANGES, st.booleans()),
        st.tuples(st.just("persist"), st.none(), st.none()),
        st.tuples(st.just("kill"), st.none(), st.none()),
        st.tuples(st.just("repeat"), st.none(), st.none()),
    ),
    min_size=1,
    max_size=12,
)


class Replica:
    """A daemon, a source, and the expected table."""

    def __init__(self, daemon: Daemon, table: str, spec: list[str]) -> None:
        self.daemon = daemon
        self.table = table
        self.sequence = 0
        self.sent: list[tuple[int, list[list[Change]]]] = []
        self.pending: list[list[Change]] = []
        self.rows: State = {}
        self.seen: list[State] = [{}]
        """The expected table after each transaction."""
        self.connect()
        if spec:
            key = pa.schema([pa.field("id", pa.int64())])
            create(self.source.client, ("ns", table), key, primary_key=["id"], partition_by=spec)

    def connect(self) -> None:
        self.source = Source(fl.connect(self.daemon.flight), "ns", f"A of {self.table}")

    def message(self, changes: list[Change], last: bool) -> None:
        begin = not self.pending
        changes = self.without_exchanged_keys(changes)
        self.pending.append(changes)
        fields: dict[str, object] = {"begin": begin}
        if last:
            self.sequence += 1
            fields["sequence"] = self.sequence
        self.source.send(self.table, changes, **fields)
        if last:
            for each in self.pending:
                apply(self.rows, each)
            self.seen.append(dict(self.rows))
            self.sent.append((self.sequence, self.pending))
            self.pending = []

    def without_exchanged_keys(self, changes: list[Change]) -> list[Change]:
        """Leave out what a daemon refuses: changes of a key to which a row moved beside another."""
        rows, shared, kept = dict(self.rows), set[int | None](), []
        for change in itertools.chain(*self.pending, changes):
            old, new, _ = change
            if old is not None and old in shared:
                continue  # an earlier message's changes have none of these
            if new in rows and old not in (None, new):
                shared.add(new)
            apply(rows, [change])
            kept.append(change)
        return kept[sum(map(len, self.pending)) :]

    def persist(self) -> None:
        if self.exists:
            persist(self.source.client, ("ns", self.table))

    def kill(self) -> None:
        self.daemon.kill()
        self.daemon = self.daemon.again()
        self.connect()
        self.pending = []

    def lose(self) -> None:
        """Lose the disk; only files and the source's repetition restore the table."""
        self.daemon.kill()
        launch = self.daemon.launch
        folder = launch.data_dir.with_name(f"{launch.data_dir.name}+")
        settings = {**launch.settings, "recovery__accept_lost_log": True}
        self.daemon = Launch(folder, {}, (), settings).start()
        self.connect()
        self.repeat()

    def repeat(self) -> None:
        """Send all transactions again from the beginning."""
        self.pending = []
        for sequence, messages in self.sent:
            for number, changes in enumerate(messages):
                closes = {"sequence": sequence} if number == len(messages) - 1 else {}
                said = self.source.send(self.table, changes, begin=number == 0, **closes)
                assert said["accepted"]

    @property
    def exists(self) -> bool:
        """Whether any change has created the table."""
        return any(changes for _, messages in self.sent for changes in messages)

    def check(self) -> None:
        if self.exists:
            assert self.source.state(self.table) == self.rows

    def check_versions(self) -> None:
        """Check that each file version has only whole transactions."""
        client, table = self.source.client, ("ns", self.table)
        newest = describe(client, table)["manifest_version"]
        for version in range(1, newest + 1):
            assert state(client, table, scope="version", version=version) in self.seen, version
        assert newest > 5


def test_any_story_equals_a_dictionary(tmp_path: Path) -> None:
    first = Daemon.start(tmp_path / "d", persist__max_age="1h")
    daemons, tables = [first], itertools.count()

    @given(story=_STORY, spec=st.sampled_from([[], ["bucket(3, id)"]]))
    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    def tell(story: list[tuple[str, list[Change], bool]], spec: list[str]) -> None:
        replica = Replica(daemons[-1], f"t{next(tables)}", spec)
        try:
            for what, changes, last in story:
                if what == "message":
                    replica.message(changes, last)
                else:
                    getattr(replica, what)()
                replica.check()
            replica.kill()
            replica.repeat()
            replica.check()
            replica.persist()
            replica.check()
        finally:
            daemons.append(replica.daemon)

    try:
        tell()
    finally:
        daemons[-1].kill()


def _some_change(chance: random.Random, keys: int) -> Change:
    while True:
        old, new = (chance.choice((None, chance.randrange(keys))) for _ in range(2))
        if old is not None and chance.random() < 0.3:
            new = old
        if (old, new) != (None, None):
            break
    cells: dict[str, object] = {}
    if chance.random() < 0.8:
        cells["v"] = chance.choice((KEEP, float(chance.randrange(100))))
    if chance.random() < 0.8:
        cells["s"] = chance.choice((KEEP, f"text {chance.randrange(100)}"))
    return old, new, cells


@pytest.mark.parametrize("spec", [[], ["bucket(3, id)"]])
def test_a_long_stream_over_eight_bits_of_keys_equals_a_dictionary(
    tmp_path: Path, spec: list[str]
) -> None:
    @given(seed=st.integers(0, 1 << 32))
    @settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
    def stream(seed: int) -> None:
        chance = random.Random(seed)
        folder = tmp_path / str(seed)
        limits: dict[str, Any] = {"persist__max_age": "1h", "replication__max_messages": 5}
        daemon = Daemon.start(folder / "d", store=f"file://{folder}/store", **limits)
        replica = Replica(daemon, "t", spec)
        try:
            for _ in range(60):
                step = chance.random()
                if step < 0.8:
                    count = chance.choice((0, 1, 20, 300))
                    changes = [_some_change(chance, 256) for _ in range(count)]
                    replica.message(changes, last=chance.random() < 0.6)
                elif step < 0.9:
                    replica.persist()
                else:
                    chance.choice((replica.kill, replica.lose, replica.repeat))()
                if chance.random() < 0.2:
                    replica.check()
            replica.check()
            replica.kill()
            replica.repeat()
            replica.persist()
            replica.check()
            replica.check_versions()
            assert len(replica.rows) > 50
        finally:
            replica.daemon.kill()

    stream()
