"""Opens a daemon's access control from its settings, and reloads tokens and keys.

Tokens, keys or an audit log that cannot be used end the start. Later they are reported (log, audit
log, status, metric), and the previous ones stay in use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import structlog
import trio

from ingester.config.settings import AuditSettings, AuthSettings, ConfigError
from ingester.observability.status import TokenStatus
from ingester.server.auth.access import Access
from ingester.server.auth.audit import AuditFailed, AuditLog
from ingester.server.auth.jwt_tokens import MAX_AGE_S, JwksUnreachable, JwtTokens
from ingester.server.auth.token_file import WatchedTokens
from ingester.server.auth.tokens import BadTokens

log = structlog.get_logger(__name__)


class Doorkeeper:
    """Owns the access control and its sources of tokens.

    Raises:
        ConfigError: tokens, keys, or the audit log cannot be used.
    """

    def __init__(self, auth: AuthSettings, audit: AuditSettings) -> None:
        try:
            self.audit = AuditLog(audit.file)
        except AuditFailed as exc:
            raise ConfigError("audit.file", f"{audit.file}: {exc.strerror}") from exc
        self._asked = trio.Event()
        # Threads of its own, so that a hanging store does not keep a revoked token valid.
        self._threads = trio.CapacityLimiter(2)
        self._tokens: WatchedTokens | None = None
        self._jwks: JwtTokens | None = None
        self.failed_readings = 0
        """Failed reloads of tokens or keys since the start."""
        self.access = Access(self.audit, auth.open)
        if auth.tokens:
            try:
                self._tokens = WatchedTokens(Path(auth.tokens))
            except BadTokens as exc:
                raise ConfigError("auth.tokens", str(exc)) from exc
            self.access.trust(self._tokens)
        if auth.jwks:
            self._jwks = JwtTokens(auth, self.access.changed)
            self.access.trust(self._jwks)

    def status(self) -> TokenStatus:
        """Return the status of the tokens and the audit log."""
        return TokenStatus(
            valid=self.valid_tokens(),
            failed_readings=self.failed_readings,
            problems=self.failures(),
            audited=self.audit.lines,
            audit_left_out=self.audit.left_out,
        )

    def valid_tokens(self) -> int:
        """Return the number of tokens in the file that are valid now."""
        return 0 if self._tokens is None else self._tokens.valid()

    def failures(self) -> list[str]:
        """Return why tokens or keys cannot be read now; empty if they can."""
        sources = (self._tokens, self._jwks)
        return [each.failure for each in sources if each is not None and each.failure]

    async def look(self, at_once: bool) -> None:
        """Read the tokens if they have changed; ``at_once`` reloads everything."""
        if at_once:
            self._asked.set()
            try:
                self.audit.reopen()
            except AuditFailed as exc:
                log.error("audit log not opened", error=str(exc), runbook="audit-not-written")
        if self._tokens is not None:
            await self._told("tokens", partial(self._tokens.look, again=at_once))
        await trio.to_thread.run_sync(self.access.end_those_over, limiter=self._threads)

    async def run(self) -> None:
        """Reload a provider's keys when they are old, and on request."""
        while self._jwks is not None:
            with trio.move_on_after(MAX_AGE_S):
                await self._asked.wait()
            self._asked = trio.Event()
            await self._told("token keys", self._jwks.refresh)

    async def _told(self, what: str, look: Callable[[], bool]) -> None:
        try:
            others = await trio.to_thread.run_sync(look, limiter=self._threads)
        except (BadTokens, JwksUnreachable) as exc:
            self.failed_readings += 1
            self.audit.noted("tokens reload", "failed", message=str(exc))
            log.warning(f"{what} not read", error=str(exc), runbook="tokens-not-read")
            return
        if others:
            self.access.changed()
            self.audit.noted("tokens reload", "done", valid=self.valid_tokens())
            log.info(f"{what} read", valid=self.valid_tokens())
