"""What each key of a table has had, change by change, and which answers are right at a moment.

    begin ─▶ sent ─▶ acknowledge ─▶ certain         an answer has, of each key, what it had at
             └──── may be seen ────┘                 the last acknowledged change, or anything later

Law of this file: pure, but for its lock. What was acknowledged before a query began is in its
answer, and what had not been sent when it ended is not.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

KEPT = 200
"""Changes of a key that are remembered. Who asked before the oldest of them judges nothing."""
Value = int | None
"""What a key has; None where it is deleted, or was never there."""


class Ledger:
    """The changes of one source, each a step; several keys change in one. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._history: dict[int, list[tuple[int, Value]]] = {}
        self._begun = self._acknowledged = 0

    @property
    def acknowledged(self) -> int:
        """The last step whose answer is there."""
        return self._acknowledged

    def begin(self, changes: Mapping[int, Value]) -> int:
        """Note what is about to be sent; the number of this step."""
        with self._lock:
            self._begun += 1
            for key, value in changes.items():
                history = self._history.setdefault(key, [(0, None)])
                history.append((self._begun, value))
                del history[: -KEPT - 1]
            return self._begun

    def acknowledge(self, step: int) -> None:
        """Note that the answer to a step, and to all before it, is there."""
        self._acknowledged = step

    def now(self) -> dict[int, int]:
        """What each key has that is there, by all that was sent."""
        with self._lock:
            last = {key: history[-1][1] for key, history in self._history.items()}
        return {key: value for key, value in last.items() if value is not None}

    def wrong(self, found: Iterable[tuple[int, int]], since: int) -> list[str]:
        """What is wrong with an answer, as people read it.

        Args:
            found: the keys that are there, each with its value.
            since: what was acknowledged when the query began.
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
