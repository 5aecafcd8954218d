"""The actions and observations of the campaign's clients, one JSON object per line.

    {"is": "sent", "t": 1.5, "by": "writer-3", "table": "plain", "writer": 3, "start": 0,
     "count": 9}
    {"is": "kept", "t": 1.6, "by": "writer-3", "table": "plain", "writer": 3, "start": 0}
    {"is": "refused", "t": 1.6, "by": "writer-3", "table": "plain", "writer": 3, "start": 0}
    {"is": "read", "t": 1.7, "first": 1.8, "last": 1.9, "by": "reader-0", "table": "plain",
     "how": "daemon", "whole": true, "only": null, "rows": {"3": [[0, 9]]}, "twice": {}}

The client itself takes each time from the machine's monotonic clock: before a request is sent,
or after an answer (or its first part) has arrived. ``refused`` is final: the batch is never sent
again. An interrupted read is included (``whole`` false) with the rows it returned. ``rows`` are
the row numbers per writer as half-open ranges; ``twice`` are those that occurred more than once.
``only`` names the queried writer.
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
    """Seconds of the clock of all histories, the same in every process of this machine."""
    return time.monotonic()


class History:
    """A file that several threads and processes append to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # One write per append keeps lines of several processes intact.
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def add(self, *events: Event) -> None:
        """Append an event; on return every reader of the file finds it."""
        text = "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events)
        data = text.encode()
        while data:
            data = data[os.write(self._file, data) :]

    def note(self, happened: str, **facts: Any) -> None:
        """Append an event that no rule judges: a kill, a full disk."""
        self.add({"is": "note", "t": now_s(), "happened": happened, **facts})

    def close(self) -> None:
        os.close(self._file)


def events_of(path: Path) -> Iterator[Event]:
    """Yield the events of a history in file order; an incomplete last line is left out."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)


def shown(rows: pa.Table | None) -> dict[str, dict[str, Ranges]]:
    """Return ``rows`` and ``twice`` of a read's event, from any table with ``writer`` and ``n``."""
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
