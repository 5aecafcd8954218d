"""The token file: read, watched, replaced atomically.

A file that accounts other than its owner and group can use is refused, and one that cannot be
parsed completely changes nothing: the previous tokens stay in use (``tests/cli/test_tokens.py``).
It is replaced by a rename under a lock, so that concurrent changes are both kept.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from ingester.config.watched_files import read_regular
from ingester.server.auth.rights import Caller
from ingester.server.auth.tokens import (
    PREFIX,
    VERSION,
    BadTokens,
    TokenBook,
    TokenFile,
    encode_tokens,
    parse_tokens,
)
from persist.store.local import sync_folder

MODE = 0o640
MOST_BYTES = 64 << 20


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
