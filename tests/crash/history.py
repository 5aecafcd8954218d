"""What the campaign's clients did and saw, one JSON object a line, for a checker elsewhere.

    {"is": "sent", "t": 1.5, "by": "writer-3", "table": "plain", "writer": 3, "start": 0,
     "count": 9}
    {"is": "kept", "t": 1.6, "by": "writer-3", "table": "plain", "writer": 3, "start": 0}
    {"is": "refused", "t": 1.6, "by": "writer-3", "table": "plain", "writer": 3, "start": 0}
    {"is": "read", "t": 1.7, "first": 1.8, "last": 1.9, "by": "reader-0", "table": "plain",
     "how": "daemon", "whole": true, "only": null, "rows": {"3": [[0, 9]]}, "twice": {}}

Law of this file: a time is one that the client took itself, of the one monotonic clock of the
machine: before a request leaves, after an answer (or its first part) has come. ``refused`` is
final: the batch is never sent again. A read that broke off is there, too (``whole`` false), with
what it had shown by then. ``rows`` are the numbers that were there, per writer, as ranges without
their end; ``twice`` those that were there more than once. ``only`` names the writer whose rows
were asked for.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

Event = dict[str, Any]
Ranges = list[list[int]]


def now_s() -> float:
    """The clock of all histories: seconds, the same in every process of this machine."""
    return time.monotonic()


class History:
    """A file that several threads and processes append to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Appended with one write each, lines of several processes do not mix.
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def add(self, *events: Event) -> None:
        """Append; on return every reader of the file finds them."""
        text = "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events)
        data = text.encode()
        while data:
            data = data[os.write(self._file, data) :]

    def note(self, happened: str, **facts: Any) -> None:
        """Append something that no rule judges: a kill, a full disk."""
        self.add({"is": "note", "t": now_s(), "happened": happened, **facts})

    def close(self) -> None:
        """Append no more."""
        os.close(self._file)


def events_of(path: Path) -> Iterator[Event]:
    """What a history says, in the order of the file; half a line at its end is left out."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)


def shown(rows: pa.Table | None) -> dict[str, dict[str, Ranges]]:
    """``rows`` and ``twice`` of a read's event; of any table with ``writer`` and ``n``."""
    once: dict[str, Ranges] = {}
    twice: dict[str, Ranges] = {}
    if rows is not None and rows.num_rows:
        writer = rows["writer"].to_numpy()
        numbers = rows["n"].to_numpy()
        for each in np.unique(writer):
            counts = np.bincount(numbers[writer == each])
            once[str(int(each))] = _ranges(counts > 0)
            if (counts > 1).any():
                twice[str(int(each))] = _ranges(counts > 1)
    return {"rows": once, "twice": twice}


def _ranges(there: np.ndarray) -> Ranges:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], there.astype(np.int8), [0]))))
    pairs: Ranges = edges.reshape(-1, 2).tolist()
    return pairs
