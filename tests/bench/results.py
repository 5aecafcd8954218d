"""What a run leaves: a JSON file with every repeat's value, and a picture of each table.

Law of this file: a file is one run, and a run is one machine at one time. Nothing here puts the
numbers of two runs side by side, and who asks for it is refused: machines differ from hour to hour
by more than what is looked for, so a ratio of numbers that were not taken in turns says nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.pictures import draw
from tests.bench.report import Table


class MadeApart(Exception):
    """Two runs were to be compared."""


@dataclass(slots=True)
class Run:
    """One run, as far as it has come, as written and read."""

    form: str
    seconds: float
    took: dict[str, float]
    """Seconds of each section: a name that the program takes, with one table or more."""
    machine: dict[str, Any]
    tables: list[Table]

    def write(self, folder: Path) -> Path:
        """The JSON file in ``folder``; new pictures go into a folder of the same name."""
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
    """The run that all of these files are of.

    Raises:
        MadeApart: they are of different runs.
        ValueError: a file is not of this program.
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
        raise MadeApart(
            f"made apart: {found}. Numbers of different runs are not compared; measure what you"
            " want to compare in one run"
        )
    [(run, _)] = runs.values()
    return run
