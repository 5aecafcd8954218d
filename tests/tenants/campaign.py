"""The campaign: first all behave, then one is hostile, which must not affect the others.

    settle ─▶ "alone": five tenants that behave
           ─▶ "elsewhere": the fifth is hostile to another daemon on the same machine
           ─▶ "beside": it is hostile to their daemon ─▶ verdict

The hostile tenant, and the work it causes in a daemon, take processor time from the others:
"elsewhere" measures that. The excess of "beside" over "elsewhere" is the effect that the shared
daemon permits.

All phases are in one run, with the same daemon and the same clients.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.drivers.daemon import ROOT
from tests.tenants.attacks import ATTACKS
from tests.tenants.place import MIB, Place, secure_place
from tests.tenants.tenants import Tenant, all_wrong, check_rows

GOOD = ("alice", "bob", "carol", "dave")
HOSTILE = "mallory"
WITHIN = 1.5
"""The permitted ratio of a tenant's latency with a hostile one to that without."""
NOISE_S = 0.005
"""Added to both, as a shared machine's noise is about that large."""


@dataclass(frozen=True)
class Plan:
    """The parameters of a run.

    Attributes:
        seconds: Of all phases together.
        constant_bytes: The daemon's allowance beyond its ``memory.limit``.
        elsewhere: Whether a second daemon separates the machine's part from the daemon's.
        alone: Whether latencies are first measured without a hostile tenant, to compare with.
    """

    seconds: float = 600.0
    seed: int = 1
    writes_per_s: float = 10.0
    rows: int = 200
    limit_bytes: int = 512 * MIB
    constant_bytes: int = 768 * MIB
    attacks: Sequence[str] = tuple(ATTACKS)
    elsewhere: bool = True
    alone: bool = True

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases whose latencies are reported, in order."""
        told = {"alone": self.alone, "elsewhere": self.elsewhere, "beside": True}
        return tuple(phase for phase, is_run in told.items() if is_run)


@dataclass
class Verdict:
    """The results."""

    lines: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    slower: list[str] = field(default_factory=list)
    """Tenants that were affected, or a machine that was busy otherwise."""


def run(plan: Plan, say: Callable[[str], None]) -> Verdict:
    """Run the campaign."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        place = stack.enter_context(_place(plan, folder / "d"))
        other = stack.enter_context(_place(plan, folder / "other")) if plan.elsewhere else None
        verdict = _phases(plan, place, other, say)
        audit_file = folder / "d" / "audit.jsonl"
        audit = audit_file.read_text().splitlines()
        verdict.lines.append(f"audit: {len(audit)} lines, {audit_file.stat().st_size:,} bytes")
        told = any(HOSTILE in line for line in audit)
        if "intrusion" in plan.attacks and not told:
            verdict.faults.append("the audit log does not name the hostile tenant")
        return verdict


def _place(plan: Plan, folder: Path) -> AbstractContextManager[Place]:
    folder.mkdir()
    return secure_place(
        folder,
        (*GOOD, HOSTILE),
        limit_bytes=plan.limit_bytes,
        kills_at=plan.limit_bytes + plan.constant_bytes,
    )


def _phases(plan: Plan, place: Place, other: Place | None, say: Callable[[str], None]) -> Verdict:
    good = [_tenant(plan, place, name) for name in GOOD]
    fifth = _tenant(plan, place, HOSTILE)
    verdict, each_s = Verdict(), plan.seconds / len(plan.phases)
    for tenant in (*good, fifth):
        tenant.start()
    try:
        _during((*good, fifth), "settle", min(10.0, plan.seconds / 10))
        if plan.alone:
            _during((*good, fifth), "alone", each_s)
        fifth.stop()
        if other is not None:
            _attacked(plan, other, good, "elsewhere", each_s)
            other.daemon.kill()
        came_to = _attacked(plan, place, good, "beside", each_s)
    finally:
        for tenant in good:
            tenant.stop()
        fifth.stop()
    for tenant in good:
        if place.daemon.process.poll() is None:
            with place.client(tenant.name) as client:
                check_rows(tenant, client)
    _judge(plan, place, good, verdict)
    verdict.faults += all_wrong((*good, fifth)) + came_to["wrong"]
    for name, outcomes in came_to["outcomes"].items():
        say(f"  {name}: {outcomes}, longest {came_to['longest_s'][name]:.1f} s")
    return verdict


def _attacked(
    plan: Plan, place: Place, good: Sequence[Tenant], phase: str, seconds: float
) -> dict[str, Any]:
    """Let the hostile tenant attack a place during a phase; return its attacks' results."""
    hostile = _Process(plan, place)
    try:
        _during(good, phase, seconds)
    finally:
        came_to = hostile.end()
    return came_to


def _tenant(plan: Plan, place: Place, name: str) -> Tenant:
    connect = lambda: place.client(name)  # noqa: E731
    return Tenant(name, connect, rows=plan.rows, writes_per_s=plan.writes_per_s)


def _during(tenants: Sequence[Tenant], phase: str, seconds: float) -> None:
    for tenant in tenants:
        tenant.phase = phase
    until = time.monotonic() + seconds
    while time.monotonic() < until and not any(tenant.wrong for tenant in tenants):
        time.sleep(0.2)


def _judge(plan: Plan, place: Place, good: Sequence[Tenant], verdict: Verdict) -> None:
    named = "".join(
        f"{f'{percent} {phase}':>16}" for percent in ("p50", "p99") for phase in plan.phases
    )
    verdict.lines.append(f"{'tenant':8} {'calls':8}{named}")
    for tenant in good:
        for kind, timed in (("writes", tenant.writes), ("queries", tenant.queries)):
            figures = {
                f"p{percent}": [timed.percentile(phase, percent) for phase in plan.phases]
                for percent in (50, 99)
            }
            told = "".join(f"{each * 1e3:13.1f} ms" for row in figures.values() for each in row)
            verdict.lines.append(f"{tenant.name:8} {kind:8}{told}")
            for what, (*without, beside) in figures.items():
                if without and not beside + NOISE_S <= WITHIN * (max(without) + NOISE_S):
                    times = " and ".join(f"{beside / each:.1f}" for each in without)
                    verdict.slower.append(
                        f"{tenant.name}: {what} of {kind} is {times} times that of before"
                    )
    if place.daemon.process.poll() is not None:
        verdict.faults.append(f"the daemon ended: {place.daemon.process.returncode}")
        return
    peak = place.peak_bytes
    verdict.lines.append(f"memory: {peak // MIB} MiB at most, limit {plan.limit_bytes // MIB} MiB")
    if peak > plan.limit_bytes + plan.constant_bytes:
        verdict.faults.append(f"{peak // MIB} MiB of memory")


class _Process:
    """The hostile tenant's process."""

    def __init__(self, plan: Plan, place: Place) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.tenants.hostile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )
        asked = {
            "name": HOSTILE,
            "location": place.daemon.flight,
            "http": place.daemon.http,
            "ca": "" if place.secured is None else place.secured.ca.read_text(),
            "token": "" if place.secured is None else place.secured.tokens[HOSTILE],
            "seed": plan.seed,
            "attacks": list(plan.attacks),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()

    def end(self) -> dict[str, Any]:
        """End it, and return the result of each attack."""
        try:
            said, _ = self._process.communicate(timeout=180)
            found: dict[str, Any] = json.loads(said)
        except (subprocess.TimeoutExpired, ValueError) as exc:
            self._process.kill()
            return {"wrong": [f"the hostile one hangs: {exc}"], "outcomes": {}, "longest_s": {}}
        return found
