"""``python -m tests.tenants.hostile``: the hostile tenant, a process of the lowest priority.

It reads one JSON object from its input, tries each attack at least once until its input ends,
and prints a JSON object with the result of each attack.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections import Counter
from random import Random

from tests.tenants.attacks import Hostile, NotRefused, attempt


def main() -> int:
    """Return exit code 0 if everything that must be refused was refused."""
    os.nice(10)
    asked = json.loads(sys.stdin.readline())
    random = Random(asked["seed"])
    hostile = Hostile(
        asked["name"],
        asked["location"],
        asked["http"],
        asked["ca"].encode(),
        asked["token"],
        random,
    )
    outcomes: dict[str, Counter[str]] = {name: Counter() for name in asked["attacks"]}
    longest: dict[str, float] = dict.fromkeys(outcomes, 0.0)
    wrong: list[str] = []
    untried = random.sample(asked["attacks"], len(asked["attacks"]))
    while untried or not select.select([sys.stdin], [], [], 0.05)[0]:
        name = untried.pop() if untried else random.choice(asked["attacks"])
        began = time.monotonic()
        try:
            outcomes[name][attempt(hostile, name)] += 1
        except NotRefused as exc:
            outcomes[name]["not refused"] += 1
            wrong.append(f"{name}: {exc}")
        longest[name] = max(longest[name], time.monotonic() - began)
    print(json.dumps({"outcomes": outcomes, "longest_s": longest, "wrong": wrong[:20]}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
