"""Simulated daemons: each commits its flushes to one table, with the product's own code.

The measured code is ``persist.manifest.commit`` on a store with simulated latencies. A daemon
knows only what it has read from the store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from persist.manifest import (
    Manifest,
    Proposal,
    TableState,
    WriterAction,
    WriterIdentity,
    commit,
    snapshot_due,
    write_snapshot,
)
from tests.persist.manifest.samples import DEFINITION, persist
from tests.simulation.clock import Clock
from tests.simulation.store import Latencies, Prices, SimulatedStore

NAMESPACE, TABLE = "simulated", "table"


@dataclass(slots=True)
class Contention:
    """The results of several daemons that committed to one table."""

    daemons: int
    commits_s: list[float] = field(default_factory=list)
    """The seconds of each commit, in the order of their ends."""
    requests: Counter[str] = field(default_factory=Counter)
    versions: int = 0
    seconds: float = 0.0
    """From the start of the first commit to the end of the last."""

    @property
    def attempts(self) -> float:
        """Changelogs written per commit."""
        return self.requests["put"] / max(1, len(self.commits_s))

    @property
    def requests_each(self) -> float:
        """Requests per commit."""
        return self.requests.total() / max(1, len(self.commits_s))

    def dollars_each(self, prices: Prices) -> float:
        """The price of the requests per commit."""
        return prices.of(self.requests) / max(1, len(self.commits_s))

    @property
    def rate(self) -> float:
        """Commits per second."""
        return len(self.commits_s) / self.seconds if self.seconds else 0.0

    def quantile(self, q: float) -> float:
        """Return the seconds that this share of the commits did not exceed."""
        ordered = sorted(self.commits_s)
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


Sleep = Callable[[float], None]


class Committer:
    """One daemon: an identity, and the table version that it knows."""

    def __init__(self, number: int, store: SimulatedStore, sleep: Sleep, rng: Random) -> None:
        self.writer = WriterIdentity(f"daemon-{number}", "run", 1)
        self.manifest = Manifest(store, NAMESPACE, TABLE, 1)
        self.state: TableState | None = None
        self._sleep, self._rng = sleep, rng
        self._seq = 0

    def open(self) -> None:
        """Read the table and fence earlier writers, as at a start."""
        state = self.manifest.load()
        opening = WriterAction(self.writer.ingester_id, self.writer.incarnation, 1, "open")
        self.state = self._commit(Proposal([opening]), state)

    def persist(self) -> None:
        """Commit one file on top of the version that this daemon knows."""
        self._seq += 1
        proposal = Proposal(persist(self._seq, writer=self.writer))
        self.state = self._commit(proposal, self.state)

    def look(self) -> None:
        """Read the commits since then."""
        self.state = self.manifest.load(known=self.state)

    def snapshot(self) -> None:
        """Write a snapshot if one is due, as a daemon does after its commits."""
        if self.state is not None and snapshot_due(self.state):
            self.state = write_snapshot(self.manifest, self.state)

    def _commit(self, proposal: Proposal, base: TableState | None) -> TableState:
        return commit(self.manifest, base, proposal, self.writer, pause=self._sleep)


def a_table(store: SimulatedStore) -> None:
    """Make the table at once."""
    owner = WriterIdentity("who-made-it", "run", 1)
    commit(Manifest(store, NAMESPACE, TABLE, 1), None, Proposal(DEFINITION), owner)


def spread(daemons: int, *, every_s: float = 300.0, seed: int = 1) -> Contention:
    """Flushes that are due at random phases, each daemon's every ``every_s``."""
    phases = Random(seed)
    return _run(daemons, lambda _: phases.uniform(0, every_s), every_s, seed)


def at_once(daemons: int, *, seed: int = 1) -> Contention:
    """One flush per daemon, all due now, as when an unreachable store returns."""
    return _run(daemons, lambda _: 0.0, None, seed)


def _run(
    daemons: int, phase: Callable[[int], float], every_s: float | None, seed: int
) -> Contention:
    clock, rng, found = Clock(), Random(seed), Contention(daemons)
    store = SimulatedStore(Latencies(), clock.sleep, lambda: clock.now, rng)
    everyone = [Committer(number, store, clock.sleep, rng) for number in range(daemons)]
    # By then every daemon has opened the table; with repeated flushes, each has flushed once.
    began_s = daemons * 2.0 + (every_s or 0.0)

    def life(daemon: Committer, first_at: float) -> None:
        daemon.open()
        daemon.snapshot()
        if every_s is None:
            clock.sleep(began_s - 1.0 - clock.now)
            daemon.look()
        else:
            clock.sleep(began_s - every_s + first_at - clock.now)
            daemon.persist()
            daemon.snapshot()
        clock.sleep(began_s + first_at - clock.now)
        began = clock.now
        daemon.persist()
        found.commits_s.append(clock.now - began)
        found.seconds = clock.now - began_s
        found.requests = store.requests
        daemon.snapshot()

    clock.start(lambda: a_table(store))
    for number, daemon in enumerate(everyone):
        at = 1.0 + number * 1.9
        clock.start(partial(life, daemon, phase(number)), at)
    clock.start(store.requests.clear, began_s)
    clock.run(began_s + (every_s or 0.0) + 3600.0)
    return found
