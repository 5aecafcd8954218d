"""Our tokens: how one is made and found, and the file that stores them.

    igt_<id>_<secret>     id: 12 hex digits        secret: 256 random bits, URL-safe base64
    stored: id, name, SHA-256 of the secret, grants, created, expires, revoked

Only the hash of a secret is stored: 256 random bits cannot be guessed, so that no slow hash is
needed. It is compared in constant time, also for unknown ids.

A file that accounts other than its owner and group can use is refused, and one that cannot be
parsed completely changes nothing: the previous tokens stay in use (``tests/cli/test_tokens.py``).
It is replaced by a rename under a lock, so that concurrent changes are both kept.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from ingester.config.watched_files import read_regular
from ingester.errors import NotAuthenticated
from ingester.server.auth.rights import BadGrant, Caller, parse_grants
from persist.store.local import sync_folder

PREFIX = "igt_"
VERSION = 1
_TOKEN = re.compile(r"igt_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NO_HASH = "0" * 64
MAX_NAME = 128
MODE = 0o640
MOST_BYTES = 64 << 20


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


class Stamp(NamedTuple):
    """Identifies one content of a file without reading it."""

    inode: int
    changed_ns: int
    nbytes: int


class WatchedTokens:
    """The tokens of a file as they are now; a :class:`~ingester.server.auth.access.TokenSource`.

    Args:
        path: the file.

    Raises:
        BadTokens: it cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: Stamp | None = None
        self.failure: str | None = None
        """Why the file cannot be used; the previous tokens are in use then."""
        self._book = self._read()

    def knows(self, token: str) -> bool:
        """Return whether a token begins like one of ours."""
        return token.startswith(PREFIX)

    def caller(self, token: str) -> Caller:
        """Return the caller of this token. Raises :class:`NotAuthenticated`."""
        return self._book.caller(token, datetime.now(UTC))

    def valid(self) -> int:
        """Return the number of tokens that are valid now."""
        return self._book.valid(datetime.now(UTC))

    def look(self, *, again: bool = False) -> bool:
        """Read the file if it has changed; return whether it was read. Blocks briefly.

        Args:
            again: read it even if it seems unchanged.

        Raises:
            BadTokens: it has changed and cannot be used; raised once for each change.
        """
        try:
            stamp = _stamp(self._path.stat())
        except OSError as exc:
            if self._stamp is None and not again:
                return False
            self._stamp, self.failure = None, f"{self._path}: {exc.strerror}"
            raise BadTokens(self.failure) from exc
        if stamp == self._stamp and not again:
            return False
        try:
            self._book = self._read()
        except BadTokens as exc:
            self._stamp, self.failure = stamp, str(exc)
            raise
        self.failure = None
        return True

    def _read(self) -> TokenBook:
        self._stamp, kept = read_tokens(self._path)
        return TokenBook(kept)


def read_tokens(path: Path) -> tuple[Stamp, TokenFile]:
    """Read the file and its stamp. Raises :class:`BadTokens`."""
    try:
        data, found = read_regular(path, MOST_BYTES)
    except OSError as exc:
        raise BadTokens(f"{path}: cannot be read ({exc.strerror})") from exc
    _check_mode(path, found)
    try:
        return _stamp(found), parse_tokens(data)
    except BadTokens as exc:
        raise BadTokens(f"{path}: {exc}") from exc


def change_tokens(path: Path, change: Callable[[TokenFile], TokenFile]) -> None:
    """Apply ``change`` to the file, or create it. Waits for concurrent changes.

    An existing file keeps its mode and owner.

    Raises:
        BadTokens: the file cannot be used, or ``change`` refuses; nothing is changed.
        OSError: the folder cannot be written, or the owner cannot be kept.
    """
    path = path.resolve()  # through a link, its target is replaced
    with _locked(path.with_name(f".{path.name}.lock")):
        found = path.stat() if path.exists() else None
        kept = read_tokens(path)[1] if found is not None else TokenFile(VERSION, [])
        _replace(path, encode_tokens(change(kept)), found)


def _replace(path: Path, data: bytes, before: os.stat_result | None) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            owner = None if before is None else (before.st_uid, before.st_gid)
            if before is not None and owner != (os.geteuid(), os.getegid()):
                os.fchown(descriptor, before.st_uid, before.st_gid)
            # After fchown, which clears bits; independent of the umask.
            os.fchmod(descriptor, MODE if before is None else stat.S_IMODE(before.st_mode))
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        new.rename(path)
        sync_folder(path.parent)
    finally:
        with suppress(FileNotFoundError):
            new.unlink()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _check_mode(path: Path, found: os.stat_result) -> None:
    mode = stat.S_IMODE(found.st_mode)
    if mode & ~MODE:
        raise BadTokens(
            f"{path}: its mode is {mode:04o}; others than its owner and group could use it:"
            f" chmod 0640 {path}"
        )
    if os.geteuid() != 0 and found.st_uid not in (0, os.geteuid()):
        raise BadTokens(f"{path}: it belongs to user {found.st_uid}, not to this process's or root")


def _stamp(found: os.stat_result) -> Stamp:
    # The time of the last change of the file or its mode.
    return Stamp(found.st_ino, found.st_ctime_ns, found.st_size)
