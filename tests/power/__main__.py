"""``python -m tests.power``: power cuts, and daemons with a fault that have to be caught."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.daemon import ROOT
from tests.power.lives import Campaign, Tally
from tests.power.planted import PLANTS, planted


def main() -> int:
    """The exit code: 0 where nothing is lost and every planted fault is caught."""
    options = _options()
    print(f"seed {options.seed}", flush=True)
    table = Table(
        "daemon", "lives", "at start", "s", "acknowledged", "operations", "read", "result"
    )
    good = True
    for kind in (None, *PLANTS):
        began = time.monotonic()
        lives = options.lives if kind is None else options.lives_to_catch
        tally = campaign(kind, lives, options.seed)
        caught = bool(tally.faults)
        good &= caught == (kind is not None)
        result = tally.faults[0][:60] if caught else "nothing lost, nothing doubled"
        table.add_row(
            "as it is" if kind is None else f"without {kind}",
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
    """Power cuts for a daemon as it is, or with a fault planted."""
    with tempfile.TemporaryDirectory(prefix="power-") as name:
        folder = Path(name)
        root = ROOT if kind is None else planted(kind, folder / "code")
        return Campaign(folder / "life", seed, root).run(lives)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.power", description=__doc__)
    parser.add_argument("--lives", type=int, default=100)
    parser.add_argument("--lives-to-catch", type=int, default=40, help="of each planted fault")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
