"""``python -m tests.followers``: the long form of the kill tests, also checked against Spark."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.followers.kills import Campaign


def main() -> None:
    """Kill followers and daemons, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Campaign(asked.folder or Path(folder), asked.seed, print) as campaign,
    ):
        report = campaign.run(asked.kills)
        campaign.compare_with_spark()
    print(f"equal, by Spark too, after {dict(report.kills)} kills: {report.rows} rows")


if __name__ == "__main__":
    main()
