"""``ingester tokens``: changes and shows the token file. No daemon has to run."""

from __future__ import annotations

import datetime
from pathlib import Path

from ingester.config.settings import ConfigError
from ingester.config.sources import load
from ingester.config.units import parse_duration
from ingester.server.auth.rights import BadGrant
from ingester.server.auth.tokens import (
    BadTokens,
    TokenFile,
    change_tokens,
    new_token,
    read_tokens,
    revoked,
)

from .exits import USAGE, CommandFailed
from .printing import print_json, print_line, print_table


def add_token(
    file: Path | None,
    config: Path | None,
    name: str,
    what: tuple[list[str], str | None],
    as_json: bool,
) -> None:
    """Create a token with these grants and validity, add it to the file, and print it.

    Raises:
        CommandFailed: a grant or duration is invalid, or the file cannot be used.
    """
    path, now = _path(file, config), _now()
    grants, expires = what
    try:
        token, entry = new_token(name, grants, now, _end(now, expires))
        change_tokens(path, lambda kept: TokenFile(kept.version, [*kept.tokens, entry]))
    except BadGrant as exc:
        raise CommandFailed(str(exc), USAGE) from exc
    except (BadTokens, OSError) as exc:
        raise _failed(path, exc) from exc
    if as_json:
        print_json({"id": entry.id, "name": name, "token": token, "expires": entry.expires})
    else:
        print_line(token)


def print_tokens(file: Path | None, config: Path | None, as_json: bool) -> None:
    """Print the tokens without their hashes. Raises :class:`CommandFailed`."""
    path, now = _path(file, config), _now()
    try:
        _, kept = read_tokens(path)
    except BadTokens as exc:
        raise CommandFailed(str(exc)) from exc
    if as_json:
        print_json(
            [
                {name: getattr(entry, name) for name in ("id", "name", "grants", *_TIMES)}
                | {"valid": entry.ended(now) is None}
                for entry in kept.tokens
            ]
        )
        return
    rows = [
        (e.id, e.name, " ".join(e.grants), e.created, e.expires, e.ended(now) or "is valid")
        for e in kept.tokens
    ]
    print_table(["id", "name", "grants", "created", "expires", "state"], rows)


def revoke_token(file: Path | None, config: Path | None, token_id: str, as_json: bool) -> None:
    """Revoke a token. Raises :class:`CommandFailed` for an unknown id."""
    path = _path(file, config)
    try:
        if not path.exists():
            raise BadTokens(f"{path}: is not there")
        change_tokens(path, lambda kept: revoked(kept, token_id, _now()))
    except (BadTokens, OSError) as exc:
        raise _failed(path, exc) from exc
    if as_json:
        print_json({"id": token_id, "revoked": True})
    else:
        print_line(f"token {token_id} is revoked")


_TIMES = ("created", "expires", "revoked")


def _path(file: Path | None, config: Path | None) -> Path:
    if file is not None:
        return file
    settings = load(file=config).settings
    if not settings.auth.tokens:
        raise ConfigError("auth.tokens", "is not set: name the file of tokens, or say --file FILE")
    return Path(settings.auth.tokens)


def _end(now: datetime.datetime, expires: str | None) -> datetime.datetime | None:
    if expires is None:
        return None
    try:
        seconds = parse_duration(expires)
        if seconds < 1:
            raise ValueError(f"{expires!r} is over before it begins")
        return now + datetime.timedelta(seconds=seconds)
    except (ValueError, OverflowError) as exc:
        raise CommandFailed(f"--expires: {exc}", USAGE) from exc


def _failed(path: Path, error: Exception) -> CommandFailed:
    return CommandFailed(f"{path}: {error.strerror}" if isinstance(error, OSError) else str(error))


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
