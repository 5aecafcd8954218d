"""Our tokens: how one is made, stored and found.

    igt_<id>_<secret>     id: 12 hex digits        secret: 256 random bits, URL-safe base64
    stored: id, name, SHA-256 of the secret, grants, created, expires, revoked

Pure, except for random bits. Only the hash of a secret is stored: 256 random bits cannot be
guessed, so that no slow hash is needed. It is compared in constant time, also for unknown ids.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from ingester.errors import NotAuthenticated
from ingester.server.auth.rights import BadGrant, Caller, parse_grants

PREFIX = "igt_"
VERSION = 1
_TOKEN = re.compile(r"igt_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NO_HASH = "0" * 64
MAX_NAME = 128


class BadTokens(ValueError):
    """The token file cannot be used, or a change to it was refused; the message says why."""


class TokenEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A stored token; times are ISO 8601 with a time zone."""

    id: str
    name: str
    sha256: str
    grants: list[str]
    created: str
    expires: str | None = None
    revoked: str | None = None

    def ended(self, now: datetime) -> str | None:
        """Return why the token is no longer valid; None if it is valid."""
        if self.revoked is not None:
            return f"was revoked at {self.revoked}"
        if self.expires is not None and _time("expires", self.expires) <= now:
            return f"expired at {self.expires}"
        return None


UNKNOWN = (
    "the token is not known here: 'ingester tokens list' shows those that are,"
    " 'ingester tokens add' makes one"
)


class TokenFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file. Both fields are required: a truncated file must not read as no tokens."""

    version: int
    tokens: list[TokenEntry]


def new_token(
    name: str, grants: Iterable[str], created: datetime, expires: datetime | None = None
) -> tuple[str, TokenEntry]:
    """Return a new token, which is stored nowhere, and its entry.

    Raises:
        BadTokens: the name is empty, too long or not printable.
        BadGrant: a grant cannot be parsed, or there is none.
    """
    _check_name(name)
    texts = [str(grant) for grant in parse_grants(grants)]
    token_id = secrets.token_hex(6)
    secret = base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()
    entry = TokenEntry(
        token_id, name, _hash(secret), texts, _text(created), _text(expires) if expires else None
    )
    return f"{PREFIX}{token_id}_{secret}", entry


def revoked(kept: TokenFile, token_id: str, at: datetime) -> TokenFile:
    """Return the file with this token revoked. Raises :class:`BadTokens` for an unknown id."""
    if token_id not in {entry.id for entry in kept.tokens}:
        raise BadTokens(f"there is no token with the id {token_id[:MAX_NAME]!r}")
    entries = [
        msgspec.structs.replace(entry, revoked=_text(at))
        if entry.id == token_id and entry.revoked is None
        else entry
        for entry in kept.tokens
    ]
    return TokenFile(kept.version, entries)


def parse_tokens(data: bytes) -> TokenFile:
    """Parse the token file. Raises :class:`BadTokens` if any part of it is invalid."""
    try:
        kept = msgspec.json.decode(data, type=TokenFile)
    except msgspec.MsgspecError as exc:
        raise BadTokens(f"it is not a file of tokens: {exc}") from exc
    if kept.version != VERSION:
        raise BadTokens(f"it is of version {kept.version}; this program knows {VERSION}")
    seen: set[str] = set()
    for entry in kept.tokens:
        try:
            _check(entry)
        except (BadGrant, ValueError) as exc:
            raise BadTokens(f"token {entry.id[:MAX_NAME]!r}: {exc}") from exc
        if entry.id in seen:
            raise BadTokens(f"token {entry.id!r} appears twice")
        seen.add(entry.id)
    return kept


def encode_tokens(kept: TokenFile) -> bytes:
    """Return the bytes that :func:`parse_tokens` reads, one line for each field."""
    return msgspec.json.format(msgspec.json.encode(kept), indent=2) + b"\n"


class TokenBook:
    """The tokens of a file, looked up by their text. Immutable."""

    def __init__(self, kept: TokenFile) -> None:
        self._entries = {
            entry.id: (
                entry,
                Caller(entry.name, entry.id, parse_grants(entry.grants), _end_of(entry)),
            )
            for entry in kept.tokens
        }

    def caller(self, token: str, now: datetime) -> Caller:
        """Return the caller of this token.

        Raises:
            NotAuthenticated: unknown, revoked or expired; only the secret's holder hears which.
        """
        found = _TOKEN.fullmatch(token)
        token_id, secret = found.groups() if found else ("", "")
        entry, caller = self._entries.get(token_id, (None, None))
        kept = entry.sha256 if entry is not None else _NO_HASH
        same = hmac.compare_digest(_hash(secret), kept)
        if entry is None or caller is None or not same:
            raise NotAuthenticated(UNKNOWN)
        if (why := entry.ended(now)) is not None:
            raise NotAuthenticated(
                f"the token {entry.id} ({entry.name}) {why}:"
                " 'ingester tokens add' makes another one"
            )
        return caller

    def valid(self, now: datetime) -> int:
        """Return the number of tokens that are neither revoked nor expired."""
        return sum(entry.ended(now) is None for entry, _ in self._entries.values())


def _end_of(entry: TokenEntry) -> float | None:
    return None if entry.expires is None else _time("expires", entry.expires).timestamp()


def _check(entry: TokenEntry) -> None:
    if not re.fullmatch(r"[0-9a-f]{12}", entry.id):
        raise BadTokens("its id is not 12 hex digits")
    if not _SHA256.fullmatch(entry.sha256):
        raise BadTokens("its sha256 is not 64 hex digits")
    _check_name(entry.name)
    parse_grants(entry.grants)
    for name in ("created", "expires", "revoked"):
        if (text := getattr(entry, name)) is not None:
            _time(name, text)


def _check_name(name: str) -> None:
    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise BadTokens(f"name {name[:MAX_NAME]!r} is not 1 to {MAX_NAME} characters to be shown")


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _time(name: str, text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as exc:
        raise BadTokens(f"its {name} {text[:40]!r} is not a time in ISO 8601") from exc
    if found.tzinfo is None:
        raise BadTokens(f"its {name} {text[:40]!r} has no time zone")
    return found


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
