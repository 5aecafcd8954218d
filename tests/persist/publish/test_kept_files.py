"""Garbage collection beside publishing: readers of published versions find all files.

The kinds of faults are from issues of others: files deleted because a version that only an older
reference named was not looked at (apache/iceberg 13568), because they were removed and listed again
(8255), or because what is needed was read before what is there (apache/paimon 3074, 7715).
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from persist.manifest import (
    CommitUnclear,
    Manifest,
    Retention,
    TableState,
    clean_up,
    read_pins,
    walk,
)
from persist.publish.format import FORMATS, FormatName
from persist.publish.publisher import Publisher
from persist.store import StoreError, StoreUnavailable
from persist.switching import VersionRetention, clean_up_versions
from tests.drivers.memory_store import MemoryStore
from tests.persist.manifest.stores import ClockedStore
from tests.persist.publish.tables import BuiltTable

SCHEMA = pa.schema([("n", pa.int64())])
RETAIN_S = 5.5 * 3600
RETENTION = Retention(retain_s=RETAIN_S, orphan_grace_s=3600, keep_versions=1)
VERSIONS = VersionRetention(keep=0, grace_s=3600, retain_s=RETAIN_S)


class PublishedTable:
    """A table that is written, compacted, switched, published and collected; each of the last two
    may end at any call of the store.

    ``lives`` are the versions in the order in which they were current, with their files and the
    time of their commit.
    """

    def __init__(self) -> None:
        self.store = ClockedStore(MemoryStore())
        self.table = BuiltTable(self.store, SCHEMA)
        self.lives: list[tuple[tuple[int, int], set[str], datetime]] = []
        self.publisher = Publisher(self.store, "ns", "t")
        self.published: dict[FormatName, tuple[int, int]] = {}
        self.rows = 0
        self.follow()

    def follow(self) -> None:
        """Learn of new versions; a collection makes one, too."""
        manifest = Manifest(self.store, "ns", "t")
        number, head = manifest.table_version, manifest.head()
        after = max((v for (each, v), _, _ in self.lives if each == number), default=0)
        if not after:
            after = self.table.state.version - 1  # those before the switch were never current
        for step in walk(manifest, after + 1, head) if head > after else ():
            self.live(number, step.state)

    def live(self, number: int, state: TableState) -> None:
        files = {f"ns/t/v{number}/{path}" for path in state.files}
        self.lives.append(((number, state.version), files, self.store.now()))

    def place(self, at: tuple[int, int]) -> int:
        return next(place for place, (each, _, _) in enumerate(self.lives) if each == at)

    def write(self, times: int) -> None:
        for _ in range(1 + times % 3):
            self.store.advance(minutes=30)
            self.table.append(pa.table({"n": [self.rows]}, schema=SCHEMA))
            self.rows += 1
            self.follow()

    def compact(self, all_rows: int) -> None:
        """Merge all files, or remove them."""
        if self.table.state.files:
            self.store.advance(minutes=30)
            self.table.compact() if all_rows % 4 else self.table.remove()
            self.follow()

    def switch(self, hours: int) -> None:
        self.store.advance(hours=hours % 4)
        before = self.table.manifest
        self.table.switch(pa.table({"n": [self.rows]}, schema=SCHEMA))
        self.rows += 1
        self.live(before.table_version, before.load())  # its last version is the seal
        self.follow()

    def publish(self, choice: int) -> None:
        """By a new process or the same one, in one format or both; it may end at a call."""
        formats = FORMATS if choice % 3 == 0 else FORMATS[choice % 2 :][:1]
        if choice % 5 == 0:
            self.publisher = Publisher(self.store, "ns", "t")
        self.store.fail_at = choice if choice % 2 else None
        with suppress(StoreError):
            for status in self.publisher.publish(formats, retain_s=RETAIN_S):
                assert status.refused is None
                assert status.error is None or self.store.failed
        if self.ended():
            self.publisher = Publisher(self.store, "ns", "t")
        self.note_heads()

    def ended(self) -> bool:
        failed = self.store.failed
        self.store.fail_at, self.store.failed = None, False
        return failed

    def note_heads(self) -> None:
        pins = read_pins(self.store, "ns", "t")
        for status in Publisher(self.store, "ns", "t").status(FORMATS):
            if status.head is not None and status.format in pins:
                at = status.head.place
                head = self.place((at.table_version, at.version))
                first, _ = self.published.get(status.format, (head, head))
                self.published[status.format] = first, head

    def switch_off(self, choice: int) -> None:
        if self.published:
            format = FORMATS[choice % 2]
            self.publisher.switch_off(format)
            self.published.pop(format, None)

    def collect(self, choice: int) -> None:
        """Hours later; it may end at a call."""
        self.store.advance(hours=choice % 9)
        self.store.fail_at = 3 * choice if choice % 3 == 0 else None
        try:
            clean_up(Manifest(self.store, "ns", "t"), RETENTION)
            clean_up_versions(self.store, "ns", "t", VERSIONS)
            if choice % 2:
                Publisher(self.store, "ns", "t").clean_up(FORMATS, retain_s=RETAIN_S, grace_s=3600)
        except (StoreUnavailable, CommitUnclear):
            assert self.store.failed
        self.ended()
        self.follow()

    def readers_find_all_files(self) -> None:
        there = {info.path for info in self.store.list("ns/t/")}
        before = self.store.now() - timedelta(seconds=RETAIN_S - 600)
        for format, (first, head) in self.published.items():
            for place in range(first, len(self.lives)):
                at, files, _ = self.lives[place]
                young = place + 1 == len(self.lives) or self.lives[place + 1][2] > before
                if place >= head or young:
                    assert files <= there, f"{at}, published as {format} up to {head}"


STEPS = (
    "write",
    "write",
    "compact",
    "compact",
    "publish",
    "publish",
    "collect",
    "collect",
    "collect",
)
steps = st.lists(
    st.tuples(st.sampled_from([*STEPS, "switch", "switch_off"]), st.integers(0, 60)),
    min_size=15,
    max_size=40,
)


@settings(max_examples=25)
@given(steps)
def test_no_file_of_a_published_version_is_deleted(history: list[tuple[str, int]]) -> None:
    table = PublishedTable()
    for step, choice in [("write", 1), ("publish", 0), *history]:
        getattr(table, step)(choice)
        table.readers_find_all_files()


def test_what_only_earlier_versions_need_is_deleted_of_a_table_that_nobody_writes_to() -> None:
    store = ClockedStore(MemoryStore())
    table = BuiltTable(store, SCHEMA)
    publisher = Publisher(store, "ns", "t")
    for number in range(3):
        table.append(pa.table({"n": [number]}, schema=SCHEMA))
        publisher.publish(FORMATS, retain_s=RETAIN_S)
    table.compact()
    publisher.publish(FORMATS, retain_s=RETAIN_S)
    publisher.switch_off("delta")
    for _ in range(2):
        store.advance(days=1)
        clean_up(Manifest(store, "ns", "t"), RETENTION)
        publisher.clean_up(FORMATS, retain_s=RETAIN_S, grace_s=3600)
    assert len(list(store.list("ns/t/v1/data/"))) == 1
    assert list(read_pins(store, "ns", "t")) == ["iceberg"]
