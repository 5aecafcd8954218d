"""Daemons with a planted fault, which every campaign must catch."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from tests.drivers.daemon import ROOT


class Plant(NamedTuple):
    """A text to replace, its replacement, and the file."""

    path: str
    text: str
    instead: str


CHECK = "check"
_COMMIT = "persist/manifest/committing.py"

PLANTS = {
    "sync": (Plant("wal/disk.py", "os.fdatasync(fd)", "pass"),),
    "folders": (
        Plant("wal/disk.py", "try:\n            os.fsync(fd)", "try:\n            pass"),
        Plant("persist/store/local.py", "try:\n        os.fsync(descriptor)", "try:\n        pass"),
    ),
    "files": (Plant("persist/store/local.py", "os.fsync(descriptor)\n        found", "found"),),
    CHECK: (Plant(_COMMIT, "store.create(path, attempt", "store.put(path, attempt"),),
}
"""By the missing part: the log's fdatasync, the syncs of folders, those of files in the store,
the check that no other daemon has made the version."""

SYNCS = ("sync", "folders", "files")
"""Faults that a power cut reveals; the others need two daemons."""


def planted(kind: str, folder: Path) -> Path:
    """Return a copy of the code with this fault."""
    for package in ("wal", "persist", "ingester"):
        shutil.copytree(
            ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    for plant in PLANTS[kind]:
        path = folder / plant.path
        text = path.read_text()
        assert text.count(plant.text) == 1, f"{plant.path}: not once {plant.text!r}"
        path.write_text(text.replace(plant.text, plant.instead))
    return folder
