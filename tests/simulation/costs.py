"""The requests other than commits, counted one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from persist.manifest import (
    Manifest,
    Proposal,
    Removals,
    Retention,
    claim_epoch,
    commit,
    plan_clean_up,
    write_snapshot,
)
from tests.persist.manifest.samples import ME, persist
from tests.simulation.daemons import NAMESPACE, TABLE, a_table
from tests.simulation.store import Latencies, Prices, SimulatedStore

VERSIONS = 150
"""A table's versions since its last snapshot; a snapshot is written after at most 200."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The requests of one operation."""

    what: str
    requests: Counter[str]

    def dollars(self, prices: Prices) -> float:
        """The price of the requests."""
        return prices.of(self.requests)


def count_requests() -> list[Cost]:
    """Run each operation of daemons and readers on one table's manifest once."""
    store = SimulatedStore(Latencies(), lambda _: None, lambda: 0.0, Random(1))
    a_table(store)
    manifest = Manifest(store, NAMESPACE, TABLE, 1)
    state = write_snapshot(manifest, commit(manifest, None, Proposal(persist(1)), ME))
    for seq in range(2, VERSIONS):
        state = commit(manifest, state, Proposal(persist(seq)), ME)
    before = state
    state = commit(manifest, state, Proposal(persist(VERSIONS)), ME)

    def commit_next() -> None:
        commit(manifest, state, Proposal(persist(VERSIONS + 1)), ME)

    removals = Removals()

    def clean_up() -> None:
        plan_clean_up(manifest, Retention(), known=state, removals=removals)

    clean_up()  # later runs remember what the first one has read

    def counted(what: str, call: Callable[[], object]) -> Cost:
        store.requests.clear()
        call()
        return Cost(what, Counter(store.requests))

    return [
        counted("look, nothing new", lambda: manifest.refresh(state)),
        counted(
            "look, one new version", lambda: Manifest(store, NAMESPACE, TABLE, 1).refresh(before)
        ),
        counted(
            f"open, {VERSIONS} versions after the snapshot",
            Manifest(store, NAMESPACE, TABLE, 1).load,
        ),
        counted("commit, alone", commit_next),
        counted("clean-up that finds nothing", clean_up),
        counted("start: claim an epoch", lambda: claim_epoch(store, "one", 1, {})),
    ]
