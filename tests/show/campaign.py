"""The show: a load, a fault at each interval, and a check that every acknowledged row exists once.

    at full speed ─▶ 80 % of that, a fault at each interval ─▶ stop ─▶ each row once?
                                                  lost disks are adopted ─▶ each row once!

A missing row at the end must have been on a lost disk, and nowhere else. The proof is the
adoption of a copy of the lost disk, after which no row is missing.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path
from random import Random

import numpy as np

from tests.drivers.waiting import until
from tests.show.faults import FAULTS, Scene
from tests.show.load import NAMESPACE, TABLE, Load
from tests.show.realm import Realm
from tests.show.upkeep import Upkeep
from tests.show.watch import Watch, Watching

SPAN = 3_000_000
"""Rows of each writer that are compared together."""


@dataclass(frozen=True)
class Plan:
    """The parameters of a run.

    Attributes:
        seconds: The approximate total; each of ``faults`` happens at least once.
        every_s: Between the starts of two faults.
        full_s: How long the machine's maximum is measured.
        share: The load, as a share of the maximum.
        upkeep_s: Between two compactions by Spark; 0 for none.
    """

    seconds: float = 3600.0
    every_s: float = 60.0
    full_s: float = 30.0
    share: float = 0.8
    writers: int = 6
    readers: int = 2
    max_age: str = "20s"
    upkeep_s: float = 300.0
    seed: int = 1
    faults: Sequence[str] = tuple(FAULTS)


@dataclass
class Verdict:
    """The results: lines for people, faults, and samples."""

    lines: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    watch: Watch = field(default_factory=Watch)
    load: Load | None = None


def run(plan: Plan, say: Callable[[str], None]) -> Verdict:
    """Run the show."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        realm = Realm(folder, stack, max_age=plan.max_age, seed=plan.seed)
        for name in "abc":
            realm.start(name)
        verdict = Verdict()
        load = verdict.load = Load(realm, writers=plan.writers, readers=plan.readers)
        load.start()
        try:
            with Watching(verdict.watch, realm, load):
                _find_pace(plan, load, verdict)
                say(verdict.lines[-1])
                with Upkeep(realm, NAMESPACE, plan.upkeep_s) as upkeep:
                    _have_faults(plan, realm, load, verdict, say)
                verdict.lines.append(upkeep.done.said())
        finally:
            load.stop()
        verdict.faults += load.wrong
        if not load.wrong:
            _judge(realm, load, verdict)
        if verdict.faults:
            verdict.lines += realm.errors()
            verdict.lines += realm.moves(verdict.watch.wrong_at or datetime.now(UTC))
        return verdict


def _find_pace(plan: Plan, load: Load, verdict: Verdict) -> None:
    """Measure the rate at full speed, then continue at a share of it."""
    until(
        lambda: bool(load.wrong) or all(source.acknowledged for source in load.writers),
        "every writer to have had an answer",
    )
    _go_on(load, plan.full_s / 4)
    before, began = len(load.writes.calls), time.monotonic()
    _go_on(load, plan.full_s)
    batches_per_s = (len(load.writes.calls) - before) / (time.monotonic() - began)
    load.every_s = plan.writers / max(1.0, batches_per_s * plan.share)
    verdict.lines.append(
        f"the machine takes {batches_per_s:.0f} batches/s; from now on {plan.share:.0%} of that"
    )


def _go_on(load: Load, seconds: float) -> None:
    """Let time pass, unless something went wrong."""
    over = time.monotonic() + seconds
    while time.monotonic() < over and not load.wrong:
        time.sleep(0.05)


def _have_faults(
    plan: Plan, realm: Realm, load: Load, verdict: Verdict, say: Callable[[str], None]
) -> None:
    watch, random = verdict.watch, Random(plan.seed)
    scene = Scene(realm, load, random, plan.every_s / 4, verdict.lines)
    over = time.monotonic() + plan.seconds - plan.full_s
    left = set(plan.faults)
    for name in cycle(plan.faults):
        if load.wrong or (time.monotonic() > over and not left):
            return
        began = time.monotonic()
        watch.faults.append((watch.now(), name))
        FAULTS[name](scene)
        left.discard(name)
        took_s, rows = time.monotonic() - began, load.acknowledged
        say(f"{watch.now():7.1f} s  {name}: {took_s:.1f} s, {rows:,} rows")
        _go_on(load, plan.every_s - (time.monotonic() - began))


def _judge(realm: Realm, load: Load, verdict: Verdict) -> None:
    """Compare the rows with the acknowledged ones, without lost disks and with them."""
    missing = _missing(realm, load, verdict)
    for source, numbers in zip(load.writers, missing, strict=True):
        if not len(numbers):
            continue
        spans = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
        told = ", ".join(f"{span[0]} to {span[-1]}" for span in spans)
        verdict.lines.append(f"missing of {source.origin}: rows {told}, which were in no file")
        if source.keeps:
            verdict.faults.append(f"{source.origin} keeps what is not in files, and lacks {told}")
    lost = [folder for member in realm.members.values() for folder in member.lost]
    for folder in lost:
        realm.adopt(folder)
    if lost:
        again = sum(map(len, _missing(realm, load, verdict)))
        verdict.lines.append(f"with {len(lost)} lost disks adopted, {again} rows are missing")
    else:
        again = sum(map(len, missing))
    if again:
        verdict.faults.append(f"{again} acknowledged rows are missing, and were on no lost disk")
    verdict.lines.append(load.keyed.said())
    for kind, timed in (("writes", load.writes), ("queries", load.queries)):
        took = np.array([seconds for _, seconds in timed.calls]) * 1e3
        p50, p99, most = np.percentile(took, [50, 99, 100])
        verdict.lines.append(
            f"{len(took):,} {kind}: median {p50:.1f} ms, 99th {p99:.0f} ms, longest {most:.0f} ms"
        )
    verdict.lines.append(
        f"{load.acknowledged:,} rows acknowledged, {len(verdict.watch.faults)} faults"
    )


def _missing(realm: Realm, load: Load, verdict: Verdict) -> list[np.ndarray]:
    """Return each writer's missing acknowledged rows; a duplicate row is a fault.

    A key of the keyed table without its last value is a fault. Rows are read in spans of all
    writers, which wrote at one pace, because an hour's rows do not fit in memory. Each file is
    read about once.
    """
    missing: list[list[np.ndarray]] = [[] for _ in load.writers]
    twice, extra = [0] * len(load.writers), [0] * len(load.writers)
    firsts = range(0, max(source.acknowledged for source in load.writers), SPAN)
    with realm.client() as client:
        verdict.faults += load.keyed.wrong(client)[:10]
        for first in firsts:
            asked = [("n", ">=", first)]
            if first != firsts[-1]:
                asked.append(("n", "<", first + SPAN))
            found = client.query(NAMESPACE, TABLE, ["writer", "n"], asked)
            writers, numbers = (found[name].to_numpy() for name in ("writer", "n"))
            for at, source in enumerate(load.writers):
                acknowledged = max(0, min(source.acknowledged - first, SPAN))
                mine = np.bincount(numbers[writers == source.number] - first, minlength=SPAN)
                missing[at].append(np.flatnonzero(mine[:acknowledged] == 0) + first)
                twice[at] += int((mine > 1).sum())
                extra[at] += int((mine[acknowledged:] > 0).sum())
    for source, more, unanswered in zip(load.writers, twice, extra, strict=True):
        if more:
            verdict.faults.append(f"{source.origin}: {more} rows are there more than once")
        if unanswered:
            verdict.faults.append(f"{source.origin}: {unanswered} rows are there without an answer")
    return [np.concatenate(each) for each in missing]
