"""A daemon reachable from other machines is refused before it creates anything, or warned about."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ingester.config.settings import ConfigError
from ingester.config.sources import load
from ingester.daemon.security import Security
from ingester.server.tls import TlsError
from tests.cli.conftest import check_refused, run_command

OPEN = {"flight.listen": "0.0.0.0:0", "http.listen": "[::]:0"}


def test_a_start_that_would_let_everybody_in_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    command = ["serve", "--data-dir", "data", "--flight", "0.0.0.0:0", "--http", "127.0.0.1:0"]
    for _ in range(2):  # a refusal must not make a second start succeed
        refused = run_command(*command, cwd=tmp_path)
        check_refused(refused, 2, "flight.listen: 0.0.0.0:0 can be reached from other machines")
        assert b"--insecure" in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_files_of_tls_that_cannot_be_used_end_the_start_by_their_setting(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for name, expected in (("none", "No such file"), ("empty", "tls.cert: the file has no usable")):
        files = {"tls.cert": str(tmp_path / name), "tls.key": str(tmp_path / name)}
        with pytest.raises(TlsError, match=expected):
            Security(load(files, {}).settings)


def test_who_lets_everybody_in_on_purpose_is_told_so() -> None:
    with pytest.raises(ConfigError, match="without TLS"):
        Security(load(OPEN, {}).settings)
    with capture_logs() as logs:
        security = Security(load(OPEN | {"insecure": True}, {}).settings)
    (warning,) = [each for each in logs if each["log_level"] == "warning"]
    assert warning["runbook"] == "insecure"
    assert warning["listeners"] == list(OPEN)
    told = security.status()
    assert (told.insecure, told.tls, told.tokens, told.exposed) == (True, False, False, list(OPEN))
    assert not Security(load({}, {}).settings).status().insecure
