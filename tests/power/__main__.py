"""``python -m tests.power``: power cuts, races, and planted faults that must be caught."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.drivers.daemon import ROOT
from tests.power.lives import Campaign, Tally
from tests.power.mounting import why_not_mountable
from tests.power.planted import CHECK, SYNCS, planted
from tests.power.racing import Race


def main() -> int:
    """Return exit code 0 if no row is lost and every planted fault is caught."""
    options = _options()
    if (missing := why_not_mountable()) is not None:
        print(f"power cuts need FUSE: {missing}", file=sys.stderr)
        return 1
    print(f"seed {options.seed}", flush=True)
    table = Table(
        "daemon", "lives", "at start", "s", "acknowledged", "operations", "read", "result"
    )
    good = True
    for kind, races in (*((kind, False) for kind in (None, *SYNCS)), (None, True), (CHECK, True)):
        began = time.monotonic()
        lives = options.lives if kind is None else options.lives_to_catch
        tally = race(kind, lives, options.seed) if races else campaign(kind, lives, options.seed)
        caught = bool(tally.faults)
        good &= caught == (kind is not None)
        result = tally.faults[0][:60] if caught else "nothing lost, nothing doubled"
        table.add_row(
            ("two, as they are" if races else "as it is") if kind is None else f"without {kind}",
            str(tally.lives),
            str(tally.cuts_at_start),
            f"{time.monotonic() - began:.0f}",
            f"{tally.acknowledged:,}",
            f"{tally.operations:,}",
            f"{tally.read:,}",
            result,
        )
        if kind is None and caught:
            print("\n".join(tally.faults))
    Console(width=130).print(table)
    return 0 if good else 1


def campaign(kind: str | None, lives: int, seed: int) -> Tally:
    """Cut the power of a daemon, without or with a planted fault."""
    with tempfile.TemporaryDirectory(prefix="power-") as name:
        folder = Path(name)
        return Campaign(folder / "life", seed, _code(kind, folder)).run(lives)


def race(kind: str | None, rounds: int, seed: int) -> Tally:
    """Run rounds of two daemons on one table, without or both with a planted fault."""
    with tempfile.TemporaryDirectory(prefix="power-") as name:
        folder = Path(name)
        return Race(folder / "race", seed, _code(kind, folder)).run(rounds)


def _code(kind: str | None, folder: Path) -> Path:
    return ROOT if kind is None else planted(kind, folder / "code")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.power", description=__doc__)
    parser.add_argument("--lives", type=int, default=100)
    parser.add_argument("--lives-to-catch", type=int, default=40, help="of each planted fault")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
