"""Targets in a process of their own: ``python -m tests.fuzz.child TARGET… --note FILE``.

The input is noted before it is tried, so that it is known if the process dies. Memory is
limited, each input has a time limit, and unexplained memory growth is a finding.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import mmap
import os
import resource
import struct
import sys
import time
from pathlib import Path
from typing import Any

import hypothesis
import structlog
from hypothesis import HealthCheck, given, settings

from tests.fuzz.mutations import mutated

if "--atheris" in sys.argv:
    import atheris  # type: ignore[import-untyped,import-not-found,unused-ignore]

    with atheris.instrument_imports(include=["wal", "persist", "ingester"]):
        from tests.fuzz.targets import TARGETS, Target
else:
    from tests.fuzz.targets import TARGETS, Target

NOTE_BYTES = 8 << 20
ADDRESS_SPACE_BYTES = 6 << 30
GROWTH_BYTES = 500 << 20
"""What one input may add to the peak; without atheris, what all of them together may add."""
INPUT_WITHIN_S = 20.0


class Watched:
    """A target whose every input is noted, timed and checked for memory growth."""

    def __init__(self, target: Target, note: Path, *, together: bool = True) -> None:
        """``together``: whether growth from input to input is a finding."""
        self._run = target.run
        self._together = together
        with note.open("wb+") as file:
            file.truncate(NOTE_BYTES)
            self._note = mmap.mmap(file.fileno(), NOTE_BYTES)
        self.inputs = 0
        self.understood = 0
        for seed in target.seeds():
            self._run(seed)
        self._most = _peak() + GROWTH_BYTES

    def __call__(self, data: bytes) -> int:
        """Return how far the input got."""
        kept = data[: NOTE_BYTES - 8]
        self._note[: 8 + len(kept)] = struct.pack("<Q", len(kept)) + kept
        faulthandler.dump_traceback_later(INPUT_WITHIN_S, exit=True)
        try:
            got = self._run(data)
        finally:
            faulthandler.cancel_dump_traceback_later()
        self.inputs += 1
        self.understood += got > 0
        peak = _peak()
        assert peak < self._most, f"{peak >> 20} MiB at the peak"
        if not self._together:
            self._most = peak + GROWTH_BYTES
        return got

    def summary(self) -> dict[str, int]:
        """The number of inputs, and of those that the target understood in part."""
        return {"inputs": self.inputs, "understood": self.understood}


def noted(note: Path) -> bytes:
    """Return the last input that was tried."""
    data = note.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    return data[8 : 8 + length]


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def by_hypothesis(watched: Watched, target: Target, examples: int, seconds: float) -> None:
    """Run examples in rounds until the time is over."""
    until = time.monotonic() + seconds
    while True:

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=seconds == 0,
            suppress_health_check=list(HealthCheck),
        )
        @given(mutated(target.seeds()))
        def attempt(data: bytes) -> None:
            if seconds and time.monotonic() > until:
                return
            hypothesis.target(float(min(watched(data), 1_000)))

        attempt()
        if time.monotonic() >= until:
            return


def by_atheris(watched: Watched, name: str, corpus: Path, seconds: float) -> None:
    """Run guided by the coverage of our own code; ends the process."""
    corpus.mkdir(parents=True, exist_ok=True)
    for index, seed in enumerate(TARGETS[name].seeds()):
        (corpus / f"seed-{index}").write_bytes(seed)
    until = time.monotonic() + seconds

    def attempt(data: bytes) -> None:
        watched(data)
        if time.monotonic() > until:
            print(json.dumps({name: watched.summary()}), flush=True)
            os._exit(0)

    kept = f"-artifact_prefix={corpus}-"
    arguments = [
        sys.argv[0],
        str(corpus),
        kept,
        "-max_len=65536",
        "-rss_limit_mb=0",
        "-verbosity=0",
    ]
    atheris.Setup(arguments, attempt)
    atheris.Fuzz()


def _dropped(*_: Any) -> Any:
    """Discard the log events that malformed bytes cause."""
    raise structlog.DropEvent


def main() -> None:
    """Return exit code 0 without findings; print one JSON line per target."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.child")
    parser.add_argument("targets", nargs="+", choices=sorted(TARGETS))
    parser.add_argument("--note", type=Path, required=True)
    parser.add_argument("--examples", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--atheris", type=Path, help="guided by coverage, with this corpus")
    parser.add_argument("--input", type=Path, action="append", help="try these files and no others")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    structlog.configure(processors=[_dropped])
    done = {}
    for name in options.targets:
        target = TARGETS[name]
        # atheris's instrumentation retains some values of comparisons: 3 MB a second.
        watched = Watched(target, options.note, together=options.atheris is None)
        if options.input:
            for path in options.input:
                watched(path.read_bytes())
        elif options.atheris is not None:
            by_atheris(watched, name, options.atheris, options.seconds)
        else:
            by_hypothesis(watched, target, options.examples, options.seconds)
        done[name] = watched.summary()
    print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
