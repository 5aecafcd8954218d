"""The cost of a commit, of opening a table and of finding the head, in requests and bytes.

Durations are measured by ``python -m tests.bench manifest``.
"""

from __future__ import annotations

import math
from pathlib import Path

from persist.manifest import Action, Manifest, Proposal, TableState, WriterIdentity, commit
from persist.manifest.committing import LOSSES_IN_A_ROW, PAUSE_S
from persist.store import open_store
from tests.bench.tables.manifest import (
    WRITER,
    find_head,
    persist_together,
    plant_commits,
    table_of,
    wide_files,
)
from tests.drivers.daemon import Daemon
from tests.persist.manifest.samples import DEFINITION, fresh, persist
from tests.persist.manifest.stores import FaultyStore

PARTITIONS = 400


def a_store(folder: Path) -> FaultyStore:
    """A local store that counts requests."""
    return FaultyStore(open_store(f"file://{folder}"))


def test_a_commit_costs_the_same_however_many_files_are_live(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    costs = []
    for live_files in (10, 3_000):
        manifest, state = table_of(store, f"files-{live_files}", live_files)
        store.calls.clear()
        store.bytes_put = 0
        proposal = Proposal(wide_files(live_files + 1))
        commit(manifest, state, proposal, WRITER)
        costs.append((dict(store.calls), store.bytes_put))
    (few, few_bytes), (many, many_bytes) = costs
    assert few == many
    assert few["put"] + few["create"] == 2
    assert abs(few_bytes - many_bytes) < 50  # numbers with more digits


def test_two_alternating_writers_read_before_an_attempt_that_would_be_lost(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    manifests = [Manifest(store, "ns", "t") for _ in range(2)]
    writers = [WriterIdentity(name, "run", 1) for name in ("one", "other")]
    states = [commit(manifests[0], None, Proposal(DEFINITION), writers[0])] * 2
    costs = []
    for turn in range(6):
        side = turn % 2
        store.calls.clear()
        proposal = Proposal(persist(turn + 1, writer=writers[side]))
        states[side] = commit(manifests[side], states[side], proposal, writers[side])
        costs.append(store.calls["put"] + store.calls["create"])
    # In its first turn each writer does not know of the other; a lost race costs an attempt.
    assert costs == [2, 4, 4, 2, 2, 2]
    # Without competition, one lookup finds nothing, and no more lookups follow.
    looks = []
    for turn in range(3):
        store.calls.clear()
        proposal = Proposal(persist(7 + turn, writer=writers[1]))
        states[1] = commit(manifests[1], states[1], proposal, writers[1])
        looks.append(store.calls["get"])
    assert looks[0] > looks[1] == looks[2]


def test_a_writer_that_loses_repeatedly_pauses_and_commits_once(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    mine, faster = (Manifest(store, "ns", "t") for _ in range(2))
    other, me = WriterIdentity("faster", "run", 1), WriterIdentity("slower", "run", 1)
    state = commit(faster, None, Proposal(DEFINITION), other)
    looked, pauses = list[TableState](), list[float]()

    def overtaken(seen: TableState, actions: tuple[Action, ...]) -> tuple[Action, ...]:
        looked.append(seen)
        if len(looked) <= LOSSES_IN_A_ROW + 2:
            commit(faster, seen, Proposal(persist(len(looked), writer=other)), other)
        return actions

    proposal = Proposal(persist(1, writer=me))
    done = commit(mine, state, proposal, me, overtaken, pause=pauses.append)
    assert [each.version for each in looked] == [*range(1, LOSSES_IN_A_ROW + 4)]
    assert done.file_count == len(looked)
    assert len(pauses) == 3  # after that many losses in a row, and after each later one
    assert all(0 <= each <= PAUSE_S for each in pauses)
    assert len(set(pauses)) == 3


def test_opening_takes_as_many_requests_however_many_files_are_live(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    costs = []
    for live_files in (10, 3_000):
        manifest, state = table_of(store, f"files-{live_files}", live_files)
        store.calls.clear()
        assert fresh(manifest).load() == state
        costs.append(dict(store.calls))
    assert costs[0] == costs[1]


def test_the_head_costs_the_same_with_many_kept_versions(tmp_path: Path) -> None:
    """Without a known recent version, the cost is logarithmic in the number of versions."""
    known: dict[int, int] = {}
    unknown: dict[int, int] = {}
    for versions in (10, 20_000):
        folder = tmp_path / str(versions)
        store = a_store(folder)
        manifest = Manifest(store, "ns", "t")
        plant_commits(folder, manifest, versions)
        for costs, hint in ((known, versions - 1), (unknown, 0)):
            store.calls.clear()
            find_head(manifest, hint, versions)
            costs[versions] = sum(store.calls.values())
    assert known[10] == known[20_000]
    assert unknown[20_000] <= known[20_000] + 4 + 2 * math.log2(20_000)


def test_partitions_that_persist_at_once_share_commits(tmp_path: Path) -> None:
    """One commit per hundred partitions is enough, as with 10,000 of them."""
    with Daemon.start(tmp_path / "d", persist__max_age="1h", memory__limit="1GiB") as daemon:
        commits = persist_together(daemon.flight, PARTITIONS)
        assert commits <= PARTITIONS / 100
        assert daemon.terminate() == 0


def test_partitions_of_a_keyed_table_share_commits_even_if_all_replace_files(
    tmp_path: Path,
) -> None:
    """``persist_together`` checks that each partition ends with one file and one row."""
    with Daemon.start(tmp_path / "d", persist__max_age="1h", memory__limit="1GiB") as daemon:
        for _ in range(2):
            assert persist_together(daemon.flight, PARTITIONS, ["part"]) <= PARTITIONS / 100
        assert daemon.terminate() == 0
