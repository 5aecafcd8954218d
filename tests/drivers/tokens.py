"""A token file, written as ``ingester tokens`` writes it, without a process for each token."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from ingester.server.auth.tokens import TokenFile, change_tokens, new_token, revoked


class Tokens:
    """A token file, and the secrets, which the file does not contain."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.secret: dict[str, str] = {}

    def add(self, name: str, *grants: str, expires: datetime | None = None) -> str:
        """Add a token and return its id."""
        made, entry = new_token(name, grants, datetime.now(UTC), expires)
        self.secret[name] = made
        change_tokens(self.path, lambda kept: TokenFile(kept.version, [*kept.tokens, entry]))
        return entry.id

    def revoke(self, name: str) -> None:
        """Revoke a token by name."""
        token_id = self.secret[name].split("_")[1]
        change_tokens(self.path, lambda kept: revoked(kept, token_id, datetime.now(UTC)))
