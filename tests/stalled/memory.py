"""The resident memory of a process, sampled, by phase.

It only reads ``/proc``; a phase's peak is of samples 50 ms apart.
"""

from __future__ import annotations

import threading
from pathlib import Path

EVERY_S = 0.05


def resident(pid: int) -> dict[str, int]:
    """Return ``VmRSS`` and its parts ``RssAnon``, ``RssFile``, ``RssShmem`` in bytes.

    ``Threads`` is the number of threads.
    """
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "RssAnon", "RssFile", "RssShmem"):
            found[name] = int(value.split()[0]) * 1024
        elif name == "Threads":
            found[name] = int(value)
    return found


class MemoryWatch:
    """Samples until closed; :meth:`enter` begins the next phase."""

    def __init__(self, pid: int) -> None:
        self.peaks: dict[str, dict[str, int]] = {}
        self._pid = pid
        self._phase = "start"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def enter(self, phase: str) -> None:
        """Count further samples for ``phase``."""
        self._phase = phase
        self._sample()

    def close(self) -> None:
        """Stop sampling."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(EVERY_S):
            try:
                self._sample()
            except (FileNotFoundError, ProcessLookupError):
                return

    def _sample(self) -> None:
        phase, now = self._phase, resident(self._pid)
        peak = self.peaks.get(phase)
        if peak is None or now.get("VmRSS", 0) > peak["VmRSS"]:
            self.peaks[phase] = now
