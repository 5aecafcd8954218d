"""``status --watch``: shows the status of one or more daemons every few seconds, until a signal.

    a thread ─ asks ─▶ the last answer, or why there is none ─▶ the main thread shows it

The main thread waits for signals, never for the daemon. If a daemon does not answer, its last
values are shown and marked. A terminal is restored afterwards; in a pipe, or on a terminal that
cannot be redrawn, each answer is a block of text, or a line of JSON. ``status_screen`` makes the
screen.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ingester.client import ClientError, Forbidden, InvalidRequest, Unauthenticated

from .connecting import connect, connections
from .exits import USAGE, CommandFailed, stopped_by_signals
from .printing import print_json, print_line
from .status import ANSWERED_WITHIN_S, ask_all
from .status_screen import DAEMONS, StatusLook, rate_of, screen

EVERY_S, LEAST_S, MOST_S = 2.0, 0.2, 3600.0
KEPT = 60
"""The answers whose rates are plotted."""
LATE_S = 5.0
"""An answer this late is reported as missing, though it may still arrive."""
FINAL = (InvalidRequest, Unauthenticated, Forbidden)
"""Errors that a retry does not help."""


def watch_status(endpoint: str, every_s: float | None, as_json: bool) -> None:
    """Show the status until SIGINT or SIGTERM.

    Args:
        every_s: seconds between two requests; None is ``EVERY_S``.
        as_json: print one JSON object a line; if the daemon does not answer, one with ``endpoint``
            and ``error``.

    Raises:
        CommandFailed: ``every_s`` is not between ``LEAST_S`` and ``MOST_S``.
        ClientError: the daemon refuses, or is unreachable at the start.
    """
    every_s = EVERY_S if every_s is None else every_s
    if not LEAST_S <= every_s <= MOST_S:
        raise CommandFailed(
            f"--watch {every_s:g}: give {LEAST_S:g} to {MOST_S:g} seconds", exit_code=USAGE
        )
    stopped = stopped_by_signals()
    looks = _Looks(endpoint, every_s, stopped)
    looks.begin()
    if as_json or not _is_redrawable():
        for look in looks.each():
            _print_json(endpoint, look) if as_json else _print_block(look)
    else:
        _show(looks, stopped)
    looks.raise_refusal()


def _is_redrawable() -> bool:
    """Return whether the output is a terminal that can be redrawn."""
    return sys.stdout.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


class _Looks:
    """Asks the daemon in a thread, because a signal does not end a call."""

    def __init__(self, endpoint: str, every_s: float, stopped: threading.Event) -> None:
        self._endpoint, self._every_s, self._stopped = endpoint, every_s, stopped
        self._came = threading.Condition()
        self._number = 0
        self._refusal: BaseException | None = None
        self.late_s = every_s + LATE_S
        self.last = StatusLook(None, 0.0, "no answer yet")

    def begin(self) -> None:
        """Start asking."""
        threading.Thread(target=self._ask, name="ingester-status", daemon=True).start()

    def each(self) -> Iterator[StatusLook]:
        """Yield each result as it arrives, until the end."""
        seen = 0
        while not self._stopped.is_set():
            with self._came:
                # With a timeout, because a signal is handled between two waits.
                self._came.wait(timeout=0.0 if self._number > seen else 0.2)
                news, seen = self._number > seen, self._number
            if news and not self._stopped.is_set():
                yield self.last

    def raise_refusal(self) -> None:
        """Raise the error that ended the requests, if there was one."""
        if self._refusal is not None:
            raise self._refusal

    def _ask(self) -> None:
        try:
            daemons = connections(self._endpoint, ANSWERED_WITHIN_S)
            if len(daemons) > 1:
                self._repeat(lambda: {DAEMONS: ask_all(daemons)})
            else:
                with connect(self._endpoint) as client:
                    self._repeat(client.status)
        except BaseException as exc:
            # Raised by the main thread, which would wait for ever otherwise.
            self._refusal = exc
            self._stopped.set()

    def _repeat(self, ask: Callable[[], Mapping[str, Any]]) -> None:
        while not self._stopped.is_set():
            try:
                look = StatusLook(ask(), time.time(), "")
            except ClientError as exc:
                if self.last.status is None or isinstance(exc, FINAL):
                    raise
                look = StatusLook(self.last.status, self.last.at, str(exc), exc.code)
            with self._came:
                self.last = look
                self._number += 1
                self._came.notify_all()
            self._stopped.wait(self._every_s)


def _print_json(endpoint: str, look: StatusLook) -> None:
    status = look.status or {}
    if look.problem:
        # The form of several daemons. The last status was printed when it was current.
        error = {"code": look.code, "message": look.problem}
        print_json({"endpoint": endpoint, "error": error}, indent=-1)
    else:
        print_json(status.get(DAEMONS, status), indent=-1)


def _print_block(look: StatusLook) -> None:
    from rich.console import Console

    # A pipe has no width, so nothing is wrapped.
    console = Console(width=100_000, highlight=False, soft_wrap=True, color_system=None)
    for each in screen(look, deque(), time.time()):
        console.print(each)
    print_line("")


def _show(looks: _Looks, stopped: threading.Event) -> None:
    from rich.console import Console, Group
    from rich.live import Live

    rates: deque[float] = deque(maxlen=KEPT)
    console, seen = Console(highlight=False), 0.0
    with Live(console=console, screen=True, auto_refresh=False, redirect_stderr=False) as live:
        while not stopped.is_set():
            look, now = looks.last, time.time()
            if look.at != seen and look.status is not None:
                seen = look.at
                rates.append(rate_of(look.status))
            if look.status is not None and not look.problem and now > look.at + looks.late_s:
                look = StatusLook(look.status, look.at, "no answer yet")
            live.update(Group(*screen(look, rates, now, console.width)), refresh=True)
            # The age of an old answer keeps counting.
            stopped.wait(0.5)
