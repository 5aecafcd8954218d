"""Files that are taken up while the daemon runs: looked at every two seconds, and by SIGHUP.

Law of this file: what looks is called in the order in which it was added, one after another; one
that fails is logged and keeps no other from its turn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog
import trio

log = structlog.get_logger(__name__)

LOOK_EVERY_S = 2.0

Look = Callable[[bool], Awaitable[None]]
"""Looks for changes and takes them up; told whether an operator asks for it at this moment."""


class Reloading:
    """Owns when files are looked at. On the loop."""

    def __init__(self) -> None:
        self._looks: list[Look] = []
        self._asked = trio.Event()
        self._looked = trio.Event()

    def add(self, look: Look) -> None:
        """Have this called at every look from now on."""
        self._looks.append(look)

    async def ask(self) -> None:
        """Have everything looked at now, as an operator wishes, and return when that is done."""
        looked = self._looked
        self._asked.set()
        await looked.wait()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            with trio.move_on_after(LOOK_EVERY_S):
                await self._asked.wait()
            at_once = self._asked.is_set()
            looked = self._looked
            if at_once:
                self._asked, self._looked = trio.Event(), trio.Event()
            for look in list(self._looks):
                try:
                    await look(at_once)
                except Exception:
                    log.exception("files not looked at", runbook="internal-error")
            if at_once:
                looked.set()
