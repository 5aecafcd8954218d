"""A file of tokens, made as ``ingester tokens`` makes it, without a process for each."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from ingester.server.auth.token_file import change_tokens
from ingester.server.auth.tokens import TokenFile, new_token, revoked


class Tokens:
    """A file of tokens, and the secrets that it has not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.secret: dict[str, str] = {}

    def add(self, name: str, *grants: str, expires: datetime | None = None) -> str:
        """Make a token; its id."""
        made, entry = new_token(name, grants, datetime.now(UTC), expires)
        self.secret[name] = made
        change_tokens(self.path, lambda kept: TokenFile(kept.version, [*kept.tokens, entry]))
        return entry.id

    def revoke(self, name: str) -> None:
        """Revoke a token by its name."""
        token_id = self.secret[name].split("_")[1]
        change_tokens(self.path, lambda kept: revoked(kept, token_id, datetime.now(UTC)))
