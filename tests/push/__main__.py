"""``python -m tests.push``: good and bad pushes to three regions, with Spark and kills; a drawing.

``--picture FILE`` draws the first two pushes, which run without kills.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.push.campaign import Campaign, Report
from tests.push.picture import drawing

DELAY_S = 4.0
"""Between regions; long enough to be visible in a drawing."""
TITLE = "Two pushes through three regions"
TEXT = (
    "A good push goes live in three regions one after another, as the delay between them allows."
    " A bad one goes live in the first; a hook stops it before the second, and it is rolled back."
)


def main() -> None:
    """Push, kill, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--no-spark", action="store_true")
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Campaign(asked.folder or Path(folder), asked.seed, print, DELAY_S) as campaign,
    ):
        campaign.begin(spark=not asked.no_spark)
        good = campaign.push(0, spark=not asked.no_spark)
        bad = campaign.push(0, bad=True)
        if asked.picture is not None:
            shown = [("A good push", good), ("A bad push", bad)]
            asked.picture.write_text(drawing(TITLE, TEXT, shown))
        campaign.push_and_kill(asked.kills, spark=not asked.no_spark)
        tell(campaign.finish())


def tell(report: Report) -> None:
    """Print the counts of pushes, kills and answers."""
    print("pushes:", dict(report.pushes))
    print("killed:", dict(report.kills))
    print("where regions stood then:", dict(sorted(report.stages.items())))
    print("streamed rows:", report.rows)
    for name, editions in report.answers.items():
        print(f"{name}: {sum(editions.values())} answers of {len(editions)} editions, each whole")


if __name__ == "__main__":
    main()
