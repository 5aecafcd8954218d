"""The history of each key of a table, change by change, and the right answers at any time.

    begin ─▶ sent ─▶ acknowledge ─▶ certain         an answer has, of each key, the value of
             └──── may be seen ────┘                the last acknowledged change, or a later one

Pure code, except for its lock. A change acknowledged before a query began is in its answer; a
change not sent when the query ended is not.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

KEPT = 200
"""Remembered changes per key. A query that began before the oldest of them is not judged."""
Value = int | None
"""The value of a key; None if deleted or never written."""


class Ledger:
    """The changes of one source in steps, each of several keys. Safe for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._history: dict[int, list[tuple[int, Value]]] = {}
        self._begun = self._acknowledged = 0

    @property
    def acknowledged(self) -> int:
        """The last acknowledged step."""
        return self._acknowledged

    def begin(self, changes: Mapping[int, Value]) -> int:
        """Record the changes about to be sent; return the number of this step."""
        with self._lock:
            self._begun += 1
            for key, value in changes.items():
                history = self._history.setdefault(key, [(0, None)])
                history.append((self._begun, value))
                del history[: -KEPT - 1]
            return self._begun

    def acknowledge(self, step: int) -> None:
        """Record the acknowledgement of a step and all earlier ones."""
        self._acknowledged = step

    def now(self) -> dict[int, int]:
        """The value of each existing key after all sent changes."""
        with self._lock:
            last = {key: history[-1][1] for key, history in self._history.items()}
        return {key: value for key, value in last.items() if value is not None}

    def wrong(self, found: Iterable[tuple[int, int]], since: int) -> list[str]:
        """Return the faults of an answer, as text for people.

        Args:
            found: The existing keys, each with its value.
            since: The acknowledged step when the query began.
        """
        told, values = [], dict[int, int]()
        for key, value in found:
            if key in values:
                told.append(f"key {key} is there twice: {values[key]} and {value}")
            values[key] = value
        with self._lock:
            for key in values.keys() - self._history.keys():
                told.append(f"key {key} is there, and was never sent")
            for key, history in self._history.items():
                certain = [number for number, (step, _) in enumerate(history) if step <= since]
                if not certain:
                    continue
                allowed = [value for _, value in history[certain[-1] :]]
                if values.get(key) not in allowed:
                    shown = ", ".join(_shown(value) for value in allowed[:5])
                    told.append(f"key {key} is {_shown(values.get(key))} and should be {shown}")
        return told


def _shown(value: Value) -> str:
    return "gone" if value is None else str(value)
