"""``python -m tests.tenants``: five tenants, one hostile; exits with 1 if it affects others."""

from __future__ import annotations

import argparse
import sys

from tests.tenants.attacks import ATTACKS
from tests.tenants.campaign import Plan, run


def main() -> int:
    """Return exit code 0 if no tenant was delayed and none got unauthorized access."""
    parser = argparse.ArgumentParser(prog="python -m tests.tenants", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--attack", action="append", choices=[*ATTACKS], help="only these")
    asked = parser.parse_args()
    plan = Plan(asked.seconds, asked.seed, attacks=tuple(asked.attack or ATTACKS))
    print(plan, flush=True)
    verdict = run(plan, lambda text: print(text, flush=True))
    print("\n".join(verdict.lines))
    found = [f"FAULT: {text}" for text in verdict.faults]
    found += [f"SLOWER: {text}" for text in verdict.slower]
    print("\n".join(found or ["nobody noticed"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
