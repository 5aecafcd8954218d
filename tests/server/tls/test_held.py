"""Changed certificate files: usable ones are loaded, others are ignored and reported once."""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from ingester.config.settings import TlsSettings
from ingester.server.tls import Certificates, HeldCertificates, TlsError
from tests.drivers.certificates import Authority, Pair

START = datetime.datetime.now(datetime.UTC)


class Files:
    """A certificate and its key in a linked folder, as Kubernetes mounts them."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "pki")
        self._link, self._folder = folder / "live", folder
        self._number = 0
        self.now = START
        self.used: list[str] = []
        self.refuse: str | None = None
        self.put(self.authority.issue("one"))
        settings = TlsSettings(cert=f"{self._link}/tls.crt", key=f"{self._link}/tls.key")
        self.held = HeldCertificates(settings, lambda: self.now)

    def put(self, pair: Pair, key: Path | None = None) -> None:
        """Atomically point the link to a new folder."""
        self._number += 1
        folder = self._folder / str(self._number)
        folder.mkdir()
        shutil.copy(pair.cert, folder / "tls.crt")
        shutil.copy(key or pair.key, folder / "tls.key")
        new = self._folder / "new"
        new.symlink_to(folder)
        new.replace(self._link)

    def look(self, *, at_once: bool = False) -> str:
        """Check the files; returns the subject in use."""
        trio.run(self.held.look, at_once, self._use)
        return self.held.current.subject

    async def _use(self, certificates: Certificates) -> None:
        if self.refuse is not None:
            raise TlsError(self.refuse)
        self.used.append(certificates.subject)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_another_pair_is_in_force_for_both_listeners_after_a_look(files: Files) -> None:
    assert files.look() == "CN=one"
    assert files.used == []
    files.put(files.authority.issue("two"))
    assert files.look() == "CN=two"
    assert files.used == ["CN=two"]
    assert files.held.reloads.done == 1


def test_a_key_that_comes_a_moment_later_is_no_fault(files: Files) -> None:
    three, one_key = files.authority.issue("three"), files.authority.issue("one").key
    files.put(three, key=one_key)
    with capture_logs() as logs:
        assert files.look() == "CN=one"
        files.put(three)
        assert files.look() == "CN=three"
    assert [each["event"] for each in logs] == ["certificate taken up"]


def test_what_cannot_be_used_is_told_once_and_leaves_the_old_pair(files: Files) -> None:
    pairs = {
        "the key is not that": (files.authority.issue("four"), files.authority.issue("five").key),
        "has expired": (files.authority.issue("late", days=-1), None),
    }
    for number, (expected, pair) in enumerate(pairs.items(), 1):
        files.put(*pair)
        with capture_logs() as logs:
            assert {files.look() for _ in range(5)} == {"CN=one"}
        assert [each["log_level"] for each in logs] == ["warning"]
        assert expected in logs[0]["error"]
        assert files.held.reloads.failed == number
        assert expected in str(files.held.reloads.problem)
    files.refuse = "gRPC refuses them"
    files.put(files.authority.issue("six"))
    assert files.look(at_once=True) == "CN=one"
    assert files.held.reloads.problem == files.refuse
    files.refuse = None
    assert files.look(at_once=True) == "CN=six"
    assert files.held.reloads.problem is None


def test_missing_files_are_told_and_found_again(files: Files, tmp_path: Path) -> None:
    (tmp_path / "live").rename(tmp_path / "aside")
    assert files.look(at_once=True) == "CN=one"
    assert "No such file" in str(files.held.reloads.problem)
    (tmp_path / "aside").rename(tmp_path / "live")
    files.look()
    assert files.held.reloads.problem is None


def test_a_key_that_every_account_can_read_is_warned_of(files: Files, tmp_path: Path) -> None:
    (tmp_path / "live" / "tls.key").chmod(0o644)
    with capture_logs() as logs:
        files.look(at_once=True)
    assert [(each["event"], each["mode"]) for each in logs] == [
        ("others can read the key", "0o644")
    ]


def test_a_certificate_that_ends_soon_is_warned_of_once_a_day(files: Files) -> None:
    warned = []
    for day in (15, 17, 17.5, 18.5, 40):
        files.now = START + datetime.timedelta(days=day)
        with capture_logs() as logs:
            files.held.warn_of_end()
        warned.append([each["days"] for each in logs])
    # The certificate is valid for thirty days.
    assert warned == [[], [13.0], [], [11.5], [-10.0]]
