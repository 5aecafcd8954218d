"""Takes up the quotas of the settings file when an operator asks for it, by SIGHUP.

Law of this file: settings that cannot be read change nothing, and that is told. Of all settings,
quotas alone are taken up while the daemon runs; any other waits for the next start.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio

from ingester.config.settings import ConfigError, QuotasSettings, Settings
from ingester.quotas.namespaces import Namespaces

log = structlog.get_logger(__name__)


class QuotaReload:
    """Reads the settings again, and has their quotas hold. On the loop."""

    def __init__(self, quotas: QuotasSettings, reread: Callable[[], Settings]) -> None:
        """``reread`` gives the settings of now; it is called in a thread, and blocks."""
        self._quotas = quotas
        self._reread = reread
        self.namespaces: Namespaces | None = None
        """The namespaces whose quotas change; None until the daemon has any."""

    async def look(self, at_once: bool) -> None:
        """Take up other quotas, where an operator asks for it at this moment."""
        if not at_once or self.namespaces is None:
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
