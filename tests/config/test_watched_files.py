"""Watched files that are replaced: no file blocks the daemon, and unreadable ones are reported."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from ingester.config.settings import TlsSettings
from ingester.config.watched_files import WatchedFiles, read_regular
from ingester.server.auth.jwt_tokens import JwksUnreachable, JwtTokens
from ingester.server.auth.tokens import BadTokens, WatchedTokens, change_tokens
from ingester.server.tls import HeldCertificates
from tests.drivers.certificates import Authority
from tests.server.auth.provider import RSA, public, write_keys
from tests.server.auth.test_jwt_tokens import settings
from tests.server.tls.test_held import START

# A read that blocks on a writer fails within seconds.
pytestmark = pytest.mark.timeout(20)


def becomes_a_fifo(path: Path) -> None:
    """Replace the file by a FIFO without a writer."""
    new = path.with_name("fifo")
    os.mkfifo(new, 0o600)
    new.rename(path)


def becomes_a_device(path: Path) -> None:
    """Replace the file by a link to an endless device."""
    path.unlink()
    path.symlink_to("/dev/zero")


def becomes_large(path: Path) -> None:
    """Extend the file beyond every size limit, without using disk space."""
    os.truncate(path, 1 << 40)


SPOILED = {
    "is a FIFO": becomes_a_fifo,
    "is a device": becomes_a_device,
    "is larger than": becomes_large,
}
Look = Callable[[], str]
"""Checks the file; returns the reported problem."""


def tokens(path: Path) -> Look:
    """The daemon's check of ``auth.tokens``."""
    change_tokens(path, lambda kept: kept)
    watched = WatchedTokens(path)

    def look() -> str:
        with suppress(BadTokens):
            watched.look()
        return watched.failure or ""

    return look


def keys(path: Path) -> Look:
    """The daemon's check of ``auth.jwks``."""
    write_keys(path, public(RSA, "r1", "RS256"))
    known = JwtTokens(settings(str(path)), lambda: None)

    def look() -> str:
        with suppress(JwksUnreachable):
            known.refresh()
        return known.failure or ""

    return look


def certificate(path: Path) -> Look:
    """The daemon's check of ``tls.cert``, ``tls.key`` and ``tls.client_ca``."""
    authority = Authority(path.parent / "pki")
    pair = authority.issue("one")
    pair.cert.rename(path)
    held = HeldCertificates(TlsSettings(cert=str(path), key=str(pair.key)), lambda: START)

    async def use(_: object) -> None:
        pass

    def look() -> str:
        trio.run(held.look, True, use)
        return held.reloads.problem or ""

    return look


@pytest.mark.parametrize("spoiled", SPOILED)
@pytest.mark.parametrize("watched", [tokens, keys, certificate])
def test_what_is_no_regular_file_is_told_and_holds_up_nothing(
    watched: Callable[[Path], Look], spoiled: str, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    look = watched(file)
    assert look() == ""
    good, mode = file.read_bytes(), file.stat().st_mode
    SPOILED[spoiled](file)
    told = look()
    assert spoiled in told and str(file) in told
    file.unlink()
    file.write_bytes(good)
    file.chmod(mode)
    assert look() == "", "the good file is taken up again"


def test_a_file_of_any_allowed_size_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345678")
    assert read_regular(file, 8)[0] == b"12345678"
    with pytest.raises(OSError, match="larger than 7 B"):
        read_regular(file, 7)
    becomes_a_fifo(file)
    with pytest.raises(OSError, match="a FIFO"):
        WatchedFiles([file]).read()
