"""Reloads files while the daemon runs: checked every two seconds, and on SIGHUP.

The checks run in the order in which they were added, one after another; a failing one is logged and
does not stop the others. Of the settings, only quotas are reloaded, and only on SIGHUP; all others
need a restart.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog
import trio

from ingester.config.settings import ConfigError, QuotasSettings, Settings
from ingester.quotas.namespaces import Namespaces

log = structlog.get_logger(__name__)

CHECK_EVERY_S = 2.0

Check = Callable[[bool], Awaitable[None]]
"""Checks for changes and loads them; the argument is true on SIGHUP."""


class Reloading:
    """Runs the checks. On the loop."""

    def __init__(self) -> None:
        self._checks: list[Check] = []
        self._asked = trio.Event()
        self._checked = trio.Event()

    def add(self, check: Check) -> None:
        """Call this at every check."""
        self._checks.append(check)

    async def ask(self) -> None:
        """Check everything now, and return when that is done."""
        checked = self._checked
        self._asked.set()
        await checked.wait()

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            with trio.move_on_after(CHECK_EVERY_S):
                await self._asked.wait()
            asked = self._asked.is_set()
            checked = self._checked
            if asked:
                self._asked, self._checked = trio.Event(), trio.Event()
            for check in list(self._checks):
                try:
                    await check(asked)
                except Exception:
                    log.exception("files not looked at", runbook="internal-error")
            if asked:
                checked.set()


class QuotaReload:
    """Reloads the quotas of the settings on SIGHUP. On the loop."""

    def __init__(self, quotas: QuotasSettings, reread: Callable[[], Settings]) -> None:
        """``reread`` reads the current settings; it is called in a thread and may block."""
        self._quotas = quotas
        self._reread = reread
        self.namespaces: Namespaces | None = None
        """The namespaces that get the quotas; None before the daemon has any."""

    async def check(self, asked: bool) -> None:
        """Load changed quotas, if asked. Settings that cannot be read change nothing."""
        if not asked or self.namespaces is None:
            return
        try:
            quotas = (await trio.to_thread.run_sync(self._reread)).quotas
        except ConfigError as exc:
            log.warning("settings not read again", error=str(exc), runbook="settings-not-read")
            return
        if quotas != self._quotas:
            self._quotas = quotas
            self.namespaces.set_quotas(quotas)
            log.info("quotas taken up", namespaces=sorted(quotas.namespaces))
