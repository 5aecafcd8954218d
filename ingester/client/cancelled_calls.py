"""Calls that the daemon's side cancels are errors of those calls, and no Ctrl-C.

pyarrow takes every cancelled call of `list_flights` and `read_all` for one that a signal has
cancelled, and simulates SIGINT: the caller's main thread gets a KeyboardInterrupt that nobody has
sent. A daemon that changes its certificates cancels calls that come at that moment.

Law of this file: a signal that was caught still interrupts.

Source: pyarrow/error.pxi, ``SignalStopHandler.__exit__``.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyarrow import _flight
from pyarrow import lib as arrow


class _SignalsOnly:
    """Stands in for pyarrow's handler, and tells it of no error that had another cause."""

    def __init__(self) -> None:
        self._handler = arrow.SignalStopHandler()

    def __enter__(self) -> Any:
        return self._handler.__enter__()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        if isinstance(error, pa.ArrowCancelled) and not getattr(error, "signum", None):
            # It looks itself whether there was a signal.
            kind = error = trace = None
        return self._handler.__exit__(kind, error, trace)


def only_signals_interrupt() -> None:
    """Have Flight's calls in this process interrupt nobody without a signal; twice is fine."""
    if getattr(_flight, "SignalStopHandler", None) is arrow.SignalStopHandler:
        _flight.SignalStopHandler = _SignalsOnly
