"""The output of a run: a JSON file with every repeat's value, and a picture of each table.

A file holds one run: one machine at one time. Numbers of two runs are never compared, and an
attempt is refused. Machines vary from hour to hour by more than the effects of interest, so a
ratio of numbers that were not measured in turns is meaningless.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.pictures import draw
from tests.bench.report import Table


class DifferentConditions(Exception):
    """Raised when two runs are to be compared."""


@dataclass(slots=True)
class Run:
    """One run, possibly unfinished, as written and read."""

    form: str
    seconds: float
    took: dict[str, float]
    """Seconds of each section: a name that the program accepts, with one table or more."""
    machine: dict[str, Any]
    tables: list[Table]

    def write(self, folder: Path) -> Path:
        """Write the JSON file to ``folder``; new pictures go to a folder of the same name."""
        path = folder / f"bench-{self.machine['at'].replace(':', '')}.json"
        body = {
            "form": self.form,
            "seconds": self.seconds,
            "took": self.took,
            "machine": self.machine,
            "tables": [table.as_json() for table in self.tables],
        }
        path.write_text(json.dumps(body, indent=1) + "\n")
        pictures = path.with_suffix("")
        pictures.mkdir(exist_ok=True)
        for table in self.tables:
            picture = pictures / f"{table.name}.png"
            if not picture.exists():
                draw(table, picture)
        return path


def read_run(paths: Sequence[Path]) -> Run:
    """Read the run that all of these files belong to.

    Raises:
        MadeApart: They belong to different runs.
        ValueError: A file was not written by this program.
    """
    runs = {}
    for path in paths:
        try:
            body = json.loads(path.read_text())
            tables = [Table.from_json(each) for each in body["tables"]]
            run = Run(body["form"], body["seconds"], body["took"], body["machine"], tables)
        except (KeyError, TypeError, json.JSONDecodeError) as exc:
            raise ValueError(f"{path}: not a result of this program: {exc!r}") from exc
        runs[json.dumps(run.machine, sort_keys=True)] = run, path
    if len(runs) > 1:
        found = " and ".join(f"{path} at {run.machine['at']}" for run, path in runs.values())
        raise DifferentConditions(
            f"made apart: {found}. Numbers of different runs are not compared; measure what you"
            " want to compare in one run"
        )
    [(run, _)] = runs.values()
    return run
