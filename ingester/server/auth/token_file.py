"""The file of tokens: read, watched, replaced whole.

Law of this file: a file that others than its owner and group can read or write is not used, and one
that is not understood whole changes nothing: the tokens from before stay. It is replaced by a
rename, under a lock, so that it is whole at any moment and two changes at once are both in it.
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
    """What tells one content of a file from another, without reading it."""

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
        """Why the file cannot be used as it is; the tokens are those of before."""
        self._book = self._read()

    def knows(self, token: str) -> bool:
        """Say whether a token begins like one of ours."""
        return token.startswith(PREFIX)

    def caller(self, token: str) -> Caller:
        """Return who shows this token. Raises :class:`Unauthenticated`."""
        return self._book.caller(token, datetime.now(UTC))

    def valid(self) -> int:
        """The number of tokens that are valid now."""
        return self._book.valid(datetime.now(UTC))

    def look(self, *, again: bool = False) -> bool:
        """Read the file if it has changed; say whether the tokens are others now. Blocks shortly.

        Args:
            again: read it even if it seems the same.

        Raises:
            BadTokens: it has changed, and cannot be used. The tokens stay; told once a change.
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
    """Read the file, with what it looked like then. Raises :class:`BadTokens`."""
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
    """Replace the file by what ``change`` makes of it, or make it. Blocks for others' changes.

    A file that is there keeps its mode and its owner.

    Raises:
        BadTokens: the file that is there cannot be used, or ``change`` says so; nothing is changed.
        OSError: the folder cannot be written, or the owner cannot be kept.
    """
    path = path.resolve()  # of a link, the file that it leads to is replaced
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
            # After the owner: a change of that takes bits away. Whatever the umask is.
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
